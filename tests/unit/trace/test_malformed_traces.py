"""Hostile bytes: every loss is counted, nothing is guessed, and what cannot be read says so."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import zstandard

from scope.analysis.memory import compute_memory_peaks
from scope.errors import LimitError, ScopeError, TraceError, UsageError
from scope.trace import Limits, ReadOptions, load, load_rank
from scope.trace.schema import CollectiveCalls, DeviceEvents, Launches, Memory, Ops

if TYPE_CHECKING:
    from pathlib import Path

    from scope.trace import RankTrace


def kernel(index: int, **changes: Any) -> dict[str, Any]:
    """Return the record of a kernel of 5 us that starts at 10 us times `index`."""
    record = {
        "ph": "X",
        "cat": "kernel",
        "name": f"kernel_{index}",
        "pid": 0,
        "tid": 7,
        "ts": 10 * index,
        "dur": 5,
        "args": {"device": 0, "stream": 7, "correlation": index},
    }
    return record | changes


def document(records: list[dict[str, Any]], **keys: Any) -> str:
    """Return a trace as JSON text."""
    return json.dumps(
        {"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 8}, **keys, "traceEvents": records}
    )


RECORDS = [kernel(index) for index in range(1, 6)]


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Write bytes to a file and read it."""

    def write_and_read(content: bytes | str, name: str = "trace.json") -> RankTrace:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load_rank(path)

    return write_and_read


def names(trace: RankTrace) -> list[str]:
    """Return the names of the device events in order."""
    return trace.device_events[DeviceEvents.name].cast(pl.String).to_list()


def counts(trace: RankTrace) -> tuple[int, int, int]:
    """Return the numbers of records read, lost and repaired."""
    return trace.quality.events_read, trace.quality.events_lost, trace.quality.events_repaired


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (",\n  ", " :\t")])
@pytest.mark.parametrize("indent", [None, 2])
def test_any_layout_reads_the_same(read: Any, separators: tuple[str, str], indent: int | None) -> None:
    """White space between tokens changes nothing, least of all the rank."""
    text = json.dumps({"distributedInfo": {"rank": 5}, "traceEvents": RECORDS}, separators=separators, indent=indent)
    trace = read(text)
    assert trace.rank == 5
    assert counts(trace) == (5, 0, 0)
    assert names(trace) == [f"kernel_{index}" for index in range(1, 6)]


def test_events_may_stand_anywhere_among_the_keys(read: Any) -> None:
    """Metadata before, behind or around the events is found alike."""
    info = {"distributedInfo": {"rank": 2}}
    base = {"baseTimeNanoseconds": 1_000_000_000_000_000_007}
    for parts in (
        (info, base, {"traceEvents": RECORDS}),
        ({"traceEvents": RECORDS}, base, info),
        (info, {"traceEvents": RECORDS}, base),
    ):
        text = json.dumps({key: value for part in parts for key, value in part.items()})
        trace = read(text)
        assert trace.rank == 2
        assert trace.device_events[DeviceEvents.start_ns][0] == 1_000_000_000_000_010_007
        assert counts(trace) == (5, 0, 0)
        assert not trace.quality.truncated


def test_a_nested_key_is_not_the_list(read: Any) -> None:
    """Only a top-level `traceEvents` is the list of events."""
    trace = read('{"metadata": {"traceEvents": [1, 2]}, "text": "\\"traceEvents\\": [", ' + document(RECORDS)[1:])
    assert counts(trace) == (5, 0, 0)


def test_bare_list(read: Any) -> None:
    """A bare list of events is a trace without a rank."""
    trace = read(json.dumps(RECORDS), name="trace.json")
    assert (trace.rank, trace.label) == (None, "file 1")
    assert counts(trace) == (5, 0, 0)
    assert not trace.quality.truncated


def test_empty_list(read: Any) -> None:
    """A trace without events is one."""
    trace = read(document([]))
    assert counts(trace) == (0, 0, 0)
    assert not trace.quality.truncated


