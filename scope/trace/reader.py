"""From bytes to records: finds the list of events in the stream and decodes it in chunks."""

from __future__ import annotations

import json
import re
from collections import deque
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scope.errors import LimitError, TraceError
from scope.structs import Record
from scope.trace.arguments import DECODE_ERRORS
from scope.trace.boundaries import SEPARATOR, ends_the_list
from scope.trace.categories import BACKWARD_ARROWS
from scope.trace.collect import Collector
from scope.trace.events import EXACT_DECODER, FAST_DECODER
from scope.trace.forwards import NUMBERED, are_doubtful
from scope.trace.instants import InexactError
from scope.trace.mending import without_half_characters
from scope.trace.narrowing import WHOLE, Tables
from scope.trace.raw import RawDevice, RawOps
from scope.trace.salvage import (
    TRAILING,
    Salvaged,
    array_end,
    read_values,
    salvage,
    split_list,
    with_nulls,
)
from scope.trace.schema import Ops, PythonCalls
from scope.trace.sources import MOST_BLANK_BYTES, UTF8_MARK, WHITE, Source

if TYPE_CHECKING:
    from collections.abc import Generator

    from scope.trace.collected import Collected


_CHUNK_BYTES: Final = 512 << 10
"""Records of a chunk and the chunk itself stay in a core's own cache; more would cost time and memory."""
_MOST_METADATA_BYTES: Final = 256 << 20
_LONGEST_EVENT_BYTES: Final = 64 << 20
_MOST_UNTYPED: Final = 4
_TAIL_BYTES: Final = 4 << 10
_CLOSED: Final = ord("]")
_LIST_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*')
_MOST_LIST_KEYS: Final = 32
"""Each is tried by decoding all that stands before it."""
_LIST_END: Final = re.compile(rb'\}\s*\](?=\s*(?:,\s*"|\}))')
_LIST_END_BYTES: Final = 16 << 10
_MOST_LIST_ENDS: Final = 4
_EVENTS_KEY: Final = "traceEvents"


class NotATraceError(TraceError):
    """The file holds something else than a profiler trace, or nothing; a folder may hold such files."""


class ReadTrace(Record, frozen=True, kw_only=True):
    """What one file holds, before linking."""

    collected: Collected
    metadata: dict[str, Any]
    is_truncated: bool


