"""Writes what the simulation did as profiler traces, one Kineto JSON file a rank."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scope.testing.program import BeginStep, Call, Compute, Copy, EndStep, Exchange, Host
from scope.testing.simulate import CALL_NS
from scope.units import NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from scope.testing.layout import Group, Layout
    from scope.testing.simulate import Issued, Simulation

Event = dict[str, Any]

_CALL_NAMES: Final = {
    "all_reduce": ("allreduce", "AllReduce_Sum_bf16_RING_LL"),
    "all_gather": ("_allgather_base", "AllGather_RING_LL"),
    "reduce_scatter": ("_reduce_scatter_base", "ReduceScatter_Sum_bf16_RING_LL"),
    "all_to_all": ("all_to_all", "SendRecv"),
    "broadcast": ("broadcast", "Broadcast_RING_LL"),
    "reduce": ("reduce", "Reduce_Sum_bf16_RING_LL"),
    "gather": ("gather", "SendRecv"),
    "scatter": ("scatter", "SendRecv"),
    "barrier": ("barrier", "AllReduce_Sum_i8_RING_LL"),
}
_COPY_NAMES: Final = {
    "H2D": "Memcpy HtoD (Pinned -> Device)",
    "D2H": "Memcpy DtoH (Device -> Pinned)",
    "D2D": "Memcpy DtoD (Device -> Device)",
}
_DEEP_EP: Final = "void deep_ep::internode::dispatch<false, 4, false, 8192, 1>(int4*, float*, long*)"
_INPUT: Final = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
_EDGE_NS: Final = 500
"""How far an operator reaches beyond the call inside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """A rank's clock: true time + offset + drift x (true time - origin)."""

    offset_ns: int = 0
    drift_ppb: int = 0
    """Nanoseconds that it gains a second."""
    origin_ns: int = 0

    def local_ns(self, true_ns: int) -> int:
        """Return what the clock shows at an instant, to the nearest nanosecond."""
        gained = (true_ns - self.origin_ns) * self.drift_ppb
        return true_ns + self.offset_ns + (gained + NS_PER_S // 2) // NS_PER_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """How one rank's trace is written."""

    clock: Clock = field(default_factory=Clock)
    steps: range | None = None
    """Numbers of the steps that the profiler recorded; all when None."""
    has_metadata: bool = True
    """Whether communication kernels say group, sizes and dtype."""
    has_sequence: bool = True
    has_group_ranks: bool = True
    """Whether the ranks of groups are written out; long lists are elided in real traces."""
    has_steps: bool = True
    has_host: bool = False
    """Whether the file names its host; ranks of one host share its clock."""
    device_name: str = "NVIDIA H100 80GB HBM3"
    device_memory_bytes: int = 85_045_608_448


def write_traces(
    simulation: Simulation,
    layout: Layout,
    folder: Path,
    *,
    recordings: dict[int, Recording] | None = None,
    compress: bool = True,
) -> list[Path]:
    """Write one trace per rank and return the files, by rank.

    Args:
        simulation: What happened.
        layout: The layout of the job.
        folder: Where to write; made if it is absent.
        recordings: How the traces of single ranks differ from the default. Ranks that map to nothing are written with
            the default; to leave a rank out, delete its file.
        compress: gzip, as the profiler does for names that end in `.gz`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for rank in sorted(simulation.issued):
        recording = (recordings or {}).get(rank, Recording())
        content = trace_bytes(rank, simulation.issued[rank], layout, recording)
        suffix = ".pt.trace.json.gz" if compress else ".pt.trace.json"
        file = folder / f"rank{rank:05d}{suffix}"
        file.write_bytes(gzip.compress(content, compresslevel=1, mtime=0) if compress else content)
        files.append(file)
    return files


def trace_bytes(rank: int, issued: Iterable[Issued], layout: Layout, recording: Recording) -> bytes:
    """Return one rank's trace as JSON text."""
    chosen = [each for each in issued if recording.steps is None or each.step in recording.steps]
    writer = _Writer(rank=rank, layout=layout, recording=recording, base_ns=_base_ns(chosen, recording.clock))
    events = b",\n".join(msgspec.json.encode(event) for event in writer.events(chosen))
    head = json.dumps(writer.header())[:-1]
    return head.encode() + b',\n"traceEvents": [\n' + events + b"\n]}\n"


def _base_ns(issued: list[Issued], clock: Clock) -> int:
    """Return a base as coarse as the profiler's: a whole number of seconds, before everything."""
    first = min((each.host_start_ns for each in issued), default=0)
    return max(0, clock.local_ns(first) // NS_PER_S - 1) * NS_PER_S


@dataclass(kw_only=True)
class _Writer:
    rank: int
    layout: Layout
    recording: Recording
    base_ns: int
    correlation: int = 0
    external_id: int = 0

    @property
    def pid(self) -> int:
        return 10_000 + self.rank

    @property
    def device(self) -> int:
        return self.rank % self.layout.ranks_per_node

    def header(self) -> Event:
        mine = [group for group in self.layout.groups if self.rank in group.ranks]
        configs = [
            {
                "pg_name": group.name,
                "pg_desc": group.description,
                "backend_config": "cuda:nccl",
                "pg_size": len(group.ranks),
                **({"ranks": list(group.ranks)} if self.recording.has_group_ranks else {}),
            }
            for group in mine
        ]
        info: Event = {"backend": "nccl", "rank": self.rank, "world_size": self.layout.world_size}
        if self.recording.has_metadata:
            info |= {"pg_count": len(configs), "pg_config": configs, "nccl_version": "2.27.5"}
        return {
            "schemaVersion": 1,
            "deviceProperties": [
                {
                    "id": device,
                    "name": self.recording.device_name,
                    "totalGlobalMem": self.recording.device_memory_bytes,
                    "computeMajor": 9,
                    "computeMinor": 0,
                    "numSms": 132,
                }
                for device in range(self.layout.ranks_per_node)
            ],
            "distributedInfo": info,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": self.base_ns,
            "traceName": f"rank{self.rank}.json",
            **({"host_name": self.layout.node(self.rank)} if self.recording.has_host else {}),
        }

    def events(self, issued: list[Issued]) -> Iterator[Event]:
        yield {"ph": "M", "name": "process_name", "pid": self.pid, "tid": 0, "args": {"name": "python"}}
        yield {
            "ph": "M",
            "name": "process_labels",
            "pid": self.device,
            "tid": 0,
            "args": {"labels": f"GPU {self.device}"},
        }
        if issued:
            window = self._event("Trace", "PyTorch Profiler (0)", issued[0].host_start_ns, _last_ns(issued))
            yield window | {"pid": "Spans", "tid": "PyTorch Profiler", "args": {"Op count": 0}}
        step_start: dict[int, int] = {}
        for each in issued:
            instruction = each.instruction
            if isinstance(instruction, BeginStep):
                step_start[instruction.number] = each.host_start_ns
            elif isinstance(instruction, EndStep):
                yield from self._end_step(each, instruction, step_start)
            elif isinstance(instruction, Host):
                yield from self._host(each, instruction)
            elif isinstance(instruction, Compute):
                yield from self._compute(each, instruction)
            elif isinstance(instruction, Copy):
                yield from self._copy(each, instruction)
            else:
                yield from self._communicate(each, instruction)

    def _end_step(self, each: Issued, instruction: EndStep, step_start: dict[int, int]) -> Iterator[Event]:
        if instruction.synchronize:
            start, end = each.call_start_ns, each.host_end_ns - _EDGE_NS
            yield self._host_event("cuda_runtime", "cudaDeviceSynchronize", start, end, self._correlated())
        if self.recording.has_steps and each.step in step_start:
            name = f"ProfilerStep#{each.step}"
            yield self._host_event("user_annotation", name, step_start[each.step], each.host_end_ns, {})

    def _host(self, each: Issued, instruction: Host) -> Iterator[Event]:
        if instruction.activity == "input":
            yield self._host_event("user_annotation", _INPUT, each.host_start_ns, each.host_end_ns, {})
        elif instruction.activity == "allocation":
            yield self._host_event(
                "cuda_runtime", "cudaMalloc", each.host_start_ns, each.host_end_ns, self._correlated()
            )

    def _compute(self, each: Issued, instruction: Compute) -> Iterator[Event]:
        shapes = [[instruction.rows, instruction.inner], [instruction.inner, instruction.columns]]
        yield self._operator("aten::mm", each, {"Input Dims": shapes, "Input type": ["c10::BFloat16"] * 2})
        yield from self._kernels(
            each, instruction.name, "cudaLaunchKernelExC", {"grid": [132, 1, 1], "block": [384, 1, 1]}
        )

    def _copy(self, each: Issued, instruction: Copy) -> Iterator[Event]:
        yield self._operator("aten::copy_", each, {})
        args = {"bytes": instruction.num_bytes}
        yield from self._kernels(each, _COPY_NAMES[instruction.kind], "cudaMemcpyAsync", args, category="gpu_memcpy")

    def _communicate(self, each: Issued, instruction: Call | Exchange) -> Iterator[Event]:
        launch: Event = {"grid": [24, 1, 1], "block": [544, 1, 1]}
        if isinstance(instruction, Call) and instruction.library == "deep_ep":
            yield self._operator("DeepEP::dispatch", each, {})
            yield from self._kernels(each, _DEEP_EP, "cudaLaunchKernelExC", launch)
            return
        name, kernel = self._names(instruction)
        metadata = self._metadata(each, instruction, name) if self.recording.has_metadata else {}
        yield self._operator(f"c10d::{name}_", each, {})
        inner = self._operator("record_param_comms", each, metadata)
        inner["ts"], inner["dur"] = self._span(each.host_start_ns + _EDGE_NS, each.host_end_ns - 2 * _EDGE_NS)
        yield inner
        yield from self._kernels(
            each, f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)", "cudaLaunchKernelExC", launch | metadata
        )
        for event in each.events:
            yield self._event("gpu_user_annotation", f"nccl:{name}", event.start_ns, event.recorded_end_ns) | {
                "pid": self.device,
                "tid": event.stream,
                "args": {"External id": self.external_id},
            }

    def _names(self, instruction: Call | Exchange) -> tuple[str, str]:
        if isinstance(instruction, Exchange):
            return "send" if instruction.is_send else "recv", "SendRecv"
        name, kernel = _CALL_NAMES[instruction.operation]
        if instruction.num_kernels > 1:
            return f"{name}_coalesced", kernel
        if instruction.operation == "all_to_all" and instruction.in_split:
            return "all_to_allv", kernel
        return name, kernel

    def _metadata(self, each: Issued, instruction: Call | Exchange, name: str) -> Event:
        group = instruction.group
        exchanged = instruction.elements if isinstance(instruction, Exchange) else 0
        args: Event = {
            "Collective name": name,
            "In msg nelems": exchanged if isinstance(instruction, Exchange) else instruction.in_elements,
            "Out msg nelems": exchanged if isinstance(instruction, Exchange) else instruction.out_elements,
            "Group size": len(group.ranks),
            "dtype": instruction.dtype,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": group.name,
            "Process Group Description": group.description,
        }
        if self.recording.has_group_ranks:
            args["Process Group Ranks"] = json.dumps(list(group.ranks))
        if self.recording.has_sequence:
            args["Seq"] = each.sequence
        return args | _roles(instruction, group, self.rank)

    def _operator(self, name: str, each: Issued, args: Event) -> Event:
        self.external_id += 1
        return self._host_event(
            "cpu_op", name, each.host_start_ns, each.host_end_ns - _EDGE_NS, {"External id": self.external_id, **args}
        )

    def _kernels(
        self, each: Issued, name: str, runtime: str, args: Event, *, category: str = "kernel"
    ) -> Iterator[Event]:
        """Yield the launching call, the events on the device, and the arrows between them."""
        length = CALL_NS // max(len(each.events), 1)
        for place, event in enumerate(each.events):
            self.correlation += 1
            linked = {"correlation": self.correlation, "External id": self.external_id}
            call_start = each.call_start_ns + place * length
            yield self._host_event("cuda_runtime", runtime, call_start, call_start + length, linked)
            on_device = {"device": self.device, "context": 1, "stream": event.stream, **linked}
            yield self._event(category, name, event.start_ns, event.recorded_end_ns) | {
                "pid": self.device,
                "tid": event.stream,
                "args": on_device | args,
            }
            arrow: Event = {"cat": "ac2g", "name": "ac2g", "id": self.correlation}
            yield arrow | {"ph": "s", "pid": self.pid, "tid": self.pid, "ts": self._ts(call_start)}
            yield arrow | {
                "ph": "f",
                "bp": "e",
                "pid": self.device,
                "tid": event.stream,
                "ts": self._ts(event.start_ns),
            }

    def _correlated(self) -> Event:
        self.correlation += 1
        return {"correlation": self.correlation}

    def _host_event(self, category: str, name: str, start_ns: int, end_ns: int, args: Event) -> Event:
        return self._event(category, name, start_ns, end_ns) | {"pid": self.pid, "tid": self.pid, "args": args}

    def _event(self, category: str, name: str, start_ns: int, end_ns: int) -> Event:
        ts, dur = self._span(start_ns, end_ns)
        return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur}

    def _span(self, start_ns: int, end_ns: int) -> tuple[msgspec.Raw, msgspec.Raw]:
        """Return `ts` and `dur` such that both ends are what the rank's clock showed."""
        clock = self.recording.clock
        start, end = clock.local_ns(start_ns), clock.local_ns(end_ns)
        return _microseconds(start - self.base_ns), _microseconds(end - start)

    def _ts(self, instant_ns: int) -> msgspec.Raw:
        return _microseconds(self.recording.clock.local_ns(instant_ns) - self.base_ns)


def _last_ns(issued: list[Issued]) -> int:
    """Return when the recording ended: after everything that was issued in it."""
    ends = [each.host_end_ns for each in issued]
    ends += [event.recorded_end_ns for each in issued for event in each.events]
    return max(ends)


def _roles(instruction: Call | Exchange, group: Group, rank: int) -> Event:
    """Return who is root or peer, and uneven splits.

    As torch writes it: `Rank` is the group's number of the root or peer, else of the rank itself; peers are named by
    their global ranks besides.
    """
    if isinstance(instruction, Exchange):
        peer = instruction.peer
        return {"Rank": group.ranks.index(peer), "Dst Rank" if instruction.is_send else "Src Rank": peer}
    args: Event = {"Rank": group.ranks.index(rank if instruction.root is None else instruction.root)}
    if instruction.in_split:
        args["In split size"] = json.dumps(list(instruction.in_split))
        args["Out split size"] = json.dumps(list(instruction.out_split))
    return args


def _microseconds(length_ns: int) -> msgspec.Raw:
    """Return nanoseconds as a JSON number of microseconds, exact."""
    whole, rest = divmod(length_ns, NS_PER_US)
    return msgspec.Raw(f"{whole}.{rest:03d}".encode())
