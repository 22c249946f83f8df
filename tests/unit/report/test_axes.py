"""Ticks and units of axes: round numbers, never a single one, the unit that the labels beside them use."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from scope.report.figures import CollectiveBubble, StackedTimes, collective_bandwidth, parts_by_time, phase_breakdown
from scope.report.figures.style import round_ticks

if TYPE_CHECKING:
    from scope.report.figures.style import Figure


def layout_of(figure: Figure) -> dict[str, Any]:
    """Return the layout as plotly's own JSON has it."""
    return figure.to_plotly_json()["layout"]


@pytest.mark.parametrize(("first", "count"), [(3, 60), (23, 200), (0, 21), (997, 5_000)])
def test_ticks_of_steps_are_round_and_stand_at_their_step(first: int, count: int) -> None:
    """Each tick is a multiple of 1, 2 or 5 times a power of ten, equally far from the next, and names its own bar."""
    labels = [str(step) for step in range(first, first + count)]
    ticks = round_ticks(labels, cap=20)
    numbers = [int(text) for _, text in ticks]
    (stride,) = {after - before for before, after in itertools.pairwise(numbers)}
    assert str(stride).rstrip("0") in {"1", "2", "5"}
    assert all(number % stride == 0 for number in numbers)
    assert [labels[place] for place, _ in ticks] == [text for _, text in ticks]
    assert 4 <= len(ticks) <= 20


def test_few_bars_are_all_named() -> None:
    """Bars for which there is room bear their own names, whatever these are."""
    figure = phase_breakdown(StackedTimes(labels=["7", "9", "x"], parts={"forward": [1, 2, 3]}))
    assert layout_of(figure)["xaxis"]["ticktext"] == ["7", "9", "x"]


def test_ranks_by_slowness_keep_their_own_numbers() -> None:
    """Names that are not in the order of numbers are never replaced by other numbers."""
    labels = [str(rank) for rank in (5, 3, 9, 1, 7, 2)]
    assert all(labels[place] == text for place, text in round_ticks(labels, cap=3))


def test_bins_bear_the_round_number_within_them() -> None:
    """Of bins of 38 steps, the one that holds step 100 (76 to 113) bears 100."""
    labels = [str(step) for step in range(0, 38 * 40, 38)]
    places = {int(text): place for place, text in round_ticks(labels, cap=20)}
    assert places[100] == 2
    assert all(int(labels[place]) <= number < int(labels[place]) + 38 for number, place in places.items())


def test_a_single_size_has_several_ticks() -> None:
    """One bubble alone stands on axes of a decade with the labels 1, 2 and 5 of it."""
    bubble = CollectiveBubble(
        operation="all_reduce", detail="", message_bytes=3_300_000, busbw_bytes_per_s=46e6, total_ns=1, count=1
    )
    figure = collective_bandwidth([bubble], [])
    assert layout_of(figure)["xaxis"]["tickvals"] == pytest.approx([2e6, 5e6, 1e7])
    assert layout_of(figure)["yaxis"]["tickvals"] == pytest.approx([0.02, 0.05, 0.1])


def test_an_axis_has_the_unit_of_its_labels() -> None:
    """A bar of 126.9 s is called 2 min 7 s, and its axis is in minutes."""
    figure = parts_by_time({"backward": 126_900_000_000}, title="t", whole_ns=253_800_000_000)
    assert layout_of(figure)["xaxis"]["title"]["text"] == "Time (min)"
    assert figure.to_plotly_json()["data"][0]["x"] == pytest.approx([2.115])
    assert layout_of(figure)["yaxis"]["ticktext"] == ["backward<br>2 min 7 s · 50.0 %"]
