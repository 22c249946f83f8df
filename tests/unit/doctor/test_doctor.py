"""The doctor: each planted fault is found where it is, and a healthy node has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest
from click.testing import CliRunner

from scope.analysis.doctor.compare import compare_clocks, compare_environments, compare_nodes, compare_ranks
from scope.analysis.doctor.diagnosis import Diagnosis, describe_ranks, join_owners, sort_diagnoses
from scope.analysis.doctor.node import check_node, choose_interfaces
from scope.cli.doctor import print_diagnoses
from scope.cli.main import app
from scope.errors import InputError, UsageError
from scope.probe.facts import FolderFacts, NodeFacts, read_folder, read_node_facts, select_environment
from scope.probe.records import Affinity, EccCount, GpuIdentity, GpuReading, NetDevice, NvlinkReading, RdmaPort
from scope.probe.tree import Tree
from scope.run import paths
from scope.run.schema import SCHEMA_VERSION, DeviceInfo, NicInfo, RankInfo, RunInfo, StepRecord, Verdict

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000


def make_gpu(index: int = 0) -> GpuReading:
    """Return a healthy Hopper GPU."""
    links = [NvlinkReading(link, state=1, speed_bytes_per_s=26_562_000_000, version="4.0") for link in range(18)]
    return GpuReading(
        GpuIdentity(index, f"GPU-{index}", "NVIDIA H100 80GB HBM3"),
        ecc=[EccCount("uncorrected", "volatile", "all", 0)],
        remapped_rows={"uncorrected": 0},
        row_remap_pending=0,
        row_remap_failure=0,
        recovery_action=0,
        utilization_ratio=0.0,
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        power_limit_mw=700_000,
        nvlinks=links,
    )


def make_node(host: str = "node1") -> NodeFacts:
    """Return a healthy node of two GPUs and two ports."""
    return NodeFacts(
        1,
        host,
        0,
        gpus=[make_gpu(0), make_gpu(1)],
        rdma=[RdmaPort(f"mlx5_{n}", 1, state=4, rate_bytes_per_s=50_000_000_000) for n in range(2)],
        nets=[NetDevice("eth0", up=True), NetDevice("eth1", up=False), NetDevice("docker0", up=True, virtual=True)],
        affinities=[Affinity("GPU-0", "mlx5_0", "PIX"), Affinity("GPU-1", "mlx5_1", "NODE")],
        modules=["nvidia", "nvidia_peermem"],
        versions={"kernel": "5.4.0", "driver": "570.1"},
        python=FolderFacts("/opt/env", "ext4"),
        run_folder=FolderFacts("/runs", "nfs4", True, 10**12, 10**13, 2 * MS),
        clock_synchronised=True,
        shm_bytes=64 << 30,
    )


def test_a_healthy_node_has_no_diagnosis() -> None:
    """Nothing is said where nothing is wrong."""
    assert check_node(make_node(), num_gpus=2) == []


Plant = Callable[[NodeFacts], object]


def environment(**variables: str) -> Plant:
    """Return a plant that sets variables."""
    return lambda node: node.environment.update(variables)


def gpu(**changes: object) -> Plant:
    """Return a plant that changes GPU 1."""

    def plant(node: NodeFacts) -> None:
        node.gpus[1] = msgspec.structs.replace(node.gpus[1], **changes)

    return plant


def node(**changes: object) -> Plant:
    """Return a plant that changes the node."""

    def plant(facts: NodeFacts) -> None:
        for name, value in changes.items():
            setattr(facts, name, value)

    return plant


@pytest.mark.parametrize(
    ("plant", "check", "severity", "part"),
    [
        (node(gpus=[make_gpu(0)]), "gpus", "critical", "1 GPUs are visible"),
        (node(gpus=[], gpu_error="NVML error 18 (lib_rm_version_mismatch)"), "gpus", "critical", "mismatch"),
        (gpu(state="lost"), "gpu_lost", "critical", "does not answer"),
        (gpu(ecc=[EccCount("uncorrected", "volatile", "all", 2)]), "ecc", "critical", "2 uncorrected"),
        (gpu(row_remap_failure=1), "row_remap", "critical", "could not be remapped"),
        (gpu(row_remap_pending=1), "row_remap", "warning", "waits for a reset"),
        (gpu(remapped_rows={"uncorrected": 512}), "row_remap", "warning", "512"),
        (gpu(recovery_action=2), "recovery", "critical", "reboot_node"),
        (gpu(pcie_width=8), "pcie_width", "warning", "8 of 16"),
        (gpu(pcie_generation=3, utilization_ratio=0.5), "pcie_speed", "warning", "generation 3 of 5"),
        (gpu(power_limit_mw=500_000), "power_limit", "warning", "different power limits"),
        (node(modules=["nvidia"]), "gpudirect", "critical", "GPUDirect RDMA is off"),
        (environment(NCCL_NET_GDR_LEVEL="LOC"), "gpudirect", "warning", "NCCL_NET_GDR_LEVEL"),
        (environment(NCCL_IB_DISABLE="1"), "nccl_sockets", "critical", "NCCL_IB_DISABLE=1"),
        (environment(NCCL_NET="Socket"), "nccl_sockets", "critical", "NCCL_NET=Socket"),
        (environment(NCCL_SOCKET_IFNAME="bond0"), "interface", "critical", "matches no interface"),
        (environment(NCCL_SOCKET_IFNAME="=eth1"), "interface", "critical", "is down"),
        (environment(GLOO_SOCKET_IFNAME="docker"), "interface", "warning", "virtual"),
        (
            node(affinities=[Affinity("GPU-0", "a", "PIX"), Affinity("GPU-1", "a", "SYS")]),
            "gpu_nic",
            "warning",
            "socket",
        ),
        (node(python=FolderFacts("/nfs/env", "nfs4", True)), "python_on_network", "warning", "nfs4"),
        (node(run_folder=FolderFacts("/runs", error="Read-only file system")), "run_folder", "critical", "Read-only"),
        (node(run_folder=FolderFacts("/runs", "ext4", False, 10**9, 10**12, MS)), "run_folder", "warning", "1 GB left"),
        (node(run_folder=FolderFacts("/r", "nfs", True, 10**12, 10**13, 900 * MS)), "run_folder", "warning", "900 ms"),
        (node(clock_synchronised=False), "clock", "warning", "not synchronised"),
        (node(memlock_bytes=65_536), "memlock", "critical", "pinned"),
        (node(shm_bytes=64 << 20), "shm", "warning", "/dev/shm"),
    ],
)
def test_each_fault_is_found_and_nothing_else(plant: Plant, check: str, severity: str, part: str) -> None:
    """One planted fault gives one diagnosis that says what it is, where, and what to do."""
    facts = make_node()
    plant(facts)
    (found,) = check_node(facts, num_gpus=2)
    assert (found.check, found.severity) == (check, severity)
    assert part in found.what
    assert "node1" in found.where
    assert found.action


def test_links_that_are_down_or_slow() -> None:
    """A link that is down and one that is slow are named; a GPU without any link in use is no fault."""
    facts = make_node()
    facts.gpus[0].nvlinks[3].state = 0
    facts.gpus[1].nvlinks[7].speed_bytes_per_s = 20_000_000_000
    down, slow = check_node(facts)
    assert (down.check, down.where) == ("nvlink_down", "node1 GPU 0 links 3")
    assert (slow.check, slow.where) == ("nvlink_speed", "node1 GPU 1 link 7")
    for link in facts.gpus[0].nvlinks:
        link.state = 0
    assert [one.check for one in check_node(facts)] == ["nvlink_speed"]


def test_ports_that_are_down_or_slow() -> None:
    """A port is compared with the best of its node."""
    facts = make_node()
    facts.rdma[0].state = 1
    facts.rdma.append(RdmaPort("mlx5_2", 1, state=4, rate_bytes_per_s=25_000_000_000))
    found = {one.check: one for one in check_node(facts)}
    assert found["rdma_down"].where == "node1 mlx5_0 port 1"
    assert "200 Gb/s, others of the node at 400 Gb/s" in found["rdma_rate"].what


def test_idle_gpus_may_lower_their_pcie_generation() -> None:
    """Power saving is no fault."""
    facts = make_node()
    gpu(pcie_generation=1)(facts)
    assert check_node(facts) == []


@pytest.mark.parametrize(
    ("value", "names"),
    [("eth", ["eth0", "eth1"]), ("=eth0", ["eth0"]), ("^docker,eth1", ["eth0"]), ("^=eth0", ["eth1", "docker0"])],
)
def test_interfaces_that_nccl_takes(value: str, names: list[str]) -> None:
    """Prefixes, exact names and exclusions, as NCCL documents them."""
    assert [device.name for device in choose_interfaces(value, make_node().nets)] == names


def test_variables_are_compared_byte_for_byte() -> None:
    """A space at the end is a difference; a variable that is rightly each rank's own is none."""
    found = compare_environments(
        {
            "rank 0": {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "8", "CUDA_VISIBLE_DEVICES": "0"},
            "rank 1": {"NCCL_ALGO": "Ring ", "OMP_NUM_THREADS": "8", "CUDA_VISIBLE_DEVICES": "1"},
            "rank 2": {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "8", "NCCL_DEBUG": "INFO"},
        }
    )
    assert [(one.what, one.severity, one.where) for one in found] == [
        ("NCCL_ALGO differs", "critical", "rank 1"),
        ("NCCL_DEBUG differs", "warning", "rank 2"),
    ]
    assert found[0].values == {"ranks 0, 2": "Ring", "rank 1": "Ring "}
    assert found[1].values == {"ranks 0-1": "not set", "rank 2": "INFO"}


