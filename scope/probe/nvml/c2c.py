"""C2C: the links between a GPU and the CPU on its board (Grace and later)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.probe.nvml.fields import FieldReader, Key, Report
from scope.probe.nvml.tables import C2C_ERRORS
from scope.probe.plausible import is_plausible
from scope.probe.records import C2cReading

if TYPE_CHECKING:
    from scope.probe.nvml.library import GpuHandle

MAX_LINKS: Final = 64
_BYTES_PER_MB: Final = 1_000_000
_STATUS: Final = "C2C_LINK_GET_STATUS"
_SPEED: Final = "C2C_LINK_GET_MAX_BW"
_POWER: Final = "C2C_LINK_POWER_STATE"
_KINDS: Final = {_STATUS: "flag", _SPEED: "link_mb_per_s", _POWER: "flag"}


class C2cReader:
    """Reads the C2C links of one GPU; a GPU without them is asked once.

    Args:
        gpu: The GPU.
    """

    def __init__(self, gpu: GpuHandle) -> None:
        self._gpu = gpu
        self._links: int | None = None
        self._fields: FieldReader | None = None

    def read(self, report: Report) -> list[C2cReading]:
        """Return the reading of each link.

        Args:
            report: Told of values that failed.

        Raises:
            NvmlFailure: The GPU failed as a whole.
        """
        if self._links is None:
            self._find(report)
        if not self._links or self._fields is None:
            return []
        readings = [C2cReading(link) for link in range(self._links)]
        for (name, link), value in self._fields.read(report).items():
            if not is_plausible(value, _KINDS.get(name, "counter32")):
                report("implausible", f"{name}[{link}]")
            elif name == _STATUS:
                readings[link].up = int(value)
            elif name == _SPEED:
                readings[link].speed_bytes_per_s = int(value) * _BYTES_PER_MB
            elif name == _POWER:
                readings[link].low_power = int(value)
            else:
                readings[link].errors[C2C_ERRORS[name]] = int(value)
        return readings

    def probe_again(self) -> None:
        """Ask once more whether there are links."""
        self._links = None

    def _find(self, report: Report) -> None:
        count = FieldReader(self._gpu, [("C2C_LINK_COUNT", 0)]).read(report)
        self._links = min(max(0, int(count.get(("C2C_LINK_COUNT", 0), 0))), MAX_LINKS)
        keys: list[Key] = [(name, link) for name in (*_KINDS, *C2C_ERRORS) for link in range(self._links)]
        self._fields = FieldReader(self._gpu, keys)