def test_cut_at_every_byte(read: Any) -> None:
    """A file that ends anywhere in its events gives all events before the cut and says that it is cut."""
    text = document(RECORDS[:2]).encode()
    first = text.index(b"[") + 1
    ends = [text.index(f'"correlation": {index}}}}}'.encode()) + len(f'"correlation": {index}}}}}') for index in (1, 2)]
    for cut in range(first, len(text)):
        trace = read(text[:cut])
        complete = sum(end <= cut for end in ends)
        assert trace.quality.events_read == complete, cut
        assert trace.quality.truncated, cut
        assert trace.quality.events_lost <= 1
        assert trace.rank == 3


def test_cut_compressed_file(read: Any) -> None:
    """A gzip file that ends early gives what could be unpacked."""
    text = document([kernel(index) for index in range(1, 20_000)]).encode()
    packed = gzip.compress(text)
    trace = read(packed[: len(packed) // 2], name="trace.json.gz")
    assert trace.quality.truncated
    assert 1_000 < trace.quality.events_read < 19_999
    assert names(trace) == [f"kernel_{index}" for index in range(1, trace.quality.events_read + 1)]


def test_damaged_compressed_file(read: Any) -> None:
    """A gzip file with a damaged byte gives what stands before it."""
    packed = bytearray(gzip.compress(document([kernel(index) for index in range(1, 20_000)]).encode()))
    packed[len(packed) // 2] ^= 0xFF
    trace = read(bytes(packed), name="trace.json.gz")
    assert trace.quality.events_read > 1_000


def test_compressed_in_several_members_or_by_zstandard(read: Any) -> None:
    """Concatenated gzip members and zstandard frames are one text; the content decides, not the name."""
    text = document(RECORDS).encode()
    for packed in (
        gzip.compress(text[:100]) + gzip.compress(text[100:]),
        zstandard.compress(text),
        zstandard.compress(text[:100]) + zstandard.compress(text[100:]),
    ):
        trace = read(packed, name="trace.json")
        assert counts(trace) == (5, 0, 0)


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"kernel\x01_3", "kernel _3"),
        (b"C:\\q\\x", "C:\\q\\x"),
        (b"kernel\xff\xfe", "kernel\ufffd\ufffd"),
        (b'kern"el"_3', 'kern"el"_3'),
        (b"two\nlines", "two lines"),
        (b"\\u12", "\\u12"),
    ],
)
def test_damaged_name(read: Any, raw: bytes, name: str) -> None:
    """A control character, stray backslash, bad UTF-8 or bare quote in a name is repaired and counted."""
    trace = read(document(RECORDS).encode().replace(b"kernel_3", raw))
    assert counts(trace) == (5, 0, 1)
    assert names(trace) == ["kernel_1", "kernel_2", name, "kernel_4", "kernel_5"]
    assert trace.rank == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"ts": 30', b'"ts": 3x0'),
        (b'"name": "kernel_3"', b'"name" "kernel_3"'),
        (b'"ts": 30', b'"ts": null'),
        (b'"dur": 5, "args": {"device": 0, "stream": 7, "correlation": 3}', b'"args": {}'),
        (b'"ph": "X", "cat": "kernel", "name": "kernel_3"', b'"cat": "kernel", "name": "kernel_3"'),
        (b'"ph": "X", "cat": "kernel", "name": "kernel_3"', b'"ph": 7, "cat": "kernel", "name": "kernel_3"'),
        (b'"ts": 30, "dur": 5', b'"ts": 0, "dur": 0'),
        (b'"ts": 30', b'"ts": 1e400'),
        (b'"ts": 30', b'"ts": 123456789012345678901234567890'),
        (b'"ts": 30', b'"ts": [[[]]]'),
    ],
)
def test_event_that_cannot_be_read(read: Any, old: bytes, new: bytes) -> None:
    """An event beyond repair, without an instant, or at 0 with length 0 costs itself alone and is counted as lost."""
    trace = read(document(RECORDS).encode().replace(old, new))
    assert names(trace) == ["kernel_1", "kernel_2", "kernel_4", "kernel_5"]
    assert trace.quality.events_read == 4
    assert trace.quality.events_lost == 1


@pytest.mark.parametrize("damage", [b"}, x{", b"} {", b"},, {", b"x, {", b"}; {"])
def test_damage_between_events(read: Any, damage: bytes) -> None:
    """A damaged separator costs at most the events beside it."""
    trace = read(document(RECORDS).encode().replace(b'3}}, {"ph"', b"3}" + damage + b'"ph"'))
    kept = names(trace)
    assert {"kernel_1", "kernel_2", "kernel_5"} <= set(kept)
    assert trace.quality.events_read + trace.quality.events_lost >= 5
    assert trace.quality.events_lost + trace.quality.events_repaired >= 1


