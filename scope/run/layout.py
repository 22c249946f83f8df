"""The binary files of a rank: the black box and the segments of call records, little-endian throughout.

**Black box** (`blackbox.bin`, 69,632 bytes, allocated at once, written in place with `pwrite`, never mapped: a file
that somebody truncates, or a full memory file system, then costs an error code and not a SIGBUS):

```
0      identity   64 bytes, written once
128    state      96 bytes, by the thread that trains: step and phase
256    pulse      64 bytes, by the 1 Hz thread
384    groups     48 slots of 64 bytes, by the 1 Hz thread and at the end of each step
4096   ring       1,024 records of 64 bytes, one a collective call, by whoever calls
```

The last record of the ring with a group's number is newer than the group's slot (up to a second old): `read_black_box`
takes the newer of the two. A hang lasts longer than a second, so the header page alone decides it.

**Segment of calls** (`calls/FIRSTSTEP-N.bin`): a header of 64 bytes and records of `record_bytes` each. A segment has
its final name only when it is closed; before, the name ends in `.part`.

Every block and record begins with the CRC-32 of the rest of it; only the two headers begin with a magic word and have
their CRC at the end. The two that are written all the time, by a thread that trains, have a *mark* instead, for the
tables of a CRC have left the caches by the next call: a number that stands at both ends of what one `pwrite` writes, so
that one of which a part alone was written has two. A ring record begins with its `issued_ns` and ends with the low half
of it; the state block has its mark before and behind it. (Black boxes of version 1 have a CRC there as well.)
A newer minor version may make a record longer; a reader takes the prefix that it knows. Instants are *monotonic*
nanoseconds; the header's `wall_offset_ns` added to them gives the epoch. 0 as an instant means unknown.
"""

from __future__ import annotations

import struct
from typing import Final

LAYOUT_MAJOR: Final = 1
LAYOUT_MINOR: Final = 0
"""Of segments."""
BLACK_BOX_MAJOR: Final = 2
BLACK_BOX_MINOR: Final = 0
OLDEST_BLACK_BOX: Final = 1
"""The oldest version of a black box that is still read."""

BLACK_BOX_MAGIC: Final = b"SCOPEBBX"
SEGMENT_MAGIC: Final = b"SCOPECAL"

CRC: Final = struct.Struct("<I")
MARK: Final = struct.Struct("<I")
MARK_BITS: Final = 0xFFFFFFFF

IDENTITY: Final = struct.Struct("<8sHHIIIIQqII")
"""magic, major, minor, rank, attempt, world_size (0 unknown), pid, process_start_ticks (0 unknown), wall_offset_ns,
ring_records, ring_record_bytes; the CRC stands after it."""

STATE: Final = struct.Struct("<iiqqqqI24s")
"""step (-1 before the first), num_steps (finished), step_start_ns, phase_start_ns, beat_ns (heartbeat of the training
thread: every phase change and call boundary that it wrote), last_step_duration_ns, nesting depth of phases, name of the
innermost phase (UTF-8, padded with NUL)."""

MARKED_STATE: Final = struct.Struct(f"<I{STATE.format[1:]}I")
"""The state between its two marks."""

PULSE: Final = struct.Struct("<qQQIIi")
"""beat_ns (heartbeat of the 1 Hz thread), num_beats, num_dropped, flags (`PULSE_...`), num_groups_left_out, exit code
(-1 while it runs)."""

PULSE_CLOSED: Final = 1
"""Recording was closed in order."""
PULSE_EXCEPTION: Final = 2
"""... because of an exception of the user's program."""

GROUP: Final = struct.Struct("<IQQqqQIIIBBH")
"""group, last sequence enqueued, last sequence completed (both count from 1; 0 none), instants of these two, rolling
hash, Flight Recorder's enqueued, started, completed (0 unknown), operation and dtype of the last call, flags of it."""

RING: Final = struct.Struct("<qBBBBIHBBIiiIQQq")
"""issued_ns, operation, variant, dtype, flags, lap, group, phase (place in `PHASES`, 255 the user's own), earlier calls
of the group that had not completed (255 unknown, or as many), sequence (send and recv are counted apart from the
others), step (-1 before the first), peer (-1 none), hash (low 32 bits after this call), in_bytes, out_bytes,
completed_ns; the mark stands after it.

A call's place in the ring is `lap * 1024 + slot`."""

RING_IN_PARTS: Final = struct.Struct("<q3sBIHBBIiiI16s8xI")
"""The same bytes and the mark from fewer values, for the hot path, of a call that has not completed: operation, variant
and dtype are 3 bytes (`RING_CODES`), in_bytes and out_bytes are 16 (`RING_SIZES`)."""

