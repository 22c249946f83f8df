"""The check of `scope demo --once` finds what is wrong with a page, and nothing where nothing is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dashboards import findings, plots, shell
from dashboards.check import faults_not_named, problems_of
from dashboards.settings import VARIABLE
from scope.errors import RunError

if TYPE_CHECKING:
    from pathlib import Path

RANKS, STEPS = 4, 30


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept of another test's settings, and this one's are forgotten."""
    monkeypatch.setenv(VARIABLE, "{}")
    for kept in (shell.settings, shell.source_list, findings._firing):
        kept.clear()


def test_a_sound_run_has_no_problem(run_folder: Path) -> None:
    """Every page draws, and the overview shows what the run holds."""
    assert list(problems_of(run_folder, steps=STEPS, ranks=RANKS)) == []


def test_a_run_of_other_steps_or_ranks_is_told(run_folder: Path) -> None:
    """One step more was made than recorded: every rank and the overview are named."""
    problems = list(problems_of(run_folder, steps=STEPS + 1, ranks=RANKS + 1))
    assert f"{run_folder} holds {RANKS} ranks, {RANKS + 1} were started" in problems
    assert [f"rank {rank} has recorded 30 steps of 31" in problems for rank in range(RANKS)] == [True] * RANKS
    assert "the overview shows Last step 29, the run has 30" in problems


@pytest.mark.parametrize(
    ("error", "words"), [(ValueError("broken on purpose"), "fails"), (RunError("broken on purpose"), "says")]
)
def test_a_page_that_breaks_is_named(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    """Whether it raises or complains: each page that shows figures is named with its message."""

    def break_down(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(plots, "show_figure", break_down)
    problems = list(problems_of(run_folder, steps=STEPS, ranks=RANKS))
    for page in ("overview", "ranks", "memory"):
        assert any(f"the page {page} {words}" in problem and "on purpose" in problem for problem in problems), problems
        assert f"the page {page} draws no figure" in problems


def test_a_planted_straggler_is_what_the_run_names(run_folder: Path) -> None:
    """Rank 2 of the run works 30 ms longer in forward: a planted rank 1 is missed, and so is slow input of 5 ms."""
    assert list(faults_not_named(run_folder, straggler=2, slow_input=False)) == []
    assert list(faults_not_named(run_folder, straggler=None, slow_input=False)) == []
    straggler, slow_input = faults_not_named(run_folder, straggler=1, slow_input=True)
    assert straggler.startswith("rank 1 was slowed down, and rank 2 works 30 ms (")
    assert slow_input == "the data loader was slowed down, and input takes 5.0 % of the last steps"


def test_slow_input_is_seen(run_folder: Path) -> None:
    """25 of 100 ms in input on every rank."""
    for file in run_folder.rglob("steps.jsonl"):
        text = file.read_text().replace('"input": 5000000', '"input": 25000000')
        file.write_text(text.replace('"backward": 60000000', '"backward": 40000000'))
    assert list(faults_not_named(run_folder, straggler=None, slow_input=True)) == []


def test_a_rank_that_nothing_shows_of_is_said(run_folder: Path) -> None:
    """Where all ranks work alike, the sentence says so."""
    for file in run_folder.rglob("steps.jsonl"):
        file.write_text((run_folder / "attempt-000/ranks/00000/steps.jsonl").read_text())
    (said,) = faults_not_named(run_folder, straggler=2, slow_input=False)
    assert said == "rank 2 was slowed down, and no rank works notably longer than its peers"