def test_numbers_of_unusual_form(read: Any) -> None:
    """Exponents, strings and whole floats are numbers; integers beyond 64 bits in arguments are unknown."""
    records = [
        kernel(1, ts="10.25", dur="5"),
        kernel(2, tid="stream 7", args={"correlation": 2}),
        kernel(3, args={"device": 0, "stream": 7, "correlation": 2**70, "bytes": 10**40}),
        kernel(4, args={"device": "0", "stream": "0x7", "correlation": "4"}),
        kernel(5, args=None),
    ]
    text = (
        document(records).replace('"ts": 50', '"ts": 5e1').replace('"dur": 5, "args": null', '"dur": 5.0, "args": null')
    )
    trace = read(text)
    events = trace.device_events
    assert events[DeviceEvents.start_ns].to_list() == [10_250, 20_000, 30_000, 40_000, 50_000]
    assert events[DeviceEvents.end_ns].to_list() == [15_250, 25_000, 35_000, 45_000, 55_000]
    assert events[DeviceEvents.stream].to_list() == [7, 7, 7, 7, 7]
    assert events[DeviceEvents.correlation].to_list() == [None, 2, None, 4, None] or events[
        DeviceEvents.correlation
    ].to_list() == [1, 2, None, 4, None]
    assert trace.quality.events_lost == 0


@pytest.mark.parametrize(
    ("micro", "nano"),
    [
        ("1712867402348256.123", 1_712_867_402_348_256_123),
        ("1712867402348256.001", 1_712_867_402_348_256_001),
        ("1712867402348256", 1_712_867_402_348_256_000),
        ("4458676522690.655", 4_458_676_522_690_655),
        ("8796093022207.999", 8_796_093_022_207_999),
        ("8796093022208.001", 8_796_093_022_208_001),
        ("0.001", 1),
        ("1e3", 1_000_000),
        ("1.5E+1", 15_000),
        ("-3.25", -3_250),
        ("2251799813685247", 2_251_799_813_685_247_000),
    ],
)
def test_exact_nanoseconds(read: Any, micro: str, nano: int) -> None:
    """Instants of up to three decimals become exact nanoseconds, beside whole numbers or alone."""
    alone = document([kernel(1)]).replace('"ts": 10', f'"ts": {micro}')
    assert read(alone).device_events[DeviceEvents.start_ns].to_list() == [nano]
    beside = document([kernel(1), kernel(2, ts=123456.5)]).replace('"ts": 10', f'"ts": {micro}')
    assert nano in read(beside).device_events[DeviceEvents.start_ns].to_list()


def test_every_thousandth_is_exact(read: Any) -> None:
    """All thousandths of a microsecond survive at the largest instants that a base leaves."""
    records = [kernel(1) for _ in range(1000)]
    text = document(records, baseTimeNanoseconds=1_767_189_312_000_000_123)
    for index in range(1000):
        text = text.replace('"ts": 10,', f'"ts": 7776000000000.{index:03},', 1)
    starts = read(text).device_events[DeviceEvents.start_ns].to_list()
    assert starts == [1_767_189_312_000_000_123 + 7_776_000_000_000_000 + index for index in range(1000)]


def test_lengths(read: Any) -> None:
    """A negative length counts as 0 and is counted; a length of 0 is counted apart."""
    trace = read(document([kernel(1, dur=-0.5), kernel(2, dur=0), kernel(3)]))
    events = trace.device_events
    assert (events[DeviceEvents.end_ns] - events[DeviceEvents.start_ns]).to_list() == [0, 0, 5_000]
    assert (trace.quality.negative_length, trace.quality.zero_length) == (1, 1)


def test_overrun_is_flagged_and_clipped(read: Any) -> None:
    """An event that runs into the next of its own stream keeps its span; the clipped end stands beside it."""
    records = [kernel(1, dur=15), kernel(2), kernel(3, dur=100, args={"device": 0, "stream": 8}), kernel(4)]
    trace = read(document(records))
    events = trace.device_events
    assert events[DeviceEvents.end_ns].to_list() == [25_000, 25_000, 130_000, 45_000]
    assert events[DeviceEvents.clipped_end_ns].to_list() == [20_000, 25_000, 130_000, 45_000]
    assert trace.quality.slices_overrun == 1


