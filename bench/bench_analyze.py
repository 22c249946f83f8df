"""Scope against HolisticTraceAnalysis and TraceLens on two real traces of 54 and 56 MB of JSON, cold.

Each tool runs in an environment of its own. In turn, five times, every run a new process; medians of wall-clock time,
and beside them of processor time. "in process" leaves out interpreter and imports: reading, breakdown and overlap,
which are the figures that HTA gives; Scope reads the tables that these need (`ReadOptions.tables`), while
bench_reading tells what reading all of them takes. "command" is the whole process: Scope's `scope analyze`, HTA's
three calls in a script, TraceLens's report. "cold" means without Scope's cache of parsed tables; the bytecode of the
modules is there for both tools, as after an installation, and a run of Scope that is not counted comes first.

AMD's TraceLens is on no package index (a package of that name there is another project) and is measured only where
SCOPE_BENCH_TRACELENS names a wheel or a checkout. Elsewhere no ratio to it is given; how long its report took on the
same files on another machine stands in the results as what it is, an outside figure.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
CACHE = HERE / ".cache"
ROUNDS = int(os.environ.get("SCOPE_BENCH_ROUNDS", "5"))
TRACES = Path(os.environ.get("SCOPE_SHARED_TRACES", HERE.parents[1] / "shared" / "traces"))
FILES = {"v100": "hta/v100_train_rank1of2.json.gz", "owlv2": "tracelens/h100_owlv2.json.gz"}
HTA_PACKAGE = "HolisticTraceAnalysis==0.5.0"
# An installed Scope has its bytecode; a source tree keeps it beside the benchmark, whatever the environment says.
BYTECODE = {"PYTHONPYCACHEPREFIX": str(CACHE / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
TRACELENS_PACKAGE = os.environ.get("SCOPE_BENCH_TRACELENS")
TRACELENS_ELSEWHERE = {"v100": 8.27, "owlv2": 16.12}
"""Seconds of its whole report on these files, measured on 2 shared cores of another machine; never part of a ratio."""

HTA = """
import sys, time
from hta.trace_analysis import TraceAnalysis
begin, busy = time.perf_counter(), time.process_time()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
print("SECONDS", time.perf_counter() - begin, time.process_time() - busy)
"""
SCOPE = """
import sys, time
from scope.analysis.breakdown import compute_part_breakdowns
from scope.analysis.options import Options
from scope.analysis.windows import build_timeline
from scope.trace import ReadOptions, load
from scope.trace.schema import DeviceEvents
begin, busy = time.perf_counter(), time.process_time()
job = load(sys.argv[1], options=ReadOptions(use_cache=False, tables=(DeviceEvents,)))
for rank in job.ranks:
    compute_part_breakdowns(build_timeline(rank, options=Options()))
