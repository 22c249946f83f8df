"""Servers are asked for alerts beside the pages, so that one that hangs keeps no page waiting."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from dashboards.sources import prometheus
from dashboards.sources.alerts import Alert, AlertWatch, Firing
from dashboards.sources.catalogue import find_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pytest
    from streamlit.testing.v1 import AppTest

    from dashboards.sources.catalogue import Source

SERVERS = find_sources(["http://localhost:9090"])
LONG_S = 30.0


class Asked:
    """Servers whose answers a test gives."""

    def __init__(self) -> None:
        self.num_questions = 0
        self.now_s = 0.0
        self.may_answer = threading.Event()
        self.problems: tuple[str, ...] = ()

    def ask(self, servers: Sequence[Source]) -> Firing:
        """Answer once it is allowed; the alert bears the number of the question."""
        self.num_questions += 1
        number = self.num_questions
        assert self.may_answer.wait(LONG_S)
        alert = Alert(name=f"A{number}", severity="critical", where="")
        return Firing(alerts=() if self.problems else (alert,), problems=self.problems, num_servers=len(servers))

    def watch(self, *, patience_s: float) -> AlertWatch:
        """Return the watch of these servers."""
        return AlertWatch(ask=self.ask, rest_s=10.0, patience_s=patience_s, clock=lambda: self.now_s)


def names(firing: Firing) -> list[str]:
    """Return the names of what fires."""
    return [alert.name for alert in firing.alerts]


def test_without_a_server_nobody_is_asked() -> None:
    """No server is no problem, and no thread is started."""
    asked = Asked()
    assert asked.watch(patience_s=0.0).now(()) == Firing(alerts=(), problems=(), num_servers=0)
    assert not asked.num_questions


def test_a_server_that_hangs_keeps_nobody_waiting_and_is_asked_once() -> None:
    """Without patience each look says at once that it has not answered, and no second question is asked meanwhile."""
    asked = Asked()
    watch = asked.watch(patience_s=0.0)
    for _ in range(3):
        firing = watch.now(SERVERS)
        assert firing.problems == ("localhost:9090 has not answered yet",)
        assert firing.num_servers == 1
    assert asked.num_questions == 1
    asked.may_answer.set()


def test_an_answer_is_kept_for_its_rest_and_forgotten_when_it_is_old() -> None:
    """Ten seconds later the server is asked again; what it said more than a minute ago is not shown as now."""
    asked = Asked()
    asked.may_answer.set()
    watch = asked.watch(patience_s=LONG_S)
    assert names(watch.now(SERVERS)) == ["A1"]
    asked.now_s = 9.0
    assert names(watch.now(SERVERS)) == ["A1"]
    asked.now_s = 10.0
    assert names(watch.now(SERVERS)) == ["A2"]
    asked.may_answer.clear()
    watch.patience_s = 0.0
    asked.now_s = 69.0
    assert names(watch.now(SERVERS)) == ["A2"]
    asked.now_s = 70.0
    assert watch.now(SERVERS).problems == ("localhost:9090 has not answered yet",)
    asked.may_answer.set()


def test_whoever_failed_is_not_waited_for_again() -> None:
    """After a problem the next look does not wait for the next answer, however patient it is."""
    asked = Asked()
    asked.may_answer.set()
    asked.problems = ("it is down",)
    watch = asked.watch(patience_s=LONG_S)
    assert watch.now(SERVERS).problems == ("it is down",)
    asked.may_answer.clear()
    asked.now_s = 20.0
    assert watch.now(SERVERS).problems == ("it is down",)
    asked.may_answer.set()


def test_a_run_is_drawn_beside_a_server_that_never_answers(
    run_folder: Path, open_app: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All figures of the run are there while the server is still waited for, and its silence is said."""
    monkeypatch.setattr(prometheus, "_TIMEOUT_S", 600.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(20)
        app = open_app("overview", run_folder, f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert not app.exception
        assert {each.label: each.value for each in app.metric}["Ranks recorded"] == "4 of 4"
        assert any("has not answered yet" in each.value for each in app.caption)