class _Reader:
    def __init__(self, source: Source, *, loaded: Tables, arrows: bool) -> None:
        self.source = source
        self.collector = Collector(loaded=loaded, arrows=arrows)
        # Arrows are only read in full beside exact instants.
        self.blocks: Generator[bytes] = source.blocks()
        self.is_exact = arrows
        self.num_untyped = 0
        """Chunks since the last one that was decoded the quick way."""
        self.tail: bytes | None = None
        """What stands behind the list of events; None while the list goes on."""

    def read(self) -> ReadTrace:
        # An error leaves the file half read; it is closed here, not when the error is forgotten.
        with closing(self.blocks):
            return self._read()

    def _read(self) -> ReadTrace:
        head, buffer = self._find_list()
        is_last = False
        while self.tail is None and not is_last:
            text, is_last = self._fill(buffer)
            end, following = self._cut(text, is_last=is_last)
            separator = bytes(text[end:following])
            # The chunk is closed in place of what separates it from the next event: a copy costs as much as decoding.
            if is_last:
                text.append(_CLOSED)
            else:
                text[end] = _CLOSED
            buffer = bytes(text[following:])
            del text[end + 1 :]
            unfinished = self._take_chunk(text, is_last=is_last)
            if unfinished:
                buffer = unfinished + separator + buffer
        tail = bytearray(self.tail or b"") + buffer
        is_truncated = self.tail is None or self.source.is_cut
        if self.tail is not None:
            for block in self.blocks:
                tail += block
                self._check_metadata(tail)
        if head is not None:
            is_truncated = is_truncated or not tail.rstrip(WHITE + b"\0").endswith(b"}")
        self._refuse_second_list(tail)
        metadata = _metadata(head or b"", bytes(tail))
        is_truncated = is_truncated or self.source.is_cut
        self.collector.finish()
        collected = self.collector.collected
        return ReadTrace(collected=collected, metadata=metadata, is_truncated=is_truncated)

    def _find_list(self) -> tuple[bytes | None, bytes]:
        """Return what stands before the list of events (None for a bare list) and what was read of the list."""
        buffer = b""
        searched = 0
        for block in self.blocks:
            buffer = (buffer + block).removeprefix(UTF8_MARK) if not buffer else buffer + block
            start = buffer.lstrip(WHITE)
            if start[:1] == b"[":
                return None, start[1:]
            if start and start[:1] != b"{":
                self._refuse(f"is not JSON (it begins with {_kind_of_content(start)})")
            if not start and len(buffer) > MOST_BLANK_BYTES:
                self._refuse(f"holds nothing but blanks in its first {MOST_BLANK_BYTES >> 20} MiB")
            for match in islice(_LIST_KEY.finditer(buffer, searched), _MOST_LIST_KEYS):
                if not _is_top_level(buffer[: match.start()]):
                    continue
                rest = buffer[match.end() :]
                if rest[:1] == b"[":
                    return buffer[: match.start()], rest[1:]
                if rest:
                    message = f"{self.source.path}: traceEvents is no list, so this is no profiler trace"
                    raise NotATraceError(message)
            searched = max(0, len(buffer) - 4096)
            self._check_metadata(buffer)
        if not buffer.strip(WHITE):
            what = "is empty" if not self.source.is_cut else "holds nothing that can be unpacked"
            message = f"{self.source.path}: {what}; record the trace again"
            raise NotATraceError(message)
        loose = _LIST_KEY.search(buffer)
        if loose is not None and buffer[loose.end() : loose.end() + 1] == b"[":
            return buffer[: loose.start()], buffer[loose.end() + 1 :]
        message = f"{self.source.path}: holds no traceEvents, so this is no profiler trace"
        raise NotATraceError(message)

    def _refuse_second_list(self, tail: bytearray) -> None:
        """Refuse a file with two lists of events: readers of JSON take the last one, this one has read the first."""
        for match in islice(_LIST_KEY.finditer(tail), _MOST_LIST_KEYS):
            if not tail.startswith(b"[", match.end()):
                continue
            before = b'{"":0' + tail[: match.start()]
            if _is_top_level(before):
                self._refuse("holds two lists of events (traceEvents)")
            if _is_top_level(_behind_an_object(before)):
                self._refuse("holds two traces one behind the other")

    def _refuse(self, what: str) -> None:
        message = f"{self.source.path}: {what}, so this is no profiler trace"
        raise NotATraceError(message)

    def _check_metadata(self, buffer: bytes | bytearray) -> None:
        if len(buffer) > _MOST_METADATA_BYTES:
            message = (
                f"{self.source.path}: more than {_MOST_METADATA_BYTES >> 20} MiB beside the events; "
                "no profiler writes that, so the file was not read"
            )
            raise LimitError(message)

    def _fill(self, buffer: bytes) -> tuple[bytearray, bool]:
        """Read on until there is a chunk, which begins with a bracket; say whether the file ended."""
        parts = [b"[", buffer]
        size = len(buffer)
        wanted = max(_CHUNK_BYTES, size + 1)
        while size < wanted:
            block = next(self.blocks, None)
            if block is None:
                return bytearray().join(parts), True
            parts.append(block)
            size += len(block)
        return bytearray().join(parts), False

    def _cut(self, text: bytearray, *, is_last: bool) -> tuple[int, int]:
        """Return where the last complete event ends, and where the next one begins; the bracket's place for none."""
        if is_last:
            return len(text), len(text) + 1
        window = _TAIL_BYTES
        while True:
            last = deque(SEPARATOR.finditer(text, max(0, len(text) - window)), maxlen=1)
            if last:
                return last[0].start() + 1, last[0].end()
            if window >= len(text):
                break
            window *= 16
        if len(text) > _LONGEST_EVENT_BYTES:
            message = f"{self.source.path}: one event is longer than {_LONGEST_EVENT_BYTES >> 20} MiB; not read"
            raise LimitError(message)
        return 0, 1

    def _take_chunk(self, chunk: bytearray, *, is_last: bool) -> bytes:
        """Decode a chunk, which stands in brackets; return the beginning of an event that it does not finish."""
        if len(chunk) <= len(b"[]"):
            return b""
        # Trying the last chunk as a whole would decode it in vain, and of a small file that is all there is.
        end = _end_of_events(chunk) if is_last else None
        if end is not None and self._add_until(bytes(chunk), end):
            return b""
        try:
            self._add(chunk)
        except DECODE_ERRORS as error:
            return self._take_damaged(bytes(chunk), error, is_last=is_last)
        return b""

    def _take_damaged(self, text: bytes, error: Exception, *, is_last: bool) -> bytes:
        """Decode a chunk in which something is of another type than expected, or no JSON."""
        if text[1:-1].isspace():
            return b""
        if isinstance(error, msgspec.ValidationError):
            if self._add_values(text, is_last=is_last):
                return b""
        else:
            end = array_end(text, error)
            ends = False if end is None else ends_the_list(text[end + 1 : -1], is_last=is_last)
            if end is not None and ends and self._add_until(text, end):
                return b""
            if end is not None and ends is None and self._add_list(text[: end + 1]):
                return text[end:-1]
            numbered, num_mended = with_nulls(text)
            if num_mended:
                self.collector.collected.events_repaired += num_mended
                return self._take_chunk(bytearray(numbered), is_last=is_last)
        end = _end_of_events(text) if is_last else None
        if end is not None and text[end + 1 :].lstrip().startswith(b","):
            # Else the objects among the file's other keys would be taken for broken events.
            found = salvage(text[1:end], is_last=True, holds_end=False)
            found.rest = text[end + 1 : -1]
        else:
            found = salvage(text[1:-1], is_last=is_last)
        self._add_salvaged(found)
        self.tail = found.rest
        return found.unfinished

    def _add_values(self, text: bytes, *, is_last: bool) -> bool:
        """Take the events of a chunk that is good JSON, value by value."""
        try:
            values, end = split_list(text, is_last=is_last)
        except DECODE_ERRORS:
            return False
        self._add_salvaged(read_values(values))
        if end < len(text) - 1:
            self.tail = text[end + 1 : -1]
        return True

    def _add_salvaged(self, found: Salvaged) -> None:
        self.collector.add(found.events, exact=True)
        self.collector.collected.events_lost += found.lost
        self.collector.collected.events_repaired += found.repaired

    def _add_until(self, text: bytes, end: int) -> bool:
        if self._add_list(text[: end + 1]):
            self.tail = text[end + 1 : -1]
            return True
        return False

    def _add_list(self, text: bytes) -> bool:
        try:
            self._add(text)
        except DECODE_ERRORS:
            return False
        return True

    def _add(self, text: bytes | bytearray) -> None:
        if not self.is_exact:
            try:
                if not self._add_typed(text):
                    self.collector.add(FAST_DECODER.decode(text), exact=False)
            except InexactError:
                self.is_exact = True
            else:
                return
        self.collector.add(EXACT_DECODER.decode(text), exact=True)

    def _add_typed(self, text: bytes | bytearray) -> bool:
        """Try the quick way; a file that does not go it, chunk after chunk, is not tried on for ever."""
        if self.num_untyped >= _MOST_UNTYPED:
            return False
        is_taken = False
        while not is_taken:  # a second time where its records say more than was decoded
            try:
                events = self.collector.typed.decoder.decode(text)
            except DECODE_ERRORS:
                self.num_untyped += 1
                return False
            is_taken = self.collector.add_typed(events)
        self.num_untyped = 0
        return True


