"""The overview of the runs that a Prometheus server knows, from the series of the node exporters."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl
import streamlit as st

from dashboards.findings import draw_alerts
from dashboards.shell import say_error, settings, show_figure
from dashboards.sources.prometheus import Prometheus, to_samples
from dashboards.words import metric, say_dead_exporters
from scope.errors import ScopeError
from scope.report.figures import Samples, parts_by_time, samples_over_time
from scope.report.inert import markdown_text
from scope.units import NS_PER_S, format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dashboards.sources.catalogue import Source

_NAMES: Final = "max by (run, run_id, world_size) (scope_train_info)"
_FIGURES: Final = {
    "active": "sum by (run) (scope_train_active)",
    "age_s": "time() - max by (run) (scope_train_last_step_timestamp_seconds)",
    "step_s": "max by (run) (scope_train_step_median_seconds)",
    "tokens_per_s": "sum by (run) (rate(scope_train_tokens_total[1m]))",
    "mfu_ratio": "avg by (run) (scope_train_mfu_ratio)",
    "goodput_ratio": "min by (run) (scope_train_goodput_ratio)",
}
_PHASES: Final = "sum by (run, phase) (increase(scope_train_phase_seconds_total[5m]))"
_STEP_TIMES: Final = "max by (run) (scope_train_step_last_seconds)"
_WINDOW_S: Final = 1_800
_POINTS: Final = 200
_MAX_RUNS: Final = 20
_NO_SERIES: Final = "the server has no such series of this run yet"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunNow:
    """What the server knows of one run now.

    Attributes:
        label: Value of the label `run`.
        run_id: The run's id, where the server has it.
        world_size: Number of ranks, where the server has it.
        figures: By the names of the questions that are asked; what the server does not know is not there.
        phases_ns: Host time of all ranks by phase in the last five minutes.
    """

    label: str
    run_id: str | None
    world_size: str | None
    figures: Mapping[str, float]
    phases_ns: Mapping[str, int]


def ask_runs(server: Prometheus) -> list[RunNow]:
    """Return the runs that the server knows now, the youngest last step first.

    Raises:
        InputError: The server does not answer.
    """
    names = {each.labels.get("run", ""): each.labels for each in server.query(_NAMES)}
    figures: dict[str, dict[str, float]] = {run: {} for run in names}
    for name, expression in _FIGURES.items():
        for each in server.query(expression):
            if each.points:
                figures.setdefault(each.labels.get("run", ""), {})[name] = each.points[-1][1]
    phases: dict[str, dict[str, int]] = {}
    for each in server.query(_PHASES):
        if each.points:
            of_run = phases.setdefault(each.labels.get("run", ""), {})
            of_run[each.labels.get("phase", "other")] = round(each.points[-1][1] * NS_PER_S)
    runs = [
        RunNow(
            label=run,
            run_id=names.get(run, {}).get("run_id"),
            world_size=names.get(run, {}).get("world_size"),
            figures=found,
            phases_ns=phases.get(run, {}),
        )
        for run, found in figures.items()
    ]
    return sorted(runs, key=lambda each: each.figures.get("age_s", float("inf")))[:_MAX_RUNS]


def step_times(server: Prometheus, *, now_ns: int) -> pl.DataFrame:
    """Return the length of the last step of each run over the last half hour, in seconds (table `Samples`)."""
    start = now_ns - _WINDOW_S * NS_PER_S
    found = server.query_range(_STEP_TIMES, start_ns=start, end_ns=now_ns, step_s=_WINDOW_S // _POINTS)
    return to_samples(found, "run")


def draw_server(source: Source) -> None:
    """Draw all runs that the server knows, again and again."""
    server = Prometheus(address=source.place)

    def draw_or_say() -> None:
        try:
            _draw(server)
        except ScopeError as error:
            say_error(error)

    st.fragment(draw_or_say, run_every=max(5.0, settings().refresh_s))()


def _draw(server: Prometheus) -> None:
    runs = ask_runs(server)
    say_dead_exporters(server)
    draw_alerts()
    if not runs:
        st.info(
            "The server knows no run. Start `scope exporter --runs RUN` on each node and add it to the scrape "
            "configuration.",
            icon=":material/inbox:",
        )
        return
    for run in runs:
        _draw_run(run)
    samples = step_times(server, now_ns=time.time_ns())
    title = "Length of the last step, slowest rank"
    table = samples.select(
        pl.col(Samples.name).alias("run"), Samples.time_ns, (pl.col(Samples.value) * NS_PER_S).alias("step_ns")
    )
    show_figure(samples_over_time(samples, title=title, y_title="Step (s)"), table, key="step times")


def _seconds(value: float) -> str:
    return format_duration(round(value * NS_PER_S))


def _draw_run(run: RunNow) -> None:
    st.subheader(markdown_text(run.run_id or run.label or "run"))
    figures = run.figures
    age_s = figures.get("age_s")
    is_live = bool(figures.get("active"))
    if age_s is not None:
        sign = ":material/sensors: live" if is_live else ":material/history: not running"
        st.caption(f"{sign}, last step {_seconds(age_s)} ago, by Prometheus")
    row = st.container(horizontal=True, gap="medium")
    of_all = f" of {run.world_size}" if run.world_size else ""
    metric(row, "Ranks active", figures.get("active"), _NO_SERIES, lambda value: f"{value:.0f}{of_all}")
    metric(
        row,
        "Step time (median)",
        figures.get("step_s"),
        _NO_SERIES,
        lambda each: format_duration(round(each * NS_PER_S)),
    )
    metric(row, "Tokens/s", figures.get("tokens_per_s"), _NO_SERIES, "{:,.0f}".format)
    metric(row, "MFU (last step)", figures.get("mfu_ratio"), _NO_SERIES, format_ratio)
    metric(row, "Goodput", figures.get("goodput_ratio"), _NO_SERIES, format_ratio)
    whole = sum(run.phases_ns.values())
    if whole:
        figure = parts_by_time(run.phases_ns, title="Phases in the last 5 minutes, all ranks", whole_ns=whole)
        show_figure(figure, None, key=f"phases of {run.label}")
