"""Microseconds to nanoseconds, chunk by chunk or all at once, and the record that ends last."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.trace.instants import EXACT_FLOAT_LIMIT_US, InexactError, Instants, LastEnd, Microseconds

WHOLE = st.integers(0, 2**50)
WITH_DECIMALS = st.integers(0, 2**42 * 1000).map(lambda ns: ns / 1000)
CHUNKS = st.lists(st.lists(WHOLE, max_size=5) | st.lists(WITH_DECIMALS, max_size=5), min_size=1, max_size=4)


def nanoseconds(micro: float) -> int:
    """Return what a number of microseconds means, by decimal arithmetic of its shortest text."""
    return int((Decimal(repr(micro)) * 1000).to_integral_value(rounding=ROUND_HALF_EVEN))


@given(chunks=CHUNKS)
def test_columns_of_whole_numbers_and_of_floats_join_exactly(chunks: list[list[Any]]) -> None:
    """Chunks of either kind, joined before they become nanoseconds, give the nanoseconds of each number."""
    joined = Microseconds.joined([Microseconds.of(chunk) for chunk in chunks]).nanoseconds()
    assert joined.to_list() == [nanoseconds(value) for chunk in chunks for value in chunk]


@pytest.mark.parametrize("value", [EXACT_FLOAT_LIMIT_US, -EXACT_FLOAT_LIMIT_US, 2**61, 10**30, 1e300])
def test_what_is_not_exact_is_refused(value: float) -> None:
    """A float or an integer beyond what stands for one nanosecond is left to those who read the text."""
    with pytest.raises(InexactError):
        Microseconds.of([1.5, value] if isinstance(value, float) else [1, value])


@given(chunks=st.lists(st.lists(st.tuples(WITH_DECIMALS | WHOLE, WITH_DECIMALS), max_size=4), max_size=5))
def test_the_last_end_is_exact(chunks: list[list[tuple[Any, float]]]) -> None:
    """The largest end is that of exact arithmetic, though floats of the size of an instant cannot hold it."""
    last = LastEnd()
    for chunk in chunks:
        # One list of whole numbers or of floats each, as a chunk of a trace has them.
        starts = [start if all(isinstance(other, int) for other, _ in chunk) else float(start) for start, _ in chunk]
        starts = [min(start, EXACT_FLOAT_LIMIT_US / 2) if isinstance(start, float) else start for start in starts]
        records = [SimpleNamespace(ts=start, dur=length) for start, (_, length) in zip(starts, chunk, strict=True)]
        spans = Instants.of([records], exact=False)
        if spans.are_sound:
            last.note(spans)
            chunk[:] = [(record.ts, record.dur) for record in records]
        else:
            chunk.clear()
    ends = [nanoseconds(start) + nanoseconds(length) for chunk in chunks for start, length in chunk]
    assert last.ns() == max(ends, default=None)


def test_ends_that_floats_cannot_tell_apart() -> None:
    """Of two chunks whose ends differ by a nanosecond only, the later end counts, whichever comes first."""
    first = Instants.of([[SimpleNamespace(ts=2**42 + 0.001, dur=2**42 - 1.5)]], exact=False)
    second = Instants.of([[SimpleNamespace(ts=2**42 + 0.002, dur=2**42 - 1.5)]], exact=False)
    for order in ((first, second), (second, first)):
        last = LastEnd()
        for spans in order:
            last.note(spans)
        assert last.ns() == 2**43 * 1000 - 1500 + 2
