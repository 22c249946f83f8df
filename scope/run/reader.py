"""Plain readers of a run directory: standard library and msgspec, for exporters and the command line.

Everything here accepts a run that is being written. A document that is torn, foreign or of another major version raises
a `RunError` that names it; of a file of lines, a bad one costs itself alone and is named by `take_problems`; a newer
minor version is read and what it cannot tell is noted in `RankReader.notes`. Links inside a run directory are refused.
"""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from scope.errors import RunError
from scope.run import layout, paths
from scope.run.blackbox import BlackBoxState, read_black_box
from scope.run.calls import CallRecord, read_segment
from scope.run.files import check_no_link, read_document
from scope.run.goodbyes import with_told_end
from scope.run.lines import LinePlace, LineTail
from scope.run.names import find_unknown_name, with_known_names
from scope.run.parents import has_spawned
from scope.run.repeats import StepsSeen, leave_out_overlapping
from scope.run.schema import (
    MOST_UTILIZATION,
    SCHEMA_MAJOR,
    SCHEMA_MINOR,
    SCHEMA_VERSION,
    CaptureInfo,
    EventRecord,
    RankInfo,
    RunInfo,
    StepLine,
    StepRecord,
    StepSummary,
    Verdict,
)
from scope.units import NS_PER_S

_Record = TypeVar("_Record")
CAPTURE_SUFFIX: Final = ".capture.json"
"""Ends the name of a window's description, which lies beside its trace."""
_VERSION: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")
_LARGEST_SUM: Final = 2**62
_MOST_WAITING: Final = 16
"""Threads of a rank that may wait for communication at once, whose waits add up to more than the step's length."""
_YOUNG_NS: Final = 60 * NS_PER_S
"""Age up to which a file that is empty or missing is one that is about to be written."""


def read_run_info(run: Path) -> RunInfo:
    """Return `run.json`.

    Raises:
        RunError: `run` is no run directory, or the file is torn or of another major version.
    """
    if not os.path.isdir(run):  # noqa: PTH112 - unlike Path's own, it raises nothing where access is denied
        message = f"{run}: there is no such folder; name a run directory (it holds {paths.RUN_FILE})"
        raise RunError(message)
    path = run / paths.RUN_FILE
    if not os.path.lexists(path) and os.access(run, os.X_OK):
        message = f"{run}: is not a run directory (no {paths.RUN_FILE} in it)"
        raise RunError(message)
    info = _decode(path, RunInfo)
    check_version(info.schema, path)
    return info


def read_rank_info(folder: Path) -> RankInfo:
    """Return the `rank.json` of a rank's folder.

    Raises:
        RunError: It is missing, torn or of another major version, or tells of another rank than that of its folder.
    """
    path = folder / paths.RANK_FILE
    _check_written(path)
    info = _decode(path, RankInfo)
    check_version(info.schema, path)
    _check_place(folder, path, attempt=info.attempt, rank=info.rank)
    return info


def _check_written(path: Path) -> None:
    """Tell a file of a rank that is empty or missing from one that is torn: it may merely have begun.

    Raises:
        RunError: Nothing is written in it; `is_passing` where it is about to be.
    """
    if _is_about_to_be_written(path) and _has_just_begun(path):
        message = f"{path}: has not been written yet: its rank began a moment ago"
        error = RunError(message)
        error.is_passing = True
        raise error
    try:
        is_empty = not path.lstat().st_size
    except FileNotFoundError:
        is_empty = path.parent.is_dir()
    except OSError:
        is_empty = False  # whoever opens it is told why it cannot be read
    if is_empty:
        message = f"{path}: was never written (its rank ended before that, or its disk was full), or was emptied since"
        raise RunError(message)


def _is_about_to_be_written(path: Path) -> bool:
    """Return whether a file is empty, or missing in its folder, and was made, or its folder was, a moment ago."""
    for place in (path, path.parent):
        try:
            status = place.lstat()
        except OSError:
            continue
        is_unwritten = place is not path or (stat.S_ISREG(status.st_mode) and not status.st_size)
        return is_unwritten and _is_young(status.st_mtime_ns)
    return False


def _is_young(instant_ns: int) -> bool:
    return abs(time.time_ns() - instant_ns) < _YOUNG_NS


