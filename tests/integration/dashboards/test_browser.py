"""The dashboard in a real browser: every page draws, a click selects, nothing leaves the machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import bcrypt
import pytest

from dashboards.sources.catalogue import find_sources

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from conftest import Visitor

    Serve = Callable[..., AbstractContextManager[str]]

pytestmark = pytest.mark.system("chromium")

SAMPLES = Path(__file__).parents[3] / "sample_traces"
DRAWN_MS = 60_000


def test_every_link_opens_its_page(visitor: Visitor, pages: dict[str, str], address: str, places: list[Path]) -> None:
    """Each page of a run is found under its name, marked in the sidebar, keeps the source and asks nobody else."""
    source = find_sources([str(places[0])])[0]
    for name, title in pages.items():
        visitor.open(f"{address}/{name}?source={source.source_id}", title)
        marked = visitor.page.locator("[data-testid=stSidebarNavLink][aria-current=page]")
        assert marked.inner_text().splitlines()[-1].strip() == title
        assert visitor.page.get_by_test_id("stSidebarNavLink").count() == len(pages)
        assert not visitor.page.get_by_text("Page not found").count()
        assert not visitor.num_exceptions(), name
    assert visitor.hosts <= {urlsplit(address).netloc, ""}, visitor.hosts


def test_every_page_draws_traces_and_asks_nobody_else(visitor: Visitor, address: str, places: list[Path]) -> None:
    """No exception on any page of traces, opened one after the other; all requests go to the dashboard itself."""
    source = find_sources([str(places[1])])[0]
    for name in visitor.open_every_page(f"{address}/?source={source.source_id}"):
        assert not visitor.num_exceptions(), name
    assert visitor.hosts <= {urlsplit(address).netloc, ""}, visitor.hosts


def test_a_hostile_name_is_text(visitor: Visitor, address: str, places: list[Path]) -> None:
    """A run whose folder is called like Markdown and HTML makes no link, no image and no dialog."""
    for source in find_sources([str(places[2])]):
        visitor.open(f"{address}/?source={source.source_id}")
        visitor.page.wait_for_selector("text=Synthetic", timeout=DRAWN_MS)
        assert not visitor.page.locator("a[href^='javascript']").count()
        assert not visitor.page.locator("img[src='x']").count()


def test_a_hostile_address_does_nothing(visitor: Visitor, address: str) -> None:
    """Every parameter is hostile, and the page is drawn as if none were there; the source's is said to be unknown."""
    parameters = ["source=../../etc/passwd", "step=" + "9" * 400, "ranks=%3Cscript%3E", "start=-1", "end=1e9"]
    visitor.open(f"{address}/steps?{'&'.join([*parameters, 'selection=x', 'from=-1', 'other=%00'])}", "Steps")
    assert not visitor.num_exceptions()
    visitor.wait_for("names a source that this server does not have")
    assert visitor.page.locator(".js-plotly-plot").count() == 1


def test_a_click_on_a_bar_opens_its_step_and_the_link_has_it(
    visitor: Visitor, address: str, places: list[Path]
) -> None:
    """The step that was clicked is drawn on every rank, and a copy of the address shows it again."""
    source = find_sources([str(places[0])])[0]
    visitor.open(f"{address}/steps?source={source.source_id}", "Steps")
    visitor.click_largest_mark()
    visitor.page.wait_for_url("**step=*", timeout=DRAWN_MS)
    (step,) = parse_qs(urlsplit(visitor.page.url).query)["step"]
    visitor.page.wait_for_selector(f"h3:has-text('Step {step} on every rank')", timeout=DRAWN_MS)
    visitor.open(visitor.page.url, "Steps")
    visitor.page.wait_for_selector(f"h3:has-text('Step {step} on every rank')", timeout=DRAWN_MS)


def test_a_box_in_the_timeline_is_the_next_window(visitor: Visitor, address: str, places: list[Path]) -> None:
    """Drawing a box looks into it: the address has the window, and Whole goes back."""
    source = find_sources([str(places[1])])[0]
    visitor.open(f"{address}/timeline?source={source.source_id}", "Timeline")
    page = visitor.page
    page.wait_for_selector(".js-plotly-plot .nsewdrag", timeout=DRAWN_MS)
    box = page.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, middle + 20, steps=5)
    page.mouse.up()
    page.wait_for_url("**end=*", timeout=DRAWN_MS)
    query = parse_qs(urlsplit(page.url).query)
    assert 0 < int(query["start"][0]) < int(query["end"][0])
    page.get_by_role("button", name="Whole").click()
    page.wait_for_function("() => !location.search.includes('start=')", timeout=DRAWN_MS)


def test_an_empty_folder_says_what_to_do(visitor: Visitor, serve: Serve, tmp_path: Path) -> None:
    """No page fails, and each names a command."""
    empty = tmp_path / "empty"
    empty.mkdir()
    with serve(str(empty), log=tmp_path / "log") as found:
        for _ in visitor.open_every_page(found):
            visitor.page.wait_for_selector("text=scope demo", timeout=DRAWN_MS)
            assert not visitor.num_exceptions()


def test_with_users_nothing_is_seen_without_the_password(visitor: Visitor, serve: Serve, tmp_path: Path) -> None:
    """Every page asks for the password first, the wrong one opens nothing, and a new tab must sign in again."""
    users = tmp_path / "users.yml"
    hashed = bcrypt.hashpw(b"correct horse", bcrypt.gensalt(rounds=4)).decode()
    users.write_text(f"basic_auth_users:\n  ann: {hashed}\n")
    page = visitor.page
    with serve(str(SAMPLES), "--auth-file", str(users), log=tmp_path / "log") as found:
        page.goto(f"{found}/steps")
        page.wait_for_selector("text=Password", timeout=DRAWN_MS)
        assert not page.locator("text=gloo").count()
        for password in ("wrong", "correct horse"):
            page.get_by_label("User").fill("ann")
            page.get_by_label("Password").first.fill(password)
            page.get_by_role("button", name="Sign in").click()
            if password == "wrong":
                page.wait_for_selector("text=is wrong", timeout=DRAWN_MS)
                assert not page.locator("text=gloo").count()
                # The gate stays shut for half a second after the first failure.
                page.wait_for_timeout(600)
        page.wait_for_selector("h1:has-text('Steps')", timeout=DRAWN_MS)
        other = page.context.new_page()
        other.goto(found)
        other.wait_for_selector("text=Password", timeout=DRAWN_MS)
        other.close()
