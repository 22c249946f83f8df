"""The overview of the runs that a Prometheus server knows, from the series of the node exporters."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl
import streamlit as st

from dashboards import say
from dashboards.alerts.expressions import express_mfu
from dashboards.findings import draw_alerts
from dashboards.plots import show_figure
from dashboards.shell import on_each_answer
from dashboards.sources.prometheus import Prometheus, to_samples
from dashboards.words import metric, say_dead_exporters
from scope.report.figures import Samples, parts_by_time, samples_over_time
from scope.report.standing import age
from scope.units import NS_PER_S, format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dashboards.sources.catalogue import Source
    from dashboards.sources.prometheus import Series

# A run is told apart by its cluster too; a rank that two jobs scrape counts once.
_NAMES: Final = "max by (cluster, run, run_id, world_size) (scope_train_info)"
_FIGURES: Final = {
    "active": "sum by (cluster, run) (max by (cluster, run, rank) (scope_train_active))",
    "age_s": "time() - max by (cluster, run) (scope_train_last_step_timestamp_seconds)",
    "step_s": "max by (cluster, run) (scope_train_step_median_seconds)",
    "tokens_per_s": "sum by (cluster, run) (max by (cluster, run, rank) (rate(scope_train_tokens_total[1m])))",
    "mfu_ratio": express_mfu(by="cluster, run"),
    "goodput_ratio": "min by (cluster, run) (scope_train_goodput_ratio)",
}
_PHASES: Final = (
    "sum by (cluster, run, phase) (max by (cluster, run, rank, phase) (increase(scope_train_phase_seconds_total[5m])))"
)
_STEP_TIMES: Final = "max by (cluster, run) (scope_train_step_last_seconds)"
_Key = tuple[str, str]  # cluster and run
_WINDOW_S: Final = 1_800
_POINTS: Final = 200
_MAX_RUNS: Final = 20
_SILENT_S: Final = 60.0
_STILL_STEPS: Final = 10
"""As on the page of a run, but for a minute: what the server knows may be as old as a scrape or two."""
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
        cluster: Value of the label `cluster`; empty where the server's series have none.
    """

    label: str
    run_id: str | None
    world_size: str | None
    figures: Mapping[str, float]
    phases_ns: Mapping[str, int]
    cluster: str = ""

    @property
    def name(self) -> str:
        """Its id, followed by the label by which series and alerts name it."""
        return f"{self.run_id} ({self.label})" if self.run_id else self.label or "run"

    @property
    def place(self) -> str:
        """Its name and its cluster, where there is one: clusters may have runs of one id."""
        return f"{self.name} in cluster {self.cluster}" if self.cluster else self.name

    @property
    def stands_still(self) -> bool:
        """Whether its ranks live and none has finished a step for ten usual steps and a minute."""
        usual_s = self.figures.get("step_s", 0.0)
        age_s = self.figures.get("age_s", 0.0)
        return bool(self.figures.get("active")) and age_s > max(_SILENT_S, _STILL_STEPS * usual_s)


def _key(series: Series) -> _Key:
    return series.labels.get("cluster", ""), series.labels.get("run", "")


def ask_runs(server: Prometheus) -> list[RunNow]:
    """Return the runs that the server knows now, the youngest last step first.

    Raises:
        InputError: The server does not answer.
    """
    names = {_key(each): each.labels for each in server.query(_NAMES)}
    figures: dict[_Key, dict[str, float]] = {run: {} for run in names}
    for name, expression in _FIGURES.items():
        for each in server.query(expression):
            if each.points:
                figures.setdefault(_key(each), {})[name] = each.points[-1][1]
    phases: dict[_Key, dict[str, int]] = {}
    for each in server.query(_PHASES):
        if each.points:
            of_run = phases.setdefault(_key(each), {})
            of_run[each.labels.get("phase", "other")] = round(each.points[-1][1] * NS_PER_S)
    runs = [
        RunNow(
            label=key[1],
            run_id=names.get(key, {}).get("run_id"),
            world_size=names.get(key, {}).get("world_size"),
            figures=found,
            phases_ns=phases.get(key, {}),
            cluster=key[0],
        )
        for key, found in figures.items()
    ]
    return sorted(runs, key=lambda each: each.figures.get("age_s", float("inf")))[:_MAX_RUNS]


