"""The address of a page: what it spells is kept, what does not fit is nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.state import PageState, read_state, spell_state

STATES = st.builds(
    PageState,
    source_id=st.none() | st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
    other_id=st.none() | st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
    ranks=st.sets(st.integers(0, 10_000), max_size=64).map(lambda ranks: tuple(sorted(ranks))),
    first_step=st.none() | st.integers(0, 1_000),
    last_step=st.none() | st.integers(1_000, 10**9),
    step=st.none() | st.integers(0, 10**9),
    selection=st.none() | st.integers(0, 10**9),
    start_us=st.none() | st.integers(0, 1_000),
    end_us=st.none() | st.integers(1_000, 10**12),
)


@given(STATES)
def test_what_is_written_is_read_again(state: PageState) -> None:
    """A link gives the view that it was made from."""
    parameters = {"step": "7", "source": "stale", "unrelated": "kept"}
    spelled = spell_state(parameters, state)
    assert read_state(spelled) == state
    assert spelled["unrelated"] == "kept"


def test_defaults_leave_the_address_empty() -> None:
    """Nothing chosen, nothing spelled."""
    assert spell_state({"ranks": "1,2"}, PageState()) == {}


@pytest.mark.parametrize(
    "parameters",
    [
        {"source": "../../etc/passwd"},
        {"source": "<script>alert(1)</script>"},
        {"ranks": "-1,x,1e9,;DROP"},
        {"step": "9" * 400},
        {"step": "-5"},
        {"from": "NaN", "to": "inf"},
        {"selection": "0x10"},
        {"step": "٣"},
    ],
)
def test_hostile_values_are_as_good_as_absent(parameters: dict[str, str]) -> None:
    """What does not fit the pattern changes nothing."""
    assert read_state(parameters) == PageState()


def test_a_range_that_ends_before_it_begins_is_turned_round() -> None:
    """From 9 to 3 means 3 to 9."""
    state = read_state({"from": "9", "to": "3"})
    assert (state.first_step, state.last_step) == (3, 9)
