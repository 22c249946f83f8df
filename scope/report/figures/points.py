"""How near the machine's limits: kernels under their roofline, collectives under the bandwidth of their links."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scope.report.figures import style
from scope.units import format_bandwidth, format_bytes, format_duration, format_flop_rate, format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scope.report.figures.style import Figure


_LARGEST_BUBBLE: Final = 44
_FEW_DECADES: Final = 2.5
_GIGA: Final = 1_000_000_000
_TERA: Final = 1_000_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class RooflineBubble:
    """One kernel with its shapes and dtype.

    Attributes:
        name: Kernel, or operator.
        detail: Shapes, dtype, module: what tells it from others of its name.
        kernel_class: Decides the colour.
        flop_per_byte: Arithmetic intensity.
        flop_per_s: Achieved rate.
        attained_ratio: Achieved / ceiling at its intensity.
        total_ns: Time of all its executions; the bubble's area.
        count: Executions.
        place: Number by which a click finds it again: the last entry of the point's `customdata`.
    """

    name: str
    detail: str
    kernel_class: str
    flop_per_byte: float
    flop_per_s: float
    attained_ratio: float
    total_ns: int
    count: int
    place: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class RooflineCeiling:
    """One roof: a peak with the slope of a memory's or link's bandwidth that leads up to it."""

    name: str
    peak_flop_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveBubble:
    """Collectives of one operation, size and group.

    Attributes:
        operation: Decides the colour.
        detail: Group and number of ranks.
        message_bytes: Full message.
        busbw_bytes_per_s: Bus bandwidth.
        total_ns: Transfer time of all of them; the bubble's area.
        count: How many.
    """

    operation: str
    detail: str
    message_bytes: int
    busbw_bytes_per_s: float
    total_ns: int
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BandwidthCeiling:
    """What a link can do at best, one way."""

    name: str
    bytes_per_s: float


def roofline(bubbles: Sequence[RooflineBubble], ceilings: Sequence[RooflineCeiling], *, note: str = "") -> Figure:
    """Return arithmetic intensity against achieved FLOP/s on logarithmic axes, under the ceilings.

    Args:
        bubbles: Kernels; those with no FLOPs have no place on logarithmic axes and must be left out by the caller.
        ceilings: Roofs, one a math path that is used.
        note: A fixed sentence about coverage, shown with the title.
    """
    title = "Roofline of kernels" + (f" ({style.label(note, length=120)})" if note else "")
    placed = _largest(bubble for bubble in bubbles if bubble.flop_per_byte > 0 and bubble.flop_per_s > 0)
    if not placed:
        return style.empty(title=title, reason="no kernel could be placed: its FLOPs or bytes are not known")
    longest = max(bubble.total_ns for bubble in placed)
    traces = [
        _roofline_trace(kernel_class, [each for each in placed if each.kernel_class == kernel_class], longest)
        for kernel_class in dict.fromkeys(bubble.kernel_class for bubble in placed)
    ]
    intensities = [bubble.flop_per_byte for bubble in placed]
    span = (min(intensities), max(intensities))
    traces += [_roof(ceiling, span, index) for index, ceiling in enumerate(ceilings)]
    return style.build(
        traces,
        title=title,
        x_title="Arithmetic intensity (FLOP/byte)",
        y_title="Achieved (TFLOP/s)",
        layout={
            "height": 560,
            "xaxis": _log_axis([x for trace in traces for x in trace["x"]]),
            "yaxis": _log_axis([y for trace in traces for y in trace["y"]]),
        },
    )


def collective_bandwidth(bubbles: Sequence[CollectiveBubble], ceilings: Sequence[BandwidthCeiling]) -> Figure:
    """Return message size against bus bandwidth (decimal GB/s, one way), under the ceilings of the links."""
    title = "Collectives: message size against bus bandwidth"
    placed = _largest(bubble for bubble in bubbles if bubble.message_bytes > 0 and bubble.busbw_bytes_per_s > 0)
    if not placed:
        return style.empty(title=title, reason="no collective has a known size and transfer time")
    longest = max(bubble.total_ns for bubble in placed)
    traces = [
        _collective_trace(operation, [each for each in placed if each.operation == operation], longest)
        for operation in dict.fromkeys(bubble.operation for bubble in placed)
    ]
    sizes = [bubble.message_bytes for bubble in placed]
    traces += [_ceiling(ceiling, (min(sizes), max(sizes)), index) for index, ceiling in enumerate(ceilings)]
    return style.build(
        traces,
        title=title,
        x_title="Message size (bytes)",
        y_title="Bus bandwidth (GB/s)",
        layout={
            "height": 480,
            "showlegend": True,
            "xaxis": {**_log_axis([x for trace in traces for x in trace["x"]]), "tickformat": "~s"},
            "yaxis": _log_axis([y for trace in traces for y in trace["y"]]),
        },
    )


def _log_axis(values: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis of a decade at least, labelled at each, and at 2 and 5 where it spans only a few."""
    exponents = [math.log10(value) for value in values if value > 0]
    low, high = min(exponents), max(exponents)
    pad = max(0.15, 0.12 * (high - low), (1 - (high - low)) / 2)
    ticks = _ticks_at(low - pad, high + pad, factors=(1, 2, 5) if high - low < _FEW_DECADES else (1,))
    return {
        "type": "log",
        # Plotly itself leaves the 2 and 5 of an axis out where one of their labels would be wide.
        "tickmode": "array",
        "tickvals": ticks,
        "exponentformat": "none",
        # Without a format plotly writes 2 and 5 for 200 and 500.
        "tickformat": ",~r",
        "range": [low - pad, high + pad],
    }


