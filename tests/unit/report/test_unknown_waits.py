"""Communication at the edge of a short window is not weighed against the rank that it may be waiting for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from scope.report.build import compute_results
from scope.report.findings import find_all
from scope.trace import ReadOptions, load
from scope.units import NS_PER_MS

if TYPE_CHECKING:
    from pathlib import Path

    from scope.report.findings import Finding

_RANKS = (0, 1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class _Window:
    """Two steps of four ranks on CPUs, in ms: 10 of compute, then one all_reduce, whose arrivals only rank 1 delays.

    The recording of rank 1 begins after its peers are in the first all_reduce already, which the window so cuts.
    """

    late: int
    """How much later than its peers rank 1 arrives in both steps."""
    late_second: int
    transfer: int

    def records(self, rank: int) -> list[dict[str, Any]]:
        """Return the events of one rank."""
        found: list[dict[str, Any]] = []
        start = 0
        for number, late in ((7, self.late), (8, self.late_second)):
            arrival = start + 10 + late
            end = arrival + self.transfer
            mine = arrival if rank == 1 else start + 10
            # What kept rank 1 from its first step was not recorded.
            begin = mine - 5 if (rank, number) == (1, 7) else start
            found += [
                _event("user_annotation", f"ProfilerStep#{number}", begin, end),
                _event("cpu_op", "aten::mm", begin + 1, begin + 4),
                _event("user_annotation", "gloo:all_reduce", mine, end),
            ]
            start = end
        return found

    def findings(self, folder: Path, **extra: list[dict[str, Any]]) -> dict[str, Finding]:
        """Return the findings of the traces, in their order; `rank0` and so on give further events of a rank."""
        for rank in _RANKS:
            group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": list(_RANKS)}
            document = {
                "schemaVersion": 1,
                "host_name": "node",
                "distributedInfo": {
                    "backend": "gloo", "rank": rank, "world_size": 4, "pg_count": 1, "pg_config": [group]
                },
                "traceEvents": self.records(rank) + extra.get(f"rank{rank}", []),
            }  # fmt: skip
            (folder / f"rank{rank}.json").write_text(json.dumps(document))
        results = compute_results(load(str(folder / "*.json"), options=ReadOptions(use_cache=False), processes=1))
        assert results.collectives is not None
        assert results.collectives.num_cut == 1
        return {finding.kind: finding for finding in find_all(results)}


def _event(category: str, name: str, start_ms: int, end_ms: int) -> dict[str, Any]:
    args = {"Input type": ["float"], "Input Dims": [[65_792]]} if name.startswith("gloo") else {}
    thread = 2 if name.startswith("gloo") else 1
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start_ms * 1000,
        "dur": (end_ms - start_ms) * 1000, "args": args,
    }  # fmt: skip


def _values(finding: Finding) -> dict[str, Any]:
    return {each.column.key: each.value for each in finding.evidence}


def test_what_the_edge_of_the_window_hides_does_not_outrank_the_late_rank(tmp_path: Path) -> None:
    """300 ms a step for one rank: it comes first, and what is known to be transfer is 10 ms on each of four ranks."""
    found = _Window(late=300, late_second=300, transfer=10).findings(tmp_path)
    assert next(iter(found)) == "straggler"
    assert found["straggler"].where.ranks == (1,)
    finding = found["exposed_communication"]
    values = _values(finding)
    assert values["exposed_communication_ns"] == 2 * (3 * 310 + 10) * NS_PER_MS
    assert values["straggler_wait_ns"] == 3 * 300 * NS_PER_MS
    assert values["unknown_wait_ns"] == (3 * 310 + 10) * NS_PER_MS
    assert finding.cost_ns == 4 * 10 * NS_PER_MS
    assert "(40 ms) besides the waiting for rank 1 and 940 ms in collectives whose wait is not known" in finding.title
    assert "Start these collectives earlier" not in finding.action
    assert "Fix rank 1 first" in finding.action
    assert "may be waiting too" in finding.action


def test_slow_transfers_beside_a_late_rank_come_first(tmp_path: Path) -> None:
    """50 ms late and 300 ms of transfer: what the whole collective shows to be transfer is the larger cost."""
    found = _Window(late=50, late_second=50, transfer=300).findings(tmp_path)
    assert list(found)[:2] == ["exposed_communication", "straggler"]
    finding = found["exposed_communication"]
    values = _values(finding)
    assert values["straggler_wait_ns"] == 3 * 50 * NS_PER_MS
    assert values["unknown_wait_ns"] == (3 * 350 + 300) * NS_PER_MS
    assert finding.cost_ns == 4 * 300 * NS_PER_MS
    parts = finding.cost_ns + values["straggler_wait_ns"] + values["unknown_wait_ns"]
    assert parts == values["exposed_communication_ns"]
    assert "Start these collectives earlier" in finding.action


def test_without_a_late_rank_all_of_it_counts(tmp_path: Path) -> None:
    """Ranks that arrive at once where that is known leave nobody to wait for: the finding costs all that is exposed."""
    found = _Window(late=20, late_second=0, transfer=300).findings(tmp_path)
    assert "straggler" not in found
    finding = found["exposed_communication"]
    assert finding.cost_ns == (3 * 320 + 300 + 4 * 300) * NS_PER_MS
    assert "unknown_wait_ns" not in _values(finding)
    assert "besides" not in finding.title
    assert "Start these collectives earlier" in finding.action


@pytest.mark.parametrize(("rank", "start", "end", "alone"), [(0, -100, -70, 0), (1, -60, -40, 20), (0, -315, -305, 5)])
def test_a_call_without_partners_counts_where_nothing_known_runs(
    tmp_path: Path, rank: int, start: int, end: int, alone: int
) -> None:
    """A call that only one rank made is of unknown wait, but beside the all_reduce the time is the all_reduce's."""
    window = _Window(late=300, late_second=300, transfer=10)
    # The second step is 320 ms long; rank 0 is in its all_reduce for the last 310 of them, and rank 1 for the last 10.
    finish = 640
    extra = _event("user_annotation", "gloo:barrier", finish + start, finish + end)
    values = _values(window.findings(tmp_path, **{f"rank{rank}": [extra]})["exposed_communication"])
    assert values["unknown_wait_ns"] == (3 * 310 + 10 + alone) * NS_PER_MS
