"""Mending takes time in proportion to the text: a broken event never takes the square of its length."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from scope.trace import salvage as module
from scope.trace.mending import cleaned, with_quotes_escaped
from scope.trace.salvage import salvage, with_nulls

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD = b'{"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":1,"dur":5,"args":{"device":0,"stream":7}}'
BROKEN: dict[str, Callable[[int], bytes]] = {
    "names in names": lambda size: b'{"ph":"X","cat":"kernel",' + b'"name":"' * (size // 8),
    "numbers that are none": lambda size: b'{"ph":"X","args":[' + b",nan(" * (size // 5) + b"]",
    "quotes": lambda size: b'{"ph":"X","name":"' + b'"' * size + b'","pid":3,"a":[1',
}


@pytest.mark.parametrize("kind", BROKEN)
def test_one_broken_event_costs_no_more_than_its_length(kind: str) -> None:
    """Eight times the length takes some eight times the processor's time, far from the 64 times of its square."""
    taken: list[float] = []
    for size in (10_000, 80_000):
        text = GOOD + b"," + BROKEN[kind](size) + b"}," + GOOD
        times: list[float] = []
        for _ in range(5):
            before = time.process_time()
            found = salvage(text, is_last=True)
            times.append(time.process_time() - before)
            assert len(found.events) in (2, 3)
        taken.append(min(times))
    assert taken[1] < 32 * max(taken[0], 0.001)


def test_broken_events_side_by_side_are_joined_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of unfinished events is mended a bounded number of times over, and its good events are all kept."""
    mended: list[int] = []
    candidates = module._candidates

    def counted(piece: bytes) -> Any:
        mended.append(len(piece))
        return candidates(piece)

    monkeypatch.setattr(module, "_candidates", counted)
    broken = rb'{"ph":"X","name":"' + rb"\q" * 4_000
    text = b"},".join([GOOD[:-1], *[broken] * 60, GOOD])
    found = salvage(text, is_last=True)
    assert (len(found.events), found.lost) == (2, 60)
    assert sum(mended) < 16 * len(text)


def test_quotes_in_names_are_found_as_one_pattern_finds_them() -> None:
    """What one (slow) pattern takes for names, from a beginning to the next end, is what gets its quotes escaped."""
    pattern = re.compile(rb'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|pid|tid|ts|cat|dur|args|id|s)"\s*:)', re.DOTALL)

    def escaped(match: re.Match[bytes]) -> bytes:
        name = match[2]
        return match[0] if b'"ph"' in name else match[1] + re.sub(rb'(?<!\\)"', rb'\\"', name) + match[3]

    pieces = (b'"name": "', b'a"b', b'", "pid": 1', b'","ph":"X"', b'"', b"\n", b'"name":"', b'" ,"args":{}')
    for number in range(len(pieces) ** 4):
        text = b"".join(pieces[number // len(pieces) ** place % len(pieces)] for place in range(4))
        assert with_quotes_escaped(text) == pattern.sub(escaped, text)


def test_a_long_run_of_broken_events_is_counted_one_by_one() -> None:
    """Of 20,000 events that lack their ends, 1.6 MB in all, each counts as lost, and so does that which ends them."""
    broken = (GOOD.removesuffix(b"}}") + b"\n") * 20_000
    found = salvage(GOOD + b"," + broken + GOOD + b"," + GOOD, is_last=True)
    assert len(found.events) == 2
    assert found.lost == 20_001


def test_stray_backslashes_are_found_as_one_pattern_finds_them() -> None:
    """Whole replacements give what looking at each backslash in turn gives: an escape of JSON, or one to be escaped."""
    pattern = re.compile(rb'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')
    pieces = (b"\\", b"\\", b"u00e1", b'"', b"n", b"q", b"U", b"0")
    for number in range(len(pieces) ** 5):
        text = b"".join(pieces[number // len(pieces) ** place % len(pieces)] for place in range(5))
        assert cleaned(text) == pattern.sub(lambda match: match[1] or b"\\\\", text)


def test_nothing_but_broken_events_take_a_few_looks_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is broken at a byte inside it is joined with one that follows, not with all of them."""
    tried: list[int] = []
    decoder = module._exact_decoder

    class Counting:
        def decode(self, text: bytes) -> Any:
            tried.append(len(text))
            return decoder.decode(text)

    monkeypatch.setattr(module, "_exact_decoder", Counting())
    unclosed = GOOD[:-1] + b","
    found = salvage(GOOD + b"," + unclosed * 1_000 + GOOD, is_last=True)
    assert (len(found.events), found.lost) == (2, 1_000)
    assert sum(tried) < 16 * 1_001 * len(GOOD)


@pytest.mark.parametrize("at", range(0, 40, 7))
def test_one_broken_event_among_many_costs_itself(at: int) -> None:
    """Runs of events are read at once; wherever the broken one stands, the others are all read, in their order."""
    events = [GOOD.replace(b'"ts":1', b'"ts":%d' % number) for number in range(40)]
    events[at] = b'{"ph":"X","name":}'
    found = salvage(b",".join(events), is_last=True)
    assert found.lost == 1
    assert [int(bytes(event.ts)) for event in found.events] == [number for number in range(40) if number != at]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b"nan", 1), (b"-Infinity", 1), (b" NaN", 1), (b'"nan"', 0), (b'"infer: nan"', 0), (b"1", 0)],
)
def test_values_that_are_no_numbers_are_found(value: bytes, expected: int) -> None:
    """`nan` and `inf` where a value stands become null, in whatever case; in a name they are its letters."""
    text = b'[{"ph":"X","name":"infer nan","dur":%b}]' % value
    assert with_nulls(text)[1] == expected


def test_a_long_piece_is_not_copied_to_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too long to be mended, 2 MB of backslashes, is not cleaned either."""
    cleaned: list[int] = []
    clean = module.cleaned
    monkeypatch.setattr(module, "cleaned", lambda piece: cleaned.append(len(piece)) or clean(piece))
    found = salvage(b"\\" * (2 << 20) + b"," + GOOD + b"}," + GOOD, is_last=True)
    assert found.lost >= 1
    assert max(cleaned, default=0) <= module._LONGEST_REPAIR_BYTES