def make_rank(rank: int, **changes: object) -> RankInfo:
    """Return a rank's record."""
    info = RankInfo(
        schema=SCHEMA_VERSION,
        run_id="job",
        attempt=0,
        rank=rank,
        started_ns=0,
        host=f"node{rank // 2}",
        pid=1,
        world_size=4,
        versions={"torch": "2.13.0", "nccl": "2.28"},
        device=DeviceInfo(kind="cuda", name="H100", uuid=f"GPU-{rank}", memory_bytes=80),
        nics=(NicInfo(name="mlx5_0", kind="infiniband", up=True, rate_bits_per_s=400_000_000_000),),
    )
    return msgspec.structs.replace(info, **changes)


def test_ranks_that_are_alike_have_no_diagnosis() -> None:
    """Four equal ranks."""
    assert compare_ranks([make_rank(rank) for rank in range(4)]) == []


@pytest.mark.parametrize(
    ("changes", "check", "where"),
    [
        ({"versions": {"torch": "2.12.0", "nccl": "2.28"}}, "version_torch", "rank 2"),
        ({"device": DeviceInfo(kind="cuda", name="A100", uuid="GPU-2", memory_bytes=80)}, "device", "rank 2"),
        ({"device": DeviceInfo(kind="cuda", name="H100", uuid="GPU-1", memory_bytes=80)}, "shared_gpu", "ranks 1-2"),
        ({"environment": {"NCCL_PROTO": "LL"}}, "environment", "rank 2"),
        ({"nics": (NicInfo(name="mlx5_0", kind="infiniband", up=False),)}, "nics", "node1"),
    ],
)
def test_a_rank_that_differs_is_named(changes: dict[str, object], check: str, where: str) -> None:
    """The odd one out is what is named, not the majority."""
    infos = [make_rank(rank) for rank in range(4)]
    infos[2] = make_rank(2, **changes)
    found = {one.check: one for one in compare_ranks(infos)}
    assert found[check].where == where


