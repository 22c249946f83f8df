"""Where time went, as stacked bars: steps, ranks, phases, idle causes, waits; and kernels by time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scope.report.figures import style
from scope.report.inert import kernel_title
from scope.units import format_bytes, format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.report.figures.style import Figure


_MAX_KERNELS: Final = 30
_MAX_TICKS: Final = 12
_SIZE_AXES: Final = (("Size (TB)", 10**12), ("Size (GB)", 10**9), ("Size (MB)", 10**6), ("Size (kB)", 10**3))


@dataclass(frozen=True, kw_only=True, slots=True)
class StackedTimes:
    """Bars of lengths of time, one a step, rank or device, each made of parts.

    Attributes:
        labels: What each bar is.
        parts: Length in ns of each part (a phase, a category, a cause) of each bar, None where it is not known;
            drawn in this order from the axis outwards.
    """

    labels: Sequence[str]
    parts: Mapping[str, Sequence[int | None]]

    def __post_init__(self) -> None:
        """Check that every part has one value a bar."""
        assert all(len(values) == len(self.labels) for values in self.parts.values())

    @property
    def num_merged(self) -> int:
        """How many neighbours are drawn as one bar, which is their mean: bar k stands for those from k times this."""
        return style.group_size(len(self.labels), cap=style.MAX_MARKS // max(1, len(self.parts)))


def step_breakdown(bars: StackedTimes, *, title: str = "Where each step went") -> Figure:
    """Return compute, exposed communication, exposed copies and idle of each step on the device."""
    return _stacked(bars, title=title, axis="Step")


def rank_breakdown(bars: StackedTimes, *, title: str = "Where each rank's time went") -> Figure:
    """Return compute, exposed communication, exposed copies and idle of each rank's window."""
    return _stacked(bars, title=title, axis="Rank")


def phase_breakdown(bars: StackedTimes, *, title: str = "Phases of each step", axis: str = "Step") -> Figure:
    """Return the phases of each recorded step, as host time.

    Args:
        bars: One bar a step, or whatever `axis` says.
        title: What the bars are, in fixed words.
        axis: What one bar stands for.
    """
    return _stacked(bars, title=title, axis=axis)


def rank_excess(bars: StackedTimes) -> Figure:
    """Return the work of each rank in a step: what the median rank needs, and what it needs beyond that."""
    return _stacked(bars, title="Work a step, beyond that of the median rank", axis="Rank, the slowest first")


def parts_by_time(parts: Mapping[str, int], *, title: str, whole_ns: int) -> Figure:
    """Return one horizontal bar a part, the longest first, each with its length and its share of the whole.

    Args:
        parts: Length in ns by the name of the part; a part of length 0 is left out.
        title: What the parts are parts of, in fixed words.
        whole_ns: What the shares are shares of; the parts need not sum to it.
    """
    scale = style.time_scale(max(parts.values(), default=0))
    texts = {name: f"{format_duration(length)} · {format_ratio(length / whole_ns)}" for name, length in parts.items()}
    return _parts(parts, texts, title=title, axis=(f"Time ({scale.unit})", scale.divisor))


def parts_by_bytes(parts: Mapping[str, int], *, title: str) -> Figure:
    """Return one horizontal bar a part, the largest first, each with its size and its share of all.

    Args:
        parts: Bytes by the name of the part; a part of 0 is left out.
        title: What the parts are parts of, in fixed words.
    """
    whole = max(1, sum(parts.values()))
    texts = {name: f"{format_bytes(size)} · {format_ratio(size / whole)}" for name, size in parts.items()}
    largest = max(parts.values(), default=0)
    axis = next((axis for axis in _SIZE_AXES if largest >= axis[1]), _SIZE_AXES[-1])
    return _parts(parts, texts, title=title, axis=axis)


def _parts(parts: Mapping[str, int], texts: Mapping[str, str], *, title: str, axis: tuple[str, int]) -> Figure:
    rows = sorted(((name, size) for name, size in parts.items() if size), key=lambda row: -row[1])
    if not rows:
        return style.empty(title=title, reason="nothing of this kind was recorded")
    x_title, divisor = axis
    trace = {
        "type": "bar",
        "orientation": "h",
        "showlegend": False,
        "marker": {"color": [style.color(name, index=index) for index, (name, _) in enumerate(rows)]},
        "y": list(range(len(rows))),
        "x": [size / divisor for _, size in rows],
        "customdata": [[style.words(name), texts[name]] for name, _ in rows],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    }
    return style.build(
        [trace],
        title=title,
        x_title=x_title,
        y_title="",
        layout={
            "height": 120 + 38 * len(rows),
            "bargap": 0.25,
            "yaxis": {
                "tickmode": "array",
                "tickvals": list(range(len(rows))),
                # Beside its bar a phone has no room for the length.
                "ticktext": [f"{style.words(name)}<br>{texts[name]}" for name, _ in rows],
                "autorange": "reversed",
                "showgrid": False,
            },
        },
    )


def idle_causes(bars: StackedTimes) -> Figure:
    """Return why each device stood idle."""
    return _stacked(bars, title="Why the device stood idle", axis="Rank")


