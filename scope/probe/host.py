"""The node itself: CPU time, memory, pressure (PSI), kills for lack of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.probe.records import HostReading, Pressure
from scope.units import NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from scope.probe.tree import Problems, Tree

_MODES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_TICK_NS: Final = NS_PER_S // 100
_MEMORY: Final = frozenset(
    {"MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "SwapTotal", "SwapFree", "Shmem", "Dirty", "Writeback"}
    | {"Mlocked", "Unevictable"}
)
_HUGE_PAGES: Final = ("HugePages_Total", "HugePages_Free")
_HUGE_PAGE_SIZE: Final = "Hugepagesize"
_BYTES_PER_KB: Final = 1_024


def read_host(tree: Tree, problems: Problems) -> HostReading:
    """Return the node's figures; each source that fails is counted and leaves its figures out.

    Args:
        tree: Where proc lies.
        problems: Told of every source that failed.
    """
    reading = HostReading()
    for path, take in (
        ("/proc/stat", _take_stat),
        ("/proc/meminfo", _take_memory),
        ("/proc/loadavg", _take_load),
        ("/proc/vmstat", _take_vmstat),
    ):
        try:
            take(reading, tree.read(path, limit=1 << 20))
        except OSError as error:
            problems.add_os_error(error, where=path)
        except (ValueError, IndexError) as error:
            problems.add("invalid", where=path, message=str(error))
    for resource in ("cpu", "memory", "io"):
        _take_pressure(reading, resource, tree, problems)
    return reading


def _take_stat(reading: HostReading, text: str) -> None:
    for line in text.splitlines():
        words = line.split()
        if words[0] == "cpu":
            # The kernel's tick for user space is 1/100 s on every architecture that has NVIDIA GPUs.
            reading.cpu_ns = {mode: int(ticks) * _TICK_NS for mode, ticks in zip(_MODES, words[1:], strict=False)}
        elif words[0].startswith("cpu"):
            reading.num_cpus += 1
        elif words[0] == "btime":
            reading.boot_time_ns = int(words[1]) * NS_PER_S


def _take_memory(reading: HostReading, text: str) -> None:
    pages: dict[str, int] = {}
    page_bytes: int | None = None
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if name in _HUGE_PAGES and len(words) == 1:
            pages[name] = int(words[0])
        elif name in _MEMORY and len(words) == 2 and words[1] == "kB":
            reading.memory_bytes[name] = int(words[0]) * _BYTES_PER_KB
        elif name == _HUGE_PAGE_SIZE and len(words) == 2 and words[1] == "kB":
            page_bytes = int(words[0]) * _BYTES_PER_KB
    if page_bytes is not None:
        # These two alone are counts, of pages of the default size.
        reading.memory_bytes.update({name: count * page_bytes for name, count in pages.items()})


def _take_load(reading: HostReading, text: str) -> None:
    reading.load1_ratio = float(text.split()[0])


def _take_vmstat(reading: HostReading, text: str) -> None:
    for line in text.splitlines():
        if line.startswith("oom_kill "):
            reading.oom_kills = int(line.split()[1])


def _take_pressure(reading: HostReading, resource: str, tree: Tree, problems: Problems) -> None:
    path = f"/proc/pressure/{resource}"
    try:
        totals: dict[str, int] = {}
        for line in tree.read(path).splitlines():
            kind, *pairs = line.split()
            totals[kind] = next(int(pair[6:]) for pair in pairs if pair.startswith("total=")) * NS_PER_US
        reading.pressure.append(Pressure(resource, totals["some"], totals.get("full")))
    except FileNotFoundError:
        return  # the kernel was built or booted without PSI
    except OSError as error:
        # EOPNOTSUPP is how a kernel booted with psi=0 answers.
        if tree.exists(path):
            problems.add_os_error(error, where=path)
    except (ValueError, KeyError, StopIteration) as error:
        problems.add("invalid", where=path, message=repr(error))
