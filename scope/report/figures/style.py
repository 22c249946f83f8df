"""What every figure shares: fixed colours, axes that name their unit, caps on what a browser has to draw."""

from __future__ import annotations

import re
import sys
from array import array
from base64 import b64encode
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

from plotly.graph_objects import Figure  # pyright: ignore[reportMissingTypeStubs]

from scope.report.inert import html_text, shortened
from scope.units import NS_PER_MS, NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_MARKS: Final = 5_000
"""Bars or points of one figure; beyond it they are binned, since a browser needs seconds for 50,000 bars."""

BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
ORANGE: Final = "#E69F00"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
GREY: Final = "#999999"
PURPLE: Final = "#CC79A7"
YELLOW: Final = "#F0E442"
WINE: Final = "#882255"
TEAL: Final = "#44AA99"
SAND: Final = "#B8A25E"
INDIGO: Final = "#6A5ACD"

_WORDS: Final[Mapping[str, str]] = {"exposed_memory": "exposed copies"}
"""Words that people read in place of those of the key."""

COLORS: Final[Mapping[str, str]] = {
    # What occupies a device.
    "compute": BLUE,
    "communication": VERMILION,
    "exposed_communication": VERMILION,
    "memory": SKY,
    "exposed_memory": SKY,
    "idle": GREY,
    # Phases of a recorded step.
    "startup": SAND,
    "init": TEAL,
    "input": ORANGE,
    "host_to_device": SKY,
    "forward": BLUE,
    "backward": INDIGO,
    "optimizer": GREEN,
    "evaluation": YELLOW,
    "checkpoint": PURPLE,
    "other": WINE,
    "communication_wait": VERMILION,
    "recorder": WINE,
    "step": SAND,
    # Why a device stood idle.
    "sync": VERMILION,
    "allocation": PURPLE,
    "profiler": SAND,
    "gc": TEAL,
    "host": BLUE,
    "launch_latency": SKY,
    "back_to_back": GREEN,
    "blocked": INDIGO,
    "unknown": GREY,
    # Collectives.
    "wait": GREY,
    "transfer": VERMILION,
    "all_reduce": VERMILION,
    "all_gather": BLUE,
    "reduce_scatter": GREEN,
    "all_to_all": PURPLE,
    "broadcast": ORANGE,
    "reduce": SKY,
    "gather": TEAL,
    "scatter": SAND,
    "send": INDIGO,
    "recv": WINE,
    "barrier": GREY,
    # Classes of kernels.
    "gemm": BLUE,
    "attention": GREEN,
    "convolution": SKY,
    "normalisation": PURPLE,
    "elementwise": ORANGE,
    "reduction": YELLOW,
    "embedding": TEAL,
    "fused": INDIGO,
}
"""One colour a word, the same on every page (Okabe and Ito 2008, extended); `color` gives one for any other word."""

SEQUENTIAL: Final = "Cividis"
DIVERGING: Final = "RdBu_r"

