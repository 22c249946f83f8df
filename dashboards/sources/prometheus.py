"""A Prometheus server, asked over its HTTP interface."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Generic, TypeVar
from urllib.parse import urlencode

import msgspec
import polars as pl

from scope.errors import InputError, LimitError
from scope.report.figures import Samples
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TIMEOUT_S: Final = 10.0
_LONGEST_S: Final = 30.0
"""Time that a whole answer may take, however steadily it drips."""
_MAX_ANSWER_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 1 << 20
_LARGEST_VALUE: Final = 1e18
"""No counter of links, seconds or tokens comes near: a value beyond, infinity too, is none."""

_Instant = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_Data = TypeVar("_Data")


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One series of an answer.

    Attributes:
        labels: Its labels, `__name__` among them.
        points: Instant in ns and value, sorted; a value that is no number, infinite or beyond 1e18 is left out.
    """

    labels: Mapping[str, str]
    points: Sequence[tuple[int, float]]


class ToldAlert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert as the server tells it.

    Attributes:
        labels: Its labels.
        annotations: What its rule says of it, with the values filled in.
        state: `firing`, or `pending` while it must hold longer.
    """

    labels: dict[str, str]
    annotations: dict[str, str] = {}
    state: str


class _Now(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[_Instant, str]


class _OverTime(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[_Instant, str]]


class _Vector(msgspec.Struct):
    result: list[_Now]


class _Matrix(msgspec.Struct):
    result: list[_OverTime]


class _Alerts(msgspec.Struct):
    alerts: list[ToldAlert]


class _Answer(msgspec.Struct, Generic[_Data]):
    """What every answer of Prometheus is wrapped in."""

    data: _Data


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
        found = self._ask("query_range", parameters, _Answer[_Matrix])
        return [self._series(each.metric, each.values) for each in found.result]

    def query(self, expression: str) -> list[Series]:
        """Return the values of an expression now; see `query_range`."""
        found = self._ask("query", {"query": expression}, _Answer[_Vector])
        return [self._series(each.metric, [each.value]) for each in found.result]

    def alerts(self) -> list[ToldAlert]:
        """Return the alerts that fire or are about to; see `query_range` for what is raised."""
        return self._ask("alerts", {}, _Answer[_Alerts]).alerts

    def _ask(self, path: str, parameters: Mapping[str, object], form: type[_Answer[_Data]]) -> _Data:
        url = f"{self.address}/api/v1/{path}?{urlencode(parameters)}"
        body = self.fetch(url) if self.fetch else _fetch(url, self.address)
        try:
            return msgspec.json.decode(body, type=form).data
        # Beside its own errors, the decoder nests only so deep, and texts may be no UTF-8.
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise self._strange(error, body) from error

    def _series(self, labels: Mapping[str, str], values: Sequence[tuple[float, str]]) -> Series:
        try:
            points = [(round(instant * NS_PER_S), float(value)) for instant, value in values]
        except ValueError as error:
            raise self._strange(error) from error
        return Series(labels=labels, points=[point for point in points if abs(point[1]) <= _LARGEST_VALUE])

    def _strange(self, error: Exception, body: bytes = b"") -> InputError:
        what = f"{str(error)[:200]}: {body[:200]!r}" if body else str(error)[:200]
        return InputError(f"{self.address} does not answer like Prometheus ({what}): is it one?")


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
    """Return the labels of each series with its value, null where that is no number."""
    rows = [{**each.labels, "value": each.points[-1][1] if each.points else None} for each in series]
    names = sorted({name for row in rows for name in row} - {"__name__", "value"})
    return pl.DataFrame(
        [{name: row.get(name) for name in (*names, "value")} for row in rows],
        schema=dict.fromkeys(names, pl.String) | {"value": pl.Float64},
    )


def _make_opener() -> urllib.request.OpenerDirector:
    """Return what asks the server alone: the user named one, and a redirect could name any."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


_opener: Final = _make_opener()


def _fetch(url: str, address: str) -> bytes:
    try:
        with _opener.open(url, timeout=_TIMEOUT_S) as response:
            return _read(response, address)
    except urllib.error.HTTPError as error:
        message = f"{address} refuses the query with status {error.code}: {_beginning(error)}"
        raise InputError(message) from error
    # A status line or a header that is none, and a body that ends too soon, are no OSError.
    except (OSError, http.client.HTTPException, ValueError) as error:
        message = f"{address} does not answer ({str(error)[:200]}): is Prometheus running there?"
        raise InputError(message) from error


def _read(response: http.client.HTTPResponse, address: str) -> bytes:
    deadline = time.monotonic() + _LONGEST_S
    body = bytearray()
    while piece := response.read1(_PIECE_BYTES):
        body += piece
        if len(body) > _MAX_ANSWER_BYTES:
            message = f"{address}: the answer is larger than 64 MiB; choose a shorter time"
            raise LimitError(message)
        if time.monotonic() > deadline:
            message = f"{address}: the answer takes longer than {_LONGEST_S:.0f} s; choose a shorter time"
            raise LimitError(message)
    return bytes(body)


def _beginning(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(500).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return "no reason is given"
