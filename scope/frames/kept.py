"""Steps of large runs in the user's cache folder, so that the next reader reads only what was written since.

Nothing here is needed: what cannot be written, is torn, or lies in a folder that others can write is as good as none.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from scope.folders import is_private
from scope.frames.schema import NumberedTotals, Ranks, RankSteps
from scope.run.lines import LinePlace
from scope.trace.cache import find_cache_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scope.trace.columns import Table

KEY_SCHEMA: Final = {str(column): column.dtype for column in (Ranks.attempt, Ranks.rank)}
"""Columns that name a process of a run."""
MAX_ENTRIES: Final = 16
_PRIVATE: Final = 0o700
_STEPS, _TOTALS, _PLACES = "steps.arrow", "totals.arrow", "places.json"
_UNREADABLE: Final = (OSError, AssertionError, msgspec.MsgspecError, pl.exceptions.PolarsError)


@dataclass(frozen=True, kw_only=True)
class KeptSteps:
    """Steps of a run as far as they were read.

    Attributes:
        steps: Table `RankSteps`.
        totals: Table `NumberedTotals`.
        places: Where reading has stopped, by attempt and rank.
    """

    steps: pl.DataFrame
    totals: pl.DataFrame
    places: Mapping[tuple[int, int], LinePlace]


def entry_of(run: Path) -> Path | None:
    """Return the folder of a run's entry in the user's cache folder; None where there is no such folder."""
    place = find_cache_folder()
    if place is None:
        return None
    layout = f"{list(RankSteps.schema().items())}{list(NumberedTotals.schema().items())}{pl.__version__}"
    key = hashlib.blake2b(f"{run.resolve()}\0{layout}".encode(), digest_size=20).hexdigest()
    return place / "runs" / key


def read_kept(entry: Path) -> KeptSteps | None:
    """Return an entry, or None when there is none that can be trusted and used."""
    if not (is_private(entry.parent) and is_private(entry)):
        return None
    try:
        places = msgspec.json.decode((entry / _PLACES).read_bytes(), type=list[tuple[int, int, LinePlace]])
        return KeptSteps(
            steps=_read(entry / _STEPS, RankSteps),
            totals=_read(entry / _TOTALS, NumberedTotals),
            places={(attempt, rank): place for attempt, rank, place in places},
        )
    except _UNREADABLE:
        shutil.rmtree(entry, ignore_errors=True)
        return None


def write_kept(entry: Path, kept: KeptSteps) -> None:
    """Write an entry and forget the oldest beyond 16; an entry that cannot be written is left out."""
    try:
        entry.parent.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        if not is_private(entry.parent):
            return
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=entry.parent))
    except OSError:
        return
    try:
        kept.steps.write_ipc(fresh / _STEPS, compression="lz4")
        kept.totals.write_ipc(fresh / _TOTALS, compression="lz4")
        places = [(attempt, rank, place) for (attempt, rank), place in kept.places.items()]
        (fresh / _PLACES).write_bytes(msgspec.json.encode(places))
        shutil.rmtree(entry, ignore_errors=True)
        fresh.rename(entry)
        _forget_oldest(entry.parent)
    except _UNREADABLE:
        shutil.rmtree(fresh, ignore_errors=True)


def _read(path: Path, table: type[Table]) -> pl.DataFrame:
    return table.check(pl.read_ipc(path))


def _forget_oldest(folder: Path) -> None:
    entries = sorted(folder.iterdir(), key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[MAX_ENTRIES:]:
        shutil.rmtree(entry, ignore_errors=True)
