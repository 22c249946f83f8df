"""What all ranks of a live run together tell: who hangs, who died, who makes the others wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.analysis.medians import lower_median_ns
from scope.analysis.recorded.failures import describe_failures
from scope.analysis.recorded.first_end import find_first_end, place_of
from scope.analysis.recorded.groups import peer_sets
from scope.analysis.recorded.host_clocks import HostClock, are_comparable, relate_clocks
from scope.analysis.recorded.progress import GroupProgress, compute_group_progress
from scope.analysis.recorded.ranks import RankExcess, compute_rank_excess, say_where
from scope.analysis.recorded.standing import SILENCE_CAUSES, describe_command_end
from scope.frames.schema import RankSteps
from scope.run.alive import find_fate, find_signs, has_ended
from scope.run.goodbyes import EXIT_CODE, EXITED
from scope.run.schema import Verdict
from scope.trace.columns import Column, Table
from scope.units import NS_PER_S, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scope.analysis.recorded.failures import Failure
    from scope.analysis.recorded.standing import RunState
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo

STRAGGLER_RATIO: Final = 0.05
"""Share of a usual step that one rank usually makes all its peers wait, above which it is named."""
_RECENT_STEPS: Final = 50
_RECENT_NS: Final = 10 * NS_PER_S
"""What is usual rests on at least the steps of so long: fifty steps of a few milliseconds are one hiccup of a host."""
_MIN_STEPS: Final = 10
_GONE_NS: Final = 5 * NS_PER_S
_SILENT_NS: Final = 10 * NS_PER_S
_SET: Final = "peers"
_WHERE_TO_LOOK: Final[dict[str | None, str]] = {
    "input": "Compare its data loader, its shard and the storage of its node with a peer's.",
    "other": (
        "Look for what its program does between the phases on this rank alone, such as logging: a profiler window of "
        "it with stacks shows that."
    ),
    None: "Capture a profiler window of it and of a peer with stacks, and compare their clocks and links.",
}
"""What to do by the phase that exceeds the peers' most, where the phase says more than that something is slow."""
_SHOWN_PLACES: Final = 3
_NO_COMMON_CLOCK: Final = "nothing relates the clocks of their hosts"


class ImposedWait(Table):
    """How long each rank made its peers wait in recent steps, the worst first."""

    rank = Column("rank", pl.Int32, "global rank")
    num_steps = Column("num_steps", pl.UInt32, "steps that its peers and it have in common")
    num_last = Column("num_last", pl.UInt32, "of these, in how many it waited least, and so came last")
    imposed_ns = Column("imposed_ns", pl.Int64, "wait of the rank that waited second least less its own, added")
    duration_ns = Column("duration_ns", pl.Int64, "lengths of the steps on their slowest rank, added")
    usual_imposed_ns = Column("usual_imposed_ns", pl.Int64, "median of what it imposed, 0 where it was not last")
    usual_duration_ns = Column("usual_duration_ns", pl.Int64, "median of the lengths")