def test_unlinked_launches_and_events_are_counted(read: Any) -> None:
    """Events whose launch is missing and launches without an event are counted, other calls are not."""
    call = {"ph": "X", "cat": "cuda_runtime", "pid": 1, "tid": 1, "dur": 1}
    records = [
        kernel(1),
        kernel(2),
        call | {"name": "cudaLaunchKernel", "ts": 5, "args": {"correlation": 1}},
        call | {"name": "cudaLaunchKernel", "ts": 7, "args": {"correlation": 99}},
        call | {"name": "cudaStreamSynchronize", "ts": 9, "args": {"correlation": 100}},
    ]
    quality = read(document(records)).quality
    assert (quality.device_events_without_launch, quality.launches_without_device_event) == (1, 1)


def test_a_graph_launch_launches_many(read: Any) -> None:
    """All kernels of a replayed graph are its launch's, and are marked."""
    call = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaGraphLaunch",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 2,
        "args": {"correlation": 9},
    }
    replayed = [kernel(index, args={"device": 0, "stream": 7, "correlation": 9}) for index in range(1, 4)]
    trace = read(document([call, *replayed]))
    assert trace.device_events[DeviceEvents.launch_id].to_list() == [0, 0, 0]
    assert trace.device_events[DeviceEvents.in_graph].to_list() == [True, True, True]
    assert trace.launches[Launches.num_device_events].to_list() == [3]
    assert trace.quality.attributed_ratio == 0.0


def test_overlapping_operators_are_tolerated(read: Any) -> None:
    """An operator that outlives the one it began in keeps its span, has no parent, and is counted."""
    op = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "args": {}}
    records = [
        op | {"name": "outer", "ts": 10, "dur": 10},
        op | {"name": "late", "ts": 15, "dur": 10},
        op | {"name": "inner", "ts": 16, "dur": 1},
    ]
    trace = read(document(records))
    assert trace.ops[Ops.parent_id].to_list() == [None, None, 1]
    assert trace.quality.host_overlaps == 1


def test_events_are_linked_by_arrows_without_correlations(read: Any) -> None:
    """Where arguments number nothing, the arrow from call to kernel links them."""
    records = [
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "ts": 2.5,
            "dur": 1,
            "args": {},
        },
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 4, "pid": 1, "tid": 1, "ts": 2.5},
        kernel(1, args={"device": 0, "stream": 7}),
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 4, "pid": 0, "tid": 7, "ts": 10, "bp": "e"},
    ]
    trace = read(document(records))
    assert trace.device_events[DeviceEvents.launch_id].to_list() == [0]
    assert counts(trace) == (4, 0, 0)


@pytest.mark.parametrize("arrows", [True, False])
def test_backward_operators_know_their_forward(read: Any, arrows: bool) -> None:
    """Forward and backward are linked by sequence number, and by arrows where there is none."""
    op = {"ph": "X", "cat": "cpu_op", "pid": 1, "dur": 5}
    number = {} if arrows else {"Sequence number": 8}
    records = [
        op | {"name": "aten::linear", "tid": 1, "ts": 8, "dur": 9, "args": number},
        op | {"name": "aten::addmm", "tid": 1, "ts": 10, "args": number},
        op | {"name": "AddmmBackward0", "tid": 2, "ts": 50, "args": {**number, "Fwd thread id": 1}},
    ]
    if arrows:
        records += [
            {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": 1, "tid": 1, "ts": 10},
            {"ph": "f", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": 1, "tid": 2, "ts": 50, "bp": "e"},
        ]
    trace = read(document(records))
    assert trace.ops[Ops.forward_op_id].to_list() == [None, None, 1]


def test_triton_operators_are_no_device_work(read: Any) -> None:
    """A host operator that carries a stream stays on the host."""
    op = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "triton_poi_0",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 1,
        "args": {"stream": 0, "device": 0, "grid": "grid(1,)"},
    }
    trace = read(document([op]))
    assert trace.device_events.height == 0
    assert trace.ops.height == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n ", "is empty"),
        (b"hello", "is not JSON"),
        (b"\x7fELF\x02\x01", "is not JSON"),
        (b"{}", "no traceEvents"),
        (b'{"a": 1', "no traceEvents"),
        (b'{"traceEvents": 7}', "is no list"),
        (b"\x1f\x8b", "nothing that can be unpacked"),
        (b'"text"', "is not JSON"),
    ],
)
def test_no_trace_at_all(read: Any, content: bytes, message: str) -> None:
    """What is no trace says what it is."""
    with pytest.raises(TraceError, match=message):
        read(content)


