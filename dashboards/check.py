"""`python -m dashboards.check`: draw every page without a browser and compare what it shows with the run directory."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from streamlit.logger import set_log_level
from streamlit.testing.v1 import AppTest

from dashboards.settings import VARIABLE, Settings, write_environment
from dashboards.sources.catalogue import find_sources
from dashboards.state import SOURCE
from scope.analysis.recorded import (
    INPUT_BOUND_RATIO,
    RankExcess,
    compute_input_cost,
    compute_rank_excess,
    describe_slowest,
    peer_sets,
)
from scope.frames import open_run
from scope.frames.schema import Ranks, RankSteps
from scope.units import format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = Path(__file__).parent / "app.py"
VIEWS = Path(__file__).parent / "views"
_TIMEOUT_S = 120.0
_ALWAYS_DRAWN = frozenset({"overview", "steps", "ranks", "memory"})
"""Pages with a figure of any run that has made steps."""


def problems_of(place: Path, *, steps: int, ranks: int) -> Iterator[str]:
    """Yield what is wrong with the dashboard on a recorded run, one sentence each.

    Args:
        place: The run directory.
        steps: Optimizer updates that the run has made.
        ranks: Processes that it had.
    """
    run = open_run(place)
    recorded = run.steps()
    if run.ranks[Ranks.rank].n_unique() != ranks:
        yield f"{place} holds {run.ranks.height} ranks, {ranks} were started"
    for rank, found in recorded.group_by(RankSteps.rank, maintain_order=True).len().iter_rows():
        if found != steps:
            yield f"rank {rank} has recorded {found} steps of {steps}"
    source = find_sources([str(place)])[0]
    os.environ[VARIABLE] = write_environment(Settings(places=(str(place),), refresh_s=3600.0))[VARIABLE]
    for view in sorted(VIEWS.glob("[a-z]*.py")):
        app = AppTest.from_file(str(APP), default_timeout=_TIMEOUT_S).run()
        app.query_params[SOURCE] = source.source_id
        app.switch_page(f"views/{view.name}").run()
        yield from (f"the page {view.stem} fails: {error.message}" for error in app.exception)
        # The run has ended in order, so there is nothing for a page to complain of.
        yield from (f"the page {view.stem} says: {error.value}" for error in app.error)
        if view.stem in _ALWAYS_DRAWN and not app.get("plotly_chart"):
            yield f"the page {view.stem} draws no figure"
        if view.stem == "overview":
            yield from _overview_problems(app, steps=steps, ranks=ranks)


def faults_not_named(place: Path, *, straggler: int | None, slow_input: bool) -> Iterator[str]:
    """Yield which planted faults the run does not name, one sentence each.

    Args:
        place: The run directory.
        straggler: Rank that was slowed down; None for none.
        slow_input: Whether the data loader was.
    """
    run = open_run(place)
    steps = run.steps().lazy()
    if straggler is not None:
        excess = compute_rank_excess(steps, peers=peer_sets(run.rank_infos))
        if excess.filter(pl.col(RankExcess.is_notable))[RankExcess.rank].head(1).to_list() != [straggler]:
            found = describe_slowest(excess) or "no rank works notably longer than its peers"
            yield f"rank {straggler} was slowed down, and {found}"
    if slow_input:
        cost = compute_input_cost(steps, peers=peer_sets(run.rank_infos))
        share = 0.0 if cost is None else cost.share_ratio
        if share < INPUT_BOUND_RATIO:
            yield f"the data loader was slowed down, and input takes {format_ratio(share)} of the last steps"


def _overview_problems(app: AppTest, *, steps: int, ranks: int) -> Iterator[str]:
    shown = {metric.label: metric.value for metric in app.metric}
    expected = {"Ranks recorded": f"{ranks} of {ranks}", "Last step": str(steps - 1)}
    for label, value in expected.items():
        if shown.get(label) != value:
            yield f"the overview shows {label} {shown.get(label)}, the run has {value}"


def main() -> None:
    """Check a run, and exit with 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description="Draw every page of the dashboard on a run and check it.")
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--steps", type=int, required=True, help="optimizer updates of the run")
    parser.add_argument("--ranks", type=int, required=True, help="processes of the run")
    parser.add_argument("--straggler", type=int, help="rank that was slowed down, which the run must name")
    parser.add_argument("--slow-input", action="store_true", help="the data loader was, which must show")
    options = parser.parse_args()
    # Streamlit warns of every page that is drawn without a browser, which is what this is for.
    os.environ["STREAMLIT_LOGGER_LEVEL"] = "error"
    set_log_level("error")
    # Its loggers get their level anew when they are made; the one that misses the browser is made late.
    logging.getLogger("streamlit.runtime.scriptrunner_utils.script_run_context").disabled = True
    problems = list(problems_of(options.run, steps=options.steps, ranks=options.ranks))
    unnamed = list(faults_not_named(options.run, straggler=options.straggler, slow_input=options.slow_input))
    if unnamed:
        unnamed.append("A machine that is busy with else hides faults: try fewer ranks and more steps.")
    problems += unnamed
    for problem in problems:
        sys.stderr.write(f"scope: {problem}\n")
    if problems:
        sys.exit(1)
    sys.stdout.write(f"The dashboard shows {options.ranks} ranks and {options.steps} steps on all its pages.\n")


if __name__ == "__main__":
    main()
