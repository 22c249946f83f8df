"""A run directory of two hosts, of which one clock is 10 s ahead: who died first is told as if there were one clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from scope.analysis.recorded import find_verdicts
from scope.frames import open_run
from scope.report.watching import look_at_run
from scope.run import layout, paths
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.schema import OPERATIONS, SCHEMA_VERSION, GroupInfo, RankInfo, RunInfo

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
BEGAN = 1_700_000_000 * S
AHEAD = 10 * S


def write_run(folder: Path, signs_s: tuple[int, int, int, int]) -> None:
    """Write ranks 0 and 1 of one host and 2 and 3 of another, with the true seconds of their last signs of life.

    Each has issued call 8 of the group of all at 49 s and seen call 7 complete at 48 s, by the clock of its own host.
    """
    folder.mkdir()
    info = RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=BEGAN, world_size=4)
    (folder / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    for rank, sign_s in enumerate(signs_s):
        own = paths.rank_folder(folder, 0, rank)
        own.mkdir(parents=True)
        host, ahead = ("a", 0) if rank < 2 else ("b", AHEAD)
        known = RankInfo(
            schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=rank, started_ns=BEGAN + ahead, host=host,
            boot_id=f"boot-{host}", pid=100 + rank, process_start_ticks=1, world_size=4,
            groups=(GroupInfo(group=0, name="0", ranks=(0, 1, 2, 3)),),
        )  # fmt: skip
        (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(known))
        identity = BlackBoxIdentity(
            rank=rank, attempt=0, world_size=4, pid=100 + rank, process_start_ticks=1, wall_offset_ns=BEGAN + ahead
        )
        box = BlackBox(own / paths.BLACK_BOX_FILE, identity)
        box.write_state(layout.STATE.pack(9, 9, 47 * S, 47 * S, sign_s * S, S, 0, b"backward"))
        box.write_pulse(layout.PULSE.pack(sign_s * S, 1, 0, 0, 0, -1))
        box.write_groups([layout.GROUP.pack(0, 8, 7, 49 * S, 48 * S, 7, 0, 0, 0, OPERATIONS.index("all_reduce"), 0, 0)])
        box.close()


@pytest.mark.parametrize(
    ("signs_s", "ranks", "told"),
    [
        pytest.param((60, 60, 60, 60), (0, 1, 2, 3), "which died first their black boxes do not tell", id="together"),
        pytest.param((60, 60, 52, 60), (2,), "it fell silent 8.0 s before the others", id="one of the host ahead"),
        pytest.param((52, 60, 60, 60), (0,), "it fell silent 8.0 s before the others", id="one of the host behind"),
    ],
)
def test_who_died_first_on_hosts_with_two_clocks(
    tmp_path: Path, signs_s: tuple[int, int, int, int], ranks: tuple[int, ...], told: str
) -> None:
    """By hand: the hosts' signs differ by what their clocks do, and by that alone, but for the rank that died."""
    write_run(tmp_path / "run", signs_s)
    (found,) = find_verdicts(look_at_run(open_run(tmp_path / "run"), now_ns=BEGAN + 900 * S))
    assert (found.kind, found.ranks) == ("crash", ranks)
    assert found.summary.endswith(told)
