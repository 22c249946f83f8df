"""Runs the programs of all ranks on one true clock and notes what happened.

The model: a host issues instructions one after the other, each `ISSUE_NS` apart; a launch reaches the device
`LATENCY_NS` after its call ended; compute, copies and each process group have a stream, which runs in order; a
collective or a copy makes later compute wait as its instruction says. All of it is integer nanoseconds, so that what
the analyses must find is known exactly.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from scope.errors import UsageError
from scope.testing.program import SYMMETRIC, BeginStep, Call, Compute, Copy, EndStep, Exchange, Host

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.testing.program import Instruction, Program

ISSUE_NS: Final = 10_000
CALL_OFFSET_NS: Final = 3_000
CALL_NS: Final = 4_000
LATENCY_NS: Final = 1_500
COMPUTE_STREAM: Final = 7
COPY_STREAM: Final = 20
FIRST_GROUP_STREAM: Final = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceRecord:
    """One event on the device, on the true clock."""

    stream: int
    start_ns: int
    end_ns: int
    recorded_end_ns: int
    """Where the profiler puts the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Issued:
    """One instruction of one rank as it happened."""

    instruction: Instruction
    step: int | None
    host_start_ns: int
    host_end_ns: int
    events: tuple[DeviceRecord, ...] = ()
    sequence: int | None = None
    """Number of a collective in its group, from 0; send and recv count apart on each rank."""

    @property
    def call_start_ns(self) -> int:
        """Start of the launching call."""
        return self.host_start_ns + CALL_OFFSET_NS


@dataclass(frozen=True, kw_only=True, slots=True)
class TrueCollective:
    """What one collective or pair of calls truly was."""

    group_name: str
    group_ranks: tuple[int, ...]
    operation: str
    """`send` for a pair."""
    sequence: int
    step: int | None
    call: Call | Exchange
    """The part of the first rank (the root's where there is one)."""
    arrivals_ns: Mapping[int, int]
    ends_ns: Mapping[int, int]

    @property
    def last_arrival_ns(self) -> int:
        """Instant at which the last rank arrived."""
        return max(self.arrivals_ns.values())

    @property
    def transfer_ns(self) -> int:
        """Last end less last arrival."""
        return max(self.ends_ns.values()) - self.last_arrival_ns

    @property
    def waits_ns(self) -> dict[int, int]:
        """What each rank waited for others, by the operation's own rule."""
        root = self.call.root if isinstance(self.call, Call) else None
        last = self.last_arrival_ns
        waits = {rank: last - arrival for rank, arrival in self.arrivals_ns.items()}
        if root is None:
            return waits
        if self.operation in ("broadcast", "scatter"):
            ready = self.arrivals_ns[root]
            return {rank: max(0, ready - arrival) for rank, arrival in self.arrivals_ns.items()}
        return {rank: wait if rank == root else 0 for rank, wait in waits.items()}


@dataclass(kw_only=True)
class _Rank:
    rank: int
    program: Program
    position: int = 0
    host_ns: int
    step: int | None = None
    streams: dict[int, int] = field(default_factory=dict[int, int])
    """When each stream is free."""
    issued: list[Issued] = field(default_factory=list[Issued])
    sequences: dict[str, int] = field(default_factory=dict[str, int])

    def free(self, stream: int) -> int:
        return self.streams.get(stream, 0)

    def device_idle_ns(self) -> int:
        return max(self.streams.values(), default=0)


@dataclass(kw_only=True)
class _Meeting:
    """The ranks that have arrived at a collective."""

    instruction: dict[int, Call | Exchange] = field(default_factory=dict[int, "Call | Exchange"])
    arrivals_ns: dict[int, int] = field(default_factory=dict[int, int])
    host_ns: dict[int, int] = field(default_factory=dict[int, int])
    streams: dict[int, int] = field(default_factory=dict[int, int])
    sequences: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """What all ranks did, on the true clock."""

    issued: Mapping[int, tuple[Issued, ...]]
    """By rank, in the order of the program."""
    collectives: tuple[TrueCollective, ...]
    end_ns: int
    """When the last rank was done."""


