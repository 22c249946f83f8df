"""Names that would be links and images, in a real browser: no page asks anybody else, whatever they are called."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from dashboards.served import content_policy
from dashboards.sources.catalogue import find_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from conftest import Visitor

    Serve = Callable[..., AbstractContextManager[str]]

pytestmark = pytest.mark.system("chromium")

SAMPLES = Path(__file__).parents[3] / "sample_traces"
RUN = "![x](https:evil.example) www.evil.example me@evil.example"
EVENT = "![y](https://evil.example/e) https://evil.example/f"
FOREIGN = "img[src*=evil], a[href*=evil]"
# What the policy has refused, and whether a page can still be made to ask: an image and a question, by a script.
ASK_ELSEWHERE = """async () => {
    const refused = [];
    document.addEventListener('securitypolicyviolation', event => refused.push(event.effectiveDirective));
    const image = new Image();
    image.src = 'https://evil.example/image';
    await fetch('https://evil.example/question').catch(() => null);
    await new Promise(done => setTimeout(done, 300));
    return refused.sort();
}"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with such a name, a torn record and an event of such a kind."""
    run = tmp_path_factory.mktemp("hostile") / RUN
    shutil.copytree(SAMPLES / "gloo-4-ranks-straggler", run)
    rank = next(iter(sorted(run.rglob("steps.jsonl")))).parent
    with (rank / "steps.jsonl").open("a") as steps:
        steps.write("{torn")
    with (rank / "events.jsonl").open("a") as events:
        events.write(f'{{"kind":"{EVENT}"}}\n')
    return run


@pytest.fixture(scope="module")
def server(hostile: Path, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dashboard on it."""
    with serve(str(hostile), log=tmp_path_factory.mktemp("log") / "log") as found:
        yield found


def test_no_page_makes_anything_of_hostile_names(
    visitor: Visitor, server: str, hostile: Path, pages: dict[str, str]
) -> None:
    """On each page of the run and of its windows there is no image or link of theirs, and nobody else is asked."""
    seen = ""
    for source in find_sources([str(hostile)]):
        for name, title in pages.items():
            visitor.open(f"{server}/{name}?source={source.source_id}", title)
            assert not visitor.num_exceptions(), name
            assert not visitor.page.locator(FOREIGN).count(), name
            seen += visitor.page.locator("[data-testid=stMain]").inner_text()
    assert "evil.example" in seen
    assert visitor.hosts <= {urlsplit(server).netloc, ""}, visitor.hosts


def test_the_browser_refuses_to_ask_elsewhere(visitor: Visitor, server: str) -> None:
    """A script that runs in the page gets neither an image nor an answer from another server."""
    visitor.open(server, "Overview")
    assert visitor.page.evaluate(ASK_ELSEWHERE) == ["connect-src", "img-src"]


@pytest.mark.parametrize("path", ["", "steps", "_stcore/health", "static/none.js"])
def test_every_answer_has_the_policy(server: str, path: str) -> None:
    """The page, what it loads and what is not there all carry it."""
    try:
        headers = urlopen(f"{server}/{path}").headers
    except OSError as error:
        headers = error.headers  # type: ignore[attr-defined]
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "https:" not in policy
    assert "unsafe-eval" not in policy
    assert headers["Referrer-Policy"] == "no-referrer"


def test_only_the_inline_script_of_the_page_may_run() -> None:
    """The hash is that which `openssl dgst -sha256 -binary | base64` gives of the text of the script."""
    policy = content_policy("<script>window.x = 1</script><script src='a.js'></script>")
    assert "script-src 'self' 'sha256-TRQHTtKk2Jz9TNrGZb+BnTJZb+vLVfeW/a0aaZ7avUM=';" in policy
