"""A trace that is still being written while a page shows it: every page says so, until the file is whole."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dashboards.sources.catalogue import find_sources

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamlit.testing.v1 import AppTest

SAMPLES = Path(__file__).parents[3] / "sample_traces" / "gloo-2-ranks-straggler"
PAGES = ("overview", "steps", "ranks", "kernels", "timeline", "collectives", "memory", "compare", "quality")


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with the whole trace of rank 0."""
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "rank0.json").write_bytes(gzip.decompress((SAMPLES / "rank0.json.gz").read_bytes()))
    return folder


def not_whole(app: AppTest) -> list[str]:
    """Return what a page says of traces that break off."""
    assert not app.exception
    return [each.value for each in app.warning if "Not whole" in each.value]


@pytest.mark.parametrize("page", PAGES)
def test_half_a_trace_is_said_and_the_whole_is_shown_afterwards(
    open_app: Callable[..., AppTest], traces: Path, page: str
) -> None:
    """Rank 1 breaks off, rank 0 does not; once the rest is there, the next drawing complains of nothing."""
    content = gzip.decompress((SAMPLES / "rank1.json.gz").read_bytes())
    growing = traces / "rank1.json"
    growing.write_bytes(content[: len(content) // 2])
    (sentence,) = not_whole(open_app(page, traces))
    assert "the trace of rank 1 breaks off" in sentence
    assert "rank 0" not in sentence
    growing.write_bytes(content)
    assert not_whole(open_app(page, traces)) == []


def test_a_comparison_says_whose_trace_breaks_off(
    open_app: Callable[..., AppTest], traces: Path, tmp_path: Path
) -> None:
    """The job that is compared with has half a trace: it is named with its folder."""
    half = tmp_path / "half"
    half.mkdir()
    content = (traces / "rank0.json").read_bytes()
    (half / "rank0.json").write_bytes(content[: len(content) // 2])
    (whole,) = find_sources([str(traces)])
    (sentence,) = not_whole(open_app("compare", traces, half, source=whole.source_id))
    assert "rank 0 in half breaks off" in sentence


def test_a_file_that_was_just_begun_is_named(open_app: Callable[..., AppTest], traces: Path) -> None:
    """An empty file and a few bytes of gzip are each one sentence that names the file."""
    for name, content in (("rank1.json", b""), ("rank1.json.gz", (SAMPLES / "rank1.json.gz").read_bytes()[:20])):
        begun = traces / name
        begun.write_bytes(content)
        app = open_app("overview", traces)
        assert not app.exception
        (error,) = app.error
        assert name in error.value.replace("\\", "")
        begun.unlink()
