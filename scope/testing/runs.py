"""Synthetic run directories of any size: what `scope run` would have recorded, with one straggler and slow input.

All ranks end a step together, since its last collective joins them. So the length of a step is what the slowest rank
needs, a rank's wait is what it lacks to that, and both are known without simulating anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec

from scope.errors import UsageError
from scope.run import layout as binary
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.files import replace_document
from scope.run.paths import (
    BLACK_BOX_FILE,
    CALLS_FOLDER,
    EVENTS_FILE,
    RANK_FILE,
    RUN_FILE,
    STEPS_FILE,
    VERDICTS_FILE,
    rank_folder,
)
from scope.run.schema import (
    SCHEMA_VERSION,
    ClockAnchor,
    DeviceInfo,
    EventRecord,
    FlopsInfo,
    GroupInfo,
    MemoryPeak,
    MemoryRecord,
    ModelInfo,
    RankInfo,
    RunInfo,
    StepLine,
    StepRecord,
    StepSummary,
    Verdict,
)
from scope.testing.run_calls import RankCalls
from scope.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scope.testing.layout import Layout

FOLD: Final = 100
"""Steps that one summary stands for."""

START_NS: Final = 1_790_000_000 * NS_PER_S
MONOTONIC_START_NS: Final = 1_000 * NS_PER_S
WALL_OFFSET_NS: Final = START_NS - MONOTONIC_START_NS

_PEAK_FLOP_PER_S: Final = 989e12
_MEMORY_BYTES: Final = 85_045_608_448
_encoder: Final = msgspec.json.Encoder()


@dataclass(frozen=True, kw_only=True)
class SyntheticRun:
    """A training run of any layout, with what is planted in it.

    Raises:
        UsageError: Fewer than one step, or a planted rank that the layout does not have.
    """

    layout: Layout
    num_steps: int = 10_000
    num_whole_steps: int = 200
    """Newest steps that stand one by one; older ones are folded into summaries of `FOLD` steps."""
    num_call_steps: int = 4
    """Newest steps whose collective calls are recorded one by one."""
    num_parameters: int = 7_000_000_000
    tokens_per_rank: int = 8_192
    straggler: int | None = None
    """Rank that computes longer in `slow_steps`."""
    straggler_extra_ns: int = 40 * NS_PER_MS
    slow_steps: range = range(0)
    slow_input_rank: int | None = None
    """Rank whose loader is slow in `slow_input_steps`."""
    input_extra_ns: int = 25 * NS_PER_MS
    slow_input_steps: range = range(0)
    is_finished: bool = False
    checkpoint_every: int = 1_000
    phases_ns: dict[str, int] = field(
        default_factory=lambda: {
            "input": 2 * NS_PER_MS,
            "host_to_device": NS_PER_MS,
            "forward": 60 * NS_PER_MS,
            "backward": 125 * NS_PER_MS,
            "optimizer": 10 * NS_PER_MS,
            "other": 2 * NS_PER_MS,
        }
    )
    """Host time of a step on a rank that nothing is planted on; backward holds the waits."""
    base_wait_ns: int = 5 * NS_PER_MS
    """Part of backward that every rank is blocked in communication."""

    def __post_init__(self) -> None:
        planted = [rank for rank in (self.straggler, self.slow_input_rank) if rank is not None]
        unknown = [rank for rank in planted if not 0 <= rank < self.layout.world_size]
        if self.num_steps < 1 or unknown:
            message = f"a run has at least 1 step and {self.layout.world_size} ranks here, not rank {unknown}"
            raise UsageError(message)

    def compute_extra_ns(self, rank: int, step: int) -> int:
        """Return by how much a rank computes longer than the others in a step."""
        return self.straggler_extra_ns if rank == self.straggler and step in self.slow_steps else 0

    def fetch_extra_ns(self, rank: int, step: int) -> int:
        """Return by how much a rank's loader takes longer in a step."""
        return self.input_extra_ns if rank == self.slow_input_rank and step in self.slow_input_steps else 0

    def lateness_ns(self, rank: int, step: int) -> int:
        """Return by how much a rank is late at the end of a step."""
        return self.compute_extra_ns(rank, step) + self.fetch_extra_ns(rank, step)

    def imposed_ns(self, step: int) -> int:
        """Return by how much the latest rank delays the others in a step."""
        planted = {rank for rank in (self.straggler, self.slow_input_rank) if rank is not None}
        return max((self.lateness_ns(rank, step) for rank in planted), default=0)

    def length_ns(self, step: int) -> int:
        """Return the length of a step, which is the same on all ranks."""
        jitter = (step * 7919) % 997 * 1_000
        return sum(self.phases_ns.values()) + jitter + self.imposed_ns(step)

    def write(self, folder: Path) -> None:
        """Write the run directory; 1,024 ranks x 10,000 steps take less than a minute and 0.4 GB.

        Args:
            folder: The run directory; made if it is absent.
        """
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        lengths = [self.length_ns(step) for step in range(self.num_steps)]
        starts = list(accumulate(lengths, initial=START_NS))
        timeline = _Timeline(starts_ns=starts, imposed_ns=[self.imposed_ns(step) for step in range(self.num_steps)])
        replace_document(folder / RUN_FILE, _encoder.encode(self._run_info(folder.name)))
        for rank in range(self.layout.world_size):
            files = _RankFiles(run=self, run_id=folder.name, rank=rank, timeline=timeline)
            files.write(rank_folder(folder, 0, rank))
        verdicts = self._verdicts(starts)
        if verdicts:
            (folder / VERDICTS_FILE).write_bytes(_encoder.encode_lines(verdicts))

    def _run_info(self, run_id: str) -> RunInfo:
        sizes = {"dp_replicate": self.layout.dp, "cp": self.layout.cp, "ep": self.layout.ep}
        return RunInfo(
            schema=SCHEMA_VERSION,
            run_id=run_id,
            run_id_source="option",
            started_ns=START_NS,
            world_size=self.layout.world_size,
            versions={"python": "3.12.4", "torch": "2.13.0"},
            model=ModelInfo(
                name="SyntheticTransformer", num_parameters=self.num_parameters, num_layers=32, dtype="bfloat16"
            ),
            parallel={**sizes, "tp": self.layout.tp, "pp": self.layout.pp},
            synthetic=True,
        )

    def _verdicts(self, starts_ns: Sequence[int]) -> list[Verdict]:
        if self.straggler is None or not len(self.slow_steps):
            return []
        first = min(self.slow_steps.start, self.num_steps - 1)
        slow = [step for step in self.slow_steps if step < self.num_steps]
        imposed = sum(self.compute_extra_ns(self.straggler, step) for step in slow)
        return [
            Verdict(
                time_ns=starts_ns[first + 1],
                kind="straggler",
                severity="warning",
                summary=f"rank {self.straggler} makes its peers wait, mostly by compute",
                ranks=(self.straggler,),
                step=first,
                action="Look at the clocks, temperature and neighbours of its GPU.",
                evidence={"imposed_wait_ns": imposed // max(1, len(slow)), "num_steps": len(slow)},
            )
        ]


@dataclass(frozen=True, kw_only=True)
class _Timeline:
    """What all ranks have in common."""

    starts_ns: Sequence[int]
    """Starts of all steps, and the end of the last."""
    imposed_ns: Sequence[int]
    """By how much the latest rank delays each step."""

    def lengths_ns(self, first: int, last: int) -> list[int]:
        """Return the lengths of the steps [first, last)."""
        return [self.starts_ns[step + 1] - self.starts_ns[step] for step in range(first, last)]


@dataclass(kw_only=True)
class _RankFiles:
    """The files of one rank."""

    run: SyntheticRun
    run_id: str
    rank: int
    timeline: _Timeline

    @property
    def starts_ns(self) -> Sequence[int]:
        """Starts of all steps, and the end of the last."""
        return self.timeline.starts_ns

    @property
    def is_planted(self) -> bool:
        """Whether the rank is ever late."""
        return self.rank in (self.run.straggler, self.run.slow_input_rank)

    def write(self, folder: Path) -> None:
        (folder / CALLS_FOLDER).mkdir(mode=0o750, parents=True, exist_ok=True)
        calls = RankCalls(
            layout=self.run.layout,
            rank=self.rank,
            num_parameters=self.run.num_parameters,
            tokens=self.run.tokens_per_rank,
        )
        (folder / STEPS_FILE).write_bytes(_encoder.encode_lines(self._lines(calls)))
        events = self._events()
        if events:
            (folder / EVENTS_FILE).write_bytes(_encoder.encode_lines(events))
        recorded = range(max(0, self.run.num_steps - self.run.num_call_steps), self.run.num_steps)
        content = b""
        if recorded:
            content = calls.segment(self._arrivals(recorded), wall_offset_ns=WALL_OFFSET_NS)
            (folder / CALLS_FOLDER / f"000001-{recorded.start}.bin").write_bytes(content)
        info = self._info(calls.groups)
        if self.run.is_finished:
            written = {path.name: path.stat().st_size for path in folder.glob("*.jsonl")}
            num_records = max(0, len(content) - binary.SEGMENT_HEADER_BYTES) // binary.CALL_BYTES
            info = msgspec.structs.replace(info, written_bytes=written, num_call_records=num_records)
        replace_document(folder / RANK_FILE, _encoder.encode(info))
        self._write_black_box(folder, calls)

    def _info(self, groups: tuple[GroupInfo, ...]) -> RankInfo:
        run, share = self.run, self.run.layout.tp * self.run.layout.pp
        end_ns = self.starts_ns[-1]
        per_token = 6.0 * run.num_parameters / share
        return RankInfo(
            schema=SCHEMA_VERSION,
            run_id=self.run_id,
            attempt=0,
            rank=self.rank,
            started_ns=START_NS,
            host=run.layout.node(self.rank),
            pid=20_000 + self.rank,
            world_size=run.layout.world_size,
            local_rank=self.rank % run.layout.ranks_per_node,
            device=DeviceInfo(
                kind="cuda",
                name="NVIDIA H100 80GB HBM3",
                index=self.rank % run.layout.ranks_per_node,
                uuid=f"GPU-{self.rank:08x}-0000-4000-8000-000000000000",
                memory_bytes=_MEMORY_BYTES,
                num_multiprocessors=132,
            ),
            groups=groups,
            anchors=(ClockAnchor(wall_ns=START_NS, monotonic_ns=MONOTONIC_START_NS, error_ns=50),),
            versions={"python": "3.12.4", "torch": "2.13.0", "nccl": "2.27.5"},
            flops=FlopsInfo(
                source="formula",
                convention="full",
                model_flop_per_token=per_token,
                hardware_flop_per_token=per_token,
                num_parameters=run.num_parameters,
                peak_flop_per_s=_PEAK_FLOP_PER_S,
                peak_dtype="bfloat16",
                peak_source="data sheet",
            ),
            collectives_route="hooks",
            script="train.py",
            ended_ns=end_ns if run.is_finished else None,
            exit_reason="finished" if run.is_finished else None,
        )

    def _lines(self, calls: RankCalls) -> list[StepLine]:
        first_whole = max(0, self.run.num_steps - self.run.num_whole_steps) // FOLD * FOLD
        summaries: list[StepLine] = [self._summary(first, calls) for first in range(0, first_whole, FOLD)]
        return [*summaries, *(self._step(step, calls) for step in range(first_whole, self.run.num_steps))]

    def _phases(self, step: int) -> dict[str, int]:
        """Return the exclusive host times of a step; they sum to its length, the waits being part of backward."""
        phases = dict(self.run.phases_ns)
        phases["input"] += self.run.fetch_extra_ns(self.rank, step)
        length = self.starts_ns[step + 1] - self.starts_ns[step]
        phases["backward"] += length - sum(phases.values())
        return phases

    def _wait_ns(self, step: int) -> int:
        lateness = self.run.lateness_ns(self.rank, step) if self.is_planted else 0
        return self.run.base_wait_ns + self.timeline.imposed_ns[step] - lateness

    def _peak(self, step: int) -> MemoryPeak:
        allocated = 40_000_000_000 + (self.rank * 131 + step // FOLD * 17) % 1_000 * 1_000_000
        return MemoryPeak(allocated_bytes=allocated, reserved_bytes=allocated + 6_000_000_000)

    def _step(self, step: int, calls: RankCalls) -> StepRecord:
        run, wait = self.run, self._wait_ns(step)
        length = self.starts_ns[step + 1] - self.starts_ns[step]
        flop = 6.0 * run.num_parameters * run.tokens_per_rank / (run.layout.tp * run.layout.pp)
        ratio = flop * NS_PER_S / (length * _PEAK_FLOP_PER_S)
        return StepRecord(
            step=step,
            start_ns=self.starts_ns[step],
            end_ns=self.starts_ns[step + 1],
            phases=self._phases(step),
            communication_wait_ns=wait,
            communication_wait_coverage_ratio=1.0,
            communication_wait_phases={"backward": wait},
            device_ns={
                "forward": run.phases_ns["forward"],
                "backward": run.phases_ns["backward"] + run.compute_extra_ns(self.rank, step),
            },
            collectives=calls.totals(num_steps=1, blocked_ns=wait),
            memory=MemoryRecord(peak=self._peak(step)),
            tokens=run.tokens_per_rank,
            num_microbatches=1,
            num_optimizer_steps=1,
            model_flop=flop,
            hardware_flop=flop,
            mfu_ratio=ratio,
            hfu_ratio=ratio,
            recorder_ns=40_000,
            calls_recorded=step >= run.num_steps - run.num_call_steps,
        )

    def _summary(self, first: int, calls: RankCalls) -> StepSummary:
        steps, run = range(first, first + FOLD), self.run
        lengths = self.timeline.lengths_ns(first, first + FOLD)
        total = sum(lengths)
        wait = FOLD * run.base_wait_ns + sum(self.timeline.imposed_ns[first : first + FOLD])
        phases = {phase: FOLD * length for phase, length in run.phases_ns.items()}
        if self.is_planted:
            wait -= sum(run.lateness_ns(self.rank, step) for step in steps)
            phases["input"] += sum(run.fetch_extra_ns(self.rank, step) for step in steps)
        phases["backward"] += total - sum(phases.values())
        flop = FOLD * 6.0 * run.num_parameters * run.tokens_per_rank / (run.layout.tp * run.layout.pp)
        return StepSummary(
            first_step=first,
            last_step=steps[-1],
            num_steps=FOLD,
            start_ns=self.starts_ns[first],
            end_ns=self.starts_ns[first + FOLD],
            duration_ns=total,
            min_duration_ns=min(lengths),
            max_duration_ns=max(lengths),
            phases=phases,
            communication_wait_ns=wait,
            communication_wait_phases={"backward": wait},
            collectives=calls.totals(num_steps=FOLD, blocked_ns=wait),
            peak=self._peak(first),
            tokens=FOLD * run.tokens_per_rank,
            model_flop=flop,
            hardware_flop=flop,
            recorder_ns=FOLD * 40_000,
        )

    def _events(self) -> list[EventRecord]:
        start = EventRecord(time_ns=START_NS, kind="attempt_start", message="recording began")
        checkpoints = [
            EventRecord(
                time_ns=self.starts_ns[step],
                kind="checkpoint",
                message=f"checkpoint of step {step}",
                step=step,
                duration_ns=NS_PER_S,
                detail={"bytes": 14 * self.run.num_parameters // self.run.layout.world_size, "asynchronous": True},
            )
            for step in range(self.run.checkpoint_every, self.run.num_steps, self.run.checkpoint_every)
        ]
        return [start, *checkpoints]

    def _arrivals(self, steps: range) -> list[tuple[int, int, int]]:
        """Return step, instant of arrival at the last collective, and end of the step, on the monotonic clock."""
        return [
            (
                step,
                self.starts_ns[step + 1] - self._wait_ns(step) - WALL_OFFSET_NS,
                self.starts_ns[step + 1] - WALL_OFFSET_NS,
            )
            for step in steps
        ]

    def _write_black_box(self, folder: Path, calls: RankCalls) -> None:
        run, last = self.run, self.run.num_steps - 1
        identity = BlackBoxIdentity(
            rank=self.rank,
            attempt=0,
            world_size=run.layout.world_size,
            pid=20_000 + self.rank,
            process_start_ticks=None,
            wall_offset_ns=WALL_OFFSET_NS,
        )
        box = BlackBox(folder / BLACK_BOX_FILE, identity)
        now = self.starts_ns[-1] - WALL_OFFSET_NS
        length = self.starts_ns[-1] - self.starts_ns[-2]
        box.write_state(binary.STATE.pack(last, run.num_steps, now - length, now, now, length, 0, b"other"))
        flags = binary.PULSE_CLOSED if run.is_finished else 0
        box.write_pulse(binary.PULSE.pack(now, now // NS_PER_S, 0, flags, 0, 0 if run.is_finished else -1))
        box.write_groups(calls.group_slots(run.num_steps, now))
        box.close()
