"""Pages of a run that crashed: the exception stands on top."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from made_boxes import state

from scope.frames import Run
from scope.run import layout, paths
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.schema import SCHEMA_VERSION, EventRecord, GroupInfo, RankInfo, RunInfo, StepRecord, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

S = 1_000_000_000
BEGAN = 1_700_000_000 * S


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


@pytest.mark.parametrize("page", ["overview", "post_mortem"])
def test_a_rank_that_was_killed_leads_and_its_victims_follow(
    open_app: Callable[..., Any], tmp_path: Path, page: str
) -> None:
    """Rank 1 fell silent before rank 0 raised: the order is that of `scope show`, and a verdict says nothing twice."""
    info = RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=BEGAN, world_size=2)
    (tmp_path / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    for rank, ended_ns in ((0, BEGAN + 60 * S), (1, None)):
        own = paths.rank_folder(tmp_path, 0, rank)
        own.mkdir(parents=True)
        known = RankInfo(
            schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=rank, started_ns=BEGAN, host="h", pid=1,
            ended_ns=ended_ns, exit_reason=None if ended_ns is None else "exception",
        )  # fmt: skip
        (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(known))
    event = EventRecord(time_ns=BEGAN + 14 * S, kind="exception", message="RuntimeError: reset by peer")
    (paths.rank_folder(tmp_path, 0, 0) / paths.EVENTS_FILE).write_bytes(msgspec.json.encode(event) + b"\n")
    first = "rank 1 was killed or aborted before others raised an exception"
    verdict = Verdict(time_ns=BEGAN + 20 * S, attempt=0, kind="crash", severity="critical", summary=first, ranks=(1,))
    (tmp_path / paths.VERDICTS_FILE).write_bytes(msgspec.json.encode(verdict) + b"\n")
    app = open_app(page, tmp_path)
    assert not app.exception
    told = [each.value.replace("\\", "") for each in app.error]
    assert told == [f"{first}.", "rank 0 raised RuntimeError: reset by peer."]


def test_what_black_boxes_counted_is_said_of_a_run_whose_disk_was_full(
    open_app: Callable[..., Any], tmp_path: Path
) -> None:
    """Two of nine steps were written, and none of them tells of a dropped record; the black box counted 20."""
    own = paths.rank_folder(tmp_path, 0, 0)
    own.mkdir(parents=True)
    info = RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=BEGAN, world_size=1)
    (tmp_path / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    rank = RankInfo(
        schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=0, started_ns=BEGAN, host="elsewhere", pid=1, world_size=1,
        ended_ns=BEGAN + 9 * S, exit_reason="finished",
    )  # fmt: skip
    (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(rank))
    steps = (
        StepRecord(
            step=step, start_ns=BEGAN + step * S, end_ns=BEGAN + (step + 1) * S, phases={"other": S},
            communication_wait_ns=0, communication_wait_coverage_ratio=1.0,
        )
        for step in range(2)
    )  # fmt: skip
    (own / paths.STEPS_FILE).write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in steps))
    identity = BlackBoxIdentity(rank=0, attempt=0, world_size=1, pid=1, process_start_ticks=None, wall_offset_ns=0)
    box = BlackBox(own / paths.BLACK_BOX_FILE, identity)
    end_ns = BEGAN + 9 * S
    box.write_state(layout.STATE.pack(9, 9, end_ns, end_ns, end_ns, S, 0, b"forward"))
    box.write_pulse(layout.PULSE.pack(end_ns, 1, 20, layout.PULSE_CLOSED, 0, -1))
    box.close()
    app = open_app("quality", tmp_path)
    assert not app.exception
    assert not app.success
    (told,) = [each.value.replace("\\", "") for each in app.warning]
    assert "The recorder dropped 20 records (full disk or queue): figures are of the rest." in told
    assert "7 steps of rank 0, by its own count, of which no record can be read." in told


def test_where_ranks_stood_is_told_with_their_ends_and_last_signs(
    open_app: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 was ended with the job, rank 1 said nothing; both last changed phase long before their hearts stopped."""
    info = RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=BEGAN, world_size=2)
    (tmp_path / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    groups = (GroupInfo(group=0, name="0", ranks=(0, 1)),)
    for rank in range(2):
        own = paths.rank_folder(tmp_path, 0, rank)
        own.mkdir(parents=True)
        known = RankInfo(
            schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=rank, started_ns=BEGAN, host="h", pid=1, groups=groups,
            ended_ns=None if rank else BEGAN + 60 * S, exit_reason=None if rank else "terminated by signal 2",
        )  # fmt: skip
        (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(known))
    beat = {"beat_ns": BEGAN + 10 * S, "pulse_ns": BEGAN + 58 * S}
    boxes = {rank: replace(state(rank, {0: (7, rank)}), **beat) for rank in range(2)}
    monkeypatch.setattr(Run, "black_boxes", lambda _, **__: boxes)
    app = open_app("post_mortem", tmp_path)
    assert not app.exception
    told = [each.value.replace("\\", "") for each in app.error]
    assert [words for words in told if "different collectives in call 7 of group" in words] == told[:1]
    (states,) = [each.value for each in app.dataframe if "last sign of life" in each.value.columns]
    # The epoch of `BEGAN` is 2023-11-14 22:13:20 UTC.
    rows = states[["rank", "ended", "last call or phase", "last sign of life"]].to_numpy().tolist()
    assert rows == [
        [0, "terminated by signal 2", "22:13:30.000 UTC", "22:14:20.000 UTC"],
        [1, "without a goodbye", "22:13:30.000 UTC", "22:14:18.000 UTC"],
    ]
