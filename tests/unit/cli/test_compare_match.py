"""What `scope compare --json` says of how far two runs match."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


def _write(path: Path, kernels: list[tuple[str, int]]) -> Path:
    """Write a trace of one step with kernels one after the other, each launched in time; lengths in us."""
    records: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 9, "tid": 9, "ts": 0, "dur": 500}
    ]
    at = 100
    for number, (name, length) in enumerate(kernels, start=1):
        link = {"correlation": number}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 10 * number, "dur": 2}
        place = {"cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at, "dur": length}
        records += [
            {"ph": "X", **call, "args": link},
            {"ph": "X", **place, "args": {"device": 0, "stream": 7, **link}},
        ]
        at += length
    path.write_text(json.dumps({"traceEvents": records}))
    return path


def test_json_holds_the_match_rates(scope: Callable[..., Any], tmp_path: Path) -> None:
    """40 + 40 of 100 + 100 us lie in the one kernel that both runs have; their class is the same."""
    before = _write(tmp_path / "before.json", [("gemm_a", 40), ("gemm_b", 60)])
    after = _write(tmp_path / "after.json", [("gemm_a", 40), ("gemm_c", 60)])
    done = scope("compare", before, after, "--json", "--no-cache")
    assert done.code == 0, done.err
    (step,) = json.loads(done.out)["step"]
    assert step["kernels_match_ratio"] == pytest.approx(0.4)
    assert step["classes_match_ratio"] == 1.0
    assert step["phases_match_ratio"] is None
    assert step["absent"]["phases_match_ratio"]


def test_csv_of_all_is_one_table(scope: Callable[..., Any], tmp_path: Path) -> None:
    """One header; the first column names the table, and each row holds what JSON holds of that table."""
    before = _write(tmp_path / "before.json", [("gemm_a", 40), ("gemm_b", 60)])
    after = _write(tmp_path / "after.json", [("gemm_a", 40), ("gemm_c", 60)])
    rows = list(csv.DictReader(io.StringIO(scope("compare", before, after, "--csv").out), strict=True))
    tables = json.loads(scope("compare", before, after, "--json").out)
    assert next(iter(rows[0])) == "table"
    for name, records in tables.items():
        mine = [row for row in rows if row["table"] == name]
        assert len(mine) == len(records)
        for row, record in zip(mine, records, strict=True):
            reasons = record.pop("absent")
            assert row["absent"] == "; ".join(f"{key}: {reason}" for key, reason in reasons.items())
            given = {key: value for key, value in row.items() if value and key not in {"table", "absent"}}
            assert given == {key: str(value) for key, value in record.items() if value is not None}
    assert len(rows) == sum(map(len, tables.values()))


def test_a_run_beside_itself_changed_in_nothing(scope: Callable[..., Any], tmp_path: Path) -> None:
    """No kernel of equal length is said to have changed most."""
    path = _write(tmp_path / "run.json", [("gemm_a", 40), ("gemm_b", 60)])
    said = " ".join(scope("compare", path, path).out.split())
    assert "Changed most" not in said
    assert "No kernel changed by more than 2.0 % of its time" in said


def test_the_name_that_changed_most_is_cut(scope: Callable[..., Any], tmp_path: Path) -> None:
    """A kernel whose name fills many lines stands in one sentence with its ends alone; tables cut theirs as well."""
    name = f"void at::native::gemm<{'std::tuple<int>, ' * 50}last>(float*)"
    before, after = (_write(tmp_path / f"{length}.json", [(name, length)]) for length in (40, 80))
    (said,) = [line for line in scope("compare", before, after).out.splitlines() if "Changed most" in line]
    assert said.startswith("Changed most: gemm<std::tuple")
    assert "last>, 40 us longer" in said


def test_the_median_step_is_that_of_analyze(scope: Callable[..., Any], shared_traces: Path) -> None:
    """Both commands say one length for the step, measured on the device, and the host's stands beside it."""
    path = shared_traces / "tracelens" / "h100_bert_small.json.gz"
    (step,) = json.loads(scope("compare", path, path, "--json").out)["step"]
    (row,) = json.loads(scope("steps", path, "--json").out)
    assert step["before_step_ns"] == step["after_step_ns"] == row["median_window_ns"]
    assert "step 6: 3.908 ms on the device" in scope("analyze", path).out
    assert "The median step on the device: 3.908 ms before" in scope("compare", path, path).out
    # `ProfilerStep#6` of the file.
    assert step["before_host_step_ns"] == 4_426_114


