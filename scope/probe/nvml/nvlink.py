"""NVLink: monotonic bytes of each link and direction, errors, states and speeds, in every generation's own way."""

from __future__ import annotations

from typing import Final

from scope.probe.nvml.fields import FieldReader, Key, Report
from scope.probe.nvml.library import GpuHandle, NvmlFailure, sysfs_address, text
from scope.probe.nvml.tables import (
    NVLINK_BYTES,
    NVLINK_CALL_ERRORS,
    NVLINK_FEC_BINS,
    NVLINK_REMOTE_TYPES,
    NVLINK_SCOPED_ERRORS,
    NVLINK_VERSIONS,
)
from scope.probe.plausible import is_plausible
from scope.probe.records import NvlinkReading

MAX_LINKS: Final = 72
_BYTES_PER_MB: Final = 1_000_000
_STATE_FIELDS: Final = ("NVLINK_GET_STATE", "NVLINK_GET_SPEED", "NVLINK_GET_VERSION", "NVLINK_COUNT_SYMBOL_BER")


class NvlinkReader:
    """Reads the links of one GPU.

    The number of links is asked for and never taken from a constant, which has grown with each generation.

    Args:
        gpu: The GPU.
    """

    def __init__(self, gpu: GpuHandle) -> None:
        self._gpu = gpu
        self._links: list[int] | None = None
        self._bytes: FieldReader | None = None
        self._health: FieldReader | None = None
        self._states: dict[int, int] = {}
        self._speeds: dict[int, int] = {}
        self._versions: dict[int, str] = {}
        self._errors: dict[int, dict[str, int]] = {}
        self._fec: dict[int, dict[int, int]] = {}
        self._symbol_error_ratios: dict[int, float] = {}
        self._remotes: dict[int, tuple[str | None, str | None]] = {}
        self._refused_calls: set[int] = set()

    def read(self, report: Report, *, slow: bool) -> list[NvlinkReading]:
        """Return the reading of each link.

        Args:
            report: Told of values that failed.
            slow: Also ask for what changes rarely (states, speeds, errors); otherwise the last answers stand.

        Raises:
            NvmlFailure: The GPU failed as a whole.
        """
        if self._links is None:
            self._find_links(report)
        elif slow:
            self._read_health(report)
        if not self._links or self._bytes is None:
            return []
        readings = {link: self._reading(link) for link in self._links}
        for (name, link), value in self._bytes.read(report).items():
            attribute, scale = NVLINK_BYTES[name]
            if is_plausible(value, "counter"):
                # The byte fields of NVLink 5 stand last in the table and so replace the coarser KiB.
                setattr(readings[link], attribute, int(value) * scale)
            else:
                report("implausible", f"{name}[{link}]")
        return list(readings.values())

    def probe_again(self) -> None:
        """Ask once more for all that was absent: a change of mode may have brought links, or taken them."""
        self._links = None
        self._refused_calls.clear()

    def _find_links(self, report: Report) -> None:
        count = FieldReader(self._gpu, [("NVLINK_LINK_COUNT", 0)]).read(report)
        links = min(int(count.get(("NVLINK_LINK_COUNT", 0), 0)), MAX_LINKS)
        self._links = list(range(links))
        self._bytes = self._fields([*NVLINK_BYTES])
        self._health = self._fields([*_STATE_FIELDS, *NVLINK_SCOPED_ERRORS, *NVLINK_FEC_BINS])
        # New readers have no older answers to fall back on.
        self._read_health(report)

    def _fields(self, names: list[str]) -> FieldReader:
        keys: list[Key] = [(name, link) for name in names for link in self._links or []]
        return FieldReader(self._gpu, keys)

    def _reading(self, link: int) -> NvlinkReading:
        remote_pci, remote_type = self._remotes.get(link, (None, None))
        return NvlinkReading(
            link,
            state=self._states.get(link),
            speed_bytes_per_s=self._speeds.get(link),
            version=self._versions.get(link),
            errors=self._errors.get(link, {}),
            symbol_error_ratio=self._symbol_error_ratios.get(link),
            remote_pci=remote_pci,
            remote_type=remote_type,
            fec=self._fec.get(link, {}),
        )

    def _read_health(self, report: Report) -> None:
        if self._health is None:
            return
        self._states.clear()
        self._speeds.clear()
        self._errors = {link: {} for link in self._links or []}
        self._fec = {link: {} for link in self._links or []}
        for (name, link), value in self._health.read(report).items():
            if not self._keep(name, link, value):
                report("implausible", f"{name}[{link}]")
        for link in self._links or []:
            self._read_state_by_call(link)
            self._read_errors_by_call(link, report)
            if link not in self._remotes:
                self._remotes[link] = self._read_remote(link)

    def _keep(self, name: str, link: int, value: float) -> bool:
        if name == "NVLINK_GET_STATE":
            if good := is_plausible(value, "link_state"):
                self._states[link] = int(value)
        elif name == "NVLINK_GET_SPEED":
            if good := is_plausible(value, "link_mb_per_s"):
                self._speeds[link] = int(value) * _BYTES_PER_MB
        elif name == "NVLINK_GET_VERSION":
            good = True
            if int(value) in NVLINK_VERSIONS:
                self._versions[link] = NVLINK_VERSIONS[int(value)]
        elif name == "NVLINK_COUNT_SYMBOL_BER":
            good = True
            self._symbol_error_ratios[link] = decode_error_ratio(int(value))
        elif name in NVLINK_FEC_BINS:
            if good := is_plausible(value, "counter"):
                self._fec[link][NVLINK_FEC_BINS[name]] = int(value)
        elif good := is_plausible(value, "counter32"):
            self._errors[link][NVLINK_SCOPED_ERRORS[name]] = int(value)
        return good

    def _read_state_by_call(self, link: int) -> None:
        """Ask the older call where the field does not exist: 0 or 1."""
        if link in self._states:
            return
        try:
            self._states[link] = int(self._gpu.ask("nvmlDeviceGetNvLinkState", link))
        except NvmlFailure as failure:
            if failure.lost:
                raise

    def _read_errors_by_call(self, link: int, report: Report) -> None:
        """Ask the older call for the counters that no field gave, until the GPU says that it has none."""
        for counter, kind in NVLINK_CALL_ERRORS.items():
            if kind in self._errors[link] or counter in self._refused_calls:
                continue
            try:
                value = int(self._gpu.ask("nvmlDeviceGetNvLinkErrorCounter", link, counter))
            except NvmlFailure as failure:
                if failure.lost:
                    raise
                if failure.absent:
                    self._refused_calls.add(counter)
                else:
                    report(failure.name, f"nvmlDeviceGetNvLinkErrorCounter[{link}]")
                continue
            if is_plausible(value, "counter32"):
                self._errors[link][kind] = value
            else:
                report("implausible", f"{kind}[{link}]")

    def _read_remote(self, link: int) -> tuple[str | None, str | None]:
        address = kind = None
        try:
            address = sysfs_address(text(self._gpu.ask("nvmlDeviceGetNvLinkRemotePciInfo", link).busId))
            kind = NVLINK_REMOTE_TYPES.get(int(self._gpu.ask("nvmlDeviceGetNvLinkRemoteDeviceType", link)))
        except NvmlFailure as failure:
            if failure.lost:
                raise
        return address or None, kind


def decode_error_ratio(packed: int) -> float:
    """Return a bit error ratio from NVML's packing: mantissa in bits 8 to 11, negative exponent in bits 0 to 7.

    Examples:
        >>> decode_error_ratio((15 << 8) | 6)
        1.5e-05
    """
    return ((packed >> 8) & 0xF) / 10.0 ** (packed & 0xFF)