def _has_just_begun(path: Path) -> bool:
    """Return whether a rank began a moment ago and has not ended, by its other files than this one.

    A file that was emptied or lost later is young as well. Where no other file tells, the rank may have begun.
    """
    if path.name != paths.RANK_FILE:
        try:
            info = _decode(path.with_name(paths.RANK_FILE), RankInfo)
        except RunError:
            return True
        return info.ended_ns is None and _is_young(info.started_ns)
    try:
        if read_black_box(path.with_name(paths.BLACK_BOX_FILE), with_ring=False).closed:
            return False
    except RunError:
        pass  # the events may tell
    try:
        events = LineTail(path.with_name(paths.EVENTS_FILE), _events_decoder).read(max_bytes=1)
    except RunError:
        return True
    return all(_is_young(event.time_ns) for event in events[:1])


def _check_place(folder: Path, path: Path, *, attempt: int, rank: int) -> None:
    """Refuse a file that lies in the folder of another rank: its figures would replace those of that one."""
    wanted = paths.read_place(folder)
    if wanted is not None and wanted != (attempt, rank):
        message = (
            f"{path}: tells of rank {rank} of attempt {attempt}, but lies in the folder of rank {wanted[1]} of "
            f"attempt {wanted[0]}; it is left out"
        )
        raise RunError(message)


def check_version(version: str, path: Path) -> str | None:
    """Return a note when a file is of a newer minor version than this reader, else `None`.

    Raises:
        RunError: It is of another major version, or the version makes no sense.
    """
    match = _VERSION.fullmatch(version)
    if match is None:
        message = f"{path}: has schema {version[:40]!r}, which is no version"
        raise RunError(message)
    major, minor = match.groups()
    if int(major) != SCHEMA_MAJOR:
        message = f"{path}: has schema {version}, this Scope reads {SCHEMA_MAJOR}.x; use the version that wrote it"
        raise RunError(message)
    if int(minor) > SCHEMA_MINOR:
        return f"{path}: has schema {version}, newer than {SCHEMA_VERSION}; fields unknown to this version were skipped"
    return None


def _find_fault(line: StepLine) -> str | None:
    """Return why the figures of a step, each within its range, cannot be true together."""
    if line.end_ns < line.start_ns:
        return "it ends before it begins"
    if isinstance(line, StepRecord):
        length, fault = line.end_ns - line.start_ns, _find_fault_of_step(line)
    else:
        length, fault = line.duration_ns, _find_fault_of_summary(line)
    phases_ns = sum(line.phases.values())
    if phases_ns > _LARGEST_SUM:
        return "its phases are longer than can be"
    if phases_ns != length:
        return f"its phases add up to {phases_ns} ns, but it lasts {length} ns"
    return fault


def _find_fault_of_step(step: StepRecord) -> str | None:
    """Return which figure is larger than that of any step can be; on devices waits may be of work of steps before."""
    if max(step.mfu_ratio or 0, step.hfu_ratio or 0) > MOST_UTILIZATION:
        return f"its MFU or HFU is above {MOST_UTILIZATION:.0f} times the peak, which can't be"
    if step.device_ns and sum(step.device_ns.values()) > _LARGEST_SUM:
        return "its device time is longer than can be"
    wait_ns = step.communication_wait_ns or 0
    if step.device_ns is None and wait_ns > _MOST_WAITING * (step.end_ns - step.start_ns):
        return f"it waits for communication more than {_MOST_WAITING} times as long as it is"
    return None


def _find_fault_of_summary(summary: StepSummary) -> str | None:
    """Return which lengths of folded steps cannot be those of the same steps, none of which overlaps another."""
    if summary.duration_ns > summary.end_ns - summary.start_ns:
        return "its steps are longer together than the time that they lie in"
    if not summary.min_duration_ns <= summary.max_duration_ns <= summary.duration_ns:
        return "its shortest and its longest step cannot be among its steps"
    return None


def _first_step(line: StepLine) -> int:
    return line.step if isinstance(line, StepRecord) else line.first_step