def read_trace(source: Source, *, loaded: Tables = WHOLE) -> ReadTrace:
    """Read the records of one file that the tables in `loaded` are made of.

    Raises:
        NotATraceError: The file is no profiler trace.
        TraceError: The file cannot be read.
        LimitError: A cap was reached.
    """
    read = _Reader(source, loaded=loaded, arrows=False).read()
    if not _needs_arrows(read.collected, loaded):
        return read
    return _Reader(Source(source.path, limits=source.limits), loaded=loaded, arrows=True).read()


def _needs_arrows(collected: Collected, loaded: Tables) -> bool:
    """Say whether records are linked by arrows alone; most traces number them, and arrows are a third of a file."""
    if not collected.arrow_categories:
        return False
    # As many as are broken may have lost their number: no reason to read a damaged file a second time.
    if collected.num_nulls(RawDevice, RawDevice.correlation) > collected.events_lost + collected.events_repaired:
        return True
    if Ops not in loaded or collected.arrow_categories.isdisjoint(BACKWARD_ARROWS):
        return False
    num_ops = collected.height(RawOps)
    if num_ops == collected.num_nulls(RawOps, RawOps.sequence_number):
        return True
    # Forward operators serve to find modules, which are among the calls of Python.
    return PythonCalls in loaded and are_doubtful(collected.peek(RawOps, NUMBERED))


