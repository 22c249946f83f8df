"""The cross-rank analyses return what is true of simulated jobs, by way of trace files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from scope.analysis.collectives import Collectives, compute_collectives
from scope.analysis.stragglers import compute_stragglers
from scope.definitions import bus_factor
from scope.testing import scenarios
from scope.testing.jobs import Plant, TrainingJob
from scope.testing.kineto import Clock, Recording
from scope.testing.layout import Layout
from scope.testing.program import Exchange
from scope.testing.scenarios import Scenario
from scope.trace import ReadOptions, load
from scope.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.testing.simulate import TrueCollective
    from scope.trace.model import Job

Key = tuple[str | None, tuple[int, ...], str, int | None, int]


def _load(scenario: Scenario, folder: Path) -> Job:
    scenario.write(folder)
    return load([str(folder)], options=ReadOptions(use_cache=False), processes=1)


def _true(scenario: Scenario) -> dict[Key, TrueCollective]:
    return {_key(each): each for each in scenario.simulation.collectives}


def _key(each: TrueCollective) -> Key:
    sender = None
    if isinstance(each.call, Exchange):
        first = each.group_ranks[0]
        sender = first if each.call.is_send else each.call.peer
    return (each.group_name, each.group_ranks, each.operation, sender, each.sequence)


def _found(result: Collectives) -> dict[Key, dict[str, Any]]:
    """Return the rows of the result by the same key, with the waits and arrivals of the ranks."""
    groups = {row["group_id"]: row for row in result.groups.iter_rows(named=True)}
    calls: dict[int, list[dict[str, Any]]] = {}
    for call in result.calls.iter_rows(named=True):
        calls.setdefault(call["collective_id"], []).append(call)
    found: dict[Key, dict[str, Any]] = {}
    for row in result.collectives.iter_rows(named=True):
        group, parts = groups[row["group_id"]], calls[row["collective_id"]]
        sender = next(part["rank"] for part in parts if part["is_root"]) if group["is_pair"] else None
        key = (group["name"], tuple(group["ranks"]), row["operation"], sender, row["sequence"])
        waits = {part["rank"]: part["wait_ns"] for part in parts}
        found[key] = row | {"waits": waits, "arrivals": {part["rank"]: part["arrival_ns"] for part in parts}}
    return found


def _assert_true(scenario: Scenario, result: Collectives) -> None:
    """Assert that arrivals, waits and transfer of every collective equal the truth to the nanosecond."""
    result.check()
    true, found = _true(scenario), _found(result)
    assert found.keys() == true.keys()
    for key, each in true.items():
        row = found[key]
        assert row["is_complete"]
        assert row["arrivals"] == dict(each.arrivals_ns), key
        assert row["waits"] == each.waits_ns, key
        assert row["transfer_ns"] == each.transfer_ns, key
        assert row["skew_ns"] == each.last_arrival_ns - min(each.arrivals_ns.values())
        assert row["total_wait_ns"] == sum(each.waits_ns.values())
    assert result.num_matched == result.num_calls


EXACT: dict[str, Callable[[], Scenario]] = {
    "early broadcast root": scenarios.early_broadcast_root,
    "late broadcast root": scenarios.late_broadcast_root,
    "reduce, gather, scatter": scenarios.rooted_operations,
    "two groups of equal ranks": scenarios.equal_groups,
    "uneven all_to_all": scenarios.uneven_all_to_all,
    "coalesced": scenarios.coalesced_calls,
    "prefetch": scenarios.prefetched_copies,
    "overlap with compute": scenarios.overlapped_communication,
    "overlap on one stream": scenarios.overrunning_kernels,
    "pipeline": scenarios.pipeline_cascade,
    "send and recv": scenarios.send_and_receive,
    "several nodes": scenarios.several_nodes,
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_to_the_nanosecond(name: str, tmp_path: Path) -> None:
    """Arrivals, waits and transfers of one job on one clock are found exactly."""
    scenario = EXACT[name]()
    _assert_true(scenario, compute_collectives(_load(scenario, tmp_path)))


def test_early_root_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody waits in a broadcast whose root came first, and its late receivers impose nothing."""
    result = compute_collectives(_load(scenarios.early_broadcast_root(), tmp_path))
    assert result.collectives["skew_ns"].min() > 0  # type: ignore[operator]
    assert result.collectives["imposed_wait_ns"].to_list() == [0, 0, 0]
    assert result.rank_waits["wait_ns"].to_list() == [0, 0, 0, 0]


