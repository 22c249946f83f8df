"""Heat maps: ranks over steps, links over time, ranks against ranks."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from scope.report.figures import style
from scope.trace.columns import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.report.figures.style import Figure


_MAX_ACROSS: Final = 1_000
_MAX_DOWN: Final = 256
_MAX_TICKS: Final = 24
_TICK_LETTERS: Final = 24


class HeatCells(Table):
    """Cells of a heat map; a cell that is not there is unknown and stays blank, never 0."""

    x = Column("x", pl.Int64, "position from the left, from 0")
    y = Column("y", pl.Int64, "position from the top, from 0")
    value = Column("value", pl.Float64, "what the colour shows")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatAxes:
    """What the cells of a heat map mean.

    Attributes:
        title: What the map answers.
        x_title: Title of the x axis, with its unit.
        y_title: Title of the y axis.
        x_labels: Name of each column.
        y_labels: Name of each row.
        value_title: What the colour shows, with its unit.
        scale: `sequential` for a load; `diverging` around `middle` for who departs from the others.
        middle: Value in the middle of a diverging scale: the median of all ranks, say.
        reach: Distance of a diverging scale's ends from its middle; what lies beyond has the colour of the end. None
            for the farthest value.
        maximum: Value at the end of a sequential scale, a capacity say; None for the largest value.
    """

    title: str
    x_title: str
    y_title: str
    x_labels: Sequence[str]
    y_labels: Sequence[str]
    value_title: str
    scale: Literal["sequential", "diverging"] = "sequential"
    middle: float | None = None
    reach: float | None = None
    maximum: float | None = None


def heat_map(cells: pl.DataFrame, axes: HeatAxes) -> Figure:
    """Return a heat map; more cells than a screen has pixels are averaged, which the title says.

    Args:
        cells: The table `HeatCells`.
        axes: Names and scales.
    """
    if cells.is_empty():
        return style.empty(title=axes.title, reason="nothing was recorded here")
    across = style.group_size(len(axes.x_labels), cap=_MAX_ACROSS)
    down = style.group_size(len(axes.y_labels), cap=_MAX_DOWN)
    x_names = _group_names(axes.x_labels, across)
    y_names = _group_names(axes.y_labels, down)
    grid = _grid(cells, across=across, down=down, size=(len(x_names), len(y_names)))
    known = [value for value in grid if not isnan(value)]
    merged = f" (each cell is the mean of up to {across} by {down})" if across * down > 1 else ""
    trace = {
        "type": "heatmap",
        "z": style.typed(grid, (len(y_names), len(x_names))),
        "x": x_names,
        "y": y_names,
        "hoverongaps": False,
        "colorscale": style.SEQUENTIAL if axes.scale == "sequential" else style.DIVERGING,
        "colorbar": {"title": {"text": style.label(axes.value_title), "side": "right"}},
        "hovertemplate": "%{y}, %{x}<br>%{z:.4g}<extra></extra>",
        **_limits(axes, known),
    }
    return style.build(
        [trace],
        title=axes.title + merged,
        x_title=axes.x_title,
        y_title=axes.y_title,
        layout={
            "height": max(260, 140 + 18 * len(y_names)) if len(y_names) <= 40 else 860,
            "xaxis": {"type": "category", "showgrid": False, **_ticks(x_names, cap=_across(x_names))},
            "yaxis": {
                "type": "category",
                "showgrid": False,
                "autorange": "reversed",
                **_ticks(y_names, cap=_MAX_TICKS),
            },
        },
    )


def _grid(cells: pl.DataFrame, *, across: int, down: int, size: tuple[int, int]) -> list[float]:
    """Return the mean of each cell row by row, NaN where nothing is known."""
    means = (
        cells.lazy()
        .group_by(pl.col(HeatCells.x) // across, pl.col(HeatCells.y) // down)
        .agg(pl.col(HeatCells.value).mean())
        .collect()
    )
    grid = [nan] * (size[0] * size[1])
    for x, y, value in means.select(HeatCells.x, HeatCells.y, HeatCells.value).iter_rows():
        grid[y * size[0] + x] = nan if value is None else value
    return grid


def _limits(axes: HeatAxes, known: Sequence[float]) -> dict[str, float]:
    if axes.scale == "diverging":
        middle = sorted(known)[(len(known) - 1) // 2] if axes.middle is None else axes.middle
        reach = axes.reach or max(abs(value - middle) for value in known) or 1.0
        return {"zmid": middle, "zmin": middle - reach, "zmax": middle + reach}
    top = max(known) if axes.maximum is None else axes.maximum
    return {"zmin": 0.0, "zmax": top if top > 0 else 1.0}


def _group_names(names: Sequence[str], size: int) -> list[str]:
    """Return the inert name of each group of neighbours, each once: they are the categories of an axis."""
    groups = [
        names[at] if size == 1 else f"{names[at]} to {names[min(at + size, len(names)) - 1]}"
        for at in range(0, len(names), size)
    ]
    seen: dict[str, int] = {}
    unique: list[str] = []
    for group in groups:
        shown = style.label(group, length=32)
        seen[shown] = seen.get(shown, 0) + 1
        unique.append(shown if seen[shown] == 1 else f"{shown} ({seen[shown]})")
    return unique


def _across(names: Sequence[str]) -> int:
    """Return how many names stand beside each other, upright, below a map that a phone shows."""
    return max(4, min(_MAX_TICKS, _TICK_LETTERS // max(len(name) for name in names)))


def _ticks(names: Sequence[str], *, cap: int) -> dict[str, object]:
    ticks = style.round_ticks(names, cap=cap)
    return {
        "tickmode": "array",
        "tickvals": [names[place] for place, _ in ticks],
        "ticktext": [text for _, text in ticks],
    }