def simulate(programs: Mapping[int, Program], *, start_ns: Mapping[int, int]) -> Simulation:
    """Run the programs of all ranks.

    Args:
        programs: By rank.
        start_ns: When the host of each rank begins.

    Raises:
        UsageError: The programs wait for each other for ever; the message names the ranks.
    """
    ranks = {rank: _Rank(rank=rank, program=program, host_ns=start_ns[rank]) for rank, program in programs.items()}
    streams = _group_streams(programs)
    meetings: dict[tuple[str, ...], _Meeting] = {}
    collectives: list[TrueCollective] = []
    ready = deque(ranks.values())
    while ready:
        rank = ready.popleft()
        while rank.position < len(rank.program):
            instruction = rank.program[rank.position]
            if isinstance(instruction, Call | Exchange):
                key, members = _arrive(rank, instruction, meetings, streams)
                if len(meetings[key].arrivals_ns) < len(members):
                    break
                collectives.append(_complete(meetings.pop(key), members, ranks))
                ready.extend(ranks[member] for member in members if member != rank.rank)
            else:
                _run(rank, instruction)
    stuck = sorted(rank.rank for rank in ranks.values() if rank.position < len(rank.program))
    if stuck:
        message = f"the programs of ranks {stuck[:8]} wait for each other for ever"
        raise UsageError(message)
    collectives.sort(key=lambda each: (min(each.arrivals_ns.values()), each.group_name, each.sequence))
    return Simulation(
        issued={rank: tuple(each.issued) for rank, each in ranks.items()},
        collectives=tuple(collectives),
        end_ns=max(max(each.host_ns, each.device_idle_ns()) for each in ranks.values()),
    )


def _group_streams(programs: Mapping[int, Program]) -> dict[str, int]:
    """Return the stream of each group; sends and receives have streams of their own, as in NCCL."""
    names: dict[str, int] = {}
    for program in programs.values():
        for instruction in program:
            if isinstance(instruction, Call | Exchange):
                names.setdefault(_lane(instruction), FIRST_GROUP_STREAM + len(names))
    return names


def _lane(instruction: Call | Exchange) -> str:
    if isinstance(instruction, Exchange):
        return f"{instruction.group.name}:{'send' if instruction.is_send else 'recv'}"
    return f"{instruction.group.name}:{instruction.library}"


def _run(rank: _Rank, instruction: Instruction) -> None:
    """Run an instruction that concerns one rank alone."""
    begin = rank.host_ns
    events: tuple[DeviceRecord, ...] = ()
    if isinstance(instruction, BeginStep):
        rank.step = instruction.number
        rank.host_ns += CALL_OFFSET_NS
    elif isinstance(instruction, EndStep):
        rank.host_ns += ISSUE_NS
        if instruction.synchronize:
            rank.host_ns = max(rank.host_ns, rank.device_idle_ns() + CALL_OFFSET_NS)
    elif isinstance(instruction, Host):
        rank.host_ns += instruction.length_ns
    elif isinstance(instruction, Compute | Copy):
        events = (_launch(rank, instruction),)
    rank.issued.append(
        Issued(instruction=instruction, step=rank.step, host_start_ns=begin, host_end_ns=rank.host_ns, events=events)
    )
    if isinstance(instruction, EndStep):
        rank.step = None
    rank.position += 1


def _launch(rank: _Rank, instruction: Compute | Copy) -> DeviceRecord:
    stream = COMPUTE_STREAM if isinstance(instruction, Compute) else COPY_STREAM
    start = max(_reaches_device_ns(rank), rank.free(stream))
    end = start + instruction.length_ns
    rank.streams[stream] = end
    if isinstance(instruction, Copy) and not instruction.is_prefetch:
        rank.streams[COMPUTE_STREAM] = max(rank.free(COMPUTE_STREAM), end)
    rank.host_ns += ISSUE_NS
    overrun = instruction.overrun_ns if isinstance(instruction, Compute) else 0
    return DeviceRecord(stream=stream, start_ns=start, end_ns=end, recorded_end_ns=end + overrun)


def _reaches_device_ns(rank: _Rank) -> int:
    return rank.host_ns + CALL_OFFSET_NS + CALL_NS + LATENCY_NS


