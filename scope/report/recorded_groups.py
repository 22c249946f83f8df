"""Groups of collective calls that a trace leaves out, from the records of the run that the trace was captured in.

Where a call says one rank's part alone (a gather of lists of gloo), its group tells the size of the message too.

A recorded run holds every call of a rank with its group, and when it was issued, on the clock of the trace. A record is
that of a call where it was issued inside the operator that the trace shows the call to come from, no other record and
no other such operator is there, and operation and bytes agree. One record that disagrees with its operator shows that
instants cannot be trusted, and nothing of that rank is taken over.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl
from msgspec.structs import replace

from scope.errors import RunError
from scope.report.inert import visible
from scope.run import paths
from scope.run.calls import CallRecord, read_segment
from scope.run.reader import read_rank_info, read_traces
from scope.trace.calls import element_bytes
from scope.trace.callsizes import CallSizes, with_group_size
from scope.trace.schema import CollectiveCalls, Ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.run.schema import CaptureInfo, GroupInfo
    from scope.trace.model import Job, RankTrace

_START: Final = "issuer_start_ns"
_END: Final = "issuer_end_ns"
_NEEDED: Final = frozenset({"ops", "collective_calls"})
_SIZES: Final = (
    CollectiveCalls.in_elements,
    CollectiveCalls.out_elements,
    CollectiveCalls.in_bytes,
    CollectiveCalls.out_bytes,
)
_SAME_ON_ALL: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Operations whose recorded bytes do not hang on which rank is the root."""


class _Found(NamedTuple):
    """What the records say of one call."""

    call_id: int
    group: GroupInfo
    sequence: int | None


def with_recorded_groups(job: Job) -> Job:
    """Return a job whose calls have their groups from the run's records, where traces of a run do not say them.

    What was taken over, or why records of a rank could not be read, is among the warnings.
    """
    ranks: list[RankTrace] = []
    sentences: list[str] = []
    num_found = num_unsaid = 0
    for trace in job.ranks:
        unsaid = _unsaid(trace)
        named = trace
        if unsaid is not None:
            try:
                found = _find(trace, unsaid)
            except RunError as error:
                found = []
                sentences.append(f"{visible(str(error))}; the groups of {trace.label} are those that its trace tells")
            named = _named(trace, found) if found else trace
            num_found += len(found)
            num_unsaid += unsaid.height
        ranks.append(named)
    if num_found:
        sentences.append(
            f"{num_found:,} of {num_unsaid:,} collective calls, of which the traces do not say the group, have it from "
            "the records of the run"
        )
    return replace(job, ranks=tuple(ranks), warnings=(*job.warnings, *sentences)) if sentences else job


def _unsaid(trace: RankTrace) -> pl.DataFrame | None:
    """Return the calls of a trace of a run whose group it does not say, with the span of the operator of each."""
    if trace.rank is None or not _NEEDED.isdisjoint(trace.not_loaded):
        return None
    path = Path(trace.path)
    if path.parent.name != paths.TRACES_FOLDER or not (path.parent.parent / paths.RANK_FILE).is_file():
        return None
    is_said = pl.col(CollectiveCalls.group_name).is_not_null() & ~pl.col(CollectiveCalls.is_group_inferred)
    calls = trace.collective_calls.filter(~is_said, pl.col(CollectiveCalls.op_id).is_not_null())
    if calls.is_empty():
        return None
    spans = trace.ops.select(Ops.op_id, pl.col(Ops.start_ns).alias(_START), pl.col(Ops.end_ns).alias(_END))
    return calls.join(spans, left_on=CollectiveCalls.op_id, right_on=Ops.op_id, how="left", maintain_order="left")


def _find(trace: RankTrace, unsaid: pl.DataFrame) -> list[_Found]:
    """Return what the records say of calls; nothing where one of them disagrees with its operator."""
    path = Path(trace.path)
    folder = path.parent.parent
    info = read_rank_info(folder)
    window = next((each.info for each in read_traces(path.parent)[0] if each.path.name == path.name), None)
    if window is None or info.rank != trace.rank:
        return []
    records = sorted(_records(folder, window), key=lambda record: record.issued_ns)
    groups = {group.group: group for group in info.groups}
    instants = [record.issued_ns for record in records]
    owners: dict[int, int] = {}
    inside: dict[int, list[int]] = {}
    for call in unsaid.iter_rows(named=True):
        first, last = (bisect_left(instants, call[edge]) for edge in (_START, _END))
        inside[call[CollectiveCalls.call_id]] = list(range(first, last))
        for place in range(first, last):
            owners[place] = owners.get(place, 0) + 1
    found: list[_Found] = []
    for call in unsaid.iter_rows(named=True):
        places = inside[call[CollectiveCalls.call_id]]
        if len(places) != 1 or owners[places[0]] != 1:
            continue
        record = records[places[0]]
        if not _agrees(record, call):
            return []
        group = groups.get(record.group)
        if group is not None and group.ranks:
            is_pair = record.operation in ("send", "recv")
            found.append(_Found(call[CollectiveCalls.call_id], group, None if is_pair else record.sequence))
    return found


