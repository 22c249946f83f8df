"""Requests that somebody leaves in the run directory, passed on to the ranks of one node.

Each node looks for the same file, so none may take it away before the others have seen it: it stays for a minute,
unless all ranks of the run are on the node that took it.

Ranks see a request at different moments. So that all of them profile the same steps, one for a window names the step at
which it begins, a little ahead of the rank that is furthest: as far as training gets while the request spreads. The
first node that sees it says which, in a file beside it. A number that the user writes into the request is that step.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from typing import TYPE_CHECKING, Final

import msgspec

from scope.errors import RunError
from scope.run import paths
from scope.run.blackbox import read_black_box
from scope.run.files import read_span, replace_document
from scope.run.schema import StepRecord
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from scope.run.blackbox import BlackBoxState

LATE_S: Final = 300.0
"""How long a request is passed on to ranks that begin after others were told: those would profile alone later."""
LIFETIME_S: Final = 60.0
"""How long a request stays after a node of several has passed it on."""
AGREED: Final = ".capture-step-"
"""Begins the name of a file in the run directory that says at which step a window begins on all nodes."""
_SPREAD_NS: Final = 2 * NS_PER_S
"""How long a request takes to reach every rank of one node, which look for it once a second each, and a second more."""
_SPREAD_OF_NODES_NS: Final = 6 * NS_PER_S
"""The same of several nodes: publishers look once a second, and a shared file system may hide a file for three more."""
_RECENT_STEPS: Final = 20
_TAIL_BYTES: Final = 2**17
_MAX_BYTES: Final = 64
_MAX_DIGITS: Final = 18
_MAX_NOTE_BYTES: Final = 2**20
_decoder: Final = msgspec.json.Decoder(StepRecord)
_NAMES: Final = (paths.REQUEST_FILE, paths.STACKS_REQUEST_FILE)


class _Passed(msgspec.Struct, kw_only=True):
    """What a spool notes of the request that was passed on last.

    Attributes:
        stamp: Which file in the run directory it was; empty for none.
        wanted: The step that the user wrote into it.
        attempt: The attempt whose ranks it is for.
        content: What each of them is told.
        ranks: Those that were told.
        passed_s: When the first of them were told, by the clock of this host.
        is_taken_away: The file was taken away here, when every node had had the time to see it.
        is_withdrawn: Somebody else took it away before that: no rank is told any more.
    """

    stamp: str = ""
    wanted: int | None = None
    attempt: int = -1
    content: str = ""
    ranks: list[int] = []
    passed_s: float = -LATE_S
    is_taken_away: bool = False
    is_withdrawn: bool = False


class Requests:
    """Passes each request on to the ranks of a spool once; touching the file again makes another request.

    A rank that begins up to five minutes later in the same attempt is told as well, unless the request was withdrawn:
    somebody has taken the file out of the run directory. A request for a window that is made while ranks are yet to
    begin waits for them, or for the first step that ends; one that a restart overtakes before any rank of this
    node has begun its window is passed on to the next attempt.

    What was passed on is noted in the spool: the publisher that follows one that died does not pass it on again.

    Args:
        spool: Spool of this node.
        run: The run directory.
        now: Monotonic clock in seconds.
    """

    def __init__(self, spool: Path, run: Path, *, now: Callable[[], float] = time.monotonic) -> None:
        self._spool = spool
        self._run = run
        self._now = now
        self._passed = {name: _read_note(self._note(name)) for name in _NAMES}
        self._seen_s: dict[str, float] = {}

    def poll(self) -> None:
        """Pass on what is new, and take away what every node has had the time to see."""
        for name in _NAMES:
            with contextlib.suppress(OSError):
                self._look_for(name)

    def close(self) -> None:
        """Take away the requests that ranks were there for: the job has ended, and they are not for the next one."""
        for name in _NAMES:
            with contextlib.suppress(OSError):
                if self._passed[name].stamp == self._stamp(name) or self._list_folders():
                    self._take_away(name)
        self._forget_agreed()

    def _look_for(self, name: str) -> None:
        stamp = self._stamp(name)
        known = self._passed[name]
        if stamp is None and not known.stamp:
            return
        if stamp is not None and stamp != known.stamp:
            known = _Passed(stamp=stamp, wanted=read_step(_read(self._run / name)))
        elif stamp is None and not known.is_withdrawn and _is_withdrawn(known):
            known.is_withdrawn = True
            self._write_note(name)
        folders = self._list_folders()
        if known.stamp and folders and self._pass_on(name, known, folders):
            self._passed[name] = known
            self._seen_s.setdefault(f"{name} {known.stamp}", self._now())
            self._write_note(name)
        if stamp is None or stamp != self._passed[name].stamp:
            return
        seen_s = self._seen_s.setdefault(f"{name} {stamp}", self._now())
        if _are_all_ranks(folders) or self._now() - seen_s > LIFETIME_S:
            self._passed[name].is_taken_away = True
            self._write_note(name)
            self._take_away(name)

    def _list_folders(self) -> list[Path]:
        """Return the folders of the ranks of the last attempt that have begun on this node."""
        return [
            paths.rank_folder(self._spool, attempt, rank)
            for attempt in paths.list_attempts(self._spool)[-1:]
            for rank in paths.list_ranks(self._spool, attempt)
        ]

    def _stamp(self, name: str) -> str | None:
        try:
            status = os.lstat(self._run / name)
        except FileNotFoundError:
            return None
        return f"{status.st_ino} {status.st_mtime_ns}"

    def _pass_on(self, name: str, known: _Passed, folders: Sequence[Path]) -> bool:
        """Tell the ranks that have not been told; return whether there were any, and they are not to wait."""
        attempt, ranks = _place(folders)
        is_late = known.attempt == attempt and not 0 <= self._now() - known.passed_s <= LATE_S
        if known.is_withdrawn or is_late:
            return False
        if known.attempt != attempt:
            if known.attempt >= 0 and not self._is_overtaken(name, known):
                return False
            content = self._choose_content(name, known, folders)
            if content is None:
                return False
            known.attempt, known.ranks, known.content, known.passed_s = attempt, [], content, self._now()
        untold = [rank for rank in ranks if rank not in known.ranks]
        for rank in untold:
            with contextlib.suppress(OSError):
                replace_document(paths.rank_folder(self._spool, attempt, rank) / name, known.content.encode())
        known.ranks = [*known.ranks, *untold]
        return bool(untold)

    def _is_overtaken(self, name: str, known: _Passed) -> bool:
        """Return whether a request for a window was made of an attempt that is over, and no rank took one."""
        if name != paths.REQUEST_FILE:
            return False
        waiting = (paths.REQUEST_FILE, paths.TAKEN_REQUEST_FILE)
        folders = (paths.rank_folder(self._spool, known.attempt, rank) for rank in known.ranks)
        return all(any((folder / each).exists() for each in waiting) for folder in folders)

    def _take_away(self, name: str) -> None:
        (self._run / name).unlink()
        if name == paths.REQUEST_FILE:
            self._forget_agreed()

    def _forget_agreed(self) -> None:
        for agreed in self._run.glob(f"{AGREED}*"):
            with contextlib.suppress(OSError):
                agreed.unlink()

    def _choose_content(self, name: str, known: _Passed, folders: Sequence[Path]) -> str | None:
        """Return what the ranks are told: the step at which a window begins on all of them, or nothing, for the next.

        None where they are not to be told yet: ranks have yet to begin, and no step has ended, so that those that are
        there would begin at once, and the others at some other step.
        """
        if name != paths.REQUEST_FILE:
            return ""
        if known.wanted is not None:
            return f"{known.wanted}\n"
        is_whole = _are_all_ranks(folders)
        begin = find_step_ahead(folders, spread_ns=_SPREAD_NS if is_whole else _SPREAD_OF_NODES_NS)
        if begin is None:
            return None if _is_more_to_come(folders) else ""
        if not is_whole:
            attempt, _ = _place(folders)
            begin = self._agree(self._run / f"{AGREED}{known.stamp.split()[-1]}-{attempt}", begin)
        return f"{begin}\n"

    def _agree(self, path: Path, begin: int) -> int:
        """Return what the first node has said, which is `begin` where this is that node, or nobody can say anything."""
        own = path.with_name(f"{path.name}.{os.getpid()}.{id(self)}")
        with contextlib.suppress(OSError):
            replace_document(own, f"{begin}\n".encode())
            try:
                os.link(own, path)  # whole or not at all, and once
            finally:
                own.unlink()
        said = read_step(_read(path))
        return begin if said is None else said

    def _write_note(self, name: str) -> None:
        replace_document(self._note(name), _note_encoder.encode(self._passed[name]))

    def _note(self, name: str) -> Path:
        return self._spool / paths.note_of_passed(name)


def read_step(content: bytes) -> int | None:
    """Return the step that a request names; None where it names none, or what it says is no number of a step."""
    text = content.strip()
    return int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else None


def find_step_ahead(folders: Sequence[Path], *, spread_ns: int) -> int | None:
    """Return the step that no rank will have begun before so much time has passed; None before a step has ended.

    Steps are taken to be as long as the last ones usually were. One that begins on the foremost rank may end at once.

    Args:
        folders: Folders of ranks of one attempt.
        spread_ns: The time.
    """
    states = [(state, folder) for folder in folders if (state := _read_state(folder)) is not None]
    begun = [(state.step, state, folder) for state, folder in states if state.step is not None]
    if not begun:
        return None
    newest, state, folder = max(begun, key=lambda each: each[0])
    usual_ns = _usual_length_ns(folder, last_ns=state.last_step_duration_ns)
    return None if usual_ns is None else newest + 1 + -(-spread_ns // usual_ns)


def _usual_length_ns(folder: Path, *, last_ns: int | None) -> int | None:
    """Return the median length of a rank's last steps, the lower of two; None where none has ended.

    Records lag behind by a second: of a job that has just begun they may hold the first step alone, which is long.

    Args:
        folder: The folder of the rank.
        last_ns: Length of the last step, of which there may be no record yet.
    """
    path = folder / paths.STEPS_FILE
    lengths = [last_ns or 0]
    with contextlib.suppress(RunError, OSError):
        lines = read_span(path, offset=max(0, path.lstat().st_size - _TAIL_BYTES), max_bytes=_TAIL_BYTES).split(b"\n")
        for line in lines[-_RECENT_STEPS:]:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                step = _decoder.decode(line)
                lengths.append(step.end_ns - step.start_ns)
    known = [length for length in lengths if length > 0]
    return statistics.median_low(known) if known else None


def _read_state(folder: Path) -> BlackBoxState | None:
    try:
        return read_black_box(folder / paths.BLACK_BOX_FILE, with_ring=False)
    except RunError:
        return None


def _are_all_ranks(folders: Sequence[Path]) -> bool:
    """Return whether these are the ranks of the whole run, as far as the first of them knows how many there are."""
    return bool(folders) and _read_world_size(folders) == len(folders)


def _is_more_to_come(folders: Sequence[Path]) -> bool:
    """Return whether one of these has only just made its folder, or there are more, as far as the first knows."""
    if not all(any((folder / name).exists() for name in (paths.BLACK_BOX_FILE, paths.RANK_FILE)) for folder in folders):
        return True
    world_size = _read_world_size(folders)
    return world_size is not None and world_size > len(folders)


def _read_world_size(folders: Sequence[Path]) -> int | None:
    state = _read_state(folders[0])
    return None if state is None else state.identity.world_size


def _place(folders: Sequence[Path]) -> tuple[int, list[int]]:
    """Return the attempt and the ranks of folders of one attempt."""
    places = [place for folder in folders if (place := paths.read_place(folder)) is not None]
    return places[0][0], [rank for _, rank in places]


def _is_withdrawn(known: _Passed) -> bool:
    """Return whether a request that is gone was taken away by somebody: nodes leave it for longer than it was there."""
    made_ns = int(known.stamp.split()[-1])
    return not known.is_taken_away and time.time_ns() - made_ns < LIFETIME_S * NS_PER_S


def _read_note(path: Path) -> _Passed:
    """Return what a spool notes; nothing where there is no note, or it is none of this version."""
    try:
        return _note_decoder.decode(read_span(path, max_bytes=_MAX_NOTE_BYTES))
    except (RunError, msgspec.MsgspecError, UnicodeDecodeError):
        return _Passed()


def _read(path: Path) -> bytes:
    try:
        return read_span(path, max_bytes=_MAX_BYTES)
    except RunError:
        return b""


_note_decoder: Final = msgspec.json.Decoder(_Passed)
_note_encoder: Final = msgspec.json.Encoder()