def test_bandwidth_of_every_operation(tmp_path: Path) -> None:
    """Algbw and busbw are the message over the true transfer, times the factor of nccl-tests."""
    scenario = scenarios.shifted_windows(has_sequence=True)
    found = _found(compute_collectives(_load(scenario, tmp_path)))
    size = 2 * (1 << 20)
    for (_, ranks, operation, _, _), row in found.items():
        transfer = 80_000
        if row["num_ranks_seen"] < 4:
            continue
        assert row["message_bytes"] == size
        assert row["algbw_bytes_per_s"] == pytest.approx(size * NS_PER_S / transfer)
        factor = {"all_reduce": 1.5, "all_gather": 0.75}[operation]
        assert len(ranks) == 4
        assert row["busbw_bytes_per_s"] == pytest.approx(factor * size * NS_PER_S / transfer)


def test_uneven_all_to_all_counts_the_largest_sender(tmp_path: Path) -> None:
    """Bus bandwidth of an uneven all_to_all is the most that one rank sends to others over the transfer."""
    result = compute_collectives(_load(scenarios.uneven_all_to_all(), tmp_path))
    # Rank 2 sends 4000 + 9000 + 7000 elements of 2 bytes to others and keeps 100.
    for row in result.collectives.iter_rows(named=True):
        assert row["variant"] == "uneven"
        assert row["message_bytes"] == 40_200
        assert row["busbw_bytes_per_s"] == pytest.approx(40_000 * NS_PER_S / 80_000)


def test_missing_ranks_make_bounds(tmp_path: Path) -> None:
    """With ranks missing, waits are at least and transfers at most what is true, and nobody is named."""
    scenario = scenarios.missing_ranks()
    job = _load(scenario, tmp_path)
    result = compute_collectives(job)
    true, found = _true(scenario), _found(result)
    assert found.keys() == true.keys()
    assert result.num_incomplete == len(true)
    for key, each in true.items():
        row = found[key]
        assert row["num_ranks_seen"] == 2
        assert not row["is_complete"]
        assert all(row["waits"][rank] <= each.waits_ns[rank] for rank in row["waits"])
        assert row["transfer_ns"] > each.transfer_ns
        assert row["imposed_wait_ns"] is None
        assert "2 of 4 ranks seen" in row["reason"]
        assert "imposed wait unknown" in row["reason"]
    assert result.summary["num_measured"].sum() == 0
    named = compute_stragglers(job, result)
    assert named.stragglers == ()
    assert "2 ranks of the job are missing" in named.verdict


def test_clock_offset_and_drift(tmp_path: Path) -> None:
    """Planted offsets and drifts are found, and every wait is true within the stated interval."""
    scenario = scenarios.drifting_clocks()
    result = compute_collectives(_load(scenario, tmp_path)).check()
    clock = result.clock
    assert clock.is_corrected
    assert clock.num_contradictions == 0
    assert clock.components == ((0, 1, 2, 3),)
    for offset in clock.offsets[1:]:
        planted = scenario.recordings[offset.rank].clock
        assert offset.low_ns is not None
        assert offset.high_ns is not None
        truth = planted.local_ns(clock.middle_ns) - clock.middle_ns
        assert offset.low_ns <= truth <= offset.high_ns
        assert offset.drift_ppb == pytest.approx(planted.drift_ppb, abs=100)
        assert offset.offset_ns == pytest.approx(truth, abs=2_000)
    _assert_within_interval(scenario, result)


