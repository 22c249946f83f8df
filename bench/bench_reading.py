"""Reading a trace: speed against a bare JSON parser, memory against the size of the JSON, the cache, many files.

Speed is JSON by processor seconds, decompression included, since other programs may run beside it. Each reading is the
first of a fresh process.

simdjson parses JSON that lies in memory already. Against it stands our reading of the same JSON from a file that is not
compressed, so that both do the same work on the same bytes, but for the copy from the file, which ours includes. Both
are compared as the first of a fresh process, and as the median of repeated ones in one process, which no longer pay for
the first touch of their libraries' pages; nothing is cached in either. The limit holds for the first reading: a command
reads a file once, and what it waits for includes those pages. The other ratio stands beside it without a limit.

Peak memory is that above the process after its imports. A library's import maps its code without touching most of it;
the pages are read in when the code first runs, are as many for every size, shared by all processes, and free to drop.
So that they count as part of the imports, a tiny trace is read before the baseline is taken; the rows `with the
libraries' pages` show the peak of a process that has read nothing before, with all that it touches.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_analyze import environment

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 5
SHARED = Path(os.environ.get("SCOPE_SHARED_TRACES", Path(__file__).parent.parent.parent / "shared" / "traces"))
TRACES = ("hta/v100_train_rank1of2.json.gz", "tracelens/h100_owlv2.json.gz")
SMALL_TRACE = "hta/sampled_rank-0.json.gz"
TINY_TRACE = "hta/a100_alexnet.json.gz"
NUM_SMALL = 1024
NUM_RANKS = 64
NUM_FEW = 8
MANY_REPEATS = 3
SIZES_MB = (50, 200, 1000)
MOST_REPEATED_MB = 200
"""Peaks differ by a few MB from run to run, so one run tells enough of what is larger."""
MB = 1e6

# What one fresh process does with a file: CPU and wall seconds, and the peak of its memory above that before. With a
# second file, that one is read before anything is measured.
PROBE = """
import json, sys, time
from scope.trace import load_rank
def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) * 1024
for first in sys.argv[2:]:
    load_rank(first)
before, before_mapped = status("VmRSS"), status("RssFile")
wall, cpu = time.perf_counter(), time.process_time()
load_rank(sys.argv[1])
print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu,
                  "peak": status("VmHWM") - before, "mapped": status("RssFile") - before_mapped}))
"""

SIMDJSON_PACKAGE = "pysimdjson==7.0.2"
# `parse` makes no Python objects, `loads` makes those that a reader would have to look at. A reading by Scope begins
# at the file, and so does `file`; the others have the bytes in memory.
YARDSTICK = """
import json, statistics, sys, time
import simdjson
began = time.process_time()
text = open(sys.argv[1], "rb").read()
in_memory = time.process_time()
simdjson.Parser().parse(text)
end = time.process_time()
times = {"parse": [], "loads": []}
for _ in range(5):
    start = time.process_time(); simdjson.Parser().parse(text); times["parse"].append(time.process_time() - start)
for _ in range(5):
    start = time.process_time(); simdjson.loads(text); times["loads"].append(time.process_time() - start)
medians = {key: statistics.median(values) for key, values in times.items()}
print(json.dumps({"file": end - began, "first": end - in_memory, **medians}))
"""
AGAIN = """
import json, statistics, sys, time
from scope.trace import load_rank
times = []
for _ in range(6):
    start = time.process_time(); load_rank(sys.argv[1]); times.append(time.process_time() - start)
print(json.dumps({"cpu": statistics.median(times[1:])}))
"""

MANY = """
import json, pathlib, sys, time
from scope.trace import ReadOptions, load
folder, number, processes = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ranks = {str(folder / f"rank{rank}.json.gz"): rank for rank in range(number)}
start = time.perf_counter()
job = load(list(ranks), ranks=ranks, options=ReadOptions(use_cache=False), processes=processes)
print(json.dumps({"wall": time.perf_counter() - start, "ranks": len(job.ranks)}))
"""


@dataclass(frozen=True)
class Row:
    """One figure; a target is a relation and a number, such as `>= 150`."""

    what: str
    value: float
    unit: str
    target: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the row as `bench/run.py` takes it."""
        relation, _, limit = self.target.partition(" ")
        is_met = (self.value >= float(limit) if relation == ">=" else self.value <= float(limit)) if limit else None
        return {
            "figure": self.what,
            "value": f"{self.value:.4g}",
            "unit": self.unit,
            "limit": self.target,
            "ok": is_met,
        }


