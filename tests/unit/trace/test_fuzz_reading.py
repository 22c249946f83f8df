"""Mutated traces: nothing but errors of Scope, no hang, and every loss counted.

`make fuzz N=1000000` runs as many mutations as it is told, from the seed on where the last run ended
(`bench/fuzz_reading.py`); a normal run takes the first 2,000 of the made trace, and 250 of real ones cut small.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from scope.errors import ScopeError
from scope.trace import load_rank

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_MUTATIONS: Final = int(os.environ.get("SCOPE_FUZZ_MUTATIONS", "2000"))
FIRST_SEED: Final = int(os.environ.get("SCOPE_FUZZ_FIRST_SEED", "0"))
NUM_PARTS: Final = 8
MADE_BY_REAL: Final = 8
"""Mutations of the made trace by those of real ones, which take longer."""
SAMPLES: Final = Path(__file__).parents[3] / "sample_traces"
REAL_TRACES: Final = (
    "gloo-2-ranks-healthy/rank0",
    "hta/a100_alexnet",
    "hta/mi250_minitoy",
    "hta/cpu_only_rank34of300",
    "tracelens/mi300_torch_compile_triton",
    "tracelens/h100_bert_small",
)
MOST_OF_A_KIND: Final = 30
"""Records of one phase and category that a real trace is cut down to."""
MOST_SECONDS: Final = 20.0
TOKENS: Final = (
    *b'"\\{}[],:0\0\xff',
    *(b"null", b"true", b"1e999", b"-1", b"NaN", b"1.5", b"{}", b"[]", b'"a"', b"9" * 40, b'"ph":"X"', b"\x1f\x8b"),
    *(b'"traceEvents":[', b"-9223372036854775808"),
)
"""What is put into a trace: single bytes as numbers, and longer texts."""


def token(rng: random.Random) -> bytes:
    """Return one of the tokens as bytes."""
    chosen = rng.choice(TOKENS)
    return bytes([chosen]) if isinstance(chosen, int) else chosen


def records() -> list[dict[str, Any]]:
    """Return records of every kind that the reader knows."""
    host = {"ph": "X", "pid": 1, "tid": 1}
    device = {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel"}
    nccl = {"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "Group size": 2, "dtype": "Float"}
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "In split size": "[]", "Seq": 4}
    where = {"device": 0, "stream": 7, "grid": [8, 1, 1], "block": [64, 1, 1]}
    memory = {"Device Type": 1, "Device Id": 0, "Addr": 139926520725504, "Bytes": 512, "Total Allocated": 512}
    return [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "thread 1 (python)"}},
        {**host, "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 1.5, "dur": 90, "args": {"External id": 1}},
        {
            **host,
            "cat": "cpu_op",
            "name": "aten::mm",
            "ts": 2,
            "dur": 9,
            "args": {"External id": 2, "Input Dims": [[2, 3]]},
        },
        {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 3, "dur": 1, "args": {"correlation": 5}},
        {"ph": "s", "id": 5, "pid": 1, "tid": 1, "ts": 3, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 5, "pid": 0, "tid": 7, "ts": 4, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {**device, "name": "gemm", "ts": 4.25, "dur": 3, "args": {**where, "correlation": 5}},
        {**device, "name": "ncclDevKernel_AllReduce", "ts": 9, "dur": 3, "args": {**where, **nccl, **group}},
        {**device, "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 13, "dur": 0, "args": {**where, "bytes": 64}},
        {**device, "cat": "cuda_sync", "name": "Event Sync", "ts": 14, "dur": 1, "args": {"stream": -1}},
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "s": "t",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": 5,
            "args": memory,
        },
    ]


def document() -> bytes:
    """Return a small trace."""
    info = {
        "backend": "nccl",
        "rank": 1,
        "world_size": 2,
        "pg_config": [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}],
    }
    top = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "distributedInfo": info}
    return json.dumps({**top, "baseTimeNanoseconds": 1_767_189_312_000_000_000, "traceEvents": records()}).encode()


def cut_down(path: Path) -> bytes:
    """Return a real trace with its first records of each kind alone, laid out as the profiler does."""
    trace = json.loads(gzip.decompress(path.read_bytes()), strict=False)
    seen: Counter[tuple[Any, Any]] = Counter()
    kept: list[Any] = []
    for record in trace["traceEvents"]:
        kind = record.get("ph"), record.get("cat")
        seen[kind] += 1
        if seen[kind] <= MOST_OF_A_KIND:
            kept.append(record)
    return json.dumps({**trace, "traceEvents": kept}, indent=2).encode()


def mutated(text: bytes, rng: random.Random) -> bytes:
    """Return the text after one to thirty random edits."""
    data = bytearray(text)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 30))):
        place = rng.randrange(len(data) + 1)
        edit = rng.randrange(8)
        if edit == 0 and place:
            data[place - 1] = rng.randrange(256)
        elif edit == 1:
            data[place:place] = token(rng)
        elif edit == 2:
            del data[place : place + rng.choice((1, 1, 5, 50, 500))]
        elif edit == 3:
            data[place:place] = data[place : place + rng.choice((5, 200, 1000))] * rng.choice((1, 2, 10))
        elif edit == 4 and rng.random() < 0.2:
            del data[place:]
        elif edit == 5:
            values = list(re.finditer(rb':\s*(-?\d[\d.]*|"[^"]*")', data[place : place + 500]))
            if values:
                value = rng.choice(values)
                data[place + value.start(1) : place + value.end(1)] = token(rng)
        elif edit == 6:
            data[place:place] = rng.randbytes(rng.randrange(8))
        else:
            other = rng.randrange(len(data) + 1)
            data[place:place], data[other:other] = data[other : other + 100], data[place : place + 100]
    return bytes(data)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], Any]:
    """Write bytes to a file and read it; None when it is refused."""

    def write_and_read(content: bytes) -> Any:
        path = tmp_path / "trace.json"
        path.write_bytes(content)
        began = time.process_time()
        try:
            trace = load_rank(path)
        except ScopeError as error:
            trace, refusal = None, str(error)
        else:
            refusal = str(path)
        assert str(path) in refusal
        assert time.process_time() - began < MOST_SECONDS
        return trace

    return write_and_read


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_mutations(read: Callable[[bytes], Any], part: int) -> None:
    """A mutated trace is read or refused with an error of Scope that names it."""
    text = document()
    for number in range(FIRST_SEED + part, FIRST_SEED + NUM_MUTATIONS, NUM_PARTS):
        read(mutated(text, random.Random(number)))


@pytest.mark.parametrize("name", REAL_TRACES)
def test_mutations_of_real_traces(read: Callable[[bytes], Any], name: str, request: pytest.FixtureRequest) -> None:
    """A mutated trace of a real job is read or refused likewise."""
    folder = SAMPLES if (SAMPLES / f"{name}.json.gz").exists() else request.getfixturevalue("shared_traces")
    text = cut_down(folder / f"{name}.json.gz")
    assert read(text) is not None
    last = (FIRST_SEED + NUM_MUTATIONS) // MADE_BY_REAL
    for number in range(FIRST_SEED // MADE_BY_REAL + REAL_TRACES.index(name), last, len(REAL_TRACES)):
        read(mutated(text, random.Random(number)))


@pytest.mark.parametrize("seed", [10205])
def test_mutations_that_once_failed(read: Callable[[bytes], Any], seed: int) -> None:
    """Mutations that ended in a traceback: in 10205 no launch lies in a step."""
    read(mutated(document(), random.Random(seed)))


@pytest.mark.parametrize("part", range(2))
def test_one_bad_byte_costs_one_event(read: Callable[[bytes], Any], part: int) -> None:
    """Whatever a single byte of the events becomes, all others are read, and what is not read is counted."""
    text = document()
    first, last = text.index(b"[", text.index(b"traceEvents")) + 1, text.rindex(b"]")
    for number in range(part, max(200, NUM_MUTATIONS // 8), 2):
        rng = random.Random(number)
        data = bytearray(text)
        data[rng.randrange(first, last)] = rng.randrange(256)
        trace = read(bytes(data))
        quality = trace.quality
        assert quality.events_read >= len(records()) - 1, bytes(data)
        assert quality.events_read + quality.events_lost >= len(records()), bytes(data)
        assert trace.rank == 1
