"""Pages of a run that crashed: the exception stands on top."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scope.run import paths
from scope.run.schema import SCHEMA_VERSION, EventRecord, RankInfo, RunInfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

S = 1_000_000_000
BEGAN = 1_800_000_000 * S


@pytest.mark.parametrize("page", ["overview", "post_mortem"])
def test_a_crashed_run_is_headed_by_the_first_exception(
    open_app: Callable[..., Any], tmp_path: Path, page: str
) -> None:
    """Rank 1 raises, rank 0 follows: both pages name rank 1 and its message, letter by letter."""
    info = RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=BEGAN, world_size=2)
    (tmp_path / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    for rank, second, message in ((0, 14, "RuntimeError: closed"), (1, 10, "ValueError: bad sample 4711")):
        own = paths.rank_folder(tmp_path, 0, rank)
        own.mkdir(parents=True)
        known = RankInfo(
            schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=rank, started_ns=BEGAN, host="h", pid=1,
            ended_ns=BEGAN + 60 * S, exit_reason="exception",
        )  # fmt: skip
        (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(known))
        event = EventRecord(time_ns=BEGAN + second * S, kind="exception", message=message)
        (own / paths.EVENTS_FILE).write_bytes(msgspec.json.encode(event) + b"\n")
    app = open_app(page, tmp_path)
    assert not app.exception
    (told,) = [each.value for each in app.error if "raised" in each.value]
    assert told.replace("\\", "") == "rank 1 raised ValueError: bad sample 4711; rank 0 followed 4.0 s later."
