"""Links to what the server does not have, and runs that are deleted while they are shown: a sentence, and a way on."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from dashboards import shell
from dashboards.sources.catalogue import find_sources

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
    """The kernels page has no place for a run: it shows a trace and says so."""
    trace = tmp_path / "traces"
    trace.mkdir()
    (trace / "rank0.json").write_text('{"traceEvents": []}')
    run = find_sources([str(run_folder)])[0]
    app = open_app("kernels", run_folder, trace, source=run.source_id)
    assert not app.exception
    assert "This page cannot show a recorded run" in plain(app.caption)


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
    shutil.rmtree(runs[0])
    # A look at the disk is due again.
    monkeypatch.setattr(shell.open_live(first.place, refresh_s=60.0), "_rest_until", float("-inf"))
    app.run()
    assert not app.exception
    told = plain(app.error)
    assert "four-ranks" in told
    assert "hoose another" in told
    place_of(app).set_value(second.source_id).run()
    assert not app.exception
    assert not app.error
    assert app.get("plotly_chart")