def test_missing_ranks_are_named() -> None:
    """Ranks 1 and 3 of 4 left nothing."""
    (found,) = compare_ranks([make_rank(0), make_rank(2)])
    assert (found.check, found.where) == ("missing_ranks", "ranks 1, 3")


def make_steps(offset_ns: int) -> list[StepRecord]:
    """Return steps of a rank whose clock is off."""
    return [
        StepRecord(step=n, start_ns=n * 1000 * MS + offset_ns, end_ns=(n + 1) * 1000 * MS + offset_ns, phases={})
        for n in range(60)
    ]


def test_a_clock_that_is_off_is_found() -> None:
    """Two seconds on one of three hosts are found; 20 ms, which waiting explains, are not."""
    hosts = {0: "a", 1: "b", 2: "c"}
    steps = {0: make_steps(0), 1: make_steps(20 * MS), 2: make_steps(2_000 * MS)}
    (found,) = compare_clocks(steps, hosts)
    assert (found.check, found.where) == ("clock_skew", "c")
    assert compare_clocks({0: make_steps(0), 1: make_steps(20 * MS)}, hosts) == []
    assert compare_clocks({}, {}) == []


def test_nodes_that_differ() -> None:
    """Driver, number of GPUs and ports are compared before a job starts."""
    nodes = [make_node(f"node{number}") for number in range(3)]
    assert compare_nodes(nodes) == []
    nodes[1].versions["driver"] = "550.1"
    nodes[2].gpus.pop()
    nodes[2].rdma[0].state = 1
    assert {one.check: one.where for one in compare_nodes(nodes)} == {
        "version_driver": "node1", "gpus": "node2", "rdma": "node2",
    }  # fmt: skip


