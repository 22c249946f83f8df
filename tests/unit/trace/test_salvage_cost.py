"""Mending takes time in proportion to the text: a broken event never takes the square of its length."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from scope.trace import salvage as module
from scope.trace.salvage import salvage

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
        assert module._with_quotes_escaped(text) == pattern.sub(escaped, text)


def test_a_long_run_of_broken_events_is_counted_one_by_one() -> None:
    """Of 20,000 events that lack their ends, 1.6 MB in all, each counts as lost, and so does that which ends them."""
    broken = (GOOD.removesuffix(b"}}") + b"\n") * 20_000
    found = salvage(GOOD + b"," + broken + GOOD + b"," + GOOD, is_last=True)
    assert len(found.events) == 2
    assert found.lost == 20_001


def test_a_long_piece_is_not_copied_to_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too long to be mended, 2 MB of backslashes, is not cleaned either."""
    cleaned: list[int] = []
    clean = module._cleaned
    monkeypatch.setattr(module, "_cleaned", lambda piece: cleaned.append(len(piece)) or clean(piece))
    found = salvage(b"\\" * (2 << 20) + b"," + GOOD + b"}," + GOOD, is_last=True)
    assert found.lost >= 1
    assert max(cleaned, default=0) <= module._LONGEST_REPAIR_BYTES
