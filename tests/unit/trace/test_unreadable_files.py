"""Files that hold nothing to read: skipped and named among others, an error by themselves, and never waited for."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from scope.errors import TraceError
from scope.trace import ReadOptions, load, load_rank

UNCACHED = ReadOptions(use_cache=False)
UNREADABLE = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\t" * 100, "is empty"),
    "zeros": (bytes(5000), "zero bytes"),
    "gzip without content": (b"\x1f\x8b\x08" + bytes(20), "nothing that can be unpacked"),
    "gzip of nothing": (gzip.compress(b""), "is empty"),
    "gzip of zeros": (gzip.compress(bytes(5000)), "zero bytes"),
    "damaged zstd": (b"\x28\xb5\x2f\xfd\x00\x01", "nothing that can be unpacked"),
}


def a_trace(rank: int) -> bytes:
    """Return a trace of one operator, of a job of two ranks."""
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 5}
    return json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": [op]}).encode()


@pytest.mark.parametrize("kind", UNREADABLE)
def test_among_others_it_is_skipped_and_its_rank_is_missing(tmp_path: Path, kind: str) -> None:
    """A file of a folder that holds nothing is named in a notice, the others are read, and its rank is missing."""
    content, reason = UNREADABLE[kind]
    (tmp_path / "rank0.json").write_bytes(a_trace(0))
    (tmp_path / "rank1.json").write_bytes(content)
    job = load(tmp_path, options=UNCACHED)
    assert [trace.rank for trace in job.ranks] == [0]
    assert job.missing_ranks == (1,)
    assert [trace.quality.missing_ranks for trace in job.ranks] == [(1,)]
    (notice,) = job.warnings
    assert notice.startswith(f"skipped {tmp_path / 'rank1.json'}: ")
    assert reason in notice


@pytest.mark.parametrize("kind", UNREADABLE)
def test_named_by_itself_it_is_an_error(tmp_path: Path, kind: str) -> None:
    """Who names the file is told why it cannot be read, also where another file is named beside it."""
    content, reason = UNREADABLE[kind]
    (tmp_path / "rank0.json").write_bytes(a_trace(0))
    path = tmp_path / "rank1.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=reason):
        load(path, options=UNCACHED)
    with pytest.raises(TraceError, match=reason):
        load([tmp_path / "rank0.json", path], options=UNCACHED)


@pytest.mark.parametrize("start", [b"", b"\n" * 10], ids=["zeros", "zeros behind blanks"])
def test_a_file_of_holes_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    """Ten gigabytes of zeros that take no room on disk are neither read nor hashed to their end."""
    monkeypatch.setenv("SCOPE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "trace.json"
    path.write_bytes(start)
    os.truncate(path, 10 * 10**9)
    before = _bytes_read()
    with pytest.raises(TraceError, match="zero bytes"):
        load(path)
    assert _bytes_read() - before < 10**9


def _bytes_read() -> int:
    """Return how many bytes this process has read so far, of files and all else."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_endless_blanks_are_refused(tmp_path: Path) -> None:
    """JSON may begin behind some blanks, but not behind a megabyte of them."""
    path = tmp_path / "trace.json"
    path.write_bytes(b" " * (1 << 19) + a_trace(0))
    assert load_rank(path).rank == 0
    path.write_bytes(b" " * (2 << 20) + a_trace(0))
    with pytest.raises(TraceError, match="nothing but blanks"):
        load_rank(path)


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"user:x:0:0:secret", "text"), (b"\x7fELFsecret", "binary data"), (bytes(9) + b"secret" * 20, "binary data")],
)
def test_the_message_shows_nothing_of_the_content(tmp_path: Path, content: bytes, kind: str) -> None:
    """A name among traces may be a link to anything, so only the kind of what stands there is said."""
    target = tmp_path / "elsewhere"
    target.write_bytes(content)
    path = tmp_path / "rank0.json"
    path.symlink_to(target)
    with pytest.raises(TraceError, match=kind) as error:
        load(path, options=UNCACHED)
    assert "secret" not in str(error.value)


def test_launches_are_counted_where_no_device_event_is_in_the_file(tmp_path: Path) -> None:
    """A trace that lost all its kernels says how many launches have none."""
    call = {"ph": "X", "cat": "cuda_runtime", "pid": 1, "tid": 1, "dur": 1}
    calls = [
        call | {"name": "cudaLaunchKernel", "ts": 5, "args": {"correlation": 1}},
        call | {"name": "cudaMemcpyAsync", "ts": 7, "args": {"correlation": 2}},
        call | {"name": "cudaDeviceSynchronize", "ts": 9, "args": {"correlation": 3}},
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": calls}))
    trace = load_rank(path)
    assert trace.device_events.height == 0
    assert trace.quality.launches_without_device_event == 2