def step_times(server: Prometheus, *, now_ns: int) -> pl.DataFrame:
    """Return the length of the last step of each run over the last half hour, in seconds (table `Samples`)."""
    start = now_ns - _WINDOW_S * NS_PER_S
    found = server.query_range(_STEP_TIMES, start_ns=start, end_ns=now_ns, step_s=_WINDOW_S // _POINTS)
    samples = to_samples(found, "cluster", "run")
    # Without a cluster the name begins with the space behind its empty label.
    return samples.with_columns(pl.col(Samples.name).str.strip_chars_start())


def draw_server(source: Source) -> None:
    """Draw all runs that the server knows, again and again."""
    server = Prometheus(address=source.place)
    on_each_answer(source, lambda: _draw(server))


def _draw(server: Prometheus) -> None:
    runs = ask_runs(server)
    say_dead_exporters(server)
    names = {run.label: run.name for run in runs}
    draw_alerts(names=names)
    if not runs:
        say.info(
            say.words(
                "The server knows no run. Start `scope exporter --runs RUN` on each node and add it to the scrape "
                "configuration."
            ),
            icon=":material/inbox:",
        )
        return
    for run in runs:
        _draw_run(run)
    places = {f"{run.cluster} {run.label}".strip(): run.place for run in runs}
    samples = step_times(server, now_ns=time.time_ns()).with_columns(pl.col(Samples.name).replace(places))
    title = "Length of the last step, slowest rank"
    table = samples.select(
        pl.col(Samples.name).alias("run"), Samples.time_ns, (pl.col(Samples.value) * NS_PER_S).alias("step_ns")
    )
    show_figure(samples_over_time(samples, title=title, y_title="Step (s)"), table, key="step times")


def standing_of(run: RunNow) -> str:
    """Return in a sentence, without its full stop, whether a run goes on, as far as its series tell."""
    age_s = run.figures.get("age_s")
    since = "no step has ended yet" if age_s is None else f"the last step ended {age(round(age_s * NS_PER_S))} ago"
    if not run.stands_still:
        return f"{'running' if run.figures.get('active') else 'not running'}; {since}"
    usual_s = run.figures.get("step_s")
    usual = "" if usual_s is None else f"; a step usually takes {format_duration(round(usual_s * NS_PER_S))}"
    return f"NO STEP for {age(round((age_s or 0.0) * NS_PER_S))}, and its ranks live{usual}"


def _draw_run(run: RunNow) -> None:
    say.subheader(run.place)
    figures = run.figures
    words = standing_of(run)
    if run.stands_still:
        say.error(
            say.words(
                "{}. Open its run directory with `scope dashboard` and look at Post-mortem, or start `scope watch` "
                "beside it.",
                words,
            ),
            icon=":material/person_off:",
        )
    else:
        is_live = bool(figures.get("active"))
        sentence = ":material/sensors: {}, by Prometheus" if is_live else ":material/history: {}, by Prometheus"
        say.caption(say.words(sentence, words))
    row = st.container(horizontal=True, gap="medium")
    of_all = f" of {run.world_size}" if run.world_size else ""
    metric(row, "Ranks active", figures.get("active"), _NO_SERIES, lambda value: f"{value:.0f}{of_all}")
    for label, name, form in (
        # Each rank's series tells its own median: that of each step's slowest rank, as on the page of a run, is more.
        ("Largest median step of a rank", "step_s", lambda each: format_duration(round(each * NS_PER_S))),
        ("Tokens/s (last minute)", "tokens_per_s", "{:,.0f}".format),
        ("MFU (last step)", "mfu_ratio", format_ratio),
        ("Goodput", "goodput_ratio", format_ratio),
    ):
        metric(row, label, figures.get(name), _NO_SERIES, form)
    whole = sum(run.phases_ns.values())
    if whole:
        figure = parts_by_time(run.phases_ns, title="Phases in the last 5 minutes, all ranks", whole_ns=whole)
        show_figure(figure, None, key=f"phases of {run.cluster} {run.label}")