_FURTHER: Final = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, TEAL, WINE, SAND, INDIGO)
_LABEL_LENGTH: Final = 60
_GRID: Final = "rgba(128,128,128,0.25)"
_HEIGHT: Final = 420
_MARGIN: Final = 50
_LINE_HEIGHT: Final = 20
_TITLE_LENGTH: Final = 46
"""What a phone shows of a title in one line."""
_LEGEND: Final = {"orientation": "h", "xref": "container", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom"}
"""At the foot of the figure: the plot makes room for it and for ticks that had to turn, however narrow a screen is."""


def color(word: str, *, index: int = 0) -> str:
    """Return the colour of a phase, category, operation or class; `index` chooses one for a word with none."""
    return COLORS.get(word, _FURTHER[index % len(_FURTHER)])


def label(text: str, *, length: int = _LABEL_LENGTH) -> str:
    """Return a name as plotly shows it letter by letter: plotly reads a subset of HTML in every text."""
    return html_text(shortened(text, length=length))


def words(name: str) -> str:
    """Return a fixed word of the product for a legend.

    Examples:
        >>> words("exposed_communication")
        'exposed communication'
    """
    return label(_WORDS.get(name) or name.replace("_", " "))


@dataclass(frozen=True, slots=True)
class TimeScale:
    """The unit of a time axis."""

    divisor: int
    unit: str

    def of(self, length_ns: float) -> float:
        """Return a length of time in this unit."""
        return length_ns / self.divisor


def time_scale(longest_ns: float) -> TimeScale:
    """Return the largest unit in which the longest value of an axis is at least 1, as `format_duration` chooses it."""
    for divisor, unit in ((60 * NS_PER_S, "min"), (NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs")):
        if abs(longest_ns) >= divisor:
            return TimeScale(divisor, unit)
    return TimeScale(1, "ns")


def build(
    traces: Sequence[Mapping[str, Any]], *, title: str, x_title: str, y_title: str, layout: Mapping[str, Any]
) -> Figure:
    """Return a figure with Scope's look.

    Args:
        traces: Plotly traces; every text in them is inert already (`label`).
        title: What the figure answers; fixed words and numbers.
        x_title: Title of the x axis, with its unit.
        y_title: Title of the y axis, with its unit.
        layout: Further layout; `title`, `xaxis` and `yaxis` are merged into those made here.
    """
    broken = _broken(title)
    axis = {"gridcolor": _GRID, "zeroline": False, "automargin": True}
    rest = {key: value for key, value in layout.items() if key not in {"title", "xaxis", "yaxis"}}
    return Figure(
        {
            "data": [dict(trace) for trace in traces],
            "layout": {
                "title": {"text": broken, "x": 0, "xanchor": "left", "font": {"size": 15}, **layout.get("title", {})},
                "height": _HEIGHT,
                "margin": margin(title=broken),
                "paper_bgcolor": "rgba(0,0,0,0)",
                "plot_bgcolor": "rgba(0,0,0,0)",
                "template": "none",
                "legend": dict(_LEGEND),
                "hoverlabel": {"namelength": -1},
                "xaxis": {"title": {"text": x_title}, **axis, **layout.get("xaxis", {})},
                "yaxis": {"title": {"text": y_title}, **axis, **layout.get("yaxis", {})},
                **rest,
            },
        }
    )


def margin(*, left: int = 60, title: str = "") -> dict[str, int]:
    """Return the room around a plot, in pixels.

    Args:
        left: For the names or numbers beside the y axis.
        title: Its lines as plotly breaks them.
    """
    return {"l": left, "r": 20, "t": _MARGIN + _LINE_HEIGHT * title.count("<br>"), "b": _MARGIN}


def _broken(title: str) -> str:
    """Return a title in lines that a phone can show; plotly breaks none by itself and cuts what is too long."""
    return "<br>".join(wrap(title, _TITLE_LENGTH, break_long_words=False)) or title


def typed(values: Iterable[float], shape: Sequence[int]) -> dict[str, str]:
    """Return many numbers as plotly's typed array, which neither the server nor the browser goes through one by one.

    Args:
        values: Row by row; NaN for a cell that is unknown. Seven digits are kept.
        shape: Lengths of the one, two or three dimensions.
    """
    numbers = array("f", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return {"dtype": "f4", "bdata": b64encode(numbers.tobytes()).decode(), "shape": ", ".join(map(str, shape))}


def empty(*, title: str, reason: str) -> Figure:
    """Return a figure that says why there is nothing to draw."""
    note = {"text": label(reason, length=200), "showarrow": False, "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}
    hidden = {"visible": False}
    return build(
        [], title=title, x_title="", y_title="", layout={"xaxis": hidden, "yaxis": hidden, "annotations": [note]}
    )


def group_size(num_values: int, *, cap: int) -> int:
    """Return how many neighbours share a mark so that at most `cap` marks are drawn."""
    return max(1, -(-num_values // max(1, cap)))


def round_ticks(names: Sequence[str], *, cap: int) -> list[tuple[int, str]]:
    """Return which marks in a row bear a tick, and its text: round numbers where the marks are numbered evenly.

    Args:
        names: Names of the marks, such as step numbers. A mark may stand for the numbers up to the next one's: the tick
            bears the round number in it.
        cap: How many ticks there is room for.

    Examples:
        >>> round_ticks(["23", "24", "25", "26", "27", "28"], cap=2)
        [(2, '25')]
        >>> round_ticks(["0", "38", "76", "114"], cap=3)
        [(0, '0'), (2, '100')]
        >>> round_ticks(["b", "a", "c"], cap=2)
        [(0, 'b'), (2, 'c')]
    """
    every = group_size(len(names), cap=cap)
    plain = [(place, names[place]) for place in range(0, len(names), every)]
    found = [re.match(r"[0-9]{1,15}(?![^ ])", name) for name in names]
    numbers = [int(each[0]) for each in found if each]
    gaps = {after - before for before, after in pairwise(numbers)}
    # The last of several marks may stand for fewer numbers, but none begins earlier for that.
    if every == 1 or len(numbers) < len(names) or len(gaps) != 1 or (gap := gaps.pop()) < 1:
        return plain
    first, end = numbers[0], numbers[-1] + gap
    strides = (factor * 10**power for power in range(16) for factor in (1, 2, 5))
    stride = next(stride for stride in strides if -(-(end - first) // stride) <= cap)
    multiples = range(-(-first // stride) * stride, end, stride)
    return [((multiple - first) // gap, str(multiple)) for multiple in multiples]


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None when none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