def median_seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median of the wall seconds of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def uncompressed(path: Path) -> bytes:
    """Return the JSON of a compressed trace."""
    with gzip.open(path) as file:
        return file.read()


def fresh(
    path: Path, *, first: Path | None = None, cores: str | None = None, repeats: int = REPEATS
) -> dict[str, float]:
    """Return the medians of a fresh process's figures; `first` is read before anything is measured."""
    command = [sys.executable, "-c", PROBE, str(path), *([] if first is None else [str(first)])]
    if cores is not None:
        command = ["taskset", "-c", cores, *command]
    return medians([printed(command) for _ in range(repeats)])


def printed(command: list[str]) -> dict[str, float]:
    """Return the figures that a process prints."""
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the medians of the figures of several processes."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def beside_simdjson(plain: Path, interpreter: str) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return the figures of first readings, of repeated ones, and of simdjson, whose processes take turns."""
    pinned = ["taskset", "-c", "0"]
    commands = (
        [*pinned, sys.executable, "-c", PROBE, str(plain)],
        [*pinned, sys.executable, "-c", AGAIN, str(plain)],
        [*pinned, interpreter, "-c", YARDSTICK, str(plain)],
    )
    rounds = [[printed(command) for command in commands] for _ in range(REPEATS)]
    first, again, bare = (medians(list(runs)) for runs in zip(*rounds, strict=True))
    return first, again, bare


def speed(path: Path, folder: Path) -> list[Row]:
    """Compare reading with bare parsing of the same bytes."""
    text = uncompressed(path)
    size = len(text) / MB
    ours = fresh(path, cores="0")
    name = path.name.removesuffix(".json.gz")
    rows = [
        Row(f"{name}: JSON by processor seconds", size / ours["cpu"], "MB/s", ">= 150"),
        Row(f"{name}: JSON by wall seconds of one core", size / ours["wall"], "MB/s"),
        Row(f"{name}: wall time with all cores", fresh(path)["wall"], "s", "<= 0.35"),
    ]
    interpreter = yardstick()
    if interpreter:
        plain = folder / f"{name}.json"
        plain.write_bytes(text)
        first, again, bare = beside_simdjson(plain, interpreter)
        what = f"{name}, not compressed"
        rows += [
            Row(f"{what}: JSON by processor seconds", size / first["cpu"], "MB/s"),
            Row(
                f"{what}: speed by simdjson Parser.parse, both from the file, both the first",
                bare["file"] / first["cpu"],
                "ratio",
                ">= 0.5",
            ),
            Row(f"{what}: the same, simdjson with the bytes in memory", bare["first"] / first["cpu"], "ratio"),
            Row(f"{what}: the same, both repeated in one process", bare["parse"] / again["cpu"], "ratio"),
            Row(f"{what}: speed by simdjson loads", bare["loads"] / first["cpu"], "ratio", ">= 0.5"),
        ]
    return rows


def yardstick() -> str | None:
    """Return the interpreter that has simdjson: the one that SCOPE_BENCH_SIMDJSON names, else one made on first use."""
    named = os.environ.get("SCOPE_BENCH_SIMDJSON")
    if named:
        return named
    folder = environment("simdjson", SIMDJSON_PACKAGE)
    return str(folder / "bin" / "python") if folder else None


def repeated(source: Path, target: Path, size_mb: int) -> None:
    """Write a trace of about the wanted size by repeating the events of another."""
    text = uncompressed(source)
    first, last = text.index(b"[", text.index(b'"traceEvents"')) + 1, text.rindex(b"]")
    with target.open("wb") as file:
        file.write(text[:first])
        file.write(b",".join([text[first:last]] * max(1, round(size_mb * MB / len(text)))))
        file.write(text[last:])


def memory(folder: Path) -> list[Row]:
    """Compare peak memory with the size of the JSON."""
    rows = []
    for size_mb in SIZES_MB:
        path = folder / f"{size_mb}.json"
        repeated(SHARED / TRACES[0], path, size_mb)
        repeats = REPEATS if size_mb < MOST_REPEATED_MB else 1
        size = path.stat().st_size
        warm = fresh(path, first=SHARED / TINY_TRACE, repeats=repeats)
        cold = fresh(path, repeats=repeats)
        rows += [
            Row(f"{size_mb} MB: peak memory above imports", warm["peak"] / size, "of the JSON", "<= 0.8"),
            Row(f"{size_mb} MB: the same with the libraries' pages", cold["peak"] / size, "of the JSON"),
            Row(f"{size_mb} MB: of it such pages", cold["mapped"] / size, "of the JSON"),
        ]
        path.unlink()
    return rows