_steps_decoder: Final = msgspec.json.Decoder(StepLine)
_events_decoder: Final = msgspec.json.Decoder(EventRecord)
_verdicts_decoder: Final = msgspec.json.Decoder(Verdict)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A captured window: the trace file and what is known of it."""

    path: Path
    info: CaptureInfo


@dataclass
class RankReader:
    """Reads one rank of one attempt; keep it to read a live rank incrementally.

    Attributes:
        folder: `RUN/attempt-000/ranks/00042`.
        notes: What was skipped, a sentence each.
    """

    folder: Path
    notes: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._steps = LineTail(self.folder / paths.STEPS_FILE, _steps_decoder, find_fault=_find_fault)
        self._events = LineTail(self.folder / paths.EVENTS_FILE, _events_decoder)
        self._steps_seen = StepsSeen()
        self._steps_restarts = 0
        self._has_repeats = False
        self._segments_read: set[str] = set()
        self._has_unknown_names = False
        self._name_problems: list[str] = []
        self._call_problems: list[str] = []
        self._trace_problems: list[str] = []
        self._box_problems: list[str] = []
        self._is_cut = False

    @property
    def restarts(self) -> int:
        """Times that `steps.jsonl` was replaced, after which `new_steps` gives all steps again."""
        return self._steps.restarts

    def info(self) -> RankInfo:
        """Return `rank.json` as it is now, with the end that only the events tell of where a disk was full.

        Raises:
            RunError: As `read_rank_info`.
        """
        info = read_rank_info(self.folder)
        note = check_version(info.schema, self.folder / paths.RANK_FILE)
        if note and note not in self.notes:
            self.notes.append(note)
        return with_told_end(self.folder, info)

    def state(self, *, with_ring: bool = True) -> BlackBoxState | None:
        """Return what the black box says, `None` when there is none; `take_problems` names one that was cut short.

        Args:
            with_ring: Read the newest calls as well.

        Raises:
            RunError: As `read_black_box`, or it tells of another rank than that of its folder.
        """
        path = self.folder / paths.BLACK_BOX_FILE
        if not os.path.lexists(path):
            return None
        _check_written(path)
        state = read_black_box(path, with_ring=with_ring)
        _check_place(self.folder, path, attempt=state.identity.attempt, rank=state.identity.rank)
        self._check_whole(path)
        return state

    def _check_whole(self, path: Path) -> None:
        """Note of a black box that is shorter than it was made that it was cut, once; its header may be whole still."""
        try:
            num_bytes = path.lstat().st_size
        except OSError:
            return
        if num_bytes < layout.BLACK_BOX_BYTES and not self._is_cut:
            self._box_problems.append(
                f"{path}: is cut: {num_bytes} of {layout.BLACK_BOX_BYTES} bytes are left; its last collective calls "
                "are missing, and where the rank stands is told as of the last second at best"
            )
        self._is_cut = num_bytes < layout.BLACK_BOX_BYTES

    def take_problems(self) -> list[str]:
        """Return what was wrong with steps, events, calls, captured windows and the black box since the last call."""
        others = [*self._name_problems, *self._call_problems, *self._trace_problems, *self._box_problems]
        self._name_problems, self._call_problems, self._trace_problems, self._box_problems = [], [], [], []
        return [*self._steps.take_problems(), *self._events.take_problems(), *others]

    def take_num_unnamed(self) -> int:
        """Return how many bad lines of steps and events there were beyond one a sentence of `take_problems`."""
        return self._steps.take_num_unnamed() + self._events.take_num_unnamed()

    def new_steps(self, *, max_bytes: int | None = None) -> list[StepLine]:
        """Return the steps and summaries written since the last call, oldest first, each step once.

        A line that tells of a step once more is left out; `take_problems` names the first such line. So is one that
        lasts into two steps beside it, where one call reads all three: of a file that grows lines may come one by one.
        An operation or variant that this version does not know becomes "unknown" or "plain"; the first is named.

        Raises:
            RunError: As `LineTail.read`.
        """
        lines: list[StepLine] = []
        while not lines and (read := self._steps.read(max_bytes=max_bytes)):
            lines = self._leave_out_repeated(read)
        for place, line in enumerate(lines):
            unknown = find_unknown_name(line)
            if unknown is None:
                continue
            lines[place] = with_known_names(line)
            if not self._has_unknown_names:
                self._has_unknown_names = True
                self._name_problems.append(
                    f"{self._steps.path}: names collectives that this version does not know, the first of them "
                    f"{unknown}: they are counted as unknown operations or plain calls"
                )
        return lines

    def _leave_out_repeated(self, lines: list[StepLine]) -> list[StepLine]:
        if self._steps.restarts != self._steps_restarts:
            self._steps_restarts = self._steps.restarts
            self._steps_seen, self._has_repeats = StepsSeen(), False
        lines, overlapping = leave_out_overlapping(lines)
        if overlapping:
            self._name_problems.append(
                f"{self._steps.path}: is torn or foreign: {len(overlapping)} of its lines, the first of step "
                f"{_first_step(overlapping[0])}, last into two steps beside them; they are left out"
            )
        kept, repeated = self._steps_seen.take(lines)
        if repeated and not self._has_repeats:
            self._has_repeats = True
            first = _first_step(repeated[0])
            self._name_problems.append(
                f"{self._steps.path}: tells of steps more than once ({len(repeated)} of {len(lines)} lines, the first "
                f"of step {first}): each step is counted once, and the other lines of it are left out"
            )
        return kept

    @property
    def steps_place(self) -> LinePlace:
        """Where the reading of `steps.jsonl` has stopped."""
        return self._steps.place

    def resume_steps(self, place: LinePlace) -> bool:
        """Go on reading `steps.jsonl` from a place; False, and nothing done, when it is not the same file any more.

        Raises:
            RunError: As `LineTail.resume`.
        """
        if not self._steps.resume(place):
            return False
        try:
            last = _steps_decoder.decode(place.seen_last.rstrip(b"\n").rpartition(b"\n")[2])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return True  # it is longer than what is remembered of it, or torn
        self._steps_seen.resume(last)
        return True

    def new_events(self) -> list[EventRecord]:
        """Return the events written since the last call.

        Raises:
            RunError: As `LineTail.read`.
        """
        return self._events.read()

    def new_calls(self) -> list[CallRecord]:
        """Return the calls of the segments closed since the last call; one that cannot be read costs itself alone.

        Raises:
            RunError: The folder is a link.
        """
        check_no_link(self.folder / paths.CALLS_FOLDER)
        records: list[CallRecord] = []
        for path in sorted((self.folder / paths.CALLS_FOLDER).glob(f"*{paths.SEGMENT_SUFFIX}")):
            if path.name not in self._segments_read and not _is_about_to_be_written(path):
                self._segments_read.add(path.name)
                try:
                    records.extend(read_segment(path))
                except RunError as error:
                    self._call_problems.append(str(error))
        return records

    def traces(self) -> list[Trace]:
        """Return the captured windows whose trace is complete; one that cannot be read costs itself alone.

        Raises:
            RunError: The folder is a link.
        """
        found, problems = read_traces(self.folder / paths.TRACES_FOLDER)
        self._trace_problems = problems
        return found


def read_traces(folder: Path) -> tuple[list[Trace], list[str]]:
    """Return the captured windows in a folder whose trace is complete, and what is wrong with the others.

    A window is left out when its description is torn or names a file outside the folder, or when its trace is a link.

    Raises:
        RunError: The folder is a link.
    """
    found: list[Trace] = []
    problems: list[str] = []
    if paths.read_place(folder.parent) is not None:
        check_no_link(folder)
    for path in sorted(folder.glob(f"*{CAPTURE_SUFFIX}")):
        try:
            trace = _read_trace(path)
        except RunError as error:
            problems.append(str(error))
            continue
        if trace.path.is_file():
            found.append(trace)
    return found, problems


def _read_trace(path: Path) -> Trace:
    info = _decode(path, CaptureInfo)
    if Path(info.trace).name != info.trace:
        message = f"{path}: names a trace outside its folder"
        raise RunError(message)
    trace = path.parent / info.trace
    check_no_link(trace)
    return Trace(path=trace, info=info)


@dataclass
class RunReader:
    """Reads a run directory; keep it to follow a live run.

    Attributes:
        run: The run directory.
    """

    run: Path

    def __post_init__(self) -> None:
        self._ranks: dict[int, dict[int, RankReader]] = {}
        self._verdicts = LineTail(self.run / paths.VERDICTS_FILE, _verdicts_decoder)
        self._links: set[Path] = set()
        self._of_a_parent: dict[int, bool] = {}
        self._looked_ns: dict[Path, int] = {}

    def info(self) -> RunInfo:
        """Return `run.json`, and what it does not say from the first rank of the last attempt, as far as that knows.

        Raises:
            RunError: As `read_run_info`.
        """
        info = read_run_info(self.run)
        try:
            first = next((reader.info() for reader in self.ranks()), None)
        except RunError:
            first = None  # whoever asks for the ranks is told what is wrong with it
        if first is None:
            return info
        axes = {group.mesh_axis: len(group.ranks) for group in first.groups if group.mesh_axis}
        return msgspec.structs.replace(
            info,
            world_size=info.world_size or first.world_size,
            versions=info.versions or first.versions,
            model=info.model or first.model,
            # A flattened axis is named after those that it is made of.
            parallel=info.parallel or {axis: size for axis, size in axes.items() if "+" not in axis},
        )

    def attempts(self) -> list[int]:
        """Return the attempts, sorted, but those of programs that only spawned the ranks of the next one."""
        found = paths.list_attempts(self.run)
        return [
            attempt
            for attempt, following in zip_longest(found, found[1:])
            if following is None or not self._is_of_a_parent(attempt, following)
        ]

    def _is_of_a_parent(self, attempt: int, following: int) -> bool:
        """Return whether an attempt is that of a program without a step that spawned the ranks of the next one."""
        if attempt not in self._of_a_parent:
            is_parent = self._look_for_parent(attempt, following)
            if is_parent is None:
                return False  # it may turn out to be one
            self._of_a_parent[attempt] = is_parent
        return self._of_a_parent[attempt]

    def _look_for_parent(self, attempt: int, following: int) -> bool | None:
        """Return whether an attempt is one of a parent, None where that may change."""
        folder = paths.rank_folder(self.run, attempt, 0)
        try:
            if paths.list_ranks(self.run, attempt) != [0] or (folder / paths.STEPS_FILE).lstat().st_size:
                return False
        except OSError:
            pass  # there are no steps
        parent = RankReader(folder)
        ranks = paths.list_ranks(self.run, following)
        try:
            child = read_rank_info(paths.rank_folder(self.run, following, ranks[0])) if ranks else None
            is_parent = child is not None and has_spawned(parent.info(), parent.state(with_ring=False), child)
        except (RunError, OSError):
            return None
        return is_parent or None

    def take_problems(self) -> list[str]:
        """Return which verdicts were no records since the last call, and the links that were not followed, once."""
        links = sorted(
            {link for attempt in (None, *self.attempts()) for link in self._find_links(attempt)} - self._links
        )
        self._links.update(links)
        return [*self._verdicts.take_problems(), *(f"{link}: is a link, which is not followed" for link in links)]

    def take_num_unnamed(self) -> int:
        """Return how many bad lines of verdicts there were beyond one a sentence of `take_problems`."""
        return self._verdicts.take_num_unnamed()

    def _find_links(self, attempt: int | None) -> list[Path]:
        """Return the links among attempts or ranks; none when nothing came or went since they were looked for."""
        folder = self.run if attempt is None else paths.attempt_folder(self.run, attempt) / "ranks"
        try:
            changed_ns = os.lstat(folder).st_mtime_ns  # follows no link, unlike what pathlib does by itself
        except OSError:
            return []
        if self._looked_ns.get(folder) == changed_ns:
            return []
        self._looked_ns[folder] = changed_ns
        return paths.list_links(self.run, attempt)

    def ranks(self, attempt: int | None = None) -> list[RankReader]:
        """Return the readers of the ranks of an attempt (the last one when absent), by rank."""
        if attempt is None:
            attempts = self.attempts()
            if not attempts:
                return []
            attempt = attempts[-1]
        readers = self._ranks.setdefault(attempt, {})
        for rank in paths.list_ranks(self.run, attempt):
            if rank not in readers:
                readers[rank] = RankReader(paths.rank_folder(self.run, attempt, rank))
        return [readers[rank] for rank in sorted(readers)]

    def new_verdicts(self) -> list[Verdict]:
        """Return the verdicts written since the last call.

        Raises:
            RunError: As `LineTail.read`.
        """
        return self._verdicts.read()


def read_steps(folder: Path) -> list[StepRecord]:
    """Return the steps of a rank's folder that were not folded, oldest first.

    Raises:
        RunError: As `LineTail.read`.
    """
    return [line for line in RankReader(folder).new_steps() if isinstance(line, StepRecord)]


def _decode(path: Path, kind: type[_Record]) -> _Record:
    content = read_document(path)
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"{path}: is torn or foreign: {error}"
        raise RunError(message) from error