def test_secrets_never_leave() -> None:
    """Only variables of the allow-list are taken, and none that looks like a secret."""
    variables = {"NCCL_DEBUG": "INFO", "HOME": "/root", "CUDA_API_KEY": "x", "TORCH_AUTH_TOKEN": "y"}
    assert select_environment(variables) == {"NCCL_DEBUG": "INFO"}


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    """A file in place of the folder is an error in the facts; a good one is measured and left clean."""
    (tmp_path / "file").write_text("x")
    assert read_folder(tmp_path / "file" / "runs", Tree(), write=True).error
    good = read_folder(tmp_path / "runs", Tree(), write=True)
    assert good.write_ns is not None
    assert good.free_bytes is not None
    assert list((tmp_path / "runs").iterdir()) == []


def test_this_node_can_be_read(tmp_path: Path) -> None:
    """Real facts of the machine that runs the tests survive the trip through JSON."""
    facts = read_node_facts(run_folder=tmp_path)
    assert msgspec.json.decode(msgspec.json.encode(facts), type=NodeFacts) == facts
    assert facts.versions["python"].startswith("3.")


def test_order_and_ranges() -> None:
    """Worst first; ranks as ranges."""
    found = [Diagnosis(check="b", severity=severity, what="", where="", action="") for severity in ("info", "critical")]
    assert [one.severity for one in sort_diagnoses(found)] == ["critical", "info"]
    assert describe_ranks([3]) == "rank 3"
    assert describe_ranks([0, 1, 2, 4, 6, 7]) == "ranks 0-2, 4, 6-7"
    assert describe_ranks(list(range(0, 64, 2)), most=3) == "ranks 0, 2, 4 and 29 more"
    assert describe_ranks([0, 2, 3, 4], most=2) == "ranks 0, 2-4"
    assert join_owners([f"rank {number}" for number in (7, 3, 4)]) == "ranks 3-4, 7"
    assert join_owners(["rank 3", "node1"]) == "rank 3, node1"