def _end_of_events(text: bytes | bytearray) -> int | None:
    """Return where, near the end of a file, the list of events seems to end: what follows are the file's other keys."""
    for match in islice(_LIST_END.finditer(text, max(0, len(text) - _LIST_END_BYTES)), _MOST_LIST_ENDS):
        try:
            msgspec.json.decode(
                b'{"":0' + bytes(text[match.end() : -1]).strip(WHITE + b"\0"), type=dict[str, msgspec.Raw]
            )
        except DECODE_ERRORS:
            continue
        return match.end() - 1
    return None


def _kind_of_content(start: bytes) -> str:
    """Return what a file seems to hold, but nothing of it: a link may lead to what no message must show."""
    sample = start[:64]
    if not sample.strip(b"\0"):
        return "zero bytes"
    return "text" if all(0x20 <= byte != 0x7F or byte in WHITE for byte in sample) else "binary data"


def _is_top_level(head: bytes) -> bool:
    try:
        msgspec.json.decode(head + b'"":0}', type=dict[str, msgspec.Raw])
    except DECODE_ERRORS:
        return False
    return True


def _behind_an_object(text: bytes) -> bytes:
    """Return what follows the object that `text` begins with; nothing where that has no end."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except DECODE_ERRORS as error:
        match = TRAILING.search(str(error))
        return text[int(match[1]) - 1 :] if match is not None else b""
    return b""


def _metadata(head: bytes, tail: bytes) -> dict[str, Any]:
    """Return the top-level keys beside the events, those that can be read."""
    known: dict[str, Any] = {}
    for text in (head.strip(WHITE) + b'"":0}', b'{"":0' + tail.strip(WHITE)):
        known.update(_decoded_object(text))
    known.pop("", None)
    return known


def _decoded_object(text: bytes) -> dict[str, Any]:
    for end in (b"", b"}"):
        try:
            return msgspec.json.decode(text + end, strict=False)
        except DECODE_ERRORS:
            continue
    mended = without_half_characters(text.decode("utf-8", errors="replace").encode())
    try:
        return msgspec.json.decode(mended, strict=False)
    except DECODE_ERRORS:
        return _single_keys(mended)


_NEEDED_KEYS: Final = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "host_name")


def _single_keys(text: bytes) -> dict[str, Any]:
    """Read the needed keys one by one from metadata that does not decode as a whole."""
    known: dict[str, Any] = {}
    lenient = text.decode()
    decoder = json.JSONDecoder(strict=False)
    for key in _NEEDED_KEYS:
        match = re.search(rf'"{key}"\s*:\s*', lenient)
        if match is None:
            continue
        try:
            known[key], _ = decoder.raw_decode(lenient, match.end())
        except (ValueError, RecursionError):
            continue
    return known
