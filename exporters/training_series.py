"""Ranks of training runs as series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard

from exporters.series import Metric, SeriesSet
from scope.definitions import goodput_since
from scope.run.alive import has_ended
from scope.run.peers import name_place
from scope.run.schema import PHASES, GroupInfo, RankInfo, Verdict
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from exporters.rank_totals import CollectiveSum, RankTotals
    from scope.run.blackbox import BlackBoxState

RANK: Final = ("run", "rank")
MAX_AXES: Final = 16
MAX_VERDICTS: Final = 32
MAX_LABEL: Final = 128


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"scope_train_{name}", "gauge", text, (*RANK, *labels))


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"scope_train_{name}_total", "counter", text, (*RANK, *labels))


INFO: Final = Metric(
    "scope_train_info", "info", "Which run, attempt and device a rank is; peers: place on all axes but data parallel.",
    (*RANK, "run_id", "attempt", "world_size", "local_rank", "uuid", "device", "peers"),
)  # fmt: skip
ACTIVE: Final = _gauge("active", "1 while the rank runs, 0 for 15 minutes after its end.")
LOST: Final = _gauge("lost_seconds", "Age of the last sign of life of a rank that is gone and told of no end.")
STEPS: Final = _counter("steps", "Steps finished in this attempt.")
STEP_SECONDS: Final = _counter("step_seconds", "Lengths of all steps added.")
STEP_MEDIAN: Final = _gauge("step_median_seconds", "Median length of the last hundred steps.")
STEP_LAST: Final = _gauge("step_last_seconds", "Length of the last step.")
LAST_STEP: Final = _gauge("last_step_timestamp_seconds", "When the last step ended, since the epoch.")
PHASE_SECONDS: Final = _counter("phase_seconds", "Host time by phase; the phases of a rank sum to its steps.", "phase")
PHASE: Final = _gauge("current_phase", "1 for the phase that the rank is in now.", "phase")
PHASE_AGE: Final = _gauge("current_phase_seconds", "How long the rank has been in its phase.")
WAIT_SECONDS: Final = _counter("communication_wait_seconds", "Time blocked in communication, as far as it was seen.")
PHASE_WAIT_SECONDS: Final = _counter(
    "communication_wait_phase_seconds",
    "Part of that wait by the phase that it lies in, as far as it is known; custom: one of the program's own.",
    "phase",
)
WAIT_COVERAGE: Final = _gauge("communication_wait_coverage_ratio", "Calls whose wait was seen, last step.")
GC_SECONDS: Final = _counter("gc_seconds", "Pauses of the garbage collector.")
TOKENS: Final = _counter("tokens", "Tokens that this rank trained on.")
FLOP: Final = _counter("model_flop", "Model FLOPs of this rank, recompute excluded.")
INPUT_BYTES: Final = _counter("input_bytes", "Bytes of the batches that this rank got.")
MFU: Final = _gauge("mfu_ratio", "Model FLOPs utilisation of the last undisturbed step.")
HFU: Final = _gauge("hfu_ratio", "Hardware FLOPs utilisation of the last undisturbed step (with recompute).")
GOODPUT: Final = _gauge("goodput_ratio", "Time in steps that were kept over the time since the run began.")
COLLECTIVE_CALLS: Final = _counter(
    "collective_calls", "Collective calls; no series of them holds control traffic.", "operation", "axis"
)
COLLECTIVE_BYTES: Final = _counter("collective_bytes", "Bytes that this rank gave.", "operation", "axis")
COLLECTIVE_OUT: Final = _counter("collective_received_bytes", "Bytes that this rank got.", "operation", "axis")
COLLECTIVE_SECONDS: Final = _counter(
    "collective_seconds", "Issue to completion, added over the calls that were timed; calls may overlap.", "operation",
    "axis",
)  # fmt: skip
COLLECTIVE_BLOCKED: Final = _counter("collective_blocked_seconds", "Host time blocked in calls.", "operation", "axis")
CONTROL_CALLS: Final = _counter(
    "control_calls", "Calls of control traffic: object collectives, barriers of a checkpoint.", "operation", "axis"
)
CONTROL_BYTES: Final = _counter("control_bytes", "Bytes that this rank gave in them.", "operation", "axis")
CONTROL_BLOCKED: Final = _counter("control_blocked_seconds", "Host time blocked in them.", "operation", "axis")
MEMORY: Final = _gauge("memory_bytes", "Largest memory of the last step.", "kind")
MEMORY_PEAK: Final = _gauge("memory_peak_bytes", "Largest memory of any step of this attempt.", "kind")
HEARTBEAT: Final = _gauge("heartbeat_age_seconds", "Age of the last sign of life, by thread.", "thread")
DROPPED: Final = _counter("dropped_records", "Records that the recorder dropped.")
RECORDER_SECONDS: Final = _counter("recorder_seconds", "Time that recording itself took.")
VERDICT: Final = Metric(
    "scope_train_verdict", "gauge",
    "1 while a finding of the diagnosis over all ranks holds; of a live run until 15 minutes after the last look.",
    ("run", "rank", "kind", "severity"),
)  # fmt: skip
IMPOSED_WAIT: Final = _gauge("imposed_wait_seconds", "How long all others wait for this rank each step.")
IMPOSED_WAIT_RATIO: Final = _gauge("imposed_wait_ratio", "The same as a share of the step.")

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


class RankView(NamedTuple):
    """All that is known of one rank now.

    Attributes:
        run: Label of the run.
        info: Its rank.json.
        totals: Sums over its steps.
        state: Its black box; None when there is none.
        ended_ns: When it ended; None while it runs.
        now_ns: The moment, since the epoch.
    """

    run: str
    info: RankInfo
    totals: RankTotals
    state: BlackBoxState | None
    ended_ns: int | None
    now_ns: int

    @property
    def labels(self) -> tuple[str, str]:
        """Values of the labels run and rank."""
        return self.run, str(self.info.rank)


def add_rank(series: SeriesSet, view: RankView, *, began_ns: int | None, earlier: RankTotals | None) -> None:
    """Add the series of one rank.

    Args:
        series: Where to.
        view: The rank.
        began_ns: When the run's first attempt began; None leaves goodput out.
        earlier: Steps of this rank in earlier attempts.
    """
    _add_info(series, view)
    _add_steps(series, view)
    _add_collectives(series, view)
    _add_now(series, view)
    if began_ns is not None and view.totals.num_steps:
        kept_ns = view.totals.duration_ns + (earlier.kept_before(view.totals.first_step) if earlier else 0)
        ratio = goodput_since(kept_ns=kept_ns, began_ns=began_ns, ended_ns=view.ended_ns, now_ns=view.now_ns)
        series.add(GOODPUT, view.labels, ratio)


def _add_info(series: SeriesSet, view: RankView) -> None:
    info = view.info
    device = info.device
    described = (
        clip(info.run_id),
        str(info.attempt),
        "" if info.world_size is None else str(info.world_size),
        "" if info.local_rank is None else str(info.local_rank),
        clip(device.uuid or "") if device else "",
        clip(device.name or device.kind) if device else "",
        clip(name_place(info)),
    )
    series.add(INFO, (*view.labels, *described), 1)
    series.add(ACTIVE, view.labels, int(view.ended_ns is None))
    if view.ended_ns is not None and not has_ended(info, view.state):
        series.add(LOST, view.labels, max(0, view.now_ns - view.ended_ns) / NS_PER_S)


def _add_steps(series: SeriesSet, view: RankView) -> None:
    labels, totals = view.labels, view.totals
    series.add(STEPS, labels, totals.num_steps)
    series.add(STEP_SECONDS, labels, totals.duration_ns / NS_PER_S)
    median_ns = totals.median_ns()
    series.add(STEP_MEDIAN, labels, None if median_ns is None else median_ns / NS_PER_S)
    for phase, spent_ns in totals.phases.items():
        series.add(PHASE_SECONDS, (*labels, clip(phase)), spent_ns / NS_PER_S)
    series.add(WAIT_SECONDS, labels, None if totals.wait_ns is None else totals.wait_ns / NS_PER_S)
    for phase, waited_ns in totals.phase_waits.items():
        series.add(PHASE_WAIT_SECONDS, (*labels, phase), waited_ns / NS_PER_S)
    series.add(GC_SECONDS, labels, totals.gc_ns / NS_PER_S)
    series.add(TOKENS, labels, totals.tokens)
    series.add(FLOP, labels, totals.model_flop)
    series.add(INPUT_BYTES, labels, totals.input_bytes)
    # The black box knows of those after the last step as well, and may be gone or torn the next time.
    series.add(DROPPED, labels, max(totals.num_dropped, view.state.num_dropped if view.state else 0))
    series.add(RECORDER_SECONDS, labels, totals.recorder_ns / NS_PER_S)
    for kind, size in totals.peak.items():
        series.add(MEMORY_PEAK, (*labels, kind), size)
    if totals.last_end_ns is not None:
        series.add(LAST_STEP, labels, totals.last_end_ns / NS_PER_S)
    last = totals.last
    if last is None:
        return
    series.add(STEP_LAST, labels, (last.end_ns - last.start_ns) / NS_PER_S)
    if totals.last_undisturbed is not None:
        series.add(MFU, labels, totals.last_undisturbed.mfu_ratio)
        series.add(HFU, labels, totals.last_undisturbed.hfu_ratio)
    series.add(WAIT_COVERAGE, labels, last.communication_wait_coverage_ratio)
    if last.memory is not None:
        peak = last.memory.peak
        series.add(MEMORY, (*labels, "allocated"), peak.allocated_bytes)
        series.add(MEMORY, (*labels, "reserved"), peak.reserved_bytes)
        series.add(MEMORY, (*labels, "resident"), peak.resident_bytes)


def _add_collectives(series: SeriesSet, view: RankView) -> None:
    axes = name_axes(view.info.groups, view.info.world_size)
    for key, parts in _by_axis(view.totals.control, axes).items():
        labels = (*view.labels, *key)
        series.add(CONTROL_CALLS, labels, sum(part.num_calls for part in parts))
        series.add(CONTROL_BYTES, labels, sum(part.in_bytes for part in parts))
        if any(part.num_blocked for part in parts):
            series.add(CONTROL_BLOCKED, labels, sum(part.blocked_ns for part in parts) / NS_PER_S)
    for key, parts in _by_axis(view.totals.collectives, axes).items():
        labels = (*view.labels, *key)
        series.add(COLLECTIVE_CALLS, labels, sum(part.num_calls for part in parts))
        series.add(COLLECTIVE_BYTES, labels, sum(part.in_bytes for part in parts))
        series.add(COLLECTIVE_OUT, labels, sum(part.out_bytes for part in parts))
        if any(part.num_timed for part in parts):
            series.add(COLLECTIVE_SECONDS, labels, sum(part.duration_ns for part in parts) / NS_PER_S)
        if any(part.num_blocked for part in parts):
            series.add(COLLECTIVE_BLOCKED, labels, sum(part.blocked_ns for part in parts) / NS_PER_S)


def _by_axis(
    totals: Mapping[tuple[int, str], CollectiveSum], axes: Mapping[int, str]
) -> dict[tuple[str, str], list[CollectiveSum]]:
    """Return the sums of all groups of an axis by (operation, axis)."""
    sums: dict[tuple[str, str], list[CollectiveSum]] = {}
    for (group, operation), total in totals.items():
        sums.setdefault((operation, axes.get(group, "other")), []).append(total)
    return sums


def _add_now(series: SeriesSet, view: RankView) -> None:
    state = view.state
    if state is None or view.ended_ns is not None:
        return
    labels = view.labels
    if state.phase is not None:
        series.add(PHASE, (*labels, state.phase if state.phase in PHASES else "own"), 1)
        if state.phase_start_ns is not None:
            series.add(PHASE_AGE, labels, max(0, view.now_ns - state.phase_start_ns) / NS_PER_S)
    for thread, beat_ns in (("training", state.beat_ns), ("recorder", state.pulse_ns)):
        if beat_ns is not None:
            series.add(HEARTBEAT, (*labels, thread), max(0, view.now_ns - beat_ns) / NS_PER_S)


def name_axes(groups: Iterable[GroupInfo], world_size: int | None) -> dict[int, str]:
    """Return the axis label of each group: its mesh axis, `world` for all ranks, else `other`."""
    axes: dict[int, str] = {}
    for group in groups:
        if group.mesh_axis:
            axes[group.group] = clip(group.mesh_axis)
        else:
            axes[group.group] = "world" if world_size is not None and len(group.ranks) == world_size else "other"
    # The first ones and not the first by name: groups come one after the other, and no sum may change its label.
    kept = list(dict.fromkeys(axes.values()))[:MAX_AXES]
    return {group: axis if axis in kept else "other" for group, axis in axes.items()}


def clip(text: str) -> str:
    """Return a label's value, cut where somebody named something with a whole page."""
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"


