"""`open_run`: a run directory as polars frames, read again only where it has grown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from scope.errors import RunError
from scope.frames import columns
from scope.frames.kept import KEY_SCHEMA, KeptSteps
from scope.frames.pile import Pile
from scope.frames.schema import Calls, CollectiveTotals, Events, NumberedCalls, NumberedTotals, Ranks, RankSteps, Traces
from scope.run.goodbyes import is_told_by_events
from scope.run.losses import find_losses
from scope.run.paths import BLACK_BOX_FILE, RANK_FILE, rank_folder
from scope.run.reader import RunReader, read_steps
from scope.run.unpublished import find_unpublished

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from scope.run.blackbox import BlackBoxState
    from scope.run.reader import RankReader
    from scope.run.schema import RankInfo, RunInfo, Verdict


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run directory, live or finished.

    Keep the result: each of its methods reads only what was written since the last call.

    Args:
        path: Folder that holds `run.json`.

    Raises:
        RunError: There is no such folder, or its `run.json` is missing, torn or of another major version.
    """
    folder = Path(path)
    if not folder.is_dir():
        message = f"{folder} is not a folder: a run directory is the one that holds run.json"
        raise RunError(message)
    run = Run(folder)
    run.info()
    return run


@dataclass
class _Rank:
    """One rank that is being read."""

    reader: RankReader
    info: RankInfo
    restarts: int = 0
    version: tuple[int, ...] | None = None
    """Tells whether `rank.json` was replaced since it was read."""
    is_whole: bool = False
    """It has ended, and nothing of what it wrote is missing."""
    losses: Sequence[str] = ()


