"""Reports of recorded runs that leave the company, and what all steps say where windows of them are compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Done

SAMPLES = Path(__file__).parents[3] / "sample_traces"


@pytest.mark.parametrize("command", [("analyze", "--json"), ("findings",)])
@pytest.mark.parametrize("is_relative", [False, True])
def test_a_redacted_report_of_a_run_names_no_folder(
    scope: Callable[..., Done],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    is_relative: bool,
) -> None:
    """Which window was read is said with a stand-in for the run, however it was named, spaces in its name included."""
    run = tmp_path / "secret acme" / "first"
    shutil.copytree(SAMPLES / "gloo-4-ranks-straggler", run)
    monkeypatch.chdir(tmp_path)
    done = scope(*command, run.relative_to(tmp_path) if is_relative else run, "--redact")
    assert done.code == 0, done.err
    for word in (str(tmp_path), "acme", "secret"):
        assert word not in done.out + done.err
    said = " ".join((done.out + done.err).split())
    assert "path-5: the profiler window of step " in said
    assert "first/" not in said


def usual_step_ns(run: Path) -> int:
    """Return the median of the longest rank's step, of the newest 50 of which no rank was disturbed."""
    lengths: dict[int, int] = {}
    disturbed: set[int] = set()
    for path in run.glob("attempt-000/ranks/*/steps.jsonl"):
        for line in path.read_text().splitlines():
            record: dict[str, Any] = json.loads(line)
            step = record["step"]
            lengths[step] = max(lengths.get(step, 0), record["end_ns"] - record["start_ns"])
            if record.get("disturbed"):
                disturbed.add(step)
    return median_low([lengths[step] for step in sorted(lengths.keys() - disturbed)[-50:]])


def test_a_comparison_of_windows_says_what_all_steps_say(scope: Callable[..., Done]) -> None:
    """The medians of both runs by their records, and that rank 2 of the second was made slow."""
    before, after = SAMPLES / "gloo-4-ranks-healthy", SAMPLES / "gloo-4-ranks-straggler"
    said = " ".join(scope("compare", before, after).out.split())
    first, second = (usual_step_ns(run) / 1e6 for run in (before, after))
    assert f"the median step is {first:.4g} ms before and {second:.4g} ms after" in said
    assert "after: by the records of all steps rank 2 works " in said
    assert "before: by the records" not in said


def test_traces_without_a_run_have_no_records(scope: Callable[..., Done], trace: Callable[..., Path]) -> None:
    """Two traces that lie in no run are compared without a word on records."""
    done = scope("compare", trace("a.json"), trace("b.json"))
    assert done.code == 0
    assert "records of all steps" not in done.out + done.err
