"""Text formats, counters that outlive samples, and the series of records."""

from __future__ import annotations

import math
import subprocess

import hypothesis
import pytest
from hypothesis import strategies
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporters import compat_dcgm, compat_node, metrics, training_series
from exporters.counters import ProblemCounts, Unwrapper, XidCounts
from exporters.render import OPENMETRICS, TEXT, Renderer, choose_format
from exporters.series import Metric, SeriesSet
from scope.probe.records import Problem, XidEvent

GAUGE = Metric("scope_a_ratio", "gauge", "A gauge.", ("x", "y"))
COUNTER = Metric("scope_b_total", "counter", 'A counter with "quotes", a \\ and\na line.', ("x",))
INFO = Metric("scope_c_info", "info", "An info.", ("x",))


def make_series() -> SeriesSet:
    """Return one series of each kind."""
    series = SeriesSet()
    series.add(GAUGE, ("1", 'q"\\\n'), 0.25)
    series.add(COUNTER, ("",), 2**60)
    series.add(INFO, ("v",), 1)
    return series


def test_text_format_as_a_whole() -> None:
    """The plain format, byte for byte."""
    assert Renderer(TEXT).render(make_series()) == (
        "# HELP scope_a_ratio A gauge.\n# TYPE scope_a_ratio gauge\n"
        'scope_a_ratio{x="1",y="q\\"\\\\\\n"} 0.25\n'
        '# HELP scope_b_total A counter with "quotes", a \\\\ and\\na line.\n# TYPE scope_b_total counter\n'
        'scope_b_total{x=""} 1152921504606846976\n'
        "# HELP scope_c_info An info.\n# TYPE scope_c_info gauge\n"
        'scope_c_info{x="v"} 1\n'
    )


@pytest.mark.parametrize(("content_type", "parse"), [(TEXT, parse_text), (OPENMETRICS, parse_openmetrics)])
@hypothesis.given(
    label=strategies.text(strategies.characters(exclude_categories=["Cs"])),
    value=strategies.one_of(strategies.integers(0, 2**62), strategies.floats(allow_nan=False, allow_infinity=False)),
)
def test_every_label_and_value_survives_the_reference_parsers(content_type, parse, label, value) -> None:
    """What prometheus_client's parsers read is what was written, whatever a label holds."""
    series = SeriesSet()
    series.add(GAUGE, (label, "2"), value)
    renderer = Renderer(content_type)
    (family,) = parse(renderer.render(series) + renderer.end)
    (sample,) = family.samples
    assert sample.labels == {"x": label, "y": "2"}
    assert float(sample.value) == float(value)


def test_openmetrics_names_families_without_their_suffix() -> None:
    """In OpenMetrics a counter's family has no `_total`, its samples have."""
    renderer = Renderer(OPENMETRICS)
    families = {f.name: f for f in parse_openmetrics(renderer.render(make_series()) + renderer.end)}
    assert families["scope_b"].type == "counter"
    assert families["scope_b"].samples[0].name == "scope_b_total"
    assert families["scope_c"].type == "info"


def test_absent_values_are_left_out_and_duplicates_counted() -> None:
    """None, NaN and infinities are absent; a series that comes twice keeps its first value."""
    series = SeriesSet()
    for value in (None, math.nan, math.inf):
        series.add(GAUGE, ("1", "2"), value)
    assert len(series) == 0
    series.add(GAUGE, ("1", "2"), 1)
    series.add(GAUGE, ("1", "2"), 2)
    assert series.get(GAUGE, ("1", "2")) == 1
    assert series.num_duplicates == 1


def test_the_accept_header_chooses_the_format() -> None:
    """Prometheus asks for OpenMetrics first; everybody else gets the plain format."""
    assert choose_format("application/openmetrics-text;version=1.0.0,text/plain;q=0.5") == OPENMETRICS
    assert choose_format("*/*") == TEXT


def all_metrics() -> list[Metric]:
    """Return every metric of the exporter."""
    found = [value for value in vars(metrics).values() if isinstance(value, Metric)]
    for value in vars(metrics).values():
        if isinstance(value, dict):
            found += [item for item in value.values() if isinstance(item, Metric)]
    return found + list(training_series.METRICS)


