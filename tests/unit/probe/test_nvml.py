"""GPUs through the real bindings and a fake library: units, generations, failures."""

from __future__ import annotations

import time
from collections.abc import Callable

import pynvml
import pytest

from scope.probe.nvml.library import NvmlFailure, sysfs_address
from scope.probe.nvml.nvlink import decode_error_ratio
from scope.probe.nvml.probe import NvmlProbe
from scope.probe.plausible import is_plausible
from scope.probe.tree import Problems
from scope.testing.fake_nvml.build import Script

pytestmark = pytest.mark.system("gcc")
Open = Callable[..., tuple[Script, NvmlProbe]]


def change(script: Script) -> None:
    """Write a script and let the library's own check for changes, once a millisecond, see it."""
    script.write()
    time.sleep(0.003)


def test_units_of_a_hopper_gpu(open_node: Open) -> None:
    """Milliwatts, MHz, percent, MiB/s and KiB of NVML become the units that the records name."""
    _, probe = open_node("hopper")
    gpu = probe.read(Problems("gpu"))[1]
    assert gpu.power_mw == 350_001
    assert gpu.power_limit_mw == 700_000
    assert gpu.energy_mj == 7_000_001
    assert gpu.sm_clock_hz == 1_980_000_000
    assert gpu.memory_clock_hz == 2_619_000_000
    assert gpu.utilization_ratio == pytest.approx(0.91)
    assert gpu.memory_total_bytes == 80 * 2**30
    assert gpu.memory_used_bytes == 2 * 2**30
    assert gpu.memory_reserved_bytes == 600 * 2**20
    assert gpu.temperature_celsius == {"core": 51, "memory": 61, "margin": 35}
    assert gpu.throttle_ns["hw_thermal"] == 270_000_000_000
    assert gpu.identity.pci_bus_id == "0000:11:00.0"


def test_nvlink_bytes_are_kibibytes_up_to_hopper(open_node: Open) -> None:
    """Fields 138 to 141 count KiB per link; link 3 of GPU 1 has its own planted values."""
    _, probe = open_node("hopper")
    link = probe.read(Problems("gpu"))[1].nvlinks[3]
    base = 2_000_000 + 3_000
    assert link.data_transmit_bytes == (base + 138) * 1024
    assert link.data_receive_bytes == (base + 139) * 1024
    assert link.raw_transmit_bytes == (base + 140) * 1024
    assert link.raw_receive_bytes == (base + 141) * 1024
    assert link.speed_bytes_per_s == 26_562_000_000
    assert (link.version, link.state, link.remote_type) == ("4.0", 1, "nvswitch")


def test_nvlink5_bytes_are_bytes(open_node: Open) -> None:
    """On Blackwell, fields 202 and 204 count bytes and win over the KiB of the older fields."""
    _, probe = open_node("blackwell")
    link = probe.read(Problems("gpu"))[0].nvlinks[5]
    assert link.data_transmit_bytes == 1024 * (1_000_000 + 5_000) + 202
    assert link.data_receive_bytes == 1024 * (1_000_000 + 5_000) + 204
    assert link.version == "5.0"
    assert link.symbol_error_ratio == pytest.approx(15e-12)
    assert "symbol" in link.errors


@pytest.mark.parametrize(
    ("generation", "links", "has_gpm", "has_remap", "has_times"),
    [
        ("volta", 6, False, False, False),
        ("ampere", 12, False, True, False),
        ("hopper", 18, True, True, True),
        ("blackwell", 18, True, True, True),
    ],
)
def test_what_a_generation_lacks_is_absent(
    open_node: Open, generation: str, links: int, has_gpm: bool, has_remap: bool, has_times: bool
) -> None:
    """Unsupported figures are absent, never 0, and are no error."""
    _, probe = open_node(generation)
    problems = Problems("gpu")
    probe.read(problems)
    time.sleep(0.12)
    gpu = probe.read(problems)[0]
    assert problems.found == []
    assert len(gpu.nvlinks) == links
    assert bool(gpu.activity_ratio) is has_gpm
    assert (gpu.row_remap_pending is not None) is has_remap
    assert ("hw_thermal" in gpu.throttle_ns) is has_times
    assert gpu.state == "ok"