def test_the_median_step_of_several_ranks_is_that_of_analyze(scope: Callable[..., Any]) -> None:
    """The median over steps of the median over ranks, also on the host."""
    run = Path(__file__).parents[3] / "sample_traces" / "gloo-2-ranks-straggler"
    steps = json.loads(scope("steps", run, "--json").out)
    (step,) = json.loads(scope("compare", run, run, "--json").out)["step"]
    assert step["before_step_ns"] == median_low(row["median_window_ns"] for row in steps if not row["is_cut"])
    assert "The median step on the host: 41.03 ms before" in scope("compare", run, run).out
    assert "median 41.03 ms on the host" in scope("analyze", run).out


def test_what_neither_run_has_is_named(scope: Callable[..., Any], tmp_path: Path) -> None:
    """Runs without operators and phases say on stderr which tables are empty, and no times of nothing."""
    before = _write(tmp_path / "before.json", [("gemm_a", 40)])
    after = _write(tmp_path / "after.json", [("gemm_a", 50)])
    done = scope("compare", before, after, "--json", "--no-cache")
    assert "0 ns" not in done.err
    assert "Phases: none in either run." in done.err
    text = scope("compare", before, after, "--no-cache").out
    assert "Kernels: 40 us before, 50 us after." in text
    assert "Changed most: gemm_a, 10 us longer per rank and step." in " ".join(text.split())


def test_a_host_timeline_and_a_device_have_their_host_steps_compared(scope: Callable[..., Any], tmp_path: Path) -> None:
    """Of 900 us on the host against 500 us: the step of the device, and what changed most, would compare nothing."""
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 10, "dur": 700}
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 9, "tid": 9, "ts": 0, "dur": 900}
    host = tmp_path / "host.json"
    host.write_text(json.dumps({"traceEvents": [step, operator]}))
    said = " ".join(scope("compare", host, _write(tmp_path / "device.json", [("gemm", 40)])).out.split())
    assert "The median step on the host: 900 us before, 500 us after, 44.4 % shorter." in said
    assert "Changed most" not in said
    assert "their times don't compare" in said


def test_two_windows_of_one_folder_are_compared(scope: Callable[..., Any], tmp_path: Path) -> None:
    """`--windows` names the window of each side by its first step, `--window` one for both."""
    for first, length in ((2, 300), (7, 500)):
        thread = {"ph": "X", "pid": 9, "tid": 9}
        step = {**thread, "cat": "user_annotation", "name": f"ProfilerStep#{first}", "ts": first * 1e4}
        work = {**thread, "cat": "cpu_op", "name": "aten::mm", "ts": first * 1e4 + 10, "dur": 200}
        document = {"distributedInfo": {"rank": 0}, "traceEvents": [{**step, "dur": length}, work]}
        (tmp_path / f"{first}.json").write_text(json.dumps(document))
    done = scope("compare", tmp_path, tmp_path, "--windows", 2, 7, "--json")
    (row,) = json.loads(done.out)["step"]
    assert (row["before_step_ns"], row["after_step_ns"]) == (300_000, 500_000)
    (same,) = json.loads(scope("compare", tmp_path, tmp_path, "--window", 7, "--json").out)["step"]
    assert (same["before_step_ns"], same["after_step_ns"]) == (500_000, 500_000)