def _arrive(
    rank: _Rank,
    instruction: Call | Exchange,
    meetings: dict[tuple[str, ...], _Meeting],
    streams: Mapping[str, int],
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Note that a rank is at a collective, and return the collective and its ranks."""
    lane = _lane(instruction)
    if isinstance(instruction, Exchange):
        sender, receiver = (rank.rank, instruction.peer) if instruction.is_send else (instruction.peer, rank.rank)
        counter = f"{lane}:{sender}>{receiver}"
        key = (instruction.group.name, f"{sender}>{receiver}")
        members = tuple(sorted((sender, receiver)))
    else:
        counter, key, members = lane, (lane,), instruction.group.ranks
    place = rank.sequences.get(counter, 0)
    key = (*key, str(place))
    meeting = meetings.setdefault(key, _Meeting())
    if rank.rank not in meeting.arrivals_ns:
        stream = streams[lane]
        meeting.instruction[rank.rank] = instruction
        free = max(rank.free(each) for each in (stream, COMPUTE_STREAM, *_followed(instruction, streams)))
        meeting.arrivals_ns[rank.rank] = max(_reaches_device_ns(rank), free)
        meeting.host_ns[rank.rank] = rank.host_ns
        meeting.streams[rank.rank] = stream
        meeting.sequences[rank.rank] = place
    return key, members


def _followed(instruction: Call | Exchange, streams: Mapping[str, int]) -> list[int]:
    if isinstance(instruction, Exchange) or instruction.follows is None:
        return []
    return [streams[f"{instruction.follows.name}:{instruction.library}"]]


def _complete(meeting: _Meeting, members: Sequence[int], ranks: Mapping[int, _Rank]) -> TrueCollective:
    """End a collective at which all have arrived, on every rank."""
    ends = {rank: _end(rank, meeting) for rank in members}
    for member in members:
        rank, instruction = ranks[member], meeting.instruction[member]
        stream, start, end = meeting.streams[member], meeting.arrivals_ns[member], ends[member]
        rank.streams[stream] = end
        if isinstance(instruction, Exchange) or instruction.is_blocking:
            rank.streams[COMPUTE_STREAM] = max(rank.free(COMPUTE_STREAM), end)
        rank.host_ns += ISSUE_NS
        kernels = instruction.num_kernels if isinstance(instruction, Call) else 1
        rank.issued.append(
            Issued(
                instruction=instruction,
                step=rank.step,
                host_start_ns=meeting.host_ns[member],
                host_end_ns=rank.host_ns,
                events=_kernels(stream, start, end, kernels),
                sequence=meeting.sequences[member],
            )
        )
        lane = _lane(instruction)
        counter = lane
        if isinstance(instruction, Exchange):
            sender, receiver = (member, instruction.peer) if instruction.is_send else (instruction.peer, member)
            counter = f"{lane}:{sender}>{receiver}"
        rank.sequences[counter] = rank.sequences.get(counter, 0) + 1
        rank.position += 1
    first = meeting.instruction[members[0]]
    root = first.root if isinstance(first, Call) else None
    call = meeting.instruction[root if root is not None else members[0]]
    return TrueCollective(
        group_name=first.group.name,
        group_ranks=tuple(members),
        operation=first.operation if isinstance(first, Call) else "send",
        sequence=meeting.sequences[members[0]],
        step=ranks[members[0]].step,
        call=call,
        arrivals_ns=dict(meeting.arrivals_ns),
        ends_ns=ends,
    )


def _end(rank: int, meeting: _Meeting) -> int:
    """Return when a rank's part of a collective ends."""
    instruction, arrivals = meeting.instruction[rank], meeting.arrivals_ns
    if isinstance(instruction, Exchange) or instruction.operation in SYMMETRIC or instruction.root is None:
        return max(arrivals.values()) + instruction.transfer_ns
    if instruction.operation in ("broadcast", "scatter"):
        return max(arrivals[rank], arrivals[instruction.root]) + instruction.transfer_ns
    ready = max(arrivals.values()) if rank == instruction.root else arrivals[rank]
    return ready + instruction.transfer_ns


def _kernels(stream: int, start_ns: int, end_ns: int, count: int) -> tuple[DeviceRecord, ...]:
    """Cut a collective's time into its kernels, which follow each other without a gap."""
    bounds = [start_ns + (end_ns - start_ns) * part // count for part in range(count + 1)]
    return tuple(
        DeviceRecord(stream=stream, start_ns=first, end_ns=last, recorded_end_ns=last)
        for first, last in pairwise(bounds)
    )