def _ticks_at(low: float, high: float, *, factors: Sequence[int]) -> list[float]:
    """Return the factors times powers of ten between two exponents."""
    ticks = (factor * 10.0**power for power in range(math.floor(low), math.ceil(high)) for factor in factors)
    return [tick for tick in ticks if low <= math.log10(tick) <= high]


def _largest(bubbles: Iterable[Any]) -> list[Any]:
    """Return at most as many bubbles as a browser draws at ease: those with most time."""
    return sorted(bubbles, key=lambda bubble: -bubble.total_ns)[: style.MAX_MARKS]


def _bubble_size(total_ns: int, longest_ns: int) -> float:
    """Return the diameter that makes the area proportional to time, never too small to point at."""
    return max(5.0, _LARGEST_BUBBLE * math.sqrt(total_ns / max(1, longest_ns)))


def _roofline_trace(kernel_class: str, bubbles: Sequence[RooflineBubble], longest: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": style.words(kernel_class),
        "x": [bubble.flop_per_byte for bubble in bubbles],
        "y": [bubble.flop_per_s / _TERA for bubble in bubbles],
        "marker": {
            "color": style.color(kernel_class),
            "size": [_bubble_size(bubble.total_ns, longest) for bubble in bubbles],
            "opacity": 0.65,
        },
        "customdata": [
            [
                style.label(bubble.name, length=120),
                style.label(bubble.detail, length=120),
                format_flop_rate(bubble.flop_per_s),
                format_ratio(bubble.attained_ratio),
                format_duration(bubble.total_ns),
                bubble.count,
                bubble.place,
            ]
            for bubble in bubbles
        ],
        "hovertemplate": (
            "%{customdata[0]}<br>%{customdata[1]}<br>%{x:.3g} FLOP/byte, %{customdata[2]}<br>"
            "%{customdata[3]} of its ceiling<br>%{customdata[4]} in %{customdata[5]} executions<extra></extra>"
        ),
    }


def _roof(ceiling: RooflineCeiling, span: tuple[float, float], index: int) -> dict[str, Any]:
    ridge = ceiling.peak_flop_per_s / ceiling.bytes_per_s
    left, right = min(span[0], ridge) / 2, max(span[1], ridge) * 2
    xs = (left, ridge, right)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": style.label(ceiling.name),
        "x": list(xs),
        "y": [min(ceiling.peak_flop_per_s, x * ceiling.bytes_per_s) / _TERA for x in xs],
        "line": _line(index),
        "hovertemplate": (
            f"%{{fullData.name}}: {format_flop_rate(ceiling.peak_flop_per_s)}, "
            f"{format_bandwidth(ceiling.bytes_per_s)}<extra></extra>"
        ),
    }


def _collective_trace(operation: str, bubbles: Sequence[CollectiveBubble], longest: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": style.words(operation),
        "x": [bubble.message_bytes for bubble in bubbles],
        "y": [bubble.busbw_bytes_per_s / _GIGA for bubble in bubbles],
        "marker": {
            "color": style.color(operation),
            "size": [_bubble_size(bubble.total_ns, longest) for bubble in bubbles],
            "opacity": 0.65,
        },
        "customdata": [
            [
                style.label(bubble.detail, length=120),
                format_bytes(bubble.message_bytes),
                format_bandwidth(bubble.busbw_bytes_per_s),
                format_duration(bubble.total_ns),
                bubble.count,
            ]
            for bubble in bubbles
        ],
        "hovertemplate": (
            "%{fullData.name}, %{customdata[0]}<br>%{customdata[1]} at %{customdata[2]}<br>"
            "%{customdata[3]} in %{customdata[4]} calls<extra></extra>"
        ),
    }


def _line(index: int) -> dict[str, Any]:
    """Return how the ceiling of this number is drawn: each unlike its neighbours, none in the colour of a bubble."""
    return {"color": style.GREY, "width": 1.5, "dash": ("dash", "dot", "dashdot")[index % 3]}


def _ceiling(ceiling: BandwidthCeiling, span: tuple[float, float], index: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": style.label(ceiling.name),
        "x": [span[0] / 2, span[1] * 2],
        "y": [ceiling.bytes_per_s / _GIGA] * 2,
        "line": _line(index),
        "hovertemplate": f"%{{fullData.name}}: {format_bandwidth(ceiling.bytes_per_s)}<extra></extra>",
    }