def cache(folder: Path) -> list[Row]:
    """Compare a first reading with one from the cache."""
    from scope.trace import ReadOptions, load

    os.environ["SCOPE_CACHE_DIR"] = str(folder)
    rows = []
    for name in TRACES:
        path = SHARED / name
        cold = median_seconds(lambda path=path: load(path, options=ReadOptions(use_cache=False)))
        load(path)
        warm = median_seconds(lambda path=path: load(path))
        rows.append(Row(f"{path.name}: cold by warm", cold / warm, "ratio", ">= 5"))
    return rows


def many(folder: Path) -> list[Row]:
    """Compare many ranks side by side with one rank's work, as often, divided by the cores.

    One rank's work is the mean of the same ranks read one after the other by processes that keep them all: each is
    another file, whose tables need memory of their own. As many such processes run as there are cores, each with its
    share, and nothing is handed over between them: cores that are all busy slow one another down, whatever they do, as
    the mean of one process alone shows beside. Each measurement is of fresh processes after their imports, what it
    takes to start others counts, and the ways take turns.
    """
    content = gzip.compress(uncompressed(SHARED / TRACES[0]), 1)
    for rank in range(NUM_RANKS):
        (folder / f"rank{rank}.json.gz").write_bytes(content)
    cores = len(os.sched_getaffinity(0))
    rows: list[Row] = []
    for number in (NUM_RANKS, NUM_FEW):
        rounds = [
            (
                read_at_once(folder, number, processes=1, at_once=1),
                read_at_once(folder, number // cores, processes=1, at_once=cores),
                read_at_once(folder, number, processes=cores, at_once=1),
            )
            for _ in range(MANY_REPEATS)
        ]
        alone, shared, side_by_side = (statistics.median(times) for times in zip(*rounds, strict=True))
        each = shared / (number // cores)
        rows += [
            Row(f"{number} ranks in turn by one process that keeps them: mean of one", alone / number, "s"),
            Row(f"... by {cores} processes at once, each its share", each, "s"),
            Row(
                f"{number} ranks side by side by {number} times the latter mean, divided by {cores} cores",
                side_by_side / (number * each / cores),
                "ratio",
                "<= 1",
            ),
            Row("... by the former", side_by_side / (alone / cores), "ratio"),
        ]
    return rows


def read_at_once(folder: Path, number: int, *, processes: int, at_once: int) -> float:
    """Return the seconds of the slowest of some programs that each load as many ranks, in as many processes."""
    command = [sys.executable, "-c", MANY, str(folder), str(number), str(processes)]
    with ThreadPoolExecutor(at_once) as pool:
        return max(found["wall"] for found in pool.map(printed, [command] * at_once))


def many_small(folder: Path) -> list[Row]:
    """Read many small files, of which each one's fixed costs count."""
    from scope.trace import ReadOptions, load

    source = uncompressed(SHARED / SMALL_TRACE)
    small = load(SHARED / SMALL_TRACE, options=ReadOptions(use_cache=False)).ranks[0]
    ranks = {}
    for rank in range(NUM_SMALL):
        path = folder / f"{rank}.json.gz"
        path.write_bytes(gzip.compress(source, 1))
        ranks[path.name] = rank
    cores = len(os.sched_getaffinity(0))
    options = ReadOptions(use_cache=False)
    seconds = median_seconds(lambda: load(folder, ranks=ranks, options=options, processes=cores), 1)
    what = f"{NUM_SMALL} files of {small.quality.events_read} events"
    return [Row(what, seconds, "s"), Row("each of them, by the cores", seconds / NUM_SMALL * cores * 1000, "ms")]


def measure() -> list[Row]:
    """Return all figures of reading."""
    with tempfile.TemporaryDirectory() as place:
        rows = [row for name in TRACES for row in speed(SHARED / name, Path(place))]
    with tempfile.TemporaryDirectory() as place:
        rows += memory(Path(place))
        rows += cache(Path(place) / "cache")
    with tempfile.TemporaryDirectory() as place:
        rows += many(Path(place))
    with tempfile.TemporaryDirectory() as place:
        rows += many_small(Path(place))
    return rows


if __name__ == "__main__":
    print(json.dumps([row.as_json() for row in measure()]))
