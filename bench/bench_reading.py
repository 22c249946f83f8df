"""Reading a trace: speed against a bare JSON parser, memory against the size of the JSON, the cache, many files.

Speed is JSON by processor seconds, decompression included, since other programs may run beside it.
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
NUM_SMALL = 1024
SIZES_MB = (50, 200, 1000)
MOST_REPEATED_MB = 200
"""Peaks differ by a few MB from run to run, so one run tells enough of what is larger."""
MB = 1e6

# What one fresh process does with a file: CPU and wall seconds, and the peak of its memory above that after imports.
PROBE = """
import json, resource, sys, time
from scope.trace import load_rank
def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) * 1024
before, before_mapped = status("VmRSS"), status("RssFile")
wall, cpu = time.perf_counter(), time.process_time()
load_rank(sys.argv[1])
print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu,
                  "peak": status("VmHWM") - before, "mapped": status("RssFile") - before_mapped}))
"""

SIMDJSON_PACKAGE = "pysimdjson==7.0.2"
# `parse` makes no Python objects, `loads` makes those that a reader would have to look at.
YARDSTICK = """
import gzip, json, statistics, sys, time
import simdjson
text = gzip.open(sys.argv[1]).read()
times = {"parse": [], "loads": []}
for _ in range(5):
    start = time.process_time(); simdjson.Parser().parse(text); times["parse"].append(time.process_time() - start)
    start = time.process_time(); simdjson.loads(text); times["loads"].append(time.process_time() - start)
print(json.dumps({key: statistics.median(values) for key, values in times.items()}))
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


def fresh(path: Path, *, cores: str | None = None, repeats: int = REPEATS) -> dict[str, float]:
    """Return the medians of a fresh process's figures."""
    command = [sys.executable, "-c", PROBE, str(path)]
    if cores is not None:
        command = ["taskset", "-c", cores, *command]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def speed(path: Path) -> list[Row]:
    """Compare reading with bare parsing of the same bytes."""
    size = len(uncompressed(path)) / MB
    ours = fresh(path, cores="0")
    name = path.name.removesuffix(".json.gz")
    rows = [
        Row(f"{name}: JSON by processor seconds", size / ours["cpu"], "MB/s", ">= 150"),
        Row(f"{name}: JSON by wall seconds of one core", size / ours["wall"], "MB/s"),
        Row(f"{name}: wall time with all cores", fresh(path)["wall"], "s", "<= 0.35"),
    ]
    interpreter = yardstick()
    if interpreter:
        command = ["taskset", "-c", "0", interpreter, "-c", YARDSTICK, str(path)]
        bare = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        rows.append(Row(f"{name}: speed by simdjson Parser.parse", bare["parse"] / ours["cpu"], "ratio", ">= 0.5"))
        rows.append(Row(f"{name}: speed by simdjson loads", bare["loads"] / ours["cpu"], "ratio", ">= 0.5"))
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
        figures = fresh(path, repeats=REPEATS if size_mb < MOST_REPEATED_MB else 1)
        size = path.stat().st_size
        rows.append(Row(f"{size_mb} MB: peak memory above imports", figures["peak"] / size, "of the JSON", "<= 0.8"))
        # Code of the libraries that is run for the first time: as much for every size, shared, and free to drop.
        mapped = figures["mapped"]
        rows.append(Row(f"{size_mb} MB: of it pages of libraries' files", mapped / size, "of the JSON"))
        rows.append(Row(f"{size_mb} MB: the rest", (figures["peak"] - mapped) / size, "of the JSON", "<= 0.8"))
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
    """Compare many ranks with one rank's work divided by the cores."""
    from scope.trace import ReadOptions, load

    num_ranks = 8
    source = uncompressed(SHARED / TRACES[0])
    for rank in range(num_ranks):
        text = source.replace(b'"rank": 1', f'"rank": {rank}'.encode(), 1)
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(text, 1))
    options = ReadOptions(use_cache=False)
    cores = len(os.sched_getaffinity(0))
    one = median_seconds(lambda: load(folder / "rank0.json.gz", options=options), 3)
    in_turn = median_seconds(lambda: load(folder, options=options, processes=1), 3)
    all_ranks = median_seconds(lambda: load(folder, options=options, processes=cores), 3)
    share = all_ranks * cores / one / num_ranks
    return [
        Row(f"{num_ranks} ranks by {num_ranks} times one, divided by {cores} cores", share, "ratio", "<= 1"),
        Row(f"{num_ranks} ranks side by side by one after the other", all_ranks / in_turn, "ratio", "<= 1"),
    ]


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
    rows = [row for name in TRACES for row in speed(SHARED / name)]
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
