"""Alerts that fire now, on every Prometheus server that the dashboard was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dashboards.sources.prometheus import Prometheus
from scope.errors import ScopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.sources.catalogue import Source

_NOT_WHERE = frozenset({"__name__", "alertname", "alertstate", "severity"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """One alert that fires.

    Attributes:
        name: Its name in the rules.
        severity: As the rule says.
        where: Labels and values that say what it is about.
    """

    name: str
    severity: str
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Firing:
    """What fires, and which servers could not be asked.

    Attributes:
        alerts: Critical ones first.
        problems: Why a server gave no answer.
        num_servers: Servers that were asked.
    """

    alerts: tuple[Alert, ...]
    problems: tuple[str, ...]
    num_servers: int


def firing_alerts(sources: Sequence[Source]) -> Firing:
    """Ask every Prometheus server among the sources; one that does not answer is a problem, not an error."""
    servers = [source for source in sources if source.kind == "prometheus"]
    alerts: list[Alert] = []
    problems: list[str] = []
    for source in servers:
        try:
            found = Prometheus(address=source.place).query('ALERTS{alertstate="firing"}')
        except ScopeError as error:
            problems.append(str(error))
            continue
        alerts += [
            Alert(
                name=each.labels.get("alertname", "?"),
                severity=each.labels.get("severity", "unknown"),
                where=", ".join(
                    f"{name}={each.labels[name]}" for name in sorted(each.labels) if name not in _NOT_WHERE
                ),
            )
            for each in found
        ]
    ordered = sorted(alerts, key=lambda alert: (alert.severity != "critical", alert.name, alert.where))
    return Firing(alerts=tuple(ordered), problems=tuple(problems), num_servers=len(servers))
