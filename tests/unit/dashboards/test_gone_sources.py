"""Links to what the server does not have, and runs that are deleted while they are shown: a sentence, and a way on."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from dashboards import shell
from dashboards.sources.catalogue import find_sources
from dashboards.sources.runs import open_live
from scope.errors import RunError
from scope.testing.layout import Layout
from scope.testing.runs import SyntheticRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamlit.testing.v1 import AppTest


def plain(elements: Any) -> str:
    """Return the texts of some elements without what keeps Markdown from reading them."""
    return " ".join(each.value for each in elements).replace("\\", "")


def place_of(app: AppTest) -> Any:
    """Return the field in which the source is chosen."""
    (field,) = [each for each in app.sidebar.selectbox if each.label == "Source"]
    return field


@pytest.fixture
def runs(run_folder: Path) -> list[Path]:
    """Three runs beside each other, so that two are left to be compared when one is gone."""
    copies = [run_folder.parent / name for name in ("second-run", "third-run")]
    for copy in copies:
        shutil.copytree(run_folder, copy)
    return [run_folder, *copies]


@pytest.mark.parametrize("wrong", ["0123456789ab", "../../etc/passwd", "x"])
def test_a_link_to_an_unknown_source_says_so(open_app: Callable[..., AppTest], run_folder: Path, wrong: str) -> None:
    """An id that is not in the list, or is none at all, is a sentence that names what is shown and what to do."""
    app = open_app("steps", run_folder, source=wrong)
    assert not app.exception
    (sentence,) = [each.value for each in app.warning if "does not have" in each.value]
    assert "four-ranks" in sentence
    assert "Choose another under Source" in sentence
    assert wrong not in sentence


def test_a_link_to_a_known_source_says_nothing(open_app: Callable[..., AppTest], runs: list[Path]) -> None:
    """The second run is shown, without a word."""
    second = find_sources([str(each) for each in runs])[1]
    app = open_app("steps", *runs, source=second.source_id)
    assert place_of(app).value == second.source_id
    assert "does not have" not in plain(app.warning)


def test_a_page_that_cannot_show_a_run_says_what_it_shows(
    open_app: Callable[..., AppTest], run_folder: Path, tmp_path: Path
) -> None:
    """The kernels page has no place for a run: it shows a trace, and says that this may be another job."""
    trace = tmp_path / "traces"
    trace.mkdir()
    (trace / "rank0.json").write_text('{"traceEvents": []}')
    run = find_sources([str(run_folder)])[0]
    app = open_app("kernels", run_folder, trace, source=run.source_id)
    assert not app.exception
    said = plain(app.warning)
    assert "This page cannot show a recorded run: it shows traces (profiler traces), which may be another job" in said


def test_the_run_of_a_window_is_no_other_job(open_app: Callable[..., AppTest], tmp_path: Path) -> None:
    """The links page shows the run that a window was captured in, and says so without a warning."""
    from scope.testing.demo import write_demo_run

    write_demo_run(tmp_path / "eight")
    sources = find_sources([str(tmp_path / "eight")])
    window = next(each for each in sources if each.kind == "trace")
    app = open_app("links", tmp_path / "eight", source=window.source_id)
    assert not app.exception
    assert "This page cannot show profiler traces: it shows " in plain(app.caption)
    assert "another job" not in plain(app.warning)


def test_choosing_a_source_of_another_kind_is_no_replacement(
    open_app: Callable[..., AppTest], run_folder: Path
) -> None:
    """A server that was chosen on a page that shows runs too is what was asked for."""
    run, server = find_sources([str(run_folder), "http://127.0.0.1:9"])
    app = open_app("overview", run_folder, "http://127.0.0.1:9", source=run.source_id)
    place_of(app).select(server.source_id)
    app.run()
    assert not app.exception
    assert "does not answer" in plain(app.error)
    assert "cannot show" not in plain(app.caption)


@pytest.mark.parametrize("page", ["overview", "steps", "ranks", "memory", "compare"])
def test_a_run_that_is_deleted_while_it_is_shown(
    open_app: Callable[..., AppTest], runs: list[Path], page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says that it is gone and what to do, without a traceback, and goes on with the other run."""
    first, second, _ = find_sources([str(each) for each in runs])
    app = open_app(page, *runs, source=first.source_id)
    assert not app.exception
    # A look at the disk is due again.
    monkeypatch.setattr(shell.open_live(first.place, refresh_s=60.0), "_rest_until", float("-inf"))
    shutil.rmtree(runs[0])
    app.run()
    assert not app.exception
    told = plain(app.error)
    assert "four-ranks" in told
    assert "hoose another" in told
    place_of(app).set_value(second.source_id).run()
    assert not app.exception
    assert not app.error
    assert app.get("plotly_chart")


def replace_run(folder: Path, *, ranks: int, steps: int) -> None:
    """Write another run of the same id, begun a second earlier, where one lies."""
    old = json.loads((folder / "run.json").read_text())
    shutil.rmtree(folder)
    SyntheticRun(layout=Layout(dp=ranks), num_steps=steps, num_whole_steps=steps).write(folder)
    new = json.loads((folder / "run.json").read_text())
    began = {"run_id": old["run_id"], "started_ns": old["started_ns"] - 1_000_000_000}
    (folder / "run.json").write_text(json.dumps(new | began))


@pytest.mark.parametrize(("ranks", "steps"), [(2, 12), (3, 50), (4, 20)])
def test_another_run_at_the_same_place_is_shown_alone(
    open_app: Callable[..., AppTest], run_folder: Path, ranks: int, steps: int
) -> None:
    """Fewer ranks, more or fewer steps than before: no figure of the run that lay there is left, and none fails."""
    app = open_app("overview", run_folder)
    assert {each.label: each.value for each in app.metric}["Ranks recorded"] == "4 of 4"
    replace_run(run_folder, ranks=ranks, steps=steps)
    app.run()
    assert not app.exception
    assert not app.error
    shown = {each.label: each.value for each in app.metric}
    assert shown["Ranks recorded"] == f"{ranks} of {ranks}"
    assert shown["Last step"] == str(steps - 1)


def test_a_page_that_is_refreshed_mixes_no_two_runs(run_folder: Path) -> None:
    """What is drawn again by itself refuses another run at the place of its own, with the same id or not."""
    live = open_live(str(run_folder), refresh_s=0.0)
    live.refresh()
    replace_run(run_folder, ranks=4, steps=31)
    live._rest_until = float("-inf")
    with pytest.raises(RunError, match="open the page again"):
        live.refresh()
    assert open_live(str(run_folder), refresh_s=0.0) is not live
