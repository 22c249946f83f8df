"""What changed over time, as lines: memory of a device, use of a link, anything sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.report.figures import style
from scope.trace.columns import Column, Table
from scope.units import format_bandwidth, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scope.report.figures.style import Figure


_GIGA: Final = 1_000_000_000
_BIN: Final = "bin"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """How lines are drawn: words, shape, and the unit that values are divided by."""

    title: str
    y_title: str
    shape: str
    form: Callable[[float], str]
    unit: int = _GIGA


class Samples(Table):
    """Samples of named quantities; sorted by time within a name. A time without a sample draws no point."""

    name = Column("name", pl.String, "which line")
    time_ns = Column("time_ns", pl.Int64, "instant")
    value = Column("value", pl.Float64, "value at it; null where it is unknown, which breaks the line", nullable=True)


def memory_over_time(samples: pl.DataFrame, *, capacities: Mapping[str, float], whose: str = "") -> Figure:
    """Return memory of a device over time, as steps, under its capacity.

    Args:
        samples: The table `Samples`, values in bytes.
        capacities: Bytes by the name of a limit.
        whose: What the title says behind, such as `, rank 3`, in fixed words.
    """
    look = _Look(title=f"Memory over time{whose}", y_title="Memory (GB)", shape="hv", form=format_bytes)
    return _lines(samples, capacities, look)


def link_use_over_time(
    samples: pl.DataFrame, *, capacities: Mapping[str, float], title: str = "Use of links over time"
) -> Figure:
    """Return the payload that links carried over time, one way, under their capacity.

    Args:
        samples: The table `Samples`, values in bytes a second.
        capacities: Payload capacity one way in bytes a second, by the name of the link.
        title: What they are, in fixed words.
    """
    look = _Look(title=title, y_title="Payload one way (GB/s)", shape="linear", form=format_bandwidth)
    return _lines(samples, capacities, look)


def samples_over_time(samples: pl.DataFrame, *, title: str, y_title: str) -> Figure:
    """Return any samples over time.

    Args:
        samples: The table `Samples`.
        title: What they are, in fixed words.
        y_title: Title of the y axis, with the unit that the values are in.
    """
    look = _Look(title=title, y_title=y_title, shape="linear", form="{:.4g}".format, unit=1)
    return _lines(samples, {}, look)


def thinned(samples: pl.DataFrame, *, cap: int) -> pl.DataFrame:
    """Return at most about `cap` samples that keep every bin's smallest and largest value, so that peaks stay.

    Args:
        samples: The table `Samples`.
        cap: How many samples of one line are wanted at most, at least 4; 2 stay of each bin.
    """
    num_bins = max(1, cap // 2)
    first, last = pl.col(Samples.time_ns).min(), pl.col(Samples.time_ns).max()
    position = (pl.col(Samples.time_ns) - first).cast(pl.Float64) / (last - first).clip(1).cast(pl.Float64)
    binned = samples.with_columns(
        (position * num_bins).cast(pl.Int64).clip(0, num_bins - 1).over(Samples.name).alias(_BIN)
    )
    group = [pl.col(Samples.name), pl.col(_BIN)]
    value = pl.col(Samples.value)
    rank_up = pl.struct(value, Samples.time_ns).rank("ordinal").over(group)
    rank_down = pl.struct(value, Samples.time_ns).rank("ordinal", descending=True).over(group)
    crowded = pl.len().over(Samples.name) > cap
    kept = ~crowded | (rank_up == 1) | (rank_down == 1)
    return binned.filter(kept).drop(_BIN)


def _lines(samples: pl.DataFrame, capacities: Mapping[str, float], look: _Look) -> Figure:
    if samples.is_empty():
        return style.empty(title=look.title, reason="nothing was recorded here")
    names: list[str] = samples[Samples.name].unique(maintain_order=True).to_list()
    first, last = _extent(samples[Samples.time_ns])
    scale = style.time_scale(last - first)
    kept = thinned(samples, cap=max(4, style.MAX_MARKS // len(names)))
    traces = [
        _line(name, kept.filter(pl.col(Samples.name) == name), first, scale, (index, look))
        for index, name in enumerate(names)
    ]
    traces += [_limit(name, value, scale.of(last - first), look) for name, value in capacities.items()]
    return style.build(
        traces,
        title=look.title,
        x_title=f"Time since the first sample ({scale.unit})",
        y_title=look.y_title,
        layout={"yaxis": {"rangemode": "tozero"}},
    )


def _extent(instants: pl.Series) -> tuple[int, int]:
    ascending = instants.sort()
    return int(ascending[0]), int(ascending[-1])


def _line(
    name: str, samples: pl.DataFrame, first: int, scale: style.TimeScale, numbered: tuple[int, _Look]
) -> dict[str, Any]:
    index, look = numbered
    values: list[float | None] = samples[Samples.value].to_list()
    return {
        "type": "scatter",
        "mode": "lines",
        "name": style.label(name),
        "line": {"color": style.color("", index=index), "width": 1.5, "shape": look.shape},
        "connectgaps": False,
        "x": [scale.of(time - first) for time in samples[Samples.time_ns].to_list()],
        "y": [None if value is None else value / look.unit for value in values],
        "customdata": [["not known" if value is None else look.form(value)] for value in values],
        "hovertemplate": "%{fullData.name}: %{customdata[0]}<extra></extra>",
    }


def _limit(name: str, value: float, right: float, look: _Look) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": style.label(name),
        "x": [0, right],
        "y": [value / look.unit] * 2,
        "line": {"color": style.GREY, "width": 1.5, "dash": "dash"},
        "hovertemplate": f"%{{fullData.name}}: {look.form(value)}<extra></extra>",
    }
