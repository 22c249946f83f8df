"""A Prometheus server, asked over its HTTP interface."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import polars as pl

from scope.errors import InputError, LimitError
from scope.report.figures import Samples
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TIMEOUT_S: Final = 10.0
_MAX_ANSWER_BYTES: Final = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One series of an answer.

    Attributes:
        labels: Its labels, `__name__` among them.
        points: Instant in ns and value, sorted; a value that is no number is left out.
    """

    labels: Mapping[str, str]
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToldAlert:
    """One alert as the server tells it.

    Attributes:
        labels: Its labels.
        annotations: What its rule says of it, with the values filled in.
        state: `firing`, or `pending` while it must hold longer.
    """

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Prometheus:
    """A server.

    Attributes:
        address: `http://host:port`, from the command line, never from a link.
        fetch: Returns the body behind a URL.
    """

    address: str
    fetch: Callable[[str], bytes] | None = None

    def query_range(self, expression: str, *, start_ns: int, end_ns: int, step_s: int) -> list[Series]:
        """Return the values of an expression over time.

        Args:
            expression: PromQL, written by us.
            start_ns: First instant.
            end_ns: Last instant.
            step_s: Seconds between two values.

        Raises:
            InputError: The server does not answer, or refuses the expression.
            LimitError: The answer is larger than 64 MiB.
        """
        parameters = {"query": expression, "start": start_ns / 1e9, "end": end_ns / 1e9, "step": step_s}
        return [_series(each, each["values"]) for each in self._ask("query_range", parameters)]

    def query(self, expression: str) -> list[Series]:
        """Return the values of an expression now; see `query_range`."""
        return [_series(each, [each["value"]]) for each in self._ask("query", {"query": expression})]

    def alerts(self) -> list[ToldAlert]:
        """Return the alerts that fire or are about to; see `query_range` for what is raised."""
        return [
            ToldAlert(labels=each["labels"], annotations=each.get("annotations", {}), state=each["state"])
            for each in self._ask("alerts", {}, key="alerts")
        ]

    def _ask(self, path: str, parameters: Mapping[str, object], *, key: str = "result") -> list[dict[str, Any]]:
        url = f"{self.address}/api/v1/{path}?{urlencode(parameters)}"
        body = self.fetch(url) if self.fetch else _fetch(url, self.address)
        try:
            answer = json.loads(body)
            result: list[dict[str, Any]] = answer["data"][key]
        except (ValueError, KeyError, TypeError) as error:
            message = f"{self.address} does not answer like Prometheus: {body[:200]!r}"
            raise InputError(message) from error
        return result


def to_samples(series: Sequence[Series], *labels: str) -> pl.DataFrame:
    """Return the table `Samples`, each line named by the values of the given labels.

    Args:
        series: An answer.
        labels: Labels whose values name a line.
    """
    rows = [
        {
            Samples.name: " ".join(each.labels.get(label, "") for label in labels),
            Samples.time_ns: instant,
            Samples.value: value,
        }
        for each in series
        for instant, value in each.points
    ]
    return pl.DataFrame(rows, schema=Samples.schema(), orient="row").sort(Samples.name, Samples.time_ns)


def labels_table(series: Sequence[Series]) -> pl.DataFrame:
    """Return the labels of each series with its value."""
    rows = [{**each.labels, "value": each.points[-1][1]} for each in series if each.points]
    names = sorted({name for row in rows for name in row} - {"__name__", "value"})
    return pl.DataFrame(
        [{name: row.get(name) for name in (*names, "value")} for row in rows],
        schema=dict.fromkeys(names, pl.String) | {"value": pl.Float64},
    )


def _series(answer: dict[str, Any], values: list[list[Any]]) -> Series:
    points = [(round(float(instant) * NS_PER_S), float(value)) for instant, value in values]
    return Series(labels=answer["metric"], points=[point for point in points if point[1] == point[1]])


def _fetch(url: str, address: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            body: bytes = response.read(_MAX_ANSWER_BYTES + 1)
    except urllib.error.HTTPError as error:
        message = f"{address} refuses the query: {error.read(500).decode(errors='replace')}"
        raise InputError(message) from error
    except OSError as error:
        message = f"{address} does not answer ({error}): is Prometheus running there?"
        raise InputError(message) from error
    if len(body) > _MAX_ANSWER_BYTES:
        message = f"{address}: the answer is larger than 64 MiB; choose a shorter time"
        raise LimitError(message)
    return body
