"""Scripts of whole nodes, one a generation: what each supports, and values that give every figure a size of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from scope.errors import UsageError
from scope.testing.fake_nvml.build import Script

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Generation(NamedTuple):
    """What a generation of GPUs has.

    Attributes:
        name: Product name.
        memory_bytes: Device memory.
        num_links: NVLinks.
        link_mb_per_s: Speed of a link.
        link_version: NVML's enumeration value of the NVLink version.
        gpm: Has GPM.
        row_remap: Remaps rows.
        scoped_errors: Has the link error fields by scope.
        byte_fields: Has NVLink 5's byte counters.
        throttle_times: Has the newer throttle time fields.
        pcie_generation: PCIe generation.
        fabric_form: Newest form of the fabric's record that the driver has; 0 for GPUs without a fabric.
        num_c2c: Links to the CPU of the board.
    """

    name: str
    memory_bytes: int
    num_links: int
    link_mb_per_s: int
    link_version: int
    gpm: bool
    row_remap: bool
    scoped_errors: bool
    byte_fields: bool
    throttle_times: bool
    pcie_generation: int
    fabric_form: int = 0
    num_c2c: int = 0


GENERATIONS: Final = {
    "volta": Generation("Tesla V100-SXM2-32GB", 32 << 30, 6, 25_781, 2, False, False, False, False, False, 3),
    "ampere": Generation("NVIDIA A100-SXM4-80GB", 80 << 30, 12, 26_562, 4, False, True, True, False, False, 4),
    "hopper": Generation("NVIDIA H100 80GB HBM3", 80 << 30, 18, 26_562, 6, True, True, True, False, True, 5, 2),
    "blackwell": Generation("NVIDIA B200", 180 << 30, 18, 53_125, 7, True, True, False, True, True, 5, 3),
    "grace": Generation("NVIDIA GB200", 186 << 30, 18, 53_125, 7, True, True, False, True, True, 5, 3, 2),
}


def make_node(
    path: Path, *, generation: str | Sequence[str] = "hopper", num_gpus: int = 8, link_rate: float = 0
) -> Script:
    """Write the script of a node.

    Every figure has a value that tells which GPU, link and counter it is: KiB counters of link L of GPU G start at
    `1_000_000 * (G + 1) + 1_000 * L + field`.

    Args:
        path: The script's file.
        generation: A key of `GENERATIONS`, or one for each GPU.
        num_gpus: How many GPUs, when all are of one generation.
        link_rate: KiB (bytes on Blackwell) that each link counter grows by a second; 0 leaves them still.

    Raises:
        UsageError: No such generation.
    """
    kinds = [generation] * num_gpus if isinstance(generation, str) else list(generation)
    for name in kinds:
        if name not in GENERATIONS:
            message = f"no generation {name!r}; there are {', '.join(GENERATIONS)}"
            raise UsageError(message)
    script = Script(path)
    script.set("sys.nvmlSystemGetDriverVersion", "570.124.06")
    script.set("sys.nvmlDeviceGetCount", len(kinds))
    for gpu, kind in enumerate(GENERATIONS[name] for name in kinds):
        _add_basics(script, gpu, kind)
        _add_fields(script, gpu, kind)
        _add_links(script, gpu, kind, link_rate)
        _add_neighbours(script, gpu, kind)
    script.write()
    return script


def _add_basics(script: Script, gpu: int, kind: Generation) -> None:
    name = f"g{gpu}"
    used = (gpu + 1) << 30
    reserved = 600 << 20
    script.set(f"{name}.nvmlDeviceGetUUID", f"GPU-00000000-0000-0000-0000-{gpu:012d}")
    script.set(f"{name}.nvmlDeviceGetName", kind.name)
    script.set(f"{name}.nvmlDeviceGetSerial", f"165012300000{gpu}")
    script.set(f"{name}.nvmlDeviceGetPciInfo", f"00000000:{0x10 + gpu:02X}:00.0")
    script.set(f"{name}.nvmlDeviceGetUtilizationRates", 90 + gpu, 40)
    script.set(
        f"{name}.nvmlDeviceGetMemoryInfo", kind.memory_bytes, kind.memory_bytes - used - reserved, used + reserved
    )
    script.set(
        f"{name}.nvmlDeviceGetMemoryInfo_v2", kind.memory_bytes, kind.memory_bytes - used - reserved, used, reserved
    )
    # No GPU that is made for training alone has had a video encoder since Ampere.
    script.set(f"{name}.nvmlDeviceGetDecoderUtilization", 20 + gpu, 1_000_000)
    if kind.name == GENERATIONS["volta"].name:
        script.set(f"{name}.nvmlDeviceGetEncoderUtilization", 30 + gpu, 1_000_000)
    script.set(f"{name}.nvmlDeviceGetPowerUsage", 400_000 + gpu)
    script.set(f"{name}.nvmlDeviceGetEnforcedPowerLimit", 700_000)
    script.set(f"{name}.nvmlDeviceGetClockInfo.1", 1_980)
    script.set(f"{name}.nvmlDeviceGetClockInfo.2", 2_619)
    script.set(f"{name}.nvmlDeviceGetTemperature.0", 50 + gpu)
    script.set(f"{name}.nvmlDeviceGetCurrentClocksEventReasons", 4)
    script.set(f"{name}.nvmlDeviceGetCurrPcieLinkGeneration", kind.pcie_generation)
    script.set(f"{name}.nvmlDeviceGetMaxPcieLinkGeneration", kind.pcie_generation)
    script.set(f"{name}.nvmlDeviceGetCurrPcieLinkWidth", 16)
    script.set(f"{name}.nvmlDeviceGetMaxPcieLinkWidth", 16)
    script.set(f"{name}.nvmlDeviceGetComputeRunningProcesses", 4_000 + gpu)
    if kind.name != GENERATIONS["volta"].name:
        script.set(f"{name}.nvmlDeviceGetMigMode", 0)
    if kind.gpm:
        script.set(f"{name}.nvmlDeviceGetMarginTemperature", 35)
        script.set(f"{name}.nvmlGpmQueryDeviceSupport", 1)
        for metric in (1, 2, 3, 5, 10, 11, 12, 13):
            script.set(f"{name}.gpm.{metric}", 10 + metric + gpu / 10)


def _add_fields(script: Script, gpu: int, kind: Generation) -> None:
    for number in (3, 4, 5, 6):
        script.field(gpu, number, 0)
    script.field(gpu, 83, 7_000_000 + gpu)
    script.field(gpu, 94, 2, value_type=1)
    for number in (74, 76):
        script.field(gpu, number, 1_000_000_000 * number)
    if kind.row_remap:
        for number in (142, 143, 144, 145):
            script.field(gpu, number, 0, value_type=1)
        script.field(gpu, 82, 60 + gpu, value_type=1)
    if kind.throttle_times:
        for number in (269, 270, 271):
            script.field(gpu, number, 1_000_000_000 * number)
        script.field(gpu, 185, 350_000 + gpu, value_type=1)
        script.field(gpu, 230, 0, value_type=1)
        script.field(gpu, 197, 3_000_000_000 + gpu)
        script.field(gpu, 198, 2_000_000_000 + gpu)


def _add_links(script: Script, gpu: int, kind: Generation, rate: float) -> None:
    now = int(time.time())
    script.field(gpu, 91, kind.num_links, value_type=1)
    for link in range(kind.num_links):
        for number in (138, 139, 140, 141):
            base = 1_000_000 * (gpu + 1) + 1_000 * link + number
            script.field(gpu, number, f"+{base}:{rate}@{now}" if rate else base, scope=link)
        script.field(gpu, 164, kind.link_mb_per_s, scope=link, value_type=1)
        script.field(gpu, 166, kind.link_version, scope=link, value_type=1)
        script.field(gpu, 165, 1, scope=link, value_type=1)
        script.set(f"g{gpu}.nvmlDeviceGetNvLinkState.{link}", 1)
        script.set(f"g{gpu}.nvmlDeviceGetNvLinkRemotePciInfo.{link}", f"00000000:{0xC0 + link % 4:02X}:00.0")
        script.set(f"g{gpu}.nvmlDeviceGetNvLinkRemoteDeviceType.{link}", 2)
        if kind.byte_fields:
            for number in (202, 204):
                base = 1_024 * (1_000_000 * (gpu + 1) + 1_000 * link) + number
                script.field(gpu, number, f"+{base}:{rate}@{now}" if rate else base, scope=link)
            for number in (206, 207, 208, 209, 210, 211, 212, 213, 214, 221):
                script.field(gpu, number, 0, scope=link)
            script.field(gpu, 222, (15 << 8) | 12, scope=link)
            # Most words needed no repair, some a little, none the most that can be repaired.
            for place in range(16):
                script.field(gpu, 235 + place, 10_000 * (gpu + 1) + 100 * link if place < 3 else 0, scope=link)
            continue
        for counter in range(5):
            script.set(f"g{gpu}.nvmlDeviceGetNvLinkErrorCounter.{link}.{counter}", 0)
        if kind.scoped_errors:
            for number in (161, 162, 163):
                script.field(gpu, number, 0, scope=link)


def _add_neighbours(script: Script, gpu: int, kind: Generation) -> None:
    """Give the GPU its place in the fabric behind the switches, and its links to the CPU."""
    if kind.fabric_form:
        # Joined; bandwidth, routes and timeouts not bad (2 each), configuration without fault (1).
        health = 0b1_10_10_10_10
        script.set(f"g{gpu}.nvmlDeviceGetGpuFabricInfoV", kind.fabric_form, 3, 0, gpu % 2, health, 1, 7)
    if kind.num_c2c:
        script.field(gpu, 170, kind.num_c2c, value_type=1)
    for link in range(kind.num_c2c):
        script.field(gpu, 171, 1, scope=link, value_type=1)
        script.field(gpu, 172, 45_000, scope=link, value_type=1)
        for number in (231, 232, 233):
            script.field(gpu, number, 100 * gpu + 10 * link + number - 231, scope=link)
        script.field(gpu, 234, 0, scope=link, value_type=1)
