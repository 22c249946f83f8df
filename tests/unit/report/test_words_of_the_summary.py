"""What a report says beside its figures: all causes of idle time, one length of a single device's step, other GPUs."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import scope
from scope.analysis.comparison import compare_jobs
from scope.errors import UsageError
from scope.hardware.match import DeviceFacts
from scope.report.build import compute_results
from scope.report.findings import find_all
from scope.report.sections.collectives import rank_waits_table
from scope.report.sections.comparison import comparison_table
from scope.report.sections.path import critical_path_table
from scope.report.summary import print_summary
from scope.report.text import make_console
from scope.trace import ReadOptions, load

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.report.results import Results

    Make = Callable[..., Results]

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "sample_traces"
FRESH = ReadOptions(use_cache=False)


def summary(results: Results) -> str:
    """Return what `scope analyze` prints, 200 columns wide."""
    written = io.StringIO()
    print_summary(results, find_all(results), make_console(written, width=200))
    return written.getvalue()


def test_the_causes_of_idle_time_sum_to_it(shared_traces: Path) -> None:
    """Shares by cause are rounded to 0.1 % each, and leave out nothing: smaller causes are told together."""
    text = summary(compute_results(load([str(shared_traces / "param" / "dlrm_v100_8ranks")])))
    (idle,) = re.findall(r"^  idle +([\d.]+) %", text, flags=re.MULTILINE)
    (causes,) = re.findall(r"idle because of: (.*)", text)
    shares = [float(each) for each in re.findall(r"([\d.]+) %", causes)]
    assert "others (scope idle)" in causes
    assert sum(shares) == pytest.approx(float(idle), abs=0.05 * (len(shares) + 1))


def test_findings_say_what_their_shares_are_of(builder: Any, results_of: Make, shared_traces: Path) -> None:
    """Step time, or the window where there are no steps, with its length: other shares are of the whole window."""
    text = summary(compute_results(load([str(shared_traces / "param" / "dlrm_v100_8ranks")])))
    assert "\nFindings (shares of step time: 111.8 ms, summed over 8 ranks)\n" in text
    builder.launch("gemm", 10, 20, 500)
    builder.launch("gemm", 1400, 1420, 100)
    assert "\nFindings (shares of the window: 1.5 ms)\n" in summary(results_of(builder))


def test_a_group_is_told_in_whole_words(shared_traces: Path) -> None:
    """A group that no trace names is told whole in a table as narrow as a terminal of old."""
    results = compute_results(load([str(shared_traces / "param" / "dlrm_v100_8ranks")]))
    for width in (80, 120):
        written = io.StringIO()
        print_summary(results, find_all(results), make_console(written, width=width))
        table = written.getvalue().partition("\nCollectives\n")[2]
        assert set(re.findall(r"^all.*?\]", table, flags=re.MULTILINE)) == {"all (assumed) [0-7]"}


def test_steps_of_one_device_have_one_length(builder: Any, results_of: Make) -> None:
    """Median, longest and slowest say the same of a single device: only its length is shown, for several all are."""
    for step in range(2):
        builder.step(step, 1000 * step, 900)
        builder.launch("gemm", 1000 * step + 10, 1000 * step + 20, 500)
    (heading,) = re.findall(r"^Steps\n(.*)", summary(results_of(builder)), flags=re.MULTILINE)
    assert heading.split()[:2] == ["step", "length"]
    assert not {"median", "longest", "slowest"} & set(heading.split())
    several = summary(compute_results(load([str(SAMPLES / "gloo-2-ranks-healthy")], options=FRESH)))
    (heading,) = re.findall(r"^By step.*\n(.*)", several, flags=re.MULTILINE)
    assert {"median", "longest", "slowest"} <= set(heading.split())


@pytest.mark.parametrize(("other", "is_said"), [("AMD Instinct MI300X", True), ("NVIDIA H100 80GB HBM3", False)])
def test_different_gpus_are_told(builder: Any, results_of: Make, other: str, is_said: bool) -> None:
    """Ranks whose traces name different GPUs may be no one job; ranks of equal GPUs are no matter for words."""
    builder.launch("gemm", 10, 20, 30)
    first = replace(builder, world_size=2)
    second = replace(first, rank=1, device={**builder.device, "name": other})
    said = [each for each in results_of(first, second).analysis.warnings if "different GPUs" in each]
    assert bool(said) is is_said
    if is_said:
        assert "'NVIDIA H100 80GB HBM3' (rank 0), 'AMD Instinct MI300X' (rank 1)" in said[0]


def test_what_is_no_job_is_refused_in_words() -> None:
    """Whoever gives `scope.analyze` the path is told of `scope.load`."""
    with pytest.raises(UsageError, match=r"not 'runs/first': scope\.analyze\(scope\.load\('runs/first'\)\)"):
        scope.analyze("runs/first")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "units", "capability", "said"),
    [
        ("AMD Instinct MI300X VF", 304, (9, 4), "304 CUs, gfx94x"),
        ("AMD Radeon Graphics", 104, (9, 0), "104 CUs, gfx90x"),
        ("NVIDIA H100 80GB HBM3", 132, (9, 0), "132 SMs, compute capability 9.0"),
    ],
)
def test_devices_are_described_in_their_vendors_terms(
    name: str, units: int, capability: tuple[int, int], said: str
) -> None:
    """AMD's GPUs have compute units and are a gfx94x (MI300X: gfx942) or gfx90x (MI210: gfx90a); NVIDIA's have SMs."""
    facts = DeviceFacts(name=name, num_sms=units, compute_capability=capability)
    assert str(facts) == f"{name!r}, {said}"


def test_waits_that_overlap_are_told_beside_their_sum() -> None:
    """A rank's waits are a sum over calls, which a window may be shorter than."""
    found = compute_results(load([str(SAMPLES / "gloo-2-ranks-healthy")], options=FRESH)).collectives
    assert found is not None
    assert any("pending at once all count" in note for note in rank_waits_table(found).notes)


def test_steps_of_a_comparison_count_once_a_rank() -> None:
    """Two ranks of two steps are four, and the heading says of what."""
    job = load([str(SAMPLES / "gloo-2-ranks-healthy")], options=FRESH)
    table = comparison_table(compare_jobs(job, job))
    counts = dict(zip((each.heading for each in table.columns), table.rows[0], strict=True))
    assert (counts["rank steps before"], counts["rank steps after"]) == (4, 4)


def test_activities_can_be_pasted() -> None:
    """Wherever an activity of the profiler is asked for, it bears the name that torch gives it."""
    sources = "\n".join(path.read_text() for path in (ROOT / "scope" / "report").rglob("*.py"))
    asked = re.findall(r"activities=\[([^\]]*)\]", sources)
    assert asked
    assert all(name.strip().startswith("ProfilerActivity.") for each in asked for name in each.split(","))


def test_the_path_is_told_from_the_window_of_its_step(builder: Any, results_of: Make) -> None:
    """A step that begins at 5 us, computes from 40 us and ends at 90 us: a path of 85 us beside a window of 50 us."""
    builder.step(3, 5, 95)
    builder.launch("gemm", 10, 40, 50)
    results = results_of(builder)
    table = critical_path_table(results.analysis)
    (step,) = results.analysis.steps
    lengths = dict(zip((each.key for each in table.columns), table.rows[0], strict=True))
    assert (lengths["length_ns"], step.max_window_ns) == (85_000, 50_000)
    assert any("begins with the step on the host" in note for note in table.notes)
