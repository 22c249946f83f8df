"""Scope against HolisticTraceAnalysis and TraceLens on two real traces of 54 and 56 MB of JSON, cold.

Each tool runs in an environment of its own. In turn, five times, every run a new process; medians of wall-clock time.
"in process" leaves out interpreter and imports: reading, breakdown and overlap, which are the figures that HTA gives.
"command" is the whole process: Scope's `scope analyze`, HTA's three calls in a script, TraceLens's report.
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

HERE = Path(__file__).parent
CACHE = HERE / ".cache"
ROUNDS = int(os.environ.get("SCOPE_BENCH_ROUNDS", "5"))
TRACES = Path(os.environ.get("SCOPE_SHARED_TRACES", HERE.parents[1] / "shared" / "traces"))
FILES = {"v100": "hta/v100_train_rank1of2.json.gz", "owlv2": "tracelens/h100_owlv2.json.gz"}
PEERS = {"hta": ["HolisticTraceAnalysis==0.5.0"], "tracelens": ["TraceLens==0.7.0"]}

HTA = """
import sys, time
from hta.trace_analysis import TraceAnalysis
begin = time.perf_counter()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
print("SECONDS", time.perf_counter() - begin)
"""
SCOPE = """
import sys, time
from scope.analysis.breakdown import compute_part_breakdowns
from scope.analysis.options import Options
from scope.analysis.windows import build_timeline
from scope.trace import ReadOptions, load
begin = time.perf_counter()
job = load(sys.argv[1], options=ReadOptions(use_cache=False))
for rank in job.ranks:
    compute_part_breakdowns(build_timeline(rank, options=Options()))
print("SECONDS", time.perf_counter() - begin)
"""


def main() -> None:
    """Measure, and print the result as JSON."""
    if not TRACES.is_dir():
        sys.exit(f"needs the folder of shared traces at {TRACES} (or SCOPE_SHARED_TRACES)")
    peers = {name: environment(name, packages) for name, packages in PEERS.items()}
    rows, goals = [], []
    for label, file in FILES.items():
        found = measure(label, str(TRACES / file), peers)
        medians = {name: statistics.median(times) for name, times in found.items()}
        rows += [
            [label, name, f"{median:.3f}", f"{min(found[name]):.3f}", f"{max(found[name]):.3f}"]
            for name, median in medians.items()
        ]
        goals += judged(label, medians)
    helped = [cpu_of([scope(), "--help"]) for _ in range(ROUNDS)]
    goals.append(goal("`scope --help`, CPU seconds", statistics.median(helped), at_most=0.15))
    print(
        json.dumps(
            {
                "title": "Analysis of one trace, against HolisticTraceAnalysis 0.5.0 and TraceLens 0.7.0",
                "columns": ["trace", "what", "median s", "min s", "max s"],
                "rows": rows,
                "goals": goals,
                "notes": [line for line in (__doc__ or "").splitlines()[2:] if line],
            }
        )
    )


def measure(label: str, file: str, peers: dict[str, Path]) -> dict[str, list[float]]:
    """Return the times of all tools on one file, taken in turn."""
    cold = [scope(), "analyze", file, "--no-cache"]
    with tempfile.TemporaryDirectory() as folder:
        tracelens = [
            peers["tracelens"] / "bin" / "TraceLens_generate_perf_report_pytorch",
            "--profile_json_path", file, "--output_csvs_dir", folder,
        ]  # fmt: skip
        cached = [scope(), "analyze", file]
        cache = {"SCOPE_CACHE_DIR": f"{folder}/cache"}
        run(cached, **cache)
        runs = {
            "scope in process": lambda: inner([sys.executable, "-c", SCOPE, file]),
            "HTA in process": lambda: inner([peers["hta"] / "bin" / "python", "-c", HTA, file]),
            "scope command": lambda: run(cold),
            "scope command, cached": lambda: run(cached, **cache),
            "HTA command": lambda: run([peers["hta"] / "bin" / "python", "-c", HTA, file]),
            "TraceLens command": lambda: run(tracelens),
        }
        found: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(ROUNDS):
            for name, each in runs.items():
                found[name].append(each())
                print(f"  {label} round {number + 1}: {name} {found[name][-1]:.3f} s", file=sys.stderr)
    return found


def judged(label: str, medians: dict[str, float]) -> list[dict]:
    """Return the goals for one file."""
    command = medians["scope command"]
    wanted = 20 if label == "v100" else 10
    return [
        goal(f"{label}: HTA / Scope, in process", medians["HTA in process"] / medians["scope in process"], at_least=15),
        goal(f"{label}: HTA / Scope, command", medians["HTA command"] / command, at_least=6),
        goal(f"{label}: TraceLens / Scope, command", medians["TraceLens command"] / command, at_least=wanted),
    ]


def goal(name: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> dict:
    """Return one goal and whether it is met."""
    if at_least is not None:
        return {"name": name, "goal": f"at least {at_least:g}", "value": f"{value:.2f}", "met": value >= at_least}
    assert at_most is not None
    return {"name": name, "goal": f"at most {at_most:g}", "value": f"{value:.3f}", "met": value <= at_most}


def scope() -> Path:
    """Return the `scope` command of this environment."""
    return Path(sys.executable).parent / "scope"


def run(command: list, **variables: str) -> float:
    """Run a command and return how long it took."""
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    taken = time.perf_counter() - begin
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stderr[-2000:]}")
    return taken


def inner(command: list) -> float:
    """Run a script and return the seconds that it measured itself."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("SECONDS ")]
    if done.returncode != 0 or not lines:
        sys.exit(f"{command[0]} failed:\n{done.stderr[-2000:]}")
    return float(lines[-1].split()[1])


def cpu_of(command: list) -> float:
    """Run a command and return its processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def environment(name: str, packages: list[str]) -> Path:
    """Return an environment with a peer, made on first use."""
    folder = CACHE / name
    ready = folder / ".ready"
    if not ready.exists():
        print(f"  installing {' '.join(packages)} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages], check=True, stdout=sys.stderr
        )
        ready.touch()
    return folder


if __name__ == "__main__":
    main()