def test_what_differs_between_many_ranks_stays_short(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 512 ranks each with a value of its own the eight most frequent are printed, the rest counted; JSON has all."""
    infos = [
        make_rank(rank, world_size=512, environment={"OMP_NUM_THREADS": str(rank if rank > 2 else 2)})
        for rank in range(512)
    ]
    (found,) = [one for one in compare_ranks(infos) if one.check == "environment"]
    assert found.where == "ranks 3-511"
    assert len(found.values) == 510
    assert list(found.values.items())[:2] == [("ranks 0-2", "2"), ("rank 3", "3")]
    print_diagnoses([found], "run", as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 13
    assert lines[3:5] == ["           ranks 0-2: 2", "           rank 3: 3"]
    assert lines[11] == "           and 502 more values; --json has all"
    print_diagnoses([found], "run", as_json=True)
    assert len(msgspec.json.decode(capsys.readouterr().out)["findings"][0]["values"]) == 510


def test_equal_findings_are_one_and_many_of_a_kind_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """The same fault of 100 nodes is one entry with its places; of 30 different ones of a kind ten are printed."""
    same = [
        Diagnosis(check="shm", severity="warning", what="little", where=f"node{n}", action="more") for n in range(100)
    ]
    torn = [
        Diagnosis(check="record", severity="warning", what=f"file {n} is torn", where=f"{n}", action="a")
        for n in range(30)
    ]
    print_diagnoses([*same, *torn], "100 nodes", as_json=False)
    said = capsys.readouterr().out
    assert said.count("[shm]") == 1
    assert "where: node0, node1, node2, node3, node4, node5, node6, node7 and 92 more\n" in said
    assert said.count(" is torn  [record]") == 10
    assert said.endswith("and 20 more of [record]; --json has all\n")


def test_the_command_over_facts_and_runs(tmp_path: Path) -> None:
    """Facts of two nodes, a run, JSON, and the exit code of a critical finding."""
    runner = CliRunner()
    facts = tmp_path / "facts"
    facts.mkdir()
    for name in ("node1", "node2"):
        odd = make_node(name)
        odd.environment["NCCL_ALGO"] = name
        (facts / f"{name}.facts.json").write_bytes(msgspec.json.encode(odd))
    done = runner.invoke(app, ["doctor", str(facts), "--json", "--preflight"])
    assert done.exit_code == 1
    assert [one["check"] for one in msgspec.json.decode(done.stdout)["findings"]] == ["environment"]
    run = tmp_path / "run"
    run.mkdir()
    (run / paths.RUN_FILE).write_bytes(msgspec.json.encode(RunInfo(schema=SCHEMA_VERSION, run_id="j", started_ns=0)))
    for rank in range(4):
        folder = paths.rank_folder(run, 0, rank)
        folder.mkdir(parents=True)
        content = b"torn" if rank == 3 else msgspec.json.encode(make_rank(rank))
        (folder / paths.RANK_FILE).write_bytes(content)
    done = runner.invoke(app, ["doctor", str(run)])
    assert "ended without a goodbye" in done.stdout
    assert done.exit_code == 1
    assert "rank 3" in done.stdout
    assert "is torn or foreign" in done.stdout


def test_a_hang_on_record_is_relayed(tmp_path: Path) -> None:
    """What `scope watch` has found of the last attempt and has not seen end, with its rank; the command fails by it."""
    run = tmp_path / "run"
    run.mkdir()
    (run / paths.RUN_FILE).write_bytes(msgspec.json.encode(RunInfo(schema=SCHEMA_VERSION, run_id="j", started_ns=0)))
    for rank in range(4):
        folder = paths.rank_folder(run, 0, rank)
        folder.mkdir(parents=True)
        info = msgspec.structs.replace(make_rank(rank), ended_ns=9, exit_reason="terminated by signal 15")
        (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))
    over = Verdict(time_ns=1, kind="straggler", severity="warning", summary="late", ranks=(1,))
    hang = Verdict(
        time_ns=3, kind="hang", severity="critical", summary="rank 2 has not arrived", ranks=(2,), action="look"
    )
    verdicts = [over, msgspec.structs.replace(over, resolved_ns=2), hang]
    (run / paths.VERDICTS_FILE).write_bytes(msgspec.json.Encoder().encode_lines(verdicts))
    done = CliRunner().invoke(app, ["doctor", str(run)])
    assert done.exit_code == 1
    assert "CRITICAL rank 2 has not arrived  [hang]\n         where: rank 2\n         do: look\n" in done.stdout
    assert "straggler" not in done.stdout
    assert done.stdout.endswith(f"; how fast each works: scope show {run}\n")
    assert "scope show" not in CliRunner().invoke(app, ["doctor", str(run), "--json"]).stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(["doctor", "/nonexistent"], InputError), (["doctor", "/tmp", "--gpus", "1"], UsageError)],
)
def test_mistakes_are_errors(arguments: list[str], error: type[Exception]) -> None:
    """A folder that is none, and options that speak of something else."""
    assert isinstance(CliRunner().invoke(app, arguments).exception, error)


def test_torn_facts_are_an_error(tmp_path: Path) -> None:
    """Never a partial answer: the file is named."""
    (tmp_path / "a.facts.json").write_text("{")
    caught = CliRunner().invoke(app, ["doctor", str(tmp_path)]).exception
    assert isinstance(caught, InputError)
    assert "a.facts.json" in str(caught)