def test_a_length_that_is_nonsense(open_node: Open) -> None:
    """Four thousand million processes cost the list of processes, counted, and no more."""
    script, probe = open_node("hopper")
    script.set("g0.nvmlDeviceGetComputeRunningProcesses", 4_000_000_000, code=7)
    change(script)
    problems = Problems("gpu")
    gpu = probe.read(problems)[0]
    assert (gpu.state, gpu.pids, gpu.power_mw) == ("ok", [], 350_000)
    assert [(found.error, found.where) for found in problems.found] == [
        ("invalid_answer", "gpu 0 nvmlDeviceGetComputeRunningProcesses")
    ]


def test_video_engines_are_told_where_there_are_any(open_node: Open) -> None:
    """Percent become ratios; a GPU without an encoder has no figure of it, and 101 % is refused."""
    script, probe = open_node("volta")
    gpu = probe.read(Problems("gpu"))[1]
    assert (gpu.encoder_ratio, gpu.decoder_ratio) == (0.31, 0.21)
    script.remove("g1.nvmlDeviceGetEncoderUtilization")
    script.set("g1.nvmlDeviceGetDecoderUtilization", 101, 1_000_000)
    change(script)
    problems = Problems("gpu")
    gpu = probe.read(problems)[1]
    assert (gpu.encoder_ratio, gpu.decoder_ratio) == (None, None)
    assert [(found.error, found.where) for found in problems.found] == [
        ("implausible", "gpu 1 nvmlDeviceGetDecoderUtilization")
    ]


def test_gpm_percent_becomes_a_ratio_over_the_window(open_node: Open) -> None:
    """GPM gives percent; the first sample has no window and so no activity."""
    script, probe = open_node("hopper")
    problems = Problems("gpu")
    assert probe.read(problems)[0].activity_ratio == {}
    script.set("g0.gpm.5", "nan")
    script.set("g0.gpm.2", 250)
    script.set("g0.gpm.3", code=999)
    change(script)
    time.sleep(0.12)
    activity = probe.read(problems)[0].activity_ratio
    assert activity["dram"] == pytest.approx(0.20)
    assert not {"tensor", "sm", "sm_occupancy"} & activity.keys()
    # NaN and a refusal are what the GPU does not tell; 250 % is what cannot be.
    assert [(problem.error, problem.where) for problem in problems.found] == [("implausible", "gpu 0 gpm sm")]


def test_a_ratio_that_overshoots_a_little_is_1(open_node: Open) -> None:
    """Two samples of two counters can read 100.4 %: that is a full unit; beyond 105 % it is nonsense."""
    script, probe = open_node("hopper")
    for metric, percent in ((2, 100.4), (3, 105), (5, 105.1), (10, -0.1), (11, 100)):
        script.set(f"g0.gpm.{metric}", percent)
    change(script)
    problems = Problems("gpu")
    probe.read(problems)
    time.sleep(0.12)
    activity = probe.read(problems)[0].activity_ratio
    assert (activity["sm"], activity["sm_occupancy"]) == (1, 1)
    assert not {"tensor", "dram"} & activity.keys()
    assert [(problem.error, problem.where) for problem in problems.found] == [
        ("implausible", "gpu 0 gpm tensor"),
        ("implausible", "gpu 0 gpm dram"),
    ]


def test_a_sample_right_after_another_repeats_the_activity(open_node: Open) -> None:
    """A window too short to measure in leaves no gap in the series, and does not become a window's beginning."""
    now = [10**12]
    _, probe = open_node("hopper", clock_ns=lambda: now[0])
    problems = Problems("gpu")
    probe.read(problems)
    now[0] += 10**9
    measured = probe.read(problems)[0].activity_ratio
    assert measured["dram"] == pytest.approx(0.20)
    now[0] += 10**6
    assert probe.read(problems)[0].activity_ratio == measured
    now[0] += 200 * 10**9
    assert probe.read(problems)[0].activity_ratio == {}