def _records(folder: Path, window: CaptureInfo) -> list[CallRecord]:
    """Return the calls that a rank issued in a window.

    Segments are named after their number and the step that they begin in, and only those of the window are read.
    """
    segments = sorted((folder / paths.CALLS_FOLDER).glob(f"*{paths.SEGMENT_SUFFIX}"))
    firsts = [_first_step(path) for path in segments]
    records: list[CallRecord] = []
    for place, path in enumerate(segments):
        after = firsts[place + 1] if place + 1 < len(firsts) else None
        begins_later = firsts[place] > window.first_step + window.num_steps
        if not begins_later and (after is None or after >= window.first_step - 1):
            records += read_segment(path)
    return [record for record in records if window.start_ns <= record.issued_ns < window.end_ns]


def _first_step(path: Path) -> int:
    _, _, step = path.stem.partition("-")
    return int(step) if step.isdecimal() and len(step) < 19 else 0


def _agrees(record: CallRecord, call: dict[str, object]) -> bool:
    """Return whether a record can be that of a call: operation and, where both know them, bytes."""
    if record.operation != call[CollectiveCalls.operation]:
        return False
    if record.operation not in _SAME_ON_ALL:
        return True
    sizes = (
        (call[CollectiveCalls.in_bytes], record.in_bytes),
        (call[CollectiveCalls.out_bytes], record.out_bytes),
    )
    return all(seen is None or seen == recorded for seen, recorded in sizes)


def _named(trace: RankTrace, found: Sequence[_Found]) -> RankTrace:
    """Return a trace whose calls have the groups that were found."""
    ranks = [sorted(each.group.ranks) for each in found]
    calls = trace.collective_calls
    rows = {row[CollectiveCalls.call_id]: row for row in calls.iter_rows(named=True)}
    sizes = [_sizes_in_group(rows[each.call_id], len(each.group.ranks)) for each in found]
    # Numbers of the run and numbers of the trace count from different calls.
    takes_sequence = bool(calls[CollectiveCalls.sequence].is_null().all())
    told = pl.DataFrame(
        {
            CollectiveCalls.call_id: [each.call_id for each in found],
            CollectiveCalls.group_name: [each.group.name for each in found],
            CollectiveCalls.group_description: [each.group.description or each.group.mesh_axis for each in found],
            CollectiveCalls.group_ranks: ranks,
            CollectiveCalls.group_size: [len(each) for each in ranks],
            CollectiveCalls.sequence: [each.sequence if takes_sequence else None for each in found],
            CollectiveCalls.is_group_inferred: [False] * len(found),
            CollectiveCalls.has_metadata: [True] * len(found),
            **{name: [each[place] for each in sizes] for place, name in enumerate(_SIZES)},
        },
        schema={
            name: CollectiveCalls.schema()[name]
            for name in (
                CollectiveCalls.call_id,
                CollectiveCalls.group_name,
                CollectiveCalls.group_description,
                CollectiveCalls.group_ranks,
                CollectiveCalls.group_size,
                CollectiveCalls.sequence,
                CollectiveCalls.is_group_inferred,
                CollectiveCalls.has_metadata,
                *_SIZES,
            )
        },
    )
    return replace(trace, collective_calls=CollectiveCalls.check(calls.update(told, on=CollectiveCalls.call_id)))


def _sizes_in_group(call: dict[str, Any], num_ranks: int) -> tuple[int | None, ...]:
    """Return `_SIZES` of a call of a group of so many ranks: the data of all of them, where it says one rank's part."""
    said = CallSizes(call[CollectiveCalls.in_elements], call[CollectiveCalls.out_elements])
    sizes = with_group_size(call[CollectiveCalls.operation], said, num_ranks)
    elements = (sizes.in_elements, sizes.out_elements)
    width = element_bytes(call[CollectiveCalls.dtype])
    if any(each is not None and each * (width or 1) >= 2**63 for each in elements):
        return (None,) * len(_SIZES)
    return (*elements, *(None if each is None or width is None else each * width for each in elements))
