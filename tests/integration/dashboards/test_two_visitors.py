"""Two people look at two runs of one server at once: neither meets the run, the choices or the sign-in of the other."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import bcrypt
import pytest
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from dashboards.sources.catalogue import find_sources

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from conftest import Visitor

    Serve = Callable[..., AbstractContextManager[str]]

pytestmark = pytest.mark.system("chromium")

DRAWN_MS = 60_000
GUESSES = 50
FOLLOWS_MS = 10_000


def look_at(visitor: Visitor, step: int) -> None:
    """Type a step into the field of the Steps page and wait until it is drawn."""
    field = visitor.page.get_by_label("Look at step")
    field.fill(str(step))
    field.press("Enter")
    visitor.page.wait_for_selector(f"h3:has-text('Step {step} on every rank')", timeout=DRAWN_MS)


def shown(visitor: Visitor) -> tuple[str, str | None]:
    """Return the source and the step that the address of a visitor names."""
    query = parse_qs(urlsplit(visitor.page.url).query)
    return query["source"][0], query.get("step", [None])[0]


def go(visitor: Visitor, title: str) -> None:
    """Follow a link of the sidebar."""
    visitor.page.get_by_test_id("stSidebarNavLink").filter(has_text=title).click()
    visitor.wait_until_drawn(title)
    visitor.page.wait_for_url("**source=*", timeout=DRAWN_MS)


def test_two_visitors_of_two_runs_see_their_own(
    visitors: tuple[Visitor, Visitor], address: str, places: list[Path]
) -> None:
    """Each chooses a step, goes to another page and comes back, in turns: source and step stay those of each."""
    runs = [find_sources([str(places[place])])[0] for place in (0, 2)]
    steps = (3, 5)
    for visitor, run, step in zip(visitors, runs, steps, strict=True):
        visitor.open(f"{address}/steps?source={run.source_id}", "Steps")
        look_at(visitor, step)
    for title in ("Ranks", "Steps"):
        for visitor in visitors:
            go(visitor, title)
    for visitor, run, step, other in zip(visitors, runs, steps, reversed(steps), strict=True):
        visitor.page.wait_for_url(f"**step={step}*", timeout=DRAWN_MS)
        assert shown(visitor) == (run.source_id, str(step))
        assert visitor.page.get_by_label("Look at step").input_value() == str(step)
        assert not visitor.page.locator(f"h3:has-text('Step {other} on every rank')").count()
        assert not visitor.num_exceptions()
    synthetic = [visitor.page.get_by_text("Synthetic").count() > 0 for visitor in visitors]
    assert synthetic == [False, True]


def test_back_leaves_a_page_after_two_presses(visitor: Visitor, address: str, places: list[Path]) -> None:
    """A page that is opened by its link completes its address once, with all that it shows: source, ranks and step."""
    source = find_sources([str(places[1])])[0]
    visitor.open(f"{address}/kernels?source={source.source_id}", "Kernels")
    before = visitor.page.evaluate("() => history.length")
    go(visitor, "Timeline")
    go(visitor, "Steps")
    visitor.page.wait_for_url("**/steps?*step=*", timeout=DRAWN_MS)
    assert visitor.page.evaluate("() => history.length") <= before + 4
    for _ in range(2):
        visitor.page.go_back()
        # The page follows its address a while later; a second press before that would leave Timeline behind.
        with suppress(PlaywrightTimeoutError):
            visitor.page.wait_for_url("**/timeline*", timeout=FOLLOWS_MS)
            break
    visitor.wait_until_drawn("Timeline")
    assert shown(visitor)[0] == source.source_id


def test_who_guesses_passwords_does_not_sign_others_out(
    visitors: tuple[Visitor, Visitor], serve: Serve, places: list[Path], tmp_path: Path
) -> None:
    """While one types 50 wrong passwords, whoever is in stays in; each guess is answered, and nothing is seen."""
    users = tmp_path / "users.yml"
    hashed = bcrypt.hashpw(b"correct horse", bcrypt.gensalt(rounds=4)).decode()
    users.write_text(f"basic_auth_users:\n  ann: {hashed}\n")
    ann, guesser = visitors
    with serve(str(places[0]), "--auth-file", str(users), log=tmp_path / "log") as found:
        sign_in(ann, found, "correct horse")
        ann.wait_until_drawn("Steps")
        sign_in(guesser, found, "wrong 0")
        guesser.page.wait_for_selector("text=is wrong", timeout=DRAWN_MS)
        for guess in range(1, GUESSES):
            guesser.page.get_by_label("Password").first.fill(f"wrong {guess}")
            guesser.page.get_by_role("button", name="Sign in").click()
        guesser.page.wait_for_selector("text=/is wrong|Try again in/", timeout=DRAWN_MS)
        assert not guesser.page.get_by_test_id("stSidebarNavLink").count()
        assert not guesser.num_exceptions()
        go(ann, "Ranks")
        assert not ann.num_exceptions()


def sign_in(visitor: Visitor, address: str, password: str) -> None:
    """Open the page of steps and give a password."""
    visitor.page.goto(f"{address}/steps")
    visitor.page.get_by_label("User").fill("ann")
    visitor.page.get_by_label("Password").first.fill(password)
    visitor.page.get_by_role("button", name="Sign in").click()
