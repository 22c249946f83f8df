"""Halves of surrogate pairs, control characters and stray backslashes in any record, the last one among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scope.trace import load_rank
from scope.trace.mending import without_half_characters
from scope.trace.schema import Ops

if TYPE_CHECKING:
    from pathlib import Path

    from scope.trace.model import RankTrace

NUM_GOOD = 3


def load(folder: Path, name: str, *, place: int, rest: str = "", head: str = "") -> RankTrace:
    """Read a trace of four operators, one of which has a name that is given as it stands in the JSON."""
    names = [f"good_{number}" for number in range(NUM_GOOD)]
    names.insert(place, name)
    records = [
        f'{{"ph":"X","cat":"cpu_op","pid":1,"tid":1,"ts":{number + 1},"dur":0.5,"name":"{each}"}}'
        for number, each in enumerate(names)
    ]
    path = folder / "trace.json"
    events = ",\n".join(records)
    text = f'{{{head}"traceEvents":[{events}],{rest}"distributedInfo":{{"rank":4}}}}'
    path.write_text(text, encoding="utf-8")
    return load_rank(path)


@pytest.mark.parametrize("place", range(NUM_GOOD + 1))
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (r"a\ud800b", "a\ufffdb"),
        (r"a\udc00b", "a\ufffdb"),
        (r"\ud83d", "\ufffd"),
        (r"\uD83D\uD83D\uDE00", "\ufffd\N{GRINNING FACE}"),
        (r"\\ud800\ud800", "\\ud800\ufffd"),
        (r"C:\q", "C:\\q"),
        ("a\x01b", "a b"),
    ],
)
def test_a_damaged_name_is_mended_wherever_it_stands(tmp_path: Path, name: str, expected: str, place: int) -> None:
    """No record is lost, the one that was mended is counted, and what stands behind the list is still read."""
    trace = load(tmp_path, name, place=place)
    quality = trace.quality
    counts = (quality.events_read, quality.events_lost, quality.events_repaired)
    assert counts == (NUM_GOOD + 1, 0, 1)
    assert trace.ops[Ops.name].to_list()[place] == expected
    assert (quality.truncated, trace.rank) == (False, 4)


@pytest.mark.parametrize("place", range(NUM_GOOD + 1))
def test_a_length_beyond_64_bits_costs_its_record_alone(tmp_path: Path, place: int) -> None:
    """A length that no clock can measure is none: the record is lost and counted, and the file is not called cut."""
    trace = load(tmp_path, 'huge","ts":5,"dur":123456789012345678901234567890,"args":{},"x":"', place=place)
    quality = trace.quality
    assert (quality.events_read, quality.events_lost) == (NUM_GOOD, 1)
    assert (quality.truncated, trace.rank) == (False, 4)


@pytest.mark.parametrize("where", ["head", "rest"])
def test_half_a_character_beside_the_events(tmp_path: Path, where: str) -> None:
    """What stands beside the list is read too, and holds no text that cannot be written again."""
    trace = load(tmp_path, "fine", place=0, **{where: r'"host_name":"node\udfff",'})
    assert trace.rank == 4
    assert trace.host == "node\ufffd"
    trace.host.encode()


@pytest.mark.parametrize(
    "text",
    [rb"\ud83d\ude00", rb"\\ud800", rb"\u0041\n\\", rb"\"\ud83d\ude00\"", b"plain"],
)
def test_whole_characters_stay(text: bytes) -> None:
    """Pairs, other escapes, and what only looks like an escape behind a backslash are left alone."""
    assert without_half_characters(text) == text
