"""What the alert on waiting for data goes by is what the report says of the same steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl
import pytest
from alert_cases.series import STEP_S, N, grow, hold
from promtool import ask_promtool, make_check, make_test, rules_for

from dashboards.alerts.generate import build_groups
from dashboards.alerts.model import choose_values
from dashboards.alerts.settings import SETTINGS
from scope.analysis.recorded import compute_input_cost
from scope.analysis.recorded.input_cost import INPUT_BOUND_RATIO
from scope.frames.schema import PHASE_COLUMNS, RankSteps

if TYPE_CHECKING:
    from pathlib import Path

INTERVAL = f"{STEP_S}s"
GROUPS = build_groups(choose_values(SETTINGS, []), interval=INTERVAL)
S: Final = 1_000_000_000


class Rank(NamedTuple):
    """A rank's step of a second: what it waits for data and works, and the wait in communication that was seen.

    The work includes the input without what of it was spent in communication, `input_wait`; `peers` is a set of peers.
    """

    input: float
    work: float
    wait: float | None
    peers: int
    input_wait: float = 0


CASES: Final[dict[str, tuple[float, list[tuple[Any, ...]]]]] = {
    "one loader is slow": (0.4, [(0, 0.5, 0.5, 0), (0.4, 0.9, 0.1, 0), (0.1, 0.5, 0.5, 0)]),
    "nobody waits for it": (0.0, [(0.4, 0.5, 0.5, 0), (0.4, 0.5, 0.5, 0), (0, 0.9, 0.1, 0)]),
    "all loaders are slow": (0.25, [(0.25, 1, 0, 0), (0.25, 1, 0, 0)]),
    "another works longer without it": (0.3, [(0.4, 0.9, 0.1, 0), (0, 0.6, 0.4, 0)]),
    "the first stage loads": (0.2, [(0.2, 0.4, 0.6, 0), (0, 0.9, 0.1, 1)]),
    "a wait is not known": (0.4, [(0.4, 0.5, 0.5, 0), (0, 0.9, None, 0)]),
    "half of a wait was seen": (0.4, [(0.4, 0.5, 0.5, 0), (0, 0.9, -0.1, 0)]),
    "a program alone": (0.15, [(0.15, 1, None, 0)]),
    "a loader waits for another rank": (0.0, [(0, 0.4, 0.6, 0), (0.3, 0.7, 0.3, 0, 0.3)]),
    "it waits and is slow": (0.3, [(0, 0.5, 0.5, 0), (0.4, 0.9, 0.1, 0, 0.1)]),
    "half of a loader's wait was seen": (0.15, [(0, 0.9, None, 0), (0.4, 0.5, -0.25, 0, 0.25)]),
}
"""What waiting for data costs, by hand, and of whom; a wait below 0 is one of which the calls were seen in part."""


def as_series(ranks: list[Rank]) -> dict[str, str]:
    """Return what an exporter tells of ranks."""
    series: dict[str, str] = {}
    for rank, (given, _, wait, peers, input_wait) in enumerate(ranks):
        labels = f'{N},run="r",rank="{rank}"'
        series[f'scope_train_info{{{labels},attempt="0",peers="{peers}"}}'] = hold(1)
        series[f"scope_train_step_seconds_total{{{labels}}}"] = grow(1)
        if given:
            series[f'scope_train_phase_seconds_total{{{labels},phase="input"}}'] = grow(given)
        if input_wait:
            phase = f'{labels},phase="input"'
            series[f"scope_train_communication_wait_phase_seconds_total{{{phase}}}"] = grow(input_wait)
        if wait is not None:
            series[f"scope_train_communication_wait_seconds_total{{{labels}}}"] = grow(abs(wait))
            series[f"scope_train_communication_wait_coverage_ratio{{{labels}}}"] = hold(1 if wait >= 0 else 0.5)
    return series


def as_steps(ranks: list[Rank]) -> pl.LazyFrame:
    """Return the steps that a run is read into."""
    rows: list[dict[str, Any]] = []
    for step in range(20):
        for rank, (given, work, wait, _, input_wait) in enumerate(ranks):
            row: dict[str, Any] = dict.fromkeys(map(str, RankSteps.columns()))
            row |= dict.fromkeys(map(str, PHASE_COLUMNS), 0)
            row |= {"attempt": 0, "rank": rank, "step": step, "num_steps": 1, "gc_ns": 0, "recorder_ns": 0}
            row |= {"start_ns": step * S, "end_ns": (step + 1) * S, "duration_ns": S, "num_dropped": 0}
            row |= {"input_ns": int(given * S), "forward_ns": int((work - given + input_wait) * S)}
            row |= {"communication_wait_ns": None if wait is None else int(abs(wait) * S)}
            row |= {"communication_wait_coverage_ratio": None if wait is None else 1.0 if wait >= 0 else 0.5}
            if input_wait:
                row |= {"communication_wait_by_phase": {"input": int(input_wait * S)}}
            rows.append(row)
    return RankSteps.check(pl.DataFrame(rows, schema=RankSteps.schema(), orient="row")).lazy()


@pytest.mark.system("promtool")
def test_the_alert_goes_by_what_the_report_says(tmp_path: Path) -> None:
    """Of ranks whose steps are all alike both say what was worked out by hand, and the alert fires above a tenth."""
    tests: list[dict[str, Any]] = []
    for name, (cost, figures) in CASES.items():
        ranks = [Rank(*each) for each in figures]
        found = compute_input_cost(as_steps(ranks), peers={rank: each.peers for rank, each in enumerate(ranks)})
        assert found is not None
        assert found.share_ratio == pytest.approx(cost, abs=1e-6), name
        checks = [
            make_check("round(1000 * scope:train_input_cost:ratio)", 25, {'{run="r"}': round(1000 * cost)}),
            make_check(
                'count(ALERTS{alertname="ScopeDataloaderBound",alertstate="firing"})',
                25,
                {"{}": 1} if cost > INPUT_BOUND_RATIO else {},
            ),
        ]
        tests.append(make_test(as_series(ranks), checks, interval=INTERVAL, name=name))
    ask_promtool(tmp_path, rules_for("ScopeDataloaderBound", GROUPS), tests, interval=INTERVAL)


def test_the_alert_and_the_report_have_one_limit() -> None:
    """The share from which a run is called bound by its input."""
    (setting,) = [each for each in SETTINGS if each.name == "input_share"]
    assert setting.default == INPUT_BOUND_RATIO
