"""Alerts that fire now, on every Prometheus server that the dashboard was given."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dashboards.sources.prometheus import Prometheus
from scope.errors import ScopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from dashboards.sources.catalogue import Source
    from dashboards.sources.prometheus import ToldAlert

_REST_S: Final = 10.0
_PATIENCE_S: Final = 2.0
_OLD_S: Final = 60.0
"""An answer from longer ago tells nothing of now."""
_HERE = ("127.0.0.1", "localhost", "[::1]")
_NOT_WHERE = frozenset({"__name__", "alertname", "alertstate", "severity"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """One alert that fires.

    Attributes:
        name: Its name in the rules.
        severity: As the rule says.
        where: Labels and values that say what it is about.
        summary: What the rule says of it, its description included; empty where the server does not tell.
        run: Label of the run that it is about; None when it is about none.
        node: Host that it is about; None when it is about none.
    """

    name: str
    severity: str
    where: str
    summary: str = ""
    run: str | None = None
    node: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Firing:
    """What fires, and which servers could not be asked.

    Attributes:
        alerts: Critical ones first.
        problems: Why a server gave no answer.
        num_servers: Servers that were asked.
        pending: Alerts that fire soon unless what they are about ends.
    """

    alerts: tuple[Alert, ...]
    problems: tuple[str, ...]
    num_servers: int
    pending: tuple[Alert, ...] = ()


def firing_alerts(sources: Sequence[Source]) -> Firing:
    """Ask every Prometheus server among the sources; one that does not answer is a problem, not an error."""
    servers = [source for source in sources if source.kind == "prometheus"]
    told: list[ToldAlert] = []
    problems: list[str] = []
    for source in servers:
        try:
            told += Prometheus(address=source.place).alerts()
        except ScopeError as error:
            problems.append(str(error))
    return Firing(
        alerts=tuple(alerts_in(told, state="firing")),
        problems=tuple(problems),
        num_servers=len(servers),
        pending=tuple(alerts_in(told, state="pending")),
    )


@dataclass
class AlertWatch:
    """Asks the servers now and then in a thread, so that one that does not answer keeps no page waiting.

    Attributes:
        ask: Asks all servers among the sources.
        rest_s: Time between two questions.
        patience_s: How long a visitor waits for the answer at most, counted from the question.
        clock: Seconds, monotonic.
    """

    ask: Callable[[Sequence[Source]], Firing] = firing_alerts
    rest_s: float = _REST_S
    patience_s: float = _PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _asking: threading.Thread | None = field(default=None, init=False)
    _asked: float = field(default=0.0, init=False)
    _answer: Firing | None = field(default=None, init=False)
    _answered: float = field(default=0.0, init=False)

    def now(self, sources: Sequence[Source]) -> Firing:
        """Return what fires, as it was told within the last minute; a server that has told nothing is a problem.

        Args:
            sources: What the dashboard may show; its servers are asked.
        """
        servers = [source for source in sources if source.kind == "prometheus"]
        if not servers:
            return Firing(alerts=(), problems=(), num_servers=0)
        with self._lock:
            if self._asking is None and (self._answer is None or self.clock() >= self._answered + self.rest_s):
                self._asked = self.clock()
                self._asking = threading.Thread(target=self._look, args=(servers,), name="scope-alerts", daemon=True)
                self._asking.start()
            asking, known = self._asking, self._answer
            left_s = max(0.0, self._asked + self.patience_s - self.clock())
        # Whoever did not answer the last time is not waited for again.
        if asking is not None and (known is None or not known.problems):
            asking.join(left_s)
        with self._lock:
            if self._answer is not None and self.clock() < self._answered + _OLD_S:
                return self._answer
        problems = tuple(f"{server.label} has not answered yet" for server in servers)
        return Firing(alerts=(), problems=problems, num_servers=len(servers))

    def _look(self, servers: Sequence[Source]) -> None:
        try:
            answer = self.ask(servers)
            with self._lock:
                self._answer, self._answered = answer, self.clock()
        finally:
            with self._lock:
                self._asking = None


def alerts_in(told: Sequence[ToldAlert], *, state: str) -> list[Alert]:
    """Return the alerts in a state (`firing` or `pending`), critical ones first."""
    alerts = [_alert(each) for each in told if each.state == state]
    return sorted(alerts, key=lambda alert: (alert.severity != "critical", alert.name, alert.where))


def _alert(told: ToldAlert) -> Alert:
    labels = told.labels
    return Alert(
        name=labels.get("alertname", "?"),
        severity=labels.get("severity", "unknown"),
        where=", ".join(f"{name}={labels[name]}" for name in sorted(labels) if name not in _NOT_WHERE),
        summary=_sentences(told.annotations.get("summary", ""), told.annotations.get("description", "")),
        run=labels.get("run"),
        # The exporter that told it, `host:port`.
        node=labels.get("instance", "").rpartition(":")[0] or None,
    )


def _sentences(*parts: str) -> str:
    return " ".join(f"{part.strip().rstrip('.')}." for part in parts if part.strip())


def alerts_of_run(alerts: Sequence[Alert], *, label: str, hosts: Collection[str]) -> tuple[list[Alert], int]:
    """Return the alerts of a run and of its nodes, and how many others there are, in the order given.

    Args:
        alerts: All that fire.
        label: Label of the run (`scope.run.naming.label_run`).
        hosts: Names of its nodes. An address of this machine stands for the node that the dashboard runs on.
    """
    own_host = socket.gethostname()
    nodes = {*hosts, *(_HERE if own_host in hosts else ())}
    own = [each for each in alerts if each.run == label or (each.run is None and each.node in nodes)]
    return own, len(alerts) - len(own)