def test_plain_offsets_leave_nothing(tmp_path: Path) -> None:
    """Where clocks stand apart and all ranks end together, waits are exact after the correction."""
    job = TrainingJob(layout=Layout(dp=4, ranks_per_node=1), jitter_ns=400_000, num_steps=6)
    recordings = {rank: Recording(clock=Clock(offset_ns=-7_654_321 * rank)) for rank in (1, 2, 3)}
    scenario = Scenario(layout=job.layout, simulation=job.run(), recordings=recordings)
    result = compute_collectives(_load(scenario, tmp_path))
    assert [offset.offset_ns for offset in result.clock.offsets] == [0, -7_654_321, -15_308_642, -22_962_963]
    _assert_true(scenario, result)


def _assert_within_interval(scenario: Scenario, result: Collectives) -> None:
    found = _found(result)
    for key, each in _true(scenario).items():
        row = found[key]
        bound = row["clock_interval_ns"]
        assert all(abs(row["waits"][rank] - wait) <= bound for rank, wait in each.waits_ns.items()), key
        assert abs(row["transfer_ns"] - each.transfer_ns) <= bound


@pytest.mark.parametrize("has_sequence", [True, False])
@pytest.mark.parametrize("offset_ns", [0, 250_000, 1_900_003, 9_000_017])
def test_windows_that_begin_at_different_steps(tmp_path: Path, has_sequence: bool, offset_ns: int) -> None:
    """Calls of windows that begin at different steps find their partners, by `Seq` or by series and clock."""
    scenario = scenarios.shifted_windows(has_sequence=has_sequence, offset_ns=offset_ns)
    result = compute_collectives(_load(scenario, tmp_path))
    assert result.num_ambiguous == 0
    true = {tuple(sorted(each.arrivals_ns.items())): each for each in scenario.simulation.collectives}
    complete = result.collectives.filter(pl.col("is_complete"))
    # Steps 4 to 7 are in all four windows, with three collectives each.
    assert complete.height == 12
    for row in complete.iter_rows(named=True):
        parts = result.calls.filter(pl.col("collective_id") == row["collective_id"])
        each = true[tuple(sorted(parts.select("rank", "arrival_ns").iter_rows()))]
        assert dict(parts.select("rank", "wait_ns").iter_rows()) == each.waits_ns
        assert row["transfer_ns"] == each.transfer_ns
    assert result.num_incomplete == 12


def test_without_metadata_all_ranks_are_assumed(tmp_path: Path) -> None:
    """Kernels that say nothing but their name are matched over all ranks, and the result says so."""
    scenario = scenarios.without_metadata()
    job = _load(scenario, tmp_path)
    result = compute_collectives(job)
    assert result.is_group_assumed
    true = sorted(scenario.simulation.collectives, key=lambda each: each.sequence)
    rows = list(result.collectives.iter_rows(named=True))
    assert [row["transfer_ns"] for row in rows] == [each.transfer_ns for each in true]
    assert [row["last_rank"] for row in rows] == [2, 2, 2, 2]
    assert result.collectives["busbw_bytes_per_s"].null_count() == 4
    (straggler,) = compute_stragglers(job, result).stragglers
    assert (straggler.rank, straggler.reason, straggler.imposed_wait_ns) == (2, "input", 4 * NS_PER_MS)


def test_namesakes_are_not_mixed(tmp_path: Path) -> None:
    """Groups of one name whose ranks the traces elide are left unmatched; the group of all ranks is matched."""
    scenario = scenarios.elided_groups()
    result = compute_collectives(_load(scenario, tmp_path)).check()
    assert result.num_unmatchable == 12
    assert result.num_matched == 12
    whole = result.collectives.filter(pl.col("is_complete"))
    true = [each for each in scenario.simulation.collectives if len(each.group_ranks) == 4]
    assert whole["transfer_ns"].to_list() == [each.transfer_ns for each in true]
    assert whole["total_wait_ns"].to_list() == [sum(each.waits_ns.values()) for each in true]