print("SECONDS", time.perf_counter() - begin, time.process_time() - busy)
"""


class Taken(NamedTuple):
    """Seconds of wall-clock and of processor time; the latter say more on a machine that others use too."""

    wall: float
    cpu: float


def main() -> None:
    """Measure, and print the result as JSON."""
    if not TRACES.is_dir():
        sys.exit(f"needs the folder of shared traces at {TRACES} (or SCOPE_SHARED_TRACES)")
    peers = {"hta": environment("hta", HTA_PACKAGE), "tracelens": None}
    if TRACELENS_PACKAGE is not None:
        peers["tracelens"] = environment("tracelens", TRACELENS_PACKAGE)
    rows: list[dict[str, Any]] = []
    for label, file in FILES.items():
        found = measure(label, str(TRACES / file), peers)
        medians = {name: Taken(*map(statistics.median, zip(*times, strict=True))) for name, times in found.items()}
        for name, median in medians.items():
            rows.append(row(f"{label}: {name}", median.wall, f"s (CPU {median.cpu:.3g} s)"))
        rows += judged(label, medians)
        if peers["tracelens"] is None:
            figure = f"{label}: TraceLens command, not measured here: an outside figure of another machine"
            rows.append(row(figure, TRACELENS_ELSEWHERE[label], "s"))
    helped = statistics.median(run([scope(), "--help"], **BYTECODE).cpu for _ in range(ROUNDS))
    rows.append(row("`scope --help`, CPU", helped, "s", limit="< 0.15", ok=helped < 0.15))
    print(json.dumps(rows) if "--json" in sys.argv else json.dumps(rows, indent=2))


def measure(label: str, file: str, peers: dict[str, Path | None]) -> dict[str, list[Taken]]:
    """Return the times of all tools on one file, taken in turn."""
    cold = [scope(), "analyze", file, "--no-cache"]
    with tempfile.TemporaryDirectory() as folder:
        cached = [scope(), "analyze", file]
        cache = {**BYTECODE, "SCOPE_CACHE_DIR": f"{folder}/cache"}
        run(cached, **cache)  # fills the cache, and warms up
        hta = peers["hta"] / "bin" / "python"
        runs = {
            "scope in process": lambda: inner([sys.executable, "-c", SCOPE, file], **BYTECODE),
            "HTA in process": lambda: inner([hta, "-c", HTA, file]),
            "scope command": lambda: run(cold, **BYTECODE),
            "scope command, cached": lambda: run(cached, **cache),
            "HTA command": lambda: run([hta, "-c", HTA, file]),
        }
        if peers["tracelens"] is not None:
            report = peers["tracelens"] / "bin" / "TraceLens_generate_perf_report_pytorch"
            tracelens = [report, "--profile_json_path", file, "--output_csvs_dir", folder]
            runs["TraceLens command"] = lambda: run(tracelens)
        found: dict[str, list[Taken]] = {name: [] for name in runs}
        for number in range(ROUNDS):
            for name, each in runs.items():
                found[name].append(each())
                taken = found[name][-1]
                said = f"  {label} round {number + 1}: {name} {taken.wall:.3f} s, CPU {taken.cpu:.3f} s"
                print(said, file=sys.stderr)
    return found


def judged(label: str, medians: dict[str, Taken]) -> list[dict[str, Any]]:
    """Return the goals for one file."""
    command = medians["scope command"]
    wanted = 20 if label == "v100" else 10
    wanted_of = {"HTA in process": 15, "HTA command": 6, "TraceLens command": wanted}
    rows: list[dict[str, Any]] = []
    for name, least in wanted_of.items():
        if name in medians:
            own = medians["scope in process"] if "process" in name else command
            ratio, busy = medians[name].wall / own.wall, medians[name].cpu / own.cpu
            unit = f"times (CPU {busy:.3g})"
            rows.append(row(f"{label}: {name} / Scope's", ratio, unit, limit=f">= {least}", ok=ratio >= least))
    return rows


def row(figure: str, value: float, unit: str, *, limit: str = "", ok: bool | None = None) -> dict[str, Any]:
    """Return one row for bench/run.py."""
    return {"figure": figure, "value": f"{value:.3g}", "unit": unit, "limit": limit, "ok": ok}


def scope() -> Path:
    """Return the `scope` command of this environment."""
    return Path(sys.executable).parent / "scope"


def run(command: list, **variables: str) -> Taken:
    """Run a command and return how long it took."""
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    taken, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stderr[-2000:]}")
    return Taken(taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def inner(command: list, **variables: str) -> Taken:
    """Run a script and return the seconds that it measured itself."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    lines = [line for line in done.stdout.splitlines() if line.startswith("SECONDS ")]
    if done.returncode != 0 or not lines:
        sys.exit(f"{command[0]} failed:\n{done.stderr[-2000:]}")
    _, wall, cpu = lines[-1].split()
    return Taken(float(wall), float(cpu))


def environment(name: str, package: str) -> Path:
    """Return an environment with a peer, made on first use."""
    folder = CACHE / name
    ready = folder / ".ready"
    if not ready.exists():
        print(f"  installing {package} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", package]
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode != 0:
            sys.exit(f"{package} cannot be installed")
        ready.touch()
    return folder


if __name__ == "__main__":
    main()
