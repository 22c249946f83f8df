"""Alerts that fire now, on every Prometheus server that the dashboard was given."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dashboards.sources.prometheus import Prometheus
from scope.errors import ScopeError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dashboards.sources.catalogue import Source
    from dashboards.sources.prometheus import ToldAlert

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