def test_recording_that_began_inside_a_collective(tmp_path: Path) -> None:
    """A rank whose recording began while others spun is marked, and not blamed for the profiler's start."""
    scenario = scenarios.window_edge()
    job = _load(scenario, tmp_path)
    result = compute_collectives(job)
    assert result.collectives["is_cut"].to_list() == [True, False, False]
    assert "began" in result.collectives["reason"][0]
    assert result.collectives["skew_ns"][0] > 30 * NS_PER_MS
    for name in ("imposed_wait_ns", "total_wait_ns"):
        assert [each is None for each in result.collectives[name]] == [True, False, False]
    assert result.collectives["transfer_ns"].null_count() == 0
    named = compute_stragglers(job, result)
    assert all(each.imposed_wait_ns < NS_PER_MS for each in named.stragglers)


def test_tiers_and_slow_link(tmp_path: Path) -> None:
    """Groups inside a node and across nodes are told apart by host, and the slow link shows in its own group."""
    scenario = scenarios.several_nodes()
    result = compute_collectives(_load(scenario, tmp_path))
    tiers = {tuple(row["ranks"]): row["tier"] for row in result.groups.iter_rows(named=True)}
    assert tiers == {
        (0, 1, 2, 3): "node",
        (4, 5, 6, 7): "node",
        (0, 4): "network",
        (1, 5): "network",
        (2, 6): "network",
        (3, 7): "network",
    }
    rows = result.collectives.join(result.groups.select("group_id", "ranks"), on="group_id")
    for row in rows.iter_rows(named=True):
        rate = {"node": 400e9, "network": 40e9}[row["tier"]] * (0.25 if row["ranks"] == [1, 5] else 1)
        assert row["busbw_bytes_per_s"] == pytest.approx(rate, rel=1e-4)


def test_communication_without_metadata_beside_nccl(tmp_path: Path) -> None:
    """DeepEP kernels are matched by order over all ranks beside NCCL calls that say their group."""
    scenario = scenarios.deep_ep()
    result = compute_collectives(_load(scenario, tmp_path))
    by_library = {
        library: rows for (library,), rows in result.collectives.partition_by("library", as_dict=True).items()
    }
    assert set(by_library) == {"deep_ep", "nccl"}
    true = [each for each in scenario.simulation.collectives if each.call.operation == "all_reduce"]  # type: ignore[union-attr]
    assert by_library["nccl"]["total_wait_ns"].to_list() == [sum(each.waits_ns.values()) for each in true]
    exchange = [each for each in scenario.simulation.collectives if each.call.operation == "all_to_all"]  # type: ignore[union-attr]
    assert by_library["deep_ep"]["skew_ns"].to_list() == [
        each.last_arrival_ns - min(each.arrivals_ns.values()) for each in exchange
    ]


def test_many_layouts_and_sizes(tmp_path: Path) -> None:
    """Every group of a job with all axes is matched and measured exactly."""
    job = TrainingJob(layout=Layout(dp=4, tp=2, pp=2, cp=2, ep=4, ranks_per_node=4), num_steps=2, jitter_ns=90_000)
    scenario = Scenario(layout=job.layout, simulation=job.run())
    result = compute_collectives(_load(scenario, tmp_path), nodes={rank: job.layout.node(rank) for rank in range(32)})
    _assert_true(scenario, result)
    found = _found(result)
    for key, each in _true(scenario).items():
        factor = bus_factor(each.operation, num_ranks=len(each.group_ranks))
        assert factor is not None
        size = 2 * (67_108_864 if each.operation == "all_reduce" and len(each.group_ranks) == 4 else 8_388_608)
        assert found[key]["busbw_bytes_per_s"] == pytest.approx(size * factor * NS_PER_S / each.transfer_ns)


