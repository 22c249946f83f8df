"""Data quality: what is missing, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from dashboards import say
from dashboards.shell import load_run, on_each_refresh, open_page, say_age, say_error, say_traces
from dashboards.sources.prometheus import Prometheus, labels_table
from dashboards.sources.traces import load_traces
from dashboards.tables import show_report_table, show_table
from dashboards.words import say_problems
from scope.errors import ScopeError
from scope.frames.schema import Events, Ranks, RankSteps
from scope.report.run_state import unwritten_words
from scope.report.sections.collectives import clock_table
from scope.report.sections.quality import quality_table
from scope.report.standing import count
from scope.units import format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dashboards.sources.catalogue import Source
    from dashboards.sources.runs import LiveRun
    from scope.analysis.job import Analysis
    from scope.run.blackbox import BlackBoxState

QUESTIONS: Final = {
    "Exporters that answer (1) or not (0)": "up",
    "Seconds since the last sample": "scope_exporter_sample_age_seconds",
    "Collectors that work (1) or not (0)": "scope_collector_up",
    "Records that the recorder dropped": "sum by (run, rank) (scope_train_dropped_records_total)",
}


def draw_trace(source: Source) -> None:
    """Draw how far the traces can be trusted."""
    report = load_traces(source)
    say_traces(report, most=len(report.job.warnings))
    say_trust(report.results.analysis)
    show_report_table(quality_table(report.results.analysis), key="quality")
    if report.results.collectives is not None:
        say.subheader("Clocks")
        show_report_table(clock_table(report.results.collectives), key="clocks")
    for name, reason in sorted(report.results.absent.items()):
        say.caption(f"No {name.replace('_', ' ')}: {reason}.")


def draw_server(source: Source) -> None:
    """Draw which exporters answer, how old their samples are, and which collectors fail."""
    server = Prometheus(address=source.place)
    try:
        answers = {title: server.query(expression) for title, expression in QUESTIONS.items()}
    except ScopeError as error:
        say_error(error)
        return
    for title, series in answers.items():
        say.subheader(title)
        if series:
            show_table(labels_table(series), key=title)
        else:
            say.caption("The server has no such series.")


def lacks_of(table: pl.DataFrame) -> Iterator[str]:
    """Yield what is missing from a run, one sentence each.

    Args:
        table: The row of each rank, as the page shows it.
    """
    dropped = int(table[RankSteps.num_dropped].sum())
    if dropped:
        yield f"The recorder dropped {count(dropped, 'record')} (full disk or queue): figures are of the rest."
    silent = table.filter(pl.col("steps").is_null())[RankSteps.rank].to_list()
    if silent:
        yield f"No step yet of {count(len(silent), 'rank')}: {', '.join(map(str, silent[:20]))}."
    unknown = int(table["steps"].sum()) - int(table["steps_with_known_wait"].sum())
    if unknown:
        yield f"In {count(unknown, 'step')} it is not known how long the rank waited in communication."
    least = table["wait_coverage_ratio"].min()
    if isinstance(least, float) and least < 1:
        yield (
            f"In some step the wait of only {format_ratio(least)} of the communication calls was seen; in the "
            "others the rank worked or waited."
        )


def add_counted_drops(table: pl.DataFrame, boxes: Mapping[int, BlackBoxState]) -> pl.DataFrame:
    """Return the table with what each rank's black box counted as dropped, where that is more than its steps tell.

    On a full disk the steps that would tell of it are dropped as well.

    Args:
        table: The row of each rank.
        boxes: Their black boxes, by rank.
    """
    schema = {RankSteps.rank: pl.Int32, "counted": pl.Int64}
    counted = pl.DataFrame([(rank, box.num_dropped) for rank, box in boxes.items()], schema=schema, orient="row")
    more = pl.max_horizontal(RankSteps.num_dropped, "counted").alias(RankSteps.num_dropped)
    return table.join(counted, on=RankSteps.rank, how="left", maintain_order="left").with_columns(more).drop("counted")


def say_trust(analysis: Analysis) -> None:
    """Say in a sentence whether the traces were read whole."""
    lost = [
        f"{rank.label}: {count(rank.quality.events_lost, 'event')} lost"
        + (", the file is cut off" if rank.quality.truncated else "")
        for rank in analysis.ranks
        if rank.quality.events_lost or rank.quality.truncated
    ]
    if lost:
        say.warning(say.lines(lost), icon=":material/rule:")
        return
    num_read = sum(rank.quality.events_read for rank in analysis.ranks)
    say.success(
        f"The traces were read whole: {num_read:,} events of {count(len(analysis.ranks), 'rank')}, none lost.",
        icon=":material/check_circle:",
    )


def draw_run(run: LiveRun) -> None:
    """Draw what a recorded run lacks: ranks, records, wait sites, coverage of collectives."""
    say_age(run)
    if run.ranks.is_empty():
        say.info("No rank has begun to record yet.", icon=":material/hourglass_empty:")
        return
    say_problems(run)
    by_rank = run.of_attempt.group_by(RankSteps.rank).agg(
        pl.len().alias("steps"),
        pl.col(RankSteps.num_dropped).sum(),
        (pl.col(RankSteps.recorder_ns).sum() / pl.col(RankSteps.duration_ns).sum()).alias("recorder_ratio"),
        pl.col(RankSteps.communication_wait_coverage_ratio).min().alias("wait_coverage_ratio"),
        pl.col(RankSteps.communication_wait_ns).is_not_null().sum().alias("steps_with_known_wait"),
        pl.col(RankSteps.disturbed).is_not_null().sum().alias("disturbed_steps"),
    )
    routes = run.ranks.filter(pl.col(Ranks.attempt) == run.attempt).select(Ranks.rank, Ranks.collectives_route)
    table = by_rank.collect().join(routes, on=RankSteps.rank, how="full", coalesce=True).sort("rank")
    table = add_counted_drops(table, run.black_boxes())
    summary = run.summary()
    unwritten = unwritten_words(
        summary.num_unwritten_steps,
        ranks=summary.unwritten_ranks,
        is_recording=bool(summary.num_steps) and run.state().standing == "running",
    )
    lacks = [*lacks_of(table), *([f"{unwritten}."] if unwritten is not None else [])]
    if lacks:
        say.warning(say.lines(lacks), icon=":material/rule:")
    elif not run.problems and not summary.missing_ranks:
        say.success(
            f"Nothing is missing: {count(table.height, 'rank')} recorded, no record was dropped, every wait is known.",
            icon=":material/check_circle:",
        )
    show_table(table, key="by rank")
    coverage = run.events().filter(pl.col(Events.kind).is_in(["coverage", "hook_disabled", "warning"]))
    if not coverage.is_empty():
        say.subheader("What recording has to say")
        show_table(coverage, key="remarks")


def main() -> None:
    """Draw the page."""
    source, _ = open_page("Data quality", "What is missing, and why?", ("run", "trace", "prometheus"))
    if source.kind == "trace":
        draw_trace(source)
    elif source.kind == "prometheus":
        draw_server(source)
    else:
        run = load_run(source)
        on_each_refresh(run, lambda: draw_run(run))


main()