def wait_and_transfer(bars: StackedTimes) -> Figure:
    """Return how long collectives waited for the last rank, and how long they moved data."""
    return _stacked(bars, title="Collectives: waiting against moving data", axis="Rank")


def kernels_by_time(
    names: Sequence[str], total_ns: Sequence[int], classes: Sequence[str], *, title: str = "Kernels by time"
) -> Figure:
    """Return the kernels that took most time, longest first; the rest as one bar.

    Args:
        names: Names of kernels, each once.
        total_ns: Time of each, ns.
        classes: Class of each, which decides the colour.
        title: What they are, in fixed words.
    """
    if not names:
        return style.empty(title=title, reason="no kernel ran in this window")
    order = sorted(range(len(names)), key=lambda index: -total_ns[index])
    shown, rest = order[:_MAX_KERNELS], order[_MAX_KERNELS:]
    rows = [(names[index], total_ns[index], classes[index]) for index in shown]
    if rest:
        rows.append((f"{len(rest)} other kernels", sum(total_ns[index] for index in rest), "other"))
    scale = style.time_scale(max(length for _, length, _ in rows))
    traces = [_kernel_trace(rows, kernel_class, scale) for kernel_class in dict.fromkeys(row[2] for row in rows)]
    positions = list(range(len(rows)))
    return style.build(
        traces,
        title=title,
        x_title=f"Total time ({scale.unit})",
        y_title="",
        layout={
            "height": 200 + 22 * len(rows),
            "barmode": "stack",
            # Beside the names a phone has room for a few numbers.
            "xaxis": {"nticks": 5},
            # Positions carry the bars, since two names may look alike once they are shortened.
            "yaxis": {
                "tickmode": "array",
                "tickvals": positions,
                "ticktext": [style.label(kernel_title(name), length=32) for name, _, _ in rows],
                "autorange": "reversed",
            },
        },
    )


def _kernel_trace(rows: Sequence[tuple[str, int, str]], kernel_class: str, scale: style.TimeScale) -> dict[str, Any]:
    chosen = [(place, name, length) for place, (name, length, each) in enumerate(rows) if each == kernel_class]
    return {
        "type": "bar",
        "orientation": "h",
        "name": style.words(kernel_class),
        "marker": {"color": style.color(kernel_class)},
        "y": [place for place, _, _ in chosen],
        "x": [scale.of(length) for _, _, length in chosen],
        "customdata": [[style.label(name, length=200), format_duration(length)] for _, name, length in chosen],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    }


def _stacked(bars: StackedTimes, *, title: str, axis: str) -> Figure:
    size = bars.num_merged
    labels, parts = _grouped(bars, size)
    totals = [sum(values[index] or 0 for values in parts.values()) for index in range(len(labels))]
    if not labels or not any(totals):
        return style.empty(title=title, reason="nothing was recorded here")
    scale = style.time_scale(max(totals))
    traces = [_part_trace(name, values, labels, scale, index) for index, (name, values) in enumerate(parts.items())]
    unknown = [index for index in range(len(labels)) if all(values[index] is None for values in parts.values())]
    if unknown:
        traces.append(_no_data(unknown, labels, height=scale.of(max(totals))))
    shown = title if size == 1 else f"{title} (each bar is the mean of {size} neighbours)"
    ticks = style.round_ticks(labels, cap=_MAX_TICKS)
    return style.build(
        traces,
        title=shown,
        x_title=axis,
        y_title=f"Time ({scale.unit})",
        layout={
            "barmode": "stack",
            "bargap": 0.1 if len(labels) < 200 else 0,
            "xaxis": {
                "tickmode": "array",
                "tickvals": [place for place, _ in ticks],
                "ticktext": [style.label(text, length=24) for _, text in ticks],
            },
        },
    )


def _grouped(bars: StackedTimes, size: int) -> tuple[list[str], dict[str, list[float | None]]]:
    if size == 1:
        return list(bars.labels), {name: list(values) for name, values in bars.parts.items()}
    starts = range(0, len(bars.labels), size)
    labels = [f"{bars.labels[at]} to {bars.labels[min(at + size, len(bars.labels)) - 1]}" for at in starts]
    parts = {
        name: [style.mean_of_known(values[at : at + size]) for at in starts] for name, values in bars.parts.items()
    }
    return labels, parts


def _part_trace(
    name: str, values: Sequence[float | None], labels: Sequence[str], scale: style.TimeScale, index: int
) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": style.words(name),
        "marker": {"color": style.color(name, index=index)},
        "x": list(range(len(labels))),
        "y": [None if value is None else scale.of(value) for value in values],
        "customdata": [
            [style.label(text), "not known" if value is None else format_duration(round(value))]
            for text, value in zip(labels, values, strict=True)
        ],
        "hovertemplate": "%{customdata[0]}<br>%{fullData.name}: %{customdata[1]}<extra></extra>",
    }


def _no_data(indices: Sequence[int], labels: Sequence[str], *, height: float) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": "no data",
        "marker": {"color": "rgba(0,0,0,0)", "pattern": {"shape": "/", "fgcolor": style.GREY}},
        "x": list(indices),
        "y": [height] * len(indices),
        "customdata": [[style.label(labels[index])] for index in indices],
        "hovertemplate": "%{customdata[0]}<br>no data<extra></extra>",
    }