@pytest.mark.parametrize(
    ("layout", "rank", "kind"),
    [
        (Layout(dp=8), 3, "compute"),
        (Layout(dp=2, tp=4), 5, "input"),
        (Layout(dp=2, tp=2, pp=2), 3, "memory"),
        (Layout(dp=4, ep=2), 1, "host"),
        (Layout(dp=2, pp=4), 2, "compute"),
        (Layout(dp=2, tp=2, pp=2, cp=2), 0, "compute"),
    ],
)
def test_straggler_and_what_fixing_it_saves(layout: Layout, rank: int, kind: str, tmp_path: Path) -> None:
    """The planted rank alone is named, with its reason, and its imposed wait is what a job without it would save."""
    plant = Plant(rank=rank, kind=kind, extra_ns=5 * NS_PER_MS, steps=range(11, 13))  # type: ignore[arg-type]
    training = TrainingJob(layout=layout, plants=(plant,))
    job = _load(Scenario(layout=layout, simulation=training.run()), tmp_path)
    found = compute_stragglers(job, compute_collectives(job)).check()
    (straggler,) = found.stragglers
    assert (straggler.rank, straggler.reason) == (rank, kind)
    assert straggler.imposed_wait_ns == training.saving_ns(rank) == 10 * NS_PER_MS
    assert straggler.num_steps == 2
    assert found.per_step["step_number"].to_list() == [11, 12]
    assert straggler.excess is not None
    assert getattr(straggler.excess, f"{kind}_ns") == 10 * NS_PER_MS


def test_straggler_on_hosts_whose_clocks_differ(tmp_path: Path) -> None:
    """A rank that is late in every step is named exactly although its clock, and all others, are milliseconds off."""
    layout = Layout(dp=4, ranks_per_node=1)
    plant = Plant(rank=2, kind="input", extra_ns=3 * NS_PER_MS, steps=range(99))
    training = TrainingJob(layout=layout, plants=(plant,), num_steps=12)
    recordings = {rank: Recording(clock=Clock(offset_ns=(-1) ** rank * 7_000_001 * rank)) for rank in range(4)}
    scenario = Scenario(layout=layout, simulation=training.run(), recordings=recordings)
    job = _load(scenario, tmp_path)
    result = compute_collectives(job)
    assert result.clock.is_corrected
    # Nothing but the ends tells a late rank from a late clock, so the interval is wider than the delay.
    assert result.collectives["clock_interval_ns"].min() > 3 * NS_PER_MS  # type: ignore[operator]
    _assert_true(scenario, result)
    (straggler,) = compute_stragglers(job, result).stragglers
    assert (straggler.rank, straggler.reason) == (2, "input")
    assert straggler.imposed_wait_ns == training.saving_ns(2) == 36 * NS_PER_MS


def test_delay_that_a_pipeline_hides(tmp_path: Path) -> None:
    """Of a delay that partly fits into the pipeline's bubble only what it really costs is charged."""
    layout = Layout(dp=4, tp=8, pp=2)
    plant = Plant(rank=40, kind="memory", extra_ns=5 * NS_PER_MS, steps=range(10, 14))
    training = TrainingJob(layout=layout, plants=(plant,))
    job = _load(Scenario(layout=layout, simulation=training.run()), tmp_path)
    (straggler,) = compute_stragglers(job, compute_collectives(job)).stragglers
    assert straggler.rank == 40
    assert straggler.imposed_wait_ns == training.saving_ns(40) < 20 * NS_PER_MS


def test_two_stragglers_share_their_delay(tmp_path: Path) -> None:
    """Of two late ranks the later is charged with the difference alone, since fixing it alone saves no more."""
    plants = (
        Plant(rank=1, kind="compute", extra_ns=3 * NS_PER_MS, steps=range(99)),
        Plant(rank=6, kind="host", extra_ns=5 * NS_PER_MS, steps=range(99)),
    )
    training = TrainingJob(layout=Layout(dp=8), plants=plants)
    job = _load(Scenario(layout=training.layout, simulation=training.run()), tmp_path)
    (straggler,) = compute_stragglers(job, compute_collectives(job)).stragglers
    assert (straggler.rank, straggler.reason) == (6, "host")
    assert straggler.imposed_wait_ns == training.saving_ns(6) == 8 * NS_PER_MS


def test_nobody_is_named_without_a_straggler(tmp_path: Path) -> None:
    """In a job whose ranks are alike but for the jitter of their start nobody is named."""
    training = TrainingJob(layout=Layout(dp=4, tp=2), jitter_ns=8_000)
    job = _load(Scenario(layout=training.layout, simulation=training.run()), tmp_path)
    found = compute_stragglers(job, compute_collectives(job))
    assert found.stragglers == ()
    assert found.num_collectives_judged > 0
    assert "no rank stands out" in found.verdict