def test_names_follow_their_kind() -> None:
    """Counters end in _total and nothing else does; infos in _info; names and labels are unique and plain."""
    found = all_metrics()
    assert len(found) > 100
    for metric in found:
        assert metric.name.startswith("scope_")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.name.endswith("_info") == (metric.kind == "info"), metric.name
        assert len(set(metric.labels)) == len(metric.labels)
        assert metric.help.endswith(".") or metric.help.endswith(")."), metric.name
    names = [metric.name for metric in found]
    assert len(set(names)) == len(names)


def lint(found: list[Metric]) -> list[str]:
    """Return what promtool says of one sample of each metric."""
    series = SeriesSet()
    for metric in found:
        series.add(metric, tuple("1" for _ in metric.labels), 1)
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=Renderer(TEXT).render(series), capture_output=True, text=True, check=False)
    # 3 is what it returns when it can read all and has something to say about names.
    assert done.returncode in {0, 3}, done.stderr
    return done.stderr.splitlines()


@pytest.mark.system("promtool")
def test_every_metric_passes_promtool() -> None:
    """Not only those that some node shows; of the names that are other exporters' own, node_exporter's pass too."""
    assert lint(all_metrics()) == []
    theirs = [value for value in vars(compat_node).values() if isinstance(value, Metric)]
    theirs += [metric for value in vars(compat_node).values() if isinstance(value, dict) for metric in value.values()
               if isinstance(metric, Metric)]  # fmt: skip
    assert len(theirs) > 40
    assert lint(theirs) == []


@pytest.mark.system("promtool")
def test_promtool_on_names_of_dcgm() -> None:
    """They are valid; all that it has to say is what dcgm-exporter's own names and its label modelName bring along."""
    theirs = [metric for metric, _ in compat_dcgm._TABLE]  # pyright: ignore[reportPrivateUsage]
    for line in lint(theirs):
        assert line.startswith("DCGM_FI_")
        assert line.endswith(("'camelCase'", 'should have "_total" suffix', "should not include type 'counter'"))


@pytest.mark.parametrize("bits", [32, 40, 48])
@hypothesis.given(steps=strategies.lists(strategies.integers(0, 2**29), min_size=1, max_size=60))
def test_a_counter_that_wraps_never_falls(bits: int, steps: list[int]) -> None:
    """The unwrapped counter grows by exactly what the hardware counted, across any number of wraps."""
    unwrapper = Unwrapper()
    truth = 2**bits - 2**28
    first = unwrapper.update("key", truth)
    for step in steps:
        truth += step
        assert unwrapper.update("key", truth % 2**bits) - first == truth - (2**bits - 2**28)


def test_a_reset_is_no_wrap() -> None:
    """A fall from the middle of the range is a reset: the counter begins again, as rate() expects."""
    unwrapper = Unwrapper()
    assert unwrapper.update("key", 2**31) == 2**31
    assert unwrapper.update("key", 5) == 5
    assert unwrapper.update("other", 7) == 7


def event(source: str, seconds: float, xid: int = 79, gpu: str = "0000:10:00.0") -> XidEvent:
    """Return an XID event."""
    return XidEvent(source, gpu, "", xid, int(seconds * 1e9))


def test_an_xid_told_by_both_sources_counts_once() -> None:
    """NVML and the kernel's log tell of one event within seconds; a second event counts again."""
    counts = XidCounts()
    counts.add([event("kmsg", 100), event("nvml", 101.5)])
    assert counts.of("0000:10:00.0") == {79: (1, 100_000_000_000, "reboot_node")}
    counts.add([event("nvml", 130), event("kmsg", 131), event("kmsg", 132)])
    assert counts.of("0000:10:00.0")[79][0] == 3
    counts.add([event("kmsg", 131, gpu="0000:11:00.0")])
    assert counts.of("0000:11:00.0")[79][0] == 1


def test_problem_kinds_are_bounded() -> None:
    """However many kinds a driver invents, the labels stay bounded."""
    counts = ProblemCounts()
    counts.add(Problem("gpu", f"error{number}", "here", "") for number in range(5_000))
    assert len(counts.counts) <= 201
    assert sum(counts.counts.values()) == 5_000


def test_the_reference_is_the_table() -> None:
    """exporters/METRICS.md names every metric as the tables do."""
    from pathlib import Path

    from exporters.reference import render_reference

    committed = Path(metrics.__file__).with_name("METRICS.md").read_text(encoding="utf-8")
    assert committed == render_reference()
    assert committed.count("\n| `scope_") == len(all_metrics())
