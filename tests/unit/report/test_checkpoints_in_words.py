"""What `scope show` says of checkpoints: of those that were written, and apart from them of those that failed."""

from __future__ import annotations

from typing import Any

import polars as pl

from scope.frames.schema import Events
from scope.report.run_state_checkpoints import checkpoint_lines, summarize_checkpoints, summarize_failed_checkpoints


def checkpoint(rank: int, duration_ns: int, *, step: int = 7) -> dict[str, Any]:
    """Return a row of `Events` in which a rank wrote 1,000 bytes."""
    detail = '{"bytes": 1000, "asynchronous": false}'
    return {
        "attempt": 0, "rank": rank, "time_ns": 0, "kind": "checkpoint", "message": "", "step": step,
        "phase": None, "duration_ns": duration_ns, "detail": detail,
    }  # fmt: skip


def test_a_rank_that_writes_alone_has_no_spread() -> None:
    """Two saves of one rank are no spread of ranks; those of two ranks are, longest less shortest."""
    schema = Events.schema()
    alone = pl.DataFrame([checkpoint(0, 30), checkpoint(0, 50)], schema=schema, orient="row")
    (row,) = summarize_checkpoints(alone).to_dicts()
    assert (row["num_ranks"], row["spread_ns"], row["longest_ns"]) == (1, None, 50)
    both = pl.DataFrame([checkpoint(0, 30), checkpoint(1, 50)], schema=schema, orient="row")
    (row,) = summarize_checkpoints(both).to_dicts()
    assert (row["num_ranks"], row["spread_ns"], row["slowest_rank"]) == (2, 20, 1)


def failed(rank: int, error: str, *, step: int = 7) -> dict[str, Any]:
    """Return a row of `Events` in which a rank's save raised."""
    detail = f'{{"error": "{error}", "asynchronous": false}}'
    return checkpoint(rank, 90, step=step) | {"kind": "checkpoint_failed", "detail": detail}


def test_what_failed_is_counted_apart() -> None:
    """Two ranks wrote 1,000 bytes each; the save that failed beside it leaves size, rate and slowest rank alone."""
    rows = [checkpoint(0, 1_000), failed(0, "OSError"), checkpoint(1, 500), failed(2, "OSError", step=9)]
    rows += [failed(rank, error, step=9) for rank, error in ((0, "PicklingError"), (1, "OSError"))]
    events = pl.DataFrame(rows, schema=Events.schema(), orient="row")
    assert list(
        checkpoint_lines(_rows(summarize_checkpoints(events)), _rows(summarize_failed_checkpoints(events)))
    ) == [
        "1 checkpoint; the last in step 7: 2 kB at 2 GB/s, 1 us on rank 0, spread 500 ns",
        "2 checkpoints failed; the last in step 9: OSError, PicklingError on ranks 0-2",
    ]


def test_without_checkpoints_nothing_is_said() -> None:
    """No event, no line."""
    events = pl.DataFrame(schema=Events.schema())
    written, lost = summarize_checkpoints(events), summarize_failed_checkpoints(events)
    assert list(checkpoint_lines(_rows(written), _rows(lost))) == []


def _rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    return table.to_dicts()