def test_missing_file(tmp_path: Path) -> None:
    """A path that matches nothing is an error that names it."""
    with pytest.raises(TraceError, match=r"absent\.json: no such file"):
        load(tmp_path / "absent.json")


def test_decompression_bomb(tmp_path: Path) -> None:
    """A bomb stops at its cap, and the error says how to raise it."""
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (60 << 20), compresslevel=9))
    with pytest.raises(LimitError, match="SCOPE_MAX_TRACE_RATIO"):
        load_rank(path)
    limits = Limits(max_bytes=1 << 20, max_ratio=10_000)
    with pytest.raises(LimitError, match="SCOPE_MAX_TRACE_BYTES"):
        load_rank(path, options=ReadOptions(limits=limits))


def test_caps_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caps can be set in the environment; nonsense there is an error."""
    path = tmp_path / "trace.json"
    path.write_text(document(RECORDS))
    monkeypatch.setenv("SCOPE_MAX_TRACE_BYTES", "100")
    with pytest.raises(LimitError):
        load_rank(path)
    monkeypatch.setenv("SCOPE_MAX_TRACE_BYTES", "much")
    with pytest.raises(UsageError):
        load_rank(path)


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000])
def test_nesting_without_end(read: Any, deep: str) -> None:
    """Brackets without end cost the event that they stand in."""
    text = document(RECORDS).replace('"correlation": 3', f'"correlation": 3, "x": {deep}')
    trace = read(text)
    assert {"kernel_1", "kernel_2"} <= set(names(trace))
    assert trace.quality.events_lost >= 1


def test_hostile_names_are_kept_as_they_are(read: Any) -> None:
    """HTML, markup, escapes and formulas in names are text; only the faces escape them."""
    hostile = ["<script>alert(1)</script>", "[/b]", "\x1b[31m", '=HYPERLINK("http://x")', "a|b`c`*d*"]
    trace = read(document([kernel(index, name=name) for index, name in enumerate(hostile, start=1)]))
    assert names(trace) == hostile


def test_large_file_with_one_bad_byte(read: Any) -> None:
    """In a file of many chunks a bad byte costs one event, wherever it stands."""
    records = [kernel(index) for index in range(1, 17_001)]
    text = document(records).encode()
    assert len(text) > 2 << 20
    for index in (1, 17_000):
        trace = read(text.replace(f'"kernel_{index}",'.encode(), f'"kernel_{index}" "".'.encode()))
        assert counts(trace) == (16_999, 1, 0)
        assert f"kernel_{index}" not in set(names(trace))


def test_separators_inside_events(read: Any) -> None:
    """Separators inside arguments don't fool the search for events."""
    nested = {"device": 0, "stream": 7, "list": [{"a": 1}, {"ph": "no"}, {"b": [{}, {}]}], "text": "}, {"}
    trace = read(
        document([kernel(index, args=nested) for index in range(1, 2_000)])
        .encode()
        .replace(b'kernel_77"', b'kernel\x02_77"')
    )
    assert counts(trace) == (1_999, 0, 1)


def test_every_error_is_ours(read: Any) -> None:
    """Text that is almost a trace raises nothing but errors of Scope."""
    for text in (
        '{"traceEvents": [',
        '{"traceEvents": [[',
        "[[[",
        '[1, 2, "x", null]',
        '{"traceEvents": [{}]}',
        '[{"ph": "X"}]',
        '{"traceEvents":[{"ph":"X"}',
    ):
        try:
            trace = read(text)
        except ScopeError:
            continue
        assert trace.device_events.height == 0
        assert trace.quality.events_read == 0


HUGE = ("9" * 5000, "9" * 400, "-" + "9" * 30, "9223372036854775807", "1e308", "0.1e-400", "2305843009213693951")


