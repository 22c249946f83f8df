"""What differs between the nodes or ranks of one job."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from scope.analysis.doctor.diagnosis import Diagnosis, describe_ranks, join_names, join_owners, sort_diagnoses
from scope.units import NS_PER_MS, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scope.probe.facts import NodeFacts
    from scope.run.schema import RankInfo, StepRecord

PER_RANK_VARIABLES: Final = frozenset(
    {"CUDA_VISIBLE_DEVICES", "NCCL_DEBUG_FILE", "TORCHELASTIC_RUN_ID", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}
)
"""Variables that rightly differ between ranks."""

CRITICAL_VARIABLES: Final = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
)
"""Variables whose difference makes collectives hang or fail, not only slow."""

_SKEW_NS: Final = 100 * NS_PER_MS
_COMPARED_STEPS: Final = 50


def compare_environments(environments: Mapping[str, Mapping[str, str]]) -> list[Diagnosis]:
    """Return the variables that differ, byte for byte.

    Args:
        environments: Variables by what they belong to, a rank or host as text.
    """
    found: list[Diagnosis] = []
    names = sorted({name for variables in environments.values() for name in variables} - PER_RANK_VARIABLES)
    for name in names:
        groups = _group({owner: variables.get(name) for owner, variables in environments.items()})
        if len(groups) < 2:
            continue
        odd = _all_but_largest(groups)
        severity = "critical" if name in CRITICAL_VARIABLES else "warning" if name.startswith("NCCL_") else "info"
        found.append(
            Diagnosis(
                check="environment", severity=severity, what=f"{name} differs", where=join_owners(odd),
                action=f"set {name} alike everywhere",
                values={join_owners(owners): "not set" if value is None else value for value, owners in groups.items()},
            )
        )  # fmt: skip
    return found


def compare_ranks(ranks: Sequence[RankInfo], *, world_size: int | None = None) -> list[Diagnosis]:
    """Return what differs between the ranks of one attempt, worst first.

    Args:
        ranks: Their `rank.json`.
        world_size: How many there should be; None takes what the ranks say.
    """
    by_rank = {str(info.rank): info for info in ranks}
    found = compare_environments({f"rank {rank}": info.environment for rank, info in by_rank.items()})
    for name, action in (("torch", "one"), ("nccl", "one"), ("cuda", "one"), ("driver", "one"), ("python", "one")):
        versions = {f"rank {rank}": info.versions.get(name) for rank, info in by_rank.items()}
        found += _compare_values(f"version_{name}", f"versions of {name} differ", versions, f"install {action} version")
    devices = {
        f"rank {rank}": None if info.device is None else f"{info.device.name} ({info.device.memory_bytes} bytes)"
        for rank, info in by_rank.items()
    }
    found += _compare_values("device", "ranks compute on different devices", devices, "the slowest paces the job")
    routes = {f"rank {rank}": info.collectives_route for rank, info in by_rank.items()}
    found += _compare_values("route", "ranks record collectives in different ways", routes, "one version of scope")
    found += _check_missing(ranks, world_size)
    found += _check_shared_gpus(ranks)
    found += _check_interfaces(ranks)
    return sort_diagnoses(found)


def compare_nodes(nodes: Sequence[NodeFacts]) -> list[Diagnosis]:
    """Return what differs between nodes before a job starts, worst first."""
    found = compare_environments({node.host: node.environment for node in nodes})
    for name in sorted({name for node in nodes for name in node.versions}):
        values = {node.host: node.versions.get(name) for node in nodes}
        found += _compare_values(f"version_{name}", f"versions of {name} differ", values, "install one version")
    counts: dict[str, str | None] = {node.host: str(len(node.gpus)) for node in nodes}
    found += _compare_values("gpus", "nodes have different numbers of GPUs", counts, "nvidia-smi -L on the odd ones")
    models: dict[str, str | None] = {
        node.host: join_names(sorted({gpu.identity.name for gpu in node.gpus})) for node in nodes
    }
    found += _compare_values("device", "nodes have different GPUs", models, "the slowest paces the job")
    ports: dict[str, str | None] = {node.host: str(sum(port.state == 4 for port in node.rdma)) for node in nodes}
    found += _compare_values("rdma", "nodes have different numbers of active RDMA ports", ports, "cables, switch ports")
    return sort_diagnoses(found)


def compare_clocks(steps: Mapping[int, Sequence[StepRecord]], hosts: Mapping[int, str]) -> list[Diagnosis]:
    """Return hosts whose clock stands apart, judged by when common steps end.

    Ranks that train together end each step together, but for what they wait; a constant difference of more than 100 ms
    between hosts is a clock.

    Args:
        steps: Steps by rank.
        hosts: Host by rank.
    """
    ends = {rank: {step.step: step.end_ns for step in own[-_COMPARED_STEPS:]} for rank, own in steps.items()}
    common = set[int].intersection(*(set(own) for own in ends.values())) if ends else set[int]()
    if not common or len(set(hosts.values())) < 2:
        return []
    middle = {step: statistics.median_low(own[step] for own in ends.values()) for step in common}
    by_host: dict[str, list[int]] = {}
    for rank, own in ends.items():
        by_host.setdefault(hosts[rank], []).append(statistics.median_low(own[step] - middle[step] for step in common))
    offsets = {host: statistics.median_low(values) for host, values in by_host.items()}
    odd = [host for host, offset in offsets.items() if abs(offset) > _SKEW_NS]
    if not odd:
        return []
    return [
        Diagnosis(
            check="clock_skew", severity="warning", what="clocks of hosts differ", where=join_names(sorted(odd)),
            action="synchronise the clocks (chrony); figures across these hosts carry the difference",
            values={host: format_duration(round(offset)) for host, offset in sorted(offsets.items())},
        )
    ]  # fmt: skip


def _compare_values(check: str, what: str, values: Mapping[str, str | None], action: str) -> Iterable[Diagnosis]:
    known = {owner: value for owner, value in values.items() if value is not None}
    groups = _group(known)
    if len(groups) < 2:
        return
    yield Diagnosis(
        check=check, severity="warning", what=what, where=join_owners(_all_but_largest(groups)), action=action,
        values={join_owners(owners): value or "" for value, owners in groups.items()},
    )  # fmt: skip


def _group(values: Mapping[str, str | None]) -> dict[str | None, list[str]]:
    """Return the owners of each value, the most frequent first."""
    groups: dict[str | None, list[str]] = {}
    for owner, value in values.items():
        groups.setdefault(value, []).append(owner)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def _all_but_largest(groups: Mapping[str | None, list[str]]) -> list[str]:
    largest = max(groups.values(), key=len)
    return [owner for owners in groups.values() if owners is not largest for owner in owners]


def _check_missing(ranks: Sequence[RankInfo], world_size: int | None) -> Iterable[Diagnosis]:
    expected = world_size or max((info.world_size or 0 for info in ranks), default=0)
    missing = sorted(set(range(expected)) - {info.rank for info in ranks})
    if missing:
        what = f"{len(missing)} of {expected} ranks left no record"
        yield Diagnosis(
            check="missing_ranks", severity="warning", what=what, where=describe_ranks(missing),
            action="look at their hosts: not started, not recorded, or a folder that is not shared",
        )  # fmt: skip


def _check_shared_gpus(ranks: Sequence[RankInfo]) -> Iterable[Diagnosis]:
    owners: dict[str, list[int]] = {}
    for info in ranks:
        if info.device is not None and info.device.uuid and info.device.kind == "cuda":
            owners.setdefault(info.device.uuid, []).append(info.rank)
    for uuid, own in owners.items():
        if len(own) > 1:
            yield Diagnosis(
                check="shared_gpu", severity="critical", what=f"several ranks share GPU {uuid}",
                where=describe_ranks(own), action="torch.cuda.set_device(local_rank), or CUDA_VISIBLE_DEVICES",
            )  # fmt: skip


def _check_interfaces(ranks: Sequence[RankInfo]) -> Iterable[Diagnosis]:
    hosts: dict[str, RankInfo] = {}
    for info in ranks:
        hosts.setdefault(info.host, info)
    rates: dict[str, str | None] = {}
    for host, info in hosts.items():
        infiniband = [nic for nic in info.nics if nic.kind == "infiniband" and nic.up]
        if info.nics:
            total = sum(nic.rate_bits_per_s or 0 for nic in infiniband)
            rates[host] = f"{len(infiniband)} ports, {total / 1e9:g} Gb/s"
    yield from _compare_values("nics", "hosts have different RDMA ports", rates, "cables, switch ports, drivers")