def test_older_memory_call_when_the_newer_is_missing(open_node: Open) -> None:
    """Without memory info v2, `used` includes the reserve, and the reserve is absent."""
    script, probe = open_node("volta")
    script.remove("g0.nvmlDeviceGetMemoryInfo_v2")
    change(script)
    gpu = probe.read(Problems("gpu"))[0]
    assert gpu.memory_used_bytes == 2**30 + 600 * 2**20
    assert gpu.memory_reserved_bytes is None


@pytest.mark.parametrize("code", [15, 28])
def test_a_lost_gpu_leaves_the_others(open_node: Open, code: int) -> None:
    """A GPU that is lost is marked so; the next one reads as before, and it comes back when it answers again."""
    script, probe = open_node("hopper", num_gpus=3)
    script.lose(1, code=code)
    change(script)
    problems = Problems("gpu")
    states = [gpu.state for gpu in probe.read(problems)]
    assert states == ["ok", "lost", "ok"]
    assert {problem.error for problem in problems.found} <= {"gpu_is_lost", "gpu_not_found"}
    script.remove("g1.all")
    change(script)
    assert [gpu.state for gpu in probe.read(problems)] == ["ok", "ok", "ok"]


def test_a_gpu_lost_before_the_start(open_node: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that gives no handle from the beginning has a reading that says so."""
    script, _ = open_node("hopper", num_gpus=2)
    script.lose(0)
    change(script)
    from scope.probe.nvml.library import NvmlLibrary
    from scope.probe.tree import Tree

    probe = NvmlProbe(NvmlLibrary(), Tree("/nonexistent"))
    probe.open()
    assert [(gpu.state, gpu.identity.index) for gpu in probe.read(Problems("gpu"))] == [("lost", 0), ("ok", 1)]


@pytest.mark.parametrize(("code", "error"), [(10, "timeout"), (16, "reset_required"), (999, "unknown"), (777, "other")])
def test_a_failing_call_costs_its_figure_alone(open_node: Open, code: int, error: str) -> None:
    """An error that is not "unsupported" is counted by its kind, and the GPU's other figures stay."""
    script, probe = open_node("hopper")
    script.set("g0.nvmlDeviceGetUtilizationRates", code=code)
    change(script)
    problems = Problems("gpu")
    gpu = probe.read(problems)[0]
    assert gpu.utilization_ratio is None
    assert gpu.power_mw == 350_000
    assert [problem.error for problem in problems.found] == [error]


def test_a_field_fails_by_itself(open_node: Open) -> None:
    """Each field value has its own return code: one that failed is not read as a number."""
    script, probe = open_node("hopper")
    script.set("g0.field.138.2", code=999)
    change(script)
    problems = Problems("gpu")
    links = probe.read(problems)[0].nvlinks
    assert links[2].data_transmit_bytes is None
    assert links[2].data_receive_bytes is not None
    assert links[1].data_transmit_bytes is not None
    assert [problem.error for problem in problems.found] == ["unknown"]


def test_an_unknown_value_type_is_refused(open_node: Open) -> None:
    """A value whose type is not known is counted, never guessed."""
    script, probe = open_node("hopper")
    script.field(0, 83, 1, value_type=42)
    change(script)
    problems = Problems("gpu")
    assert probe.read(problems)[0].energy_mj is None
    assert [problem.error for problem in problems.found] == ["unknown_value_type"]


@pytest.mark.parametrize(
    ("key", "value", "attribute"),
    [
        ("nvmlDeviceGetEnforcedPowerLimit", 4_294_967_295, "power_limit_mw"),
        ("nvmlDeviceGetClockInfo.1", 999_999, "sm_clock_hz"),
        ("nvmlDeviceGetCurrPcieLinkWidth", 0, "pcie_width"),
    ],
)
def test_implausible_values_are_refused_and_counted(open_node: Open, key: str, value: int, attribute: str) -> None:
    """A value beyond every physical limit is not shown."""
    script, probe = open_node("hopper")
    script.set(f"g0.{key}", value)
    change(script)
    problems = Problems("gpu")
    assert getattr(probe.read(problems)[0], attribute) is None
    assert [problem.error for problem in problems.found] == ["implausible"]


def test_blank_counters_are_refused(open_node: Open) -> None:
    """The blanks of drivers (all ones) never become counters."""
    script, probe = open_node("hopper")
    script.field(0, 197, 2**64 - 1)
    script.field(0, 140, 9223372036854775792, scope=7)
    change(script)
    problems = Problems("gpu")
    gpu = probe.read(problems)[0]
    assert gpu.pcie_transmit_bytes is None
    assert gpu.nvlinks[7].raw_transmit_bytes is None
    assert [problem.error for problem in problems.found] == ["implausible", "implausible"]


def number_of(name: str) -> int:
    """Return the number of a field by NVIDIA's own table."""
    return int(getattr(pynvml, f"NVML_FI_DEV_{name}"))


@pytest.mark.parametrize("blank", [2**32 - 1, 2**47, 2**47 + 3, 2**31 - 16, 2**31 - 13])
def test_blanks_of_32_bits_and_of_dcgm_are_no_errors(open_node: Open, blank: int) -> None:
    """All ones of a GPU off the bus and DCGM's blanks are absent and counted, from every counter of errors."""
    script, probe = open_node("hopper")
    script.field(0, number_of("PCIE_REPLAY_COUNTER"), blank)
    script.field(0, number_of("ECC_DBE_VOL_TOTAL"), blank)
    script.field(0, number_of("NVLINK_ERROR_DL_REPLAY"), blank, scope=3)
    change(script)
    problems = Problems("gpu")
    gpu = probe.read(problems)[0]
    assert gpu.pcie_replays is None
    assert ("uncorrected", "volatile", "all") not in [(count.type, count.scope, count.location) for count in gpu.ecc]
    # The older call, which is asked for what no field tells, has an answer.
    assert gpu.nvlinks[3].errors["replay"] == 0
    assert [problem.error for problem in problems.found] == ["implausible"] * 3


def test_a_blank_energy_is_refused(open_node: Open) -> None:
    """DCGM's blank of a double would be 1.4e11 J."""
    script, probe = open_node("hopper")
    script.field(0, number_of("TOTAL_ENERGY_CONSUMPTION"), 2**47)
    change(script)
    problems = Problems("gpu")
    assert probe.read(problems)[0].energy_mj is None
    assert [problem.error for problem in problems.found] == ["implausible"]


@pytest.mark.parametrize("value", [0, 2**32 - 2, 2**32, 2**47 - 1, 2**47 + 4, 2**62])
def test_counters_beside_the_blanks_stand(value: int) -> None:
    """Only the blanks themselves are refused: counters of 64 bits pass them by."""
    assert is_plausible(value, "counter")
    assert is_plausible(value, "counter32")
    assert is_plausible(2**32 - 1, "counter")


def test_all_throttle_reasons_at_once_are_none(open_node: Open) -> None:
    """32 set bits are no mask of reasons."""
    script, probe = open_node("hopper")
    script.set("g0.nvmlDeviceGetCurrentClocksEventReasons", 2**32 - 1)
    change(script)
    problems = Problems("gpu")
    assert probe.read(problems)[0].throttle_mask is None
    assert [problem.error for problem in problems.found] == ["implausible"]


def test_unsupported_is_asked_again_only_after_a_while(open_node: Open) -> None:
    """What a GPU refused once is left out of later calls until ten minutes have passed."""
    now = 0
    script, probe = open_node("ampere", clock_ns=lambda: now)
    assert probe.read(Problems("gpu"))[0].recovery_action is None
    script.field(0, 230, 2, value_type=1)
    change(script)
    assert probe.read(Problems("gpu"))[0].recovery_action is None
    now = 601 * 10**9
    assert probe.read(Problems("gpu"))[0].recovery_action == 2


def test_mig_figures_stand_once(open_node: Open) -> None:
    """Memory of a GPU instance stands in its first compute instance; power and links stay with the parent."""
    script, probe = open_node("hopper", num_gpus=1)
    script.set("g0.nvmlDeviceGetMigMode", 1)
    script.set("g0.nvmlDeviceGetMaxMigDeviceCount", 7)
    for slot, (instance, compute) in enumerate([(1, 0), (1, 1), (5, 0)]):
        name = f"g0.m{slot}"
        script.set(f"{name}.nvmlDeviceGetUUID", f"MIG-{slot}")
        script.set(f"{name}.nvmlDeviceGetName", "NVIDIA H100 80GB HBM3 MIG 3g.40gb")
        script.set(f"{name}.nvmlDeviceGetGpuInstanceId", instance)
        script.set(f"{name}.nvmlDeviceGetComputeInstanceId", compute)
        script.set(f"{name}.nvmlDeviceGetAttributes_v2", 3, 1)
        script.set(f"{name}.nvmlDeviceGetMemoryInfo", 40 << 30, 30 << 30, 10 << 30)
    for instance in (1, 5):
        script.set(f"g0.gpm.2.{instance}", 50 + instance)
    change(script)
    probe.read(Problems("gpu"))
    time.sleep(0.12)
    gpu = probe.read(Problems("gpu"))[0]
    assert [(i.gpu_instance, i.compute_instance, i.memory_used_bytes) for i in gpu.mig] == [
        (1, 0, 10 << 30),
        (1, 1, None),
        (5, 0, 10 << 30),
    ]
    assert [i.activity_ratio.get("sm") for i in gpu.mig] == [pytest.approx(0.51), None, pytest.approx(0.55)]
    assert gpu.mig[0].profile == "3g.40gb"
    assert gpu.activity_ratio == {}
    assert gpu.power_mw is not None


def test_xid_events_name_their_gpu(open_node: Open) -> None:
    """Events since the last call come with GPU and number; none come twice."""
    script, probe = open_node("hopper", num_gpus=2)
    assert probe.read_events(Problems("xid"), 5) == []
    script.add_xid(1, 79)
    script.add_xid(0, 13)
    change(script)
    events = probe.read_events(Problems("xid"), 7)
    assert [(e.pci_bus_id, e.xid, e.time_ns) for e in events] == [("0000:11:00.0", 79, 7), ("0000:10:00.0", 13, 7)]
    assert probe.read_events(Problems("xid"), 8) == []


def test_an_xid_that_cannot_be_is_no_label(open_node: Open) -> None:
    """Numbers become labels: one beyond the catalogue's is refused and counted, and the next event is read."""
    script, probe = open_node("hopper", num_gpus=1)
    script.add_xid(0, 2**63)
    script.add_xid(0, 1_000)
    script.add_xid(0, 48)
    change(script)
    problems = Problems("xid")
    assert [event.xid for event in probe.read_events(problems, 7)] == [48]
    assert [found.error for found in problems.found] == ["implausible"] * 2


def test_avoided_gpus_are_not_touched(open_node: Open) -> None:
    """A GPU that is set aside costs no call, by index or UUID."""
    script, probe = open_node("hopper", num_gpus=2)
    script.lose(1)
    change(script)
    problems = Problems("gpu")
    readings = probe.read(problems, {"1"})
    assert [gpu.state for gpu in readings] == ["ok", "quarantined"]
    assert problems.found == []


@pytest.mark.parametrize(("packed", "expected"), [((15 << 8) | 255, 15e-255), (0x10A, 1e-10), (0, 0.0)])
def test_packed_error_ratios(packed: int, expected: float) -> None:
    """A bit error ratio is a mantissa of four bits and a negative exponent of eight."""
    assert decode_error_ratio(packed) == pytest.approx(expected)


def test_addresses_of_nvml_and_sysfs() -> None:
    """NVML writes eight digits of domain in upper case, sysfs four in lower case."""
    assert sysfs_address("00000000:1A:00.0") == "0000:1a:00.0"
    assert sysfs_address("0001F2A3:B1:00.0") == "f2a3:b1:00.0"


@pytest.mark.parametrize("blank", [2**64 - 1, 140737488355328, 9223372036854775792, 2**32 - 1])
def test_blanks_are_implausible_gauges(blank: int) -> None:
    """No blank value of a driver passes as memory or power."""
    assert not is_plausible(blank, "power_mw")
    assert not is_plausible(blank, "memory_bytes")


def test_place_in_the_fabric(open_node: Open) -> None:
    """State, cluster and clique by hand; 1 of a pair of bits is a fault, 2 is none, 0 is not told."""
    script, probe = open_node("blackwell")
    fabric = probe.read(Problems("gpu"))[1].fabric
    assert fabric is not None
    assert (fabric.state, fabric.clique, fabric.configuration) == (3, 1, "")
    assert fabric.cluster == "00000000-0000-0000-0000-000000000007"
    assert fabric.faults == {
        "degraded_bandwidth": 0, "route_recovery": 0, "route_unhealthy": 0, "access_timeout_recovery": 0,
        "misconfigured": 0, "registration_failed": 0,
    }  # fmt: skip
    # Bandwidth degraded (1), route recovery untold (0), route well (2); too few NVLinks (5); manager away (2).
    script.set("g1.nvmlDeviceGetGpuFabricInfoV", 3, 2, 0, 9, (2 << 14) | (5 << 8) | (2 << 4) | 1, 2, 7)
    change(script)
    fabric = probe.read(Problems("gpu"))[1].fabric
    assert fabric is not None
    assert (fabric.state, fabric.clique, fabric.configuration) == (2, 9, "insufficient_nvlinks")
    assert fabric.faults == {
        "degraded_bandwidth": 1, "route_unhealthy": 0, "manager_disconnected": 1, "misconfigured": 1
    }  # fmt: skip


@pytest.mark.parametrize(("answer", "state"), [((2, 3, 999, 0, 0), 3), ((3, 1, 0, 0, 0), 1), ((3, 0, 0, 0, 0), None)])
def test_forms_and_states_of_the_fabric(open_node: Open, answer: tuple[int, ...], state: int | None) -> None:
    """A driver that has the older form alone is asked for that; state 0 is a GPU without fabric, and no error."""
    script, probe = open_node("hopper", num_gpus=1)
    script.set("g0.nvmlDeviceGetGpuFabricInfoV", *answer)
    change(script)
    problems = Problems("gpu")
    fabric = probe.read(problems)[0].fabric
    assert (fabric.state if fabric else None) == state
    if state == 3:
        assert fabric is not None
        assert fabric.faults == {"registration_failed": 1}
    assert problems.found == []


def test_links_to_the_cpu(open_node: Open) -> None:
    """Fields 170 to 172 and 231 to 234, each link with its own counters; MB/s become bytes a second."""
    _, probe = open_node("grace")
    links = probe.read(Problems("gpu"))[1].c2c
    assert [(link.up, link.speed_bytes_per_s, link.low_power) for link in links] == [(1, 45_000_000_000, 0)] * 2
    assert links[1].errors == {"interrupt": 110, "replay": 111, "replay_back_to_back": 112}


def test_links_to_the_cpu_that_fail(open_node: Open) -> None:
    """Each figure fails by itself, and a value that cannot be is refused."""
    script, probe = open_node("grace", num_gpus=1)
    script.field(0, 171, 7, scope=0, value_type=1)
    script.set("g0.field.232.1", code=999)
    script.remove("g0.field.172.0")
    change(script)
    problems = Problems("gpu")
    first, second = probe.read(problems)[0].c2c
    assert (first.up, first.speed_bytes_per_s, second.up) == (None, None, 1)
    assert second.errors == {"interrupt": 10, "replay_back_to_back": 12}
    assert sorted(problem.error for problem in problems.found) == ["implausible", "unknown"]


def test_repairs_of_a_link_by_bin(open_node: Open) -> None:
    """Fields 235 to 250 are bins 0 to 15 of one link; generations before NVLink 5 have none."""
    script, probe = open_node("blackwell")
    script.field(1, 250, 77, scope=4)
    change(script)
    fec = probe.read(Problems("gpu"))[1].nvlinks[4].fec
    assert fec == {**dict.fromkeys(range(16), 0), 0: 20_400, 1: 20_400, 2: 20_400, 15: 77}
    _, older = open_node("hopper")
    gpu = older.read(Problems("gpu"))[0]
    assert (gpu.nvlinks[0].fec, gpu.c2c) == ({}, [])


def test_a_handle_that_is_none_any_more(open_node: Open) -> None:
    """After a reset every call with the old handle is an invalid argument: the GPU is lost, not up without figures."""
    script, probe = open_node("hopper", num_gpus=2)
    script.lose(1, code=2)
    change(script)
    problems = Problems("gpu")
    assert [gpu.state for gpu in probe.read(problems)] == ["ok", "lost"]
    assert {problem.error for problem in problems.found} == {"gpu_not_found"}
    script.remove("g1.all")
    change(script)
    assert probe.read(problems)[1].power_mw == 350_001


def test_an_argument_that_the_driver_does_not_know(open_node: Open) -> None:
    """It is absent without an error, as long as the handle itself is good."""
    script, probe = open_node("hopper", num_gpus=1)
    script.set("g0.nvmlDeviceGetClockInfo.1", code=2)
    change(script)
    problems = Problems("gpu")
    gpu = probe.read(problems)[0]
    assert (gpu.state, gpu.sm_clock_hz, problems.found) == ("ok", None, [])
    assert gpu.memory_clock_hz is not None


def make_mig(script: Script, *, instances: int) -> None:
    """Split GPU 0 and take away what a GPU in that mode does not have; none joins it again."""
    script.set("g0.nvmlDeviceGetMigMode", int(bool(instances)))
    script.set("g0.nvmlDeviceGetMaxMigDeviceCount", 7)
    for slot in range(7):
        for call, value in (("UUID", f"MIG-{slot}"), ("GpuInstanceId", slot + 1), ("ComputeInstanceId", 0)):
            script.set(f"g0.m{slot}.nvmlDeviceGet{call}", value, code=0 if slot < instances else 6)
    if instances:
        script.remove("g0.nvmlDeviceGetUtilizationRates")
        script.remove("g0.field.91.0")
    else:
        script.set("g0.nvmlDeviceGetUtilizationRates", 50, 0)
        script.field(0, 91, 18, value_type=1)


def test_a_gpu_that_is_split_and_joined_while_running(open_node: Open) -> None:
    """What the mode takes away comes back with it at once, not only when everything is asked again."""
    now = [10**12]
    script, probe = open_node("hopper", num_gpus=1, clock_ns=lambda: now[0])
    problems = Problems("gpu")

    def read() -> tuple[int, int, float | None]:
        now[0] += 10**9
        probe.read(problems)
        now[0] += 10**9
        gpu = probe.read(problems)[0]
        return len(gpu.mig), len(gpu.nvlinks), gpu.utilization_ratio

    assert read() == (0, 18, 0.9)
    make_mig(script, instances=3)
    change(script)
    assert read() == (3, 0, None)
    make_mig(script, instances=0)
    change(script)
    assert read() == (0, 18, 0.5)
    assert problems.found == []


def test_an_instance_that_is_destroyed_while_it_is_read(open_node: Open) -> None:
    """It is left out, and the other instances stay."""
    script, probe = open_node("hopper", num_gpus=1)
    make_mig(script, instances=3)
    script.set("g0.m1.nvmlDeviceGetGpuInstanceId", code=6)
    change(script)
    assert [instance.uuid for instance in probe.read(Problems("gpu"))[0].mig] == ["MIG-0", "MIG-2"]


@pytest.mark.parametrize("code", [1, 9, 18])
def test_a_driver_that_is_reloaded(open_node: Open, code: int) -> None:
    """Every way in which NVML says so ends this library: only a fresh one finds the GPUs again."""
    script, probe = open_node("hopper")
    script.lose(0, code=code)
    script.lose(1, code=code)
    change(script)
    with pytest.raises(NvmlFailure) as caught:
        probe.read(Problems("gpu"))
    assert caught.value.driver_gone


def test_gpus_that_come_or_go_are_noticed(open_node: Open) -> None:
    """When NVML counts others than it found at its start, it is opened anew, ten minutes later at most."""
    now = [10**12]
    script, probe = open_node("hopper", clock_ns=lambda: now[0])
    probe.read(Problems("gpu"))
    script.set("sys.nvmlDeviceGetCount", 3)
    change(script)
    now[0] += 599 * 10**9
    probe.read(Problems("gpu"))
    now[0] += 2 * 10**9
    with pytest.raises(NvmlFailure):
        probe.read(Problems("gpu"))