def compute_imposed_wait(
    steps: pl.LazyFrame, *, peers: Mapping[int, int] | None = None, recent_steps: int = _RECENT_STEPS
) -> pl.DataFrame:
    """Return how long each rank made its peers wait in the newest steps that all of them have (`ImposedWait`).

    Peers leave a collective together, so the rank that waited least arrived last, and what mending it alone saves is
    what the second to last still waited: DESIGN's imposed wait, a step as a whole. One step that holds a hang may
    exceed all others together, so what is usual stands beside the sums.

    Args:
        steps: Table `RankSteps` of one attempt. Steps that were disturbed, were folded, or whose wait is unknown are
            left out.
        peers: By rank, the number of its set of peers, as `peer_sets` gives it. None: all ranks are peers.
        recent_steps: How many steps at most.
    """
    wait = pl.col(RankSteps.communication_wait_ns)
    usable = steps.filter(pl.col(RankSteps.disturbed).is_null(), wait.is_not_null(), pl.col(RankSteps.num_steps) == 1)
    ranks = pl.col(RankSteps.rank)
    places = ranks.replace_strict(dict(peers), default=-1, return_dtype=pl.Int64) if peers else pl.lit(-1, pl.Int64)
    by_step = (
        usable.with_columns(places.alias(_SET))
        .sort(RankSteps.step, wait, RankSteps.rank)
        .group_by(_SET, RankSteps.step, maintain_order=True)
        .agg(
            pl.len().alias("num_ranks"),
            ranks.first().alias(ImposedWait.rank),
            (wait.get(1, null_on_oob=True) - wait.first()).alias(ImposedWait.imposed_ns),
            pl.col(RankSteps.duration_ns).max().alias(ImposedWait.duration_ns),
        )
        # A rank whose line has not come yet may be the last.
        .filter(pl.col("num_ranks") > 1, pl.col("num_ranks") == pl.col("num_ranks").max().over(_SET))
        .filter(pl.col(RankSteps.step).rank("ordinal", descending=True).over(_SET) <= recent_steps)
        .with_columns(
            pl.len().over(_SET).alias(ImposedWait.num_steps),
            pl.col(ImposedWait.duration_ns).sum().over(_SET).alias(ImposedWait.duration_ns),
            lower_median_ns(ImposedWait.duration_ns).over(_SET).alias(ImposedWait.usual_duration_ns),
        )
    )
    num_steps, imposed = pl.col(ImposedWait.num_steps).first().cast(pl.Int64), pl.col(ImposedWait.imposed_ns)
    # Where its own values begin to count, behind as many zeros as it was not last.
    place = (num_steps - 1) // 2 - (num_steps - pl.len().cast(pl.Int64))
    table = (
        by_step.group_by(ImposedWait.rank)
        .agg(
            pl.col(ImposedWait.num_steps).first(),
            pl.len().alias(ImposedWait.num_last),
            imposed.sum(),
            pl.col(ImposedWait.duration_ns, ImposedWait.usual_duration_ns).first(),
            pl.when(place >= 0)
            .then(imposed.sort().get(place.clip(lower_bound=0)))
            .otherwise(0)
            .alias(ImposedWait.usual_imposed_ns),
        )
        .sort(ImposedWait.imposed_ns, ImposedWait.rank, descending=[True, False])
        .collect()
    )
    return ImposedWait.check(table.select(*ImposedWait.columns()).cast(ImposedWait.schema()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """All that is seen of one attempt at one instant.

    Attributes:
        state: How the run stands.
        infos: `rank.json` of its ranks.
        boxes: Their black boxes, by rank.
        steps: Table `RankSteps` of the attempt.
        now_ns: The instant, since the epoch.
        failures: Exceptions and exit codes that ended ranks, the earliest first.
    """

    state: RunState
    infos: Sequence[RankInfo]
    boxes: Mapping[int, BlackBoxState]
    steps: pl.LazyFrame
    now_ns: int
    failures: Sequence[Failure] = ()


def find_verdicts(watched: Watched, *, fate: Callable[[RankInfo], bool | None] = find_fate) -> list[Verdict]:
    """Return what holds now: crashes, hangs, mismatches of collectives and stragglers, the worst first.

    Args:
        watched: What is seen of the run.
        fate: Returns whether a rank's process lives, None where nobody can tell; by default this host is asked.
    """
    if not watched.infos:
        return []
    found = [*_find_crashes(watched, fate), *_find_hangs(watched), *_find_silence(watched)]
    return found or _find_stragglers(watched)


class Ends(NamedTuple):
    """How ranks ended out of order, in sentences without a full stop, in the order in which to tell them.

    A rank that is killed makes its peers raise: they are its victims, and stand behind it.

    Attributes:
        crash: Which ranks ended without a goodbye; None for none.
        failure: Which rank raised, or exited with another code than 0, first, and who followed; None when none did.
    """

    crash: str | None
    failure: str | None


def describe_ends(watched: Watched, *, fate: Callable[[RankInfo], bool | None] = find_fate) -> Ends:
    """Return how ranks ended out of order.

    Args:
        watched: What is seen of the run.
        fate: As for `find_verdicts`.
    """
    found = _find_crashes(watched, fate) if watched.infos else []
    failure = _describe_failures(watched)
    crashes = [verdict.summary for verdict in found if verdict.kind == "crash" and verdict.summary != failure]
    return Ends(crash="; ".join(crashes) or None, failure=failure)


def _judge(watched: Watched, kind: str, summary: str, **more: Any) -> Verdict:
    """Return a finding of this instant, critical unless `more`, fields of `Verdict`, says otherwise."""
    fields: dict[str, Any] = {"severity": "critical", **more}
    return Verdict(time_ns=watched.now_ns, attempt=watched.infos[0].attempt, kind=kind, summary=summary, **fields)


def _find_crashes(watched: Watched, fate: Callable[[RankInfo], bool | None]) -> list[Verdict]:
    if watched.failures and not watched.state.is_live:
        return [*_find_silent_before_failures(watched), _judge_exception(watched, ())]
    if watched.state.standing == "ended without a goodbye":
        if watched.now_ns - (watched.state.last_sign_ns or 0) <= _GONE_NS:
            return []  # a job that was asked to end is yet to be told of by what publishes it
        return [_judge_ends_without_goodbye(watched)]
    if not watched.state.is_live:
        return _find_failed_commands(watched)
    gone = tuple(info.rank for info in watched.infos if _is_gone(watched, info, fate))
    if watched.now_ns - (watched.state.last_sign_ns or 0) > _GONE_NS:
        # Nothing has come from the others either: what was published is old, and may lack an end that was in order.
        gone = tuple(rank for rank in gone if rank in watched.state.gone_ranks)
    raised = tuple(info.rank for info in watched.infos if _has_raised(info, watched.boxes.get(info.rank)))
    found: list[Verdict] = []
    if gone:
        summary = f"{describe_ranks(list(gone))} died without a goodbye while others of the run live"
        found.append(_judge(watched, "crash", summary, ranks=gone, action=_look_for_end(watched, gone)))
    if raised:
        found.append(_judge_exception(watched, raised))
    return found


def _find_failed_commands(watched: Watched) -> list[Verdict]:
    """Return that a command failed though none of its ranks is known to; what they say of themselves tells more."""
    codes = watched.state.unasked_returncodes
    if not codes or watched.state.exit_reasons:
        return []
    ranks = _find_unknown_exits(watched)
    but = _describe_unknown_exits(ranks) if ranks else ", though its ranks ended in order"
    summary = f"{' and '.join(map(describe_command_end, codes))}{but}"
    action = "Read its last output; of a launcher that was killed look in the node's kernel log (out of memory)."
    return [_judge(watched, "crash", summary, ranks=ranks, action=action)]


def _find_unknown_exits(watched: Watched) -> tuple[int, ...]:
    """Return the ranks that may have ended with an exit code of their own."""
    return tuple(info.rank for info in watched.infos if EXIT_CODE in info.absent)


def _describe_unknown_exits(ranks: Sequence[int]) -> str:
    if not ranks:
        return ""
    who = "it" if len(ranks) == 1 else "they"
    return f"; the exit code of {describe_ranks(list(ranks))} is not known: {who} raised SystemExit"


def _judge_ends_without_goodbye(watched: Watched) -> Verdict:
    """Return that ranks ended without a goodbye, and which may have died first: it is to blame, others are victims."""
    ranks = watched.state.open_ranks
    infos = [info for info in watched.infos if info.rank in ranks]
    first = find_first_end(infos, watched.boxes)
    # A node that is lost leaves no end of its command: then others were ended because of it.
    are_known = all(info.command_returncode is not None for info in watched.infos)
    from_outside = are_known and watched.state.was_ended_from_outside and len(infos) == len(watched.infos)
    if from_outside and not (first is not None and first.is_silent):
        return _judge_end_from_outside(watched)
    summary = f"{describe_ranks(list(ranks))} ended without a goodbye"
    if len(ranks) > 1:
        if first is None:
            summary += "; which died first their black boxes do not tell"
            summary += "" if are_comparable(relate_clocks(infos, watched.boxes)) else f" ({_NO_COMMON_CLOCK})"
        else:
            summary += f"; {describe_ranks(list(first.ranks))} may have died first: {first.evidence}"
            ranks = first.ranks
    summary += _describe_unknown_exits(_find_unknown_exits(watched))
    return _judge(watched, "crash", summary, ranks=ranks, action=_look_for_end(watched, ranks))


def _judge_end_from_outside(watched: Watched) -> Verdict:
    """Return that all ranks ended as their command was asked to: no rank died that brought the others down."""
    ranks = watched.state.open_ranks
    how = " and ".join(map(describe_command_end, watched.state.command_returncodes))
    summary = f"{describe_ranks(list(ranks))} {'was' if len(ranks) == 1 else 'were'} ended from outside: {how}"
    action = "Look who ended it: a time limit (timeout, the scheduler), the end of a shell, or a person."
    return _judge(watched, "crash", summary, severity="warning", action=action)


def _look_for_end(watched: Watched, ranks: Sequence[int]) -> str:
    where = "in the node's kernel log (out of memory, XID) and in the launcher's output"
    return f"Look for its end {where} ({_places(watched, ranks)})."


def _places(watched: Watched, ranks: Sequence[int]) -> str:
    """Return host, process, step and phase of the first of these ranks."""
    infos = {info.rank: info for info in watched.infos}
    shown = "; ".join(place_of(infos[rank], watched.boxes.get(rank)) for rank in ranks[:_SHOWN_PLACES])
    more = len(ranks) - _SHOWN_PLACES
    return f"{shown}; and {more:,} more" if more > 0 else shown


def _find_silent_before_failures(watched: Watched) -> list[Verdict]:
    """Return the ranks that fell silent before the first exception: others raise when one of them is killed."""
    clocks = relate_clocks(watched.infos, watched.boxes)
    first = watched.failures[0]
    reference = clocks.get(first.rank, HostClock(-1, 0))
    raised = {failure.rank for failure in watched.failures}
    silent: list[int] = []
    unknown: list[int] = []
    for info in watched.infos:
        if info.rank not in watched.state.open_ranks or info.rank in raised:
            continue
        sign = max(find_signs(info, watched.boxes.get(info.rank))) + clocks[info.rank].shift_ns
        if clocks[info.rank].component != reference.component:
            unknown.append(info.rank)
        elif sign < first.time_ns + reference.shift_ns:
            silent.append(info.rank)
    found: list[Verdict] = []
    for ranks, when in (
        (silent, "before others raised"),
        (unknown, f"before or after others raised ({_NO_COMMON_CLOCK})"),
    ):
        if ranks:
            found.append(_judge_silent(watched, ranks, when))
    return found


def _judge_silent(watched: Watched, ranks: list[int], when: str) -> Verdict:
    """Return that ranks ended without a goodbye, and which may have died first where that can be told.

    A heart beats once a second: the last sign of a rank that a launcher ended is older than its end, and so it may be
    older than an exception that came before.
    """
    infos = [info for info in watched.infos if info.rank in ranks]
    first = find_first_end(infos, watched.boxes)
    if first is None:
        summary, to_blame = f"{describe_ranks(ranks)} ended without a goodbye {when}", tuple(ranks)
    else:
        to_blame = first.ranks
        others = describe_ranks(sorted(set(ranks).difference(to_blame)))
        summary = (
            f"{describe_ranks(list(to_blame))} ended without a goodbye {when}, {others} too or later; "
            f"{describe_ranks(list(to_blame))} may have died first: {first.evidence}"
        )
    return _judge(watched, "crash", summary, ranks=to_blame, action=_look_for_end(watched, to_blame))


def _describe_failures(watched: Watched) -> str | None:
    return describe_failures(watched.failures, infos=watched.infos, boxes=watched.boxes)


def _judge_exception(watched: Watched, raised: tuple[int, ...]) -> Verdict:
    """Return who raised or exited first and what; who raised, where no event tells more."""
    summary = _describe_failures(watched)
    ranks = raised if summary is None else (watched.failures[0].rank,)
    summary = summary or f"{describe_ranks(list(raised))} ended by an exception while others of the run live"
    kind = "crash" if watched.failures and watched.failures[0].is_exit else "exception"
    return _judge(watched, kind, summary, ranks=ranks, action="Read its last output and events.jsonl.")


def _is_gone(watched: Watched, info: RankInfo, fate: Callable[[RankInfo], bool | None]) -> bool:
    box = watched.boxes.get(info.rank)
    if box is None or has_ended(info, box) or watched.now_ns - max(find_signs(info, box)) <= _GONE_NS:
        return False
    return fate(info) is False


def _has_raised(info: RankInfo, box: BlackBoxState | None) -> bool:
    reason = info.exit_reason or ""
    return reason == "exception" or reason.startswith(EXITED) or (box is not None and box.closed and box.exception)


def _find_hangs(watched: Watched) -> list[Verdict]:
    state = watched.state
    if state.standing != "no step":
        return []
    last_step = watched.steps.select(pl.col(RankSteps.step).max()).collect().item()
    found = _find_mismatches(watched)
    calls: dict[tuple[str, str, str, int], list[int]] = {}
    for missed in state.missed:
        calls.setdefault((missed.group, missed.group_title, missed.operation, missed.number), []).append(missed.rank)
    for (group, title, operation, number), ranks in calls.items():
        have = "has" if len(ranks) == 1 else "have"
        found.append(
            _judge(
                watched,
                "hang",
                f"{describe_ranks(ranks)} {have} not arrived at {operation} {number} of group {title}",
                ranks=tuple(ranks),
                group=group,
                step=None if last_step is None else last_step + 1,
                action=_look_for_stop(watched, ranks),
                evidence={"operation": operation, "call": number},
            )
        )
    if not found:
        summary = "no step ends, and no rank is behind in any group"
        action = "A long checkpoint or evaluation, or a collective that all have begun: look at links and devices."
        found.append(_judge(watched, "stall", summary, severity="warning", action=action))
    return found


def _look_for_stop(watched: Watched, ranks: Sequence[int]) -> str:
    infos = {info.rank: info for info in watched.infos}
    signs = {rank: max(find_signs(infos[rank], watched.boxes.get(rank))) for rank in ranks}
    silent = [rank for rank, sign_ns in signs.items() if watched.now_ns - sign_ns > _SILENT_NS]
    action = f"See where it stands: py-spy dump --pid PID on its host ({_places(watched, ranks)})."
    if not silent:
        return action
    gives = "gives" if len(silent) == 1 else "give"
    return f"{action} {describe_ranks(silent).capitalize()} {gives} no sign of life: its node may be gone."


def _find_silence(watched: Watched) -> list[Verdict]:
    """Return that what is seen of a run is old, which blames no rank: training may go on all the same."""
    if watched.state.silent_ns is None:
        return []
    summary = f"no rank gives a sign of life: {SILENCE_CAUSES}"
    action = "See whether scope run lives on its nodes, and whether they and the file system of the run answer."
    return [_judge(watched, "silence", summary, severity="warning", action=action)]


def _find_mismatches(watched: Watched) -> list[Verdict]:
    progress = compute_group_progress(watched.infos, watched.boxes)
    odd = progress.filter(pl.col(GroupProgress.is_mismatched))
    groups: dict[tuple[str, str], list[int]] = {}
    for row in odd.iter_rows(named=True):
        names = row[GroupProgress.group], row[GroupProgress.group_title]
        groups.setdefault(names, []).append(row[GroupProgress.rank])
    return [
        _judge(
            watched,
            "mismatch",
            f"{describe_ranks(ranks)} issued different collectives in group {title}",
            ranks=tuple(sorted(ranks)),
            group=group,
            action="Compare their last calls on the Post-mortem page: a branch that only some ranks took.",
        )
        for (group, title), ranks in groups.items()
    ]


def _find_stragglers(watched: Watched) -> list[Verdict]:
    """Return who makes its peers wait in usual steps, in each half of them, and works notably longer than its peers.

    In the few steps after a start chance makes one rank the last in most of them: not in both halves, and not by more
    than what varies by itself, which `RankExcess` holds against a rank and `scope show` names it by.
    """
    if watched.state.standing != "running":
        return []
    peers = peer_sets(watched.infos)
    recent = _keep_recent(watched.steps)
    late = _find_late(recent, peers, at_least=_MIN_STEPS)
    for half in _halve(recent):
        if late.is_empty():
            return []
        in_half = _find_late(half, peers, at_least=_MIN_STEPS // 2)
        late = late.join(in_half, on=ImposedWait.rank, how="semi", maintain_order="left")
    excess = compute_rank_excess(recent, peers=peers)
    phases = dict(excess.select(RankExcess.rank, RankExcess.phase).iter_rows())
    found: list[Verdict] = []
    for row in late.iter_rows(named=True):
        rank, imposed_ns = row[ImposedWait.rank], row[ImposedWait.usual_imposed_ns]
        phase = phases.get(rank)
        where = say_where(phase, most="mostly")
        evidence = {
            "imposed_wait_ns": imposed_ns,
            "imposed_wait_ratio": imposed_ns / row[ImposedWait.usual_duration_ns],
            "num_steps": row[ImposedWait.num_steps],
        }
        found.append(
            _judge(
                watched,
                "straggler",
                f"rank {rank} makes its peers wait {format_duration(imposed_ns)} a step, {where}",
                severity="warning",
                ranks=(rank,),
                action=_WHERE_TO_LOOK.get(phase, "Compare its phases, clocks and links with a peer's."),
                evidence=evidence,
            )
        )
    return found


def is_mended(watched: Watched, rank: int) -> bool:
    """Return whether a rank that was named as a straggler clearly is none any more.

    It is named by what is beyond doubt, so at the border of that it is not taken back: it is mended when what it
    usually imposes in the recent steps is below half of `STRAGGLER_RATIO`, which enough of them tell. While a run makes
    no steps nobody is; one that has ended has no stragglers.

    Args:
        watched: What is seen of the run.
        rank: Global rank.
    """
    if watched.state.standing != "running":
        return not watched.state.is_live
    peers = peer_sets(watched.infos)
    recent = _keep_recent(watched.steps)
    num_steps: int = recent.select(pl.col(RankSteps.step).n_unique()).collect().item()
    imposed = compute_imposed_wait(recent, peers=peers, recent_steps=max(1, num_steps))
    of_set = imposed.filter(pl.Series([peers.get(each) == peers.get(rank) for each in imposed[ImposedWait.rank]]))
    if of_set.is_empty() or of_set.row(0, named=True)[ImposedWait.num_steps] < _MIN_STEPS:
        return False
    limit = STRAGGLER_RATIO / 2 * pl.col(ImposedWait.usual_duration_ns)
    own = of_set.filter(pl.col(ImposedWait.rank) == rank, pl.col(ImposedWait.usual_imposed_ns) > limit)
    return own.is_empty()


def is_explained(watched: Watched, verdict: Verdict) -> bool:
    """Return whether a crash is no riddle any more: each of its ranks has since said that it ended in order, or why.

    A rank that a signal to the job ended leaves no end of its own: whoever publishes it writes that down a little
    later. An exception, or another exit code than 0, is a crash itself.

    Args:
        watched: What is seen of the run.
        verdict: A finding, of which only crashes are explained so.
    """
    if verdict.kind != "crash" or not verdict.ranks:
        return False
    ended = {info.rank for info in watched.infos if has_ended(info, watched.boxes.get(info.rank))}
    raised = {info.rank for info in watched.infos if _has_raised(info, watched.boxes.get(info.rank))}
    return ended.difference(raised).issuperset(verdict.ranks)


def _keep_recent(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Return the newest steps: 50, or those of the last 10 s where these are more."""
    newest = pl.col(RankSteps.step) > pl.col(RankSteps.step).max() - _RECENT_STEPS
    lasted = pl.col(RankSteps.end_ns) > pl.col(RankSteps.end_ns).max() - _RECENT_NS
    return steps.filter(newest | lasted)


def _halve(steps: pl.LazyFrame) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    step = pl.col(RankSteps.step)
    is_early = step < (step.min() + step.max() + 1) // 2
    return steps.filter(is_early), steps.filter(~is_early)


def _find_late(steps: pl.LazyFrame, peers: Mapping[int, int], *, at_least: int) -> pl.DataFrame:
    """Return the ranks that usually make their peers wait in these steps and work notably longer (`ImposedWait`)."""
    num_steps: int = steps.select(pl.col(RankSteps.step).n_unique()).collect().item()
    late = compute_imposed_wait(steps, peers=peers, recent_steps=max(1, num_steps)).filter(
        pl.col(ImposedWait.num_steps) >= at_least,
        pl.col(ImposedWait.usual_imposed_ns) > STRAGGLER_RATIO * pl.col(ImposedWait.usual_duration_ns),
    )
    if late.is_empty():
        return late
    notable = compute_rank_excess(steps, peers=peers).filter(pl.col(RankExcess.is_notable))
    return late.join(notable, left_on=ImposedWait.rank, right_on=RankExcess.rank, how="semi", maintain_order="left")