def add_verdicts(series: SeriesSet, run: str, holding: list[Verdict]) -> None:
    """Add the findings that hold now, and the wait that each straggler imposes.

    Args:
        series: Where to.
        run: Label of the run.
        holding: The findings, oldest first.
    """
    for verdict in holding[-MAX_VERDICTS:]:
        for rank in [str(rank) for rank in verdict.ranks[:MAX_VERDICTS]] or [""]:
            labels = (run, rank, clip(verdict.kind), clip(verdict.severity))
            if series.get(VERDICT, labels) is None:
                series.add(VERDICT, labels, 1)
            imposed = verdict.evidence.get("imposed_wait_ns")
            ratio = verdict.evidence.get("imposed_wait_ratio")
            if rank and is_amount(imposed) and series.get(IMPOSED_WAIT, (run, rank)) is None:
                series.add(IMPOSED_WAIT, (run, rank), imposed / NS_PER_S)
            if rank and is_amount(ratio) and series.get(IMPOSED_WAIT_RATIO, (run, rank)) is None:
                series.add(IMPOSED_WAIT_RATIO, (run, rank), ratio)


def is_amount(value: object) -> TypeGuard[int | float]:
    """Return whether a piece of evidence is a number that can be shown."""
    return isinstance(value, int | float) and 0 <= value < 2**63