class Run:
    """A run directory; its frames are those of `scope.frames.schema`.

    Not thread-safe: one reader at a time. A rank whose files are torn or foreign is left out of every frame and named
    in `problems`, so that one bad file hides no other rank; a line that is no record costs itself alone.

    Attributes:
        path: The run directory.
        problems: What could not be read, one sentence each, naming the file, or was not published by this node; last
            what ranks that began a moment ago have not written yet, until they have.
        read_ratio: How much of the reading that goes on now is done; another thread may look at it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lasting: list[str] = []
        self._passing: dict[Path, str] = {}
        self.read_ratio = 0.0
        self._reader = RunReader(path)
        self._ranks: dict[tuple[int, int], _Rank] = {}
        self._by_folder: dict[Path, _Rank] = {}
        self._framed: Sequence[RankInfo] = ()
        self._rank_frame = Ranks.empty()
        self._verdicts: list[Verdict] = []
        self._steps = Pile(RankSteps, sort_by=RankSteps.step)
        self._totals = Pile(NumberedTotals, sort_by=CollectiveTotals.step)
        self._calls = Pile(NumberedCalls, sort_by=Calls.issued_ns)
        self._events = Pile(Events, sort_by=Events.time_ns)

    @property
    def problems(self) -> Sequence[str]:
        """What could not be read."""
        losses = [loss for rank in self._ranks.values() for loss in rank.losses]
        return [*self._lasting, *losses, *find_unpublished(self.path), *self._passing.values()]

    def info(self) -> RunInfo:
        """Return `run.json`.

        Raises:
            RunError: It is missing, torn or of another major version.
        """
        return self._reader.info()

    @property
    def ranks(self) -> pl.DataFrame:
        """The table `Ranks`: one row a process, of all attempts."""
        infos = self.rank_infos
        # A `rank.json` that was not replaced is not decoded again, so its record is the same object.
        if len(infos) != len(self._framed) or any(
            one is not other for one, other in zip(infos, self._framed, strict=True)
        ):
            self._framed, self._rank_frame = infos, columns.rank_frame(infos)
        return self._rank_frame

    @property
    def rank_infos(self) -> Sequence[RankInfo]:
        """`rank.json` of every process of every attempt, as it is now."""
        return [each.info for each in self._open_ranks()]

    def steps(self) -> pl.DataFrame:
        """Return the table `RankSteps`; the same frame as before when no step came."""
        self._read(self._read_steps)
        return self._steps.whole()

    def to_keep(self) -> KeptSteps:
        """Return the steps that were read, for another reader to go on from."""
        places = {key: rank.reader.steps_place for key, rank in self._ranks.items()}
        return KeptSteps(steps=self._steps.whole(), totals=self._totals.whole(), places=places)

    def resume(self, kept: KeptSteps) -> None:
        """Take over what another reader has read, but for files that were replaced; call it before anything else."""
        self._open_ranks()
        known = {key: rank for key, rank in self._ranks.items() if key in kept.places}
        resumed = [key for key, rank in known.items() if rank.reader.resume_steps(kept.places[key])]
        keys = pl.DataFrame(resumed, schema=KEY_SCHEMA, orient="row")
        for pile, frame in ((self._steps, kept.steps), (self._totals, kept.totals)):
            pile.put_back(frame.join(keys, on=list(KEY_SCHEMA), how="semi", maintain_order="left"))

    def phase_memory(self, *, attempt: int, rank: int) -> pl.DataFrame:
        """Return the table `PhaseMemory` of one rank, over its steps that were not folded; reads its file anew.

        Raises:
            RunError: The file is torn or foreign.
        """
        return columns.phase_memory_frame(read_steps(rank_folder(self.path, attempt, rank)))

    def collective_totals(self) -> pl.DataFrame:
        """Return the table `CollectiveTotals`: counts and bytes of every step."""
        self._read(self._read_steps)
        return columns.name_groups(self._totals.whole(), self.rank_infos, table=CollectiveTotals)

    def collective_sums(self) -> pl.DataFrame:
        """Return the table `CollectiveTotals` with the steps of each rank added up; `step` is the first of them."""
        self._read(self._read_steps)
        return columns.name_groups(columns.sum_totals(self._totals.whole()), self.rank_infos, table=CollectiveTotals)

    def collectives(self) -> pl.DataFrame:
        """Return the table `Calls`: the calls that were recorded one by one."""
        self._read(self._read_calls)
        return columns.name_groups(self._calls.whole(), self.rank_infos, table=Calls)

    def events(self) -> pl.DataFrame:
        """Return the table `Events`."""
        self._read(self._read_events)
        return self._events.whole()

    def traces(self) -> pl.DataFrame:
        """Return the table `Traces`: captured windows whose trace is complete."""
        frames = [Traces.empty()]
        for each in self._open_ranks():
            try:
                frames.append(columns.trace_frame(each.reader.traces(), attempt=each.info.attempt))
            except RunError as error:
                self._note(error)
            self._note_all(each.reader.take_problems())
        return pl.concat(frames).sort(Traces.attempt, Traces.rank, Traces.start_ns)

    def black_boxes(self, *, attempt: int | None = None) -> dict[int, BlackBoxState]:
        """Return what the black box of each rank of an attempt says, by rank; ranks without one are left out.

        Args:
            attempt: The attempt; None for the last.
        """
        states: dict[int, BlackBoxState] = {}
        for reader in self._reader.ranks(attempt):
            path = reader.folder / BLACK_BOX_FILE
            self._passing.pop(path, None)
            try:
                state = reader.state()
            except RunError as error:
                self._note(error, of=path)
                continue
            self._note_all(reader.take_problems())
            if state is not None:
                states[state.identity.rank] = state
        return states

    def verdicts(self) -> Sequence[Verdict]:
        """Return what diagnosis found, oldest first.

        A line that is no verdict costs itself alone, and is named in `problems`.

        Raises:
            RunError: `verdicts.jsonl` is no regular file.
        """
        self._verdicts.extend(self._reader.new_verdicts())
        self._note_all(self._reader.take_problems())
        return self._verdicts

    def _open_ranks(self) -> list[_Rank]:
        """Return every rank of every attempt that can be read, its `rank.json` as it is now."""
        found: list[_Rank] = []
        self._note_all(self._reader.take_problems())
        for attempt in self._reader.attempts():
            for reader in self._reader.ranks(attempt):
                self._passing.pop(reader.folder, None)
                try:
                    found.append(self._open_rank(attempt, reader))
                except RunError as error:
                    self._note(error, of=reader.folder)
        return found

    def _open_rank(self, attempt: int, reader: RankReader) -> _Rank:
        """Return what is known of a rank; its `rank.json` is decoded again only when it was replaced."""
        version = _version_of(reader.folder / RANK_FILE)
        known = self._by_folder.get(reader.folder)
        is_same = version is not None and known is not None and known.version == version
        if known is not None and is_same and not is_told_by_events(reader.folder, known.info):
            return known
        info = reader.info()
        known = self._ranks.setdefault((attempt, info.rank), _Rank(reader=reader, info=info))
        known.info = info
        known.version = version
        self._by_folder[reader.folder] = known
        return known

    def _read(self, read: Callable[[_Rank], None]) -> None:
        """Read what is new of every rank; one whose file is torn is noted."""
        ranks = self._open_ranks()
        for place, rank in enumerate(ranks):
            self.read_ratio = place / len(ranks)
            try:
                read(rank)
            except RunError as error:
                self._note(error)
            self._note_all(rank.reader.take_problems())
            if not rank.is_whole:
                # Looked for again where some are found: they may come yet, from the spool of another host.
                losses = find_losses(rank.reader.folder, rank.info)
                rank.losses, rank.is_whole = losses or (), losses == []

    def _read_steps(self, rank: _Rank) -> None:
        """Read new lines; a file that was replaced because old steps were folded is taken from its start."""
        place = {"attempt": rank.info.attempt, "rank": rank.info.rank}
        lines = rank.reader.new_steps()
        if rank.reader.restarts != rank.restarts:
            rank.restarts = rank.reader.restarts
            self._steps.forget(**place)
            self._totals.forget(**place)
        self._steps.add(columns.step_rows(lines, **place))
        self._totals.add(columns.total_rows(lines, **place))

    def _read_calls(self, rank: _Rank) -> None:
        rows = columns.call_rows(rank.reader.new_calls(), attempt=rank.info.attempt, rank=rank.info.rank)
        self._calls.add(rows)

    def _read_events(self, rank: _Rank) -> None:
        rows = columns.event_rows(rank.reader.new_events(), attempt=rank.info.attempt, rank=rank.info.rank)
        self._events.add(rows)

    def _note(self, error: RunError, *, of: Path | None = None) -> None:
        if error.is_passing and of is not None:
            self._passing[of] = str(error)
        else:
            self._note_all([str(error)])

    def _note_all(self, problems: Iterable[str]) -> None:
        self._lasting.extend(problem for problem in problems if problem not in self._lasting)


def _version_of(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is replaced; None when it cannot be told."""
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