@pytest.mark.parametrize("number", HUGE)
def test_hostile_numbers_anywhere(read: Any, number: str) -> None:
    """A number of any size in any field makes nothing but a lost record or an unknown value."""
    names = (
        "correlation,External id,registers per thread,shared memory,est. achieved occupancy %,bytes,graph id,Seq,"
        "Rank,Src Rank,In msg nelems,Out msg nelems,Group size,Global rank start,Global rank stride"
    )
    args = dict.fromkeys(names.split(","), 1)
    texts = {"Collective name": "allreduce", "dtype": "Float", "Process Group Ranks": "[1]", "In split size": "[1]"}
    memory = {"Device Type": 1, "Device Id": 1, "Addr": 1, "Bytes": 1, "Total Allocated": 1}
    host = {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    records = [
        kernel(1, args=args | texts),
        {**host, "cat": "cpu_op", "name": "a", "args": {"Sequence number": 1, "Fwd thread id": 1, "External id": 1}},
        {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": memory},
        {**host, "cat": "user_annotation", "name": "ProfilerStep#1"},
    ]
    info = {"rank": 1, "world_size": 1, "pg_config": [{"pg_name": "1", "pg_size": 1, "ranks": [1]}]}
    devices = [{"id": 1, "computeMajor": 1}]
    text = document(records, distributedInfo=info, baseTimeNanoseconds=1, deviceProperties=devices)
    places = [match.start() for match in re.finditer(r'(?<=[: \["#])1(?=[,\]}"])', text)]
    assert len(places) > 40
    for place in places:
        trace = read(text[:place] + number + text[place + 1 :])
        assert trace.quality.events_read + trace.quality.events_lost == len(records)


@pytest.mark.parametrize("size", [2**31, 2**62, 0, -1, "9" * 12])
def test_a_group_of_more_ranks_than_can_be_has_no_size(tmp_path: Path, size: object) -> None:
    """A host timeline whose only process group tells nonsense of its size is read, the size of its calls unknown."""
    host = {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 5, "args": {"Input Dims": [[8]], "Input type": ["float"]}}
    records = [{**host, "cat": "user_annotation", "name": "gloo:all_gather"}]
    path = tmp_path / "trace.json"
    path.write_text(document(records, distributedInfo={"rank": 0, "pg_config": [{"pg_name": "0", "pg_size": size}]}))
    trace = load_rank(path)
    assert trace.collective_calls[CollectiveCalls.group_size].to_list() == [None]
    assert trace.collective_calls[CollectiveCalls.in_elements].to_list() == [8]


@pytest.mark.parametrize("total", ["Total Allocated", "Total Reserved"])
def test_less_than_nothing_in_use_is_nonsense(read: Any, total: str) -> None:
    """A record that says so is lost and counted, and the peaks are those of the others."""
    place = {"Device Type": 1, "Device Id": 0}
    instant = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
    sizes = [(1, 300, 300), (2, 200, 500), (3, 64, 564), (4, -500, 64)]
    records = [
        {
            **instant,
            "ts": ts,
            "args": {**place, "Addr": ts, "Bytes": size, "Total Allocated": used, "Total Reserved": 4_096},
        }
        for ts, size, used in sizes
    ]
    records[2]["args"][total] = -(2**50)
    trace = read(document([*RECORDS, *records]))
    assert (trace.quality.events_lost, trace.quality.events_read) == (1, len(RECORDS) + 3)
    assert trace.memory[Memory.allocated_bytes].to_list() == [300, 500, 64]
    (peak,) = compute_memory_peaks(trace)
    assert (peak.peak_allocated_bytes, peak.peak_reserved_bytes, peak.peak_ns) == (500, 4_096, 2_000)


def test_an_allocator_that_says_no_total(read: Any) -> None:
    """Records without totals are kept: their sizes are known."""
    instant = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
    sizes = {"Device Type": 1, "Device Id": 0, "Addr": 1, "Bytes": 8}
    trace = read(document([*RECORDS, *({**instant, "ts": ts, "args": sizes} for ts in (1, 2))]))
    assert trace.quality.events_lost == 0
    assert trace.memory[Memory.size_bytes].to_list() == [8, 8]