OLD_RING: Final = struct.Struct("<BBBBIHBBIiiIQQqq")
"""A record of version 1, after its CRC: `issued_ns` stands before `completed_ns`."""

RING_CODES: Final = struct.Struct("<BBB")
RING_SIZES: Final = struct.Struct("<QQ")

CALL: Final = struct.Struct("<IiQBBBBiiQQqqqqHBBIIQ")
"""group, step (-1 before the first), sequence, operation, variant, dtype, flags, peer (-1 none; the group rank of the
root), tag (-1 none), in_bytes, out_bytes, issued_ns, arrived_ns, completed_ns, blocked_ns (-1 unknown), num_tensors,
phase, reserved, call site (0 unknown), reserved, rolling hash after this call."""

CALL_IN_PARTS: Final = struct.Struct("<IiQ3sBii16sqqqqHB9xQ")
"""The same bytes from fewer values: `RING_CODES` and `RING_SIZES` are joined, what is reserved is left out."""

SEGMENT: Final = struct.Struct("<8sHHIIIqII")
"""magic, major, minor, rank, attempt, record_bytes, wall_offset_ns, first step, reserved; the CRC stands after it."""

PAGE_BYTES: Final = 4096
IDENTITY_OFFSET: Final = 0
STATE_OFFSET: Final = 128
PULSE_OFFSET: Final = 256
GROUPS_OFFSET: Final = 384
GROUP_BYTES: Final = 64
NUM_GROUP_SLOTS: Final = 48
RING_OFFSET: Final = PAGE_BYTES
RING_RECORD_BYTES: Final = 64
NUM_RING_RECORDS: Final = 1024
BLACK_BOX_BYTES: Final = RING_OFFSET + NUM_RING_RECORDS * RING_RECORD_BYTES
SEGMENT_HEADER_BYTES: Final = 64
CALL_BYTES: Final = CRC.size + CALL.size

FLAG_ASYNCHRONOUS: Final = 1
FLAG_COMPLETED: Final = 2
"""Its completion was seen; without it `completed_ns` is 0."""
FLAG_CONTROL: Final = 4
"""Control traffic: sizes and payloads of object collectives."""
FLAG_WAIT_SEEN: Final = 8
"""Its wait site was seen, so that `blocked_ns` is known."""
FLAG_DEVICE_TIMED: Final = 16
"""Its times are from events on the device, not from the host."""
FLAG_COMPILED: Final = 32
"""Issued by a compiled graph."""
FLAG_APART: Final = 64
"""Issued by a thread that does not train, and not waited for by the one that does."""

OWN_PHASE: Final = 255

FNV_OFFSET: Final = 0xCBF29CE484222325
FNV_PRIME: Final = 0x100000001B3
_MASK: Final = 0xFFFFFFFFFFFFFFFF

assert STATE_OFFSET + MARKED_STATE.size <= PULSE_OFFSET
assert PULSE_OFFSET + CRC.size + PULSE.size <= GROUPS_OFFSET
assert CRC.size + GROUP.size == GROUP_BYTES
assert GROUPS_OFFSET + NUM_GROUP_SLOTS * GROUP_BYTES <= PAGE_BYTES
assert CALL_IN_PARTS.size == CALL.size
assert RING.size + MARK.size == RING_IN_PARTS.size == CRC.size + OLD_RING.size == RING_RECORD_BYTES
assert CRC.size + SEGMENT.size <= SEGMENT_HEADER_BYTES


RING_OFFSETS: Final = tuple(RING_OFFSET + slot * RING_RECORD_BYTES for slot in range(NUM_RING_RECORDS))
"""Where each slot of the ring begins."""


def hash_word(*, operation: int, dtype: int, root: int, count: int) -> int:
    """Return what a call adds to the hash of its group: FNV-1a (64 bits, word by word) of what ranks must share.

    Args:
        operation: Code of the operation (place in `OPERATIONS`).
        dtype: Code of the element type (place in `DTYPES`).
        root: Group rank of the root, -1 without.
        count: Elements where all ranks must agree on them, else 0.
    """
    state = ((FNV_OFFSET ^ (operation | dtype << 8 | (root + 1) << 16)) * FNV_PRIME) & _MASK
    return ((state ^ count) * FNV_PRIME) & _MASK


def roll_hash(state: int, word: int) -> int:
    """Return the rolling FNV-1a hash of a group after one more call.

    Ranks that issued the same calls in the same order have the same hash; the first call after which they differ is
    the mismatch. Send and recv are left out of it: they rightly differ between ranks.

    Args:
        state: The hash before the call; `FNV_OFFSET` before the first.
        word: `hash_word` of the call.
    """
    return ((state ^ word) * FNV_PRIME) & _MASK
