"""For each alert: series on which it must fire, and neighbours on which it must stay quiet."""

from __future__ import annotations

from dataclasses import dataclass, field

STEP_S = 15
LENGTH = 800
"""Samples a series: 800 of 15 s are 200 minutes."""

N = 'instance="n1"'
GPU = f'{N},gpu="0",uuid="G"'
GPU1 = f'{N},gpu="1",uuid="H"'
PORT = f'{N},device="mlx5_0",port="1"'
RANK = f'{N},run="r",rank="0"'
RANK1 = f'{N},run="r",rank="1"'
RANK2 = f'{N},run="r",rank="2"'


def hold(value: float, samples: int = LENGTH) -> str:
    """A gauge that stays."""
    return f"{value:g}x{samples}"


def grow(per_second: float, samples: int = LENGTH, start: float = 0) -> str:
    """A counter that grows."""
    return f"{start:g}+{per_second * STEP_S:g}x{samples}"


def clock(lag_s: float = 0) -> str:
    """A timestamp that follows the clock, so many seconds behind."""
    return f"{-lag_s:g}+{STEP_S}x{LENGTH}"


def restarted_clock(lag_s: float) -> str:
    """A timestamp that follows the clock, with twenty samples missing."""
    return f"{-lag_s:g}+{STEP_S}x100 _x20 {121 * STEP_S - lag_s:g}+{STEP_S}x{LENGTH}"


def change(first: float, second: float, *, after: int) -> str:
    """A value that changes after so many samples."""
    return f"{first:g}x{after - 1} {second:g}x{LENGTH}"


def jump(size: float, *, after: int) -> str:
    """A counter that jumps once."""
    return f"0x{after - 1} {size:g}x{LENGTH}"


Series = dict[str, str]


def link_speeds(version: str, *speeds: float) -> Series:
    """Links of one GPU with their version and speeds."""
    return {
        **{f'scope_nvlink_speed_bytes_per_second{{{GPU},link="{k}"}}': hold(speed) for k, speed in enumerate(speeds)},
        **{f'scope_nvlink_info{{{GPU},link="{k}",version="{version}"}}': hold(1) for k in range(len(speeds))},
    }


@dataclass(frozen=True)
class Case:
    """What one alert is tested with.

    Attributes:
        alert: Its name.
        fires: Series by name and labels on which it must fire.
        at_minute: When it must be firing.
        quiet: Sets of series on which it must not.
        reset: Series with counters that fall to 0; None uses the first quiet set with a gap in it.
        count: How many instances fire.
        always_stale: Fires, rather than resolves, once the exporter is dead.
    """

    alert: str
    fires: Series
    at_minute: int
    quiet: list[Series] = field(default_factory=list)
    reset: Series | None = None
    count: int = 1


def counter_reset(name: str) -> Series:
    """A counter that grew long ago and begins again at 0."""
    return {name: f"1000x{LENGTH // 4} 0x{LENGTH}"}


XID = f"scope_gpu_xid_last_timestamp_seconds{{{GPU}"
HARDWARE = [
    Case(
        "ScopeXidCritical",
        {f'{XID},xid="79",action="reboot_node"}}': hold(300)},
        8,
        [
            {f'{XID},xid="13",action="application_bug"}}': hold(300)},
            {f'{XID},xid="79",action="reboot_node"}}': hold(-600)},
        ],
    ),
    Case(
        "ScopeXidNvlink",
        {f'{XID},xid="74",action="check_nvlink"}}': hold(300)},
        8,
        [{f'{XID},xid="79",action="reboot_node"}}': hold(300)}],
    ),
    Case(
        "ScopeRecoveryActionNeeded",
        {
            f'scope_gpu_recovery_action{{{GPU},action="none"}}': hold(0),
            f'scope_gpu_recovery_action{{{GPU},action="reset_gpu"}}': hold(1),
        },
        2,
        [
            {
                f'scope_gpu_recovery_action{{{GPU},action="none"}}': hold(1),
                f'scope_gpu_recovery_action{{{GPU},action="reset_gpu"}}': hold(0),
            }
        ],
    ),
    Case(
        "ScopeGpuMissing",
        {
            f"scope_gpu_info{{{GPU}}}": hold(1),
            f"scope_gpu_info{{{GPU1}}}": f"1x100 stale _x{LENGTH}",
            f"scope_exporter_sample_age_seconds{{{N}}}": hold(1),
            # The driver of another node is gone, and its last GPU with it.
            'scope_gpu_info{instance="n2",gpu="0",uuid="J"}': f"1x100 stale _x{LENGTH}",
            'scope_exporter_sample_age_seconds{instance="n2"}': hold(1),
        },
        45,
        [
            # The whole exporter is gone: another alert's business.
            {
                f"scope_gpu_info{{{GPU}}}": f"1x100 stale _x{LENGTH}",
                f"scope_gpu_info{{{GPU1}}}": f"1x100 stale _x{LENGTH}",
                f"scope_exporter_sample_age_seconds{{{N}}}": f"1x100 stale _x{LENGTH}",
            },
            # GPUs were added.
            {
                f"scope_gpu_info{{{GPU}}}": hold(1),
                f"scope_gpu_info{{{GPU1}}}": f"_x100 1x{LENGTH}",
                f"scope_exporter_sample_age_seconds{{{N}}}": hold(1),
            },
            # A board was replaced within minutes.
            {
                f"scope_gpu_info{{{GPU}}}": f"1x100 stale _x{LENGTH}",
                f"scope_gpu_info{{{GPU1}}}": f"_x120 1x{LENGTH}",
                f"scope_exporter_sample_age_seconds{{{N}}}": hold(1),
            },
            # A node without GPUs.
            {f"scope_exporter_sample_age_seconds{{{N}}}": hold(1)},
        ],
        count=2,
    ),
    Case(
        "ScopeGpuLost",
        {f"scope_gpu_up{{{GPU}}}": hold(0), f"scope_gpu_up{{{GPU1}}}": hold(1)},
        3,
        [{f"scope_gpu_up{{{GPU}}}": hold(1)}],
    ),
    Case(
        "ScopeEccUncorrected",
        {f'scope_gpu_ecc_errors_total{{{GPU},type="uncorrected",scope="volatile",location="all"}}': jump(1, after=40)},
        12,
        [
            {
                f'scope_gpu_ecc_errors_total{{{GPU},type="corrected",scope="volatile",location="all"}}': jump(
                    9, after=40
                )
            },
            {f'scope_gpu_ecc_errors_total{{{GPU},type="uncorrected",scope="volatile",location="all"}}': hold(5)},
        ],
        counter_reset(f'scope_gpu_ecc_errors_total{{{GPU},type="uncorrected",scope="volatile",location="all"}}'),
    ),
    Case(
        "ScopeRowRemapFailure",
        {f"scope_gpu_row_remap_failure{{{GPU}}}": hold(1)},
        2,
        [{f"scope_gpu_row_remap_failure{{{GPU}}}": hold(0)}],
    ),
    Case(
        "ScopeRowRemapPending",
        {f"scope_gpu_row_remap_pending{{{GPU}}}": hold(1)},
        2,
        [{f"scope_gpu_row_remap_pending{{{GPU}}}": hold(0)}],
    ),
    Case(
        "ScopeRowRemapMany",
        {f'scope_gpu_remapped_rows_total{{{GPU},cause="uncorrected"}}': hold(512)},
        2,
        [
            {f'scope_gpu_remapped_rows_total{{{GPU},cause="uncorrected"}}': hold(511)},
            {f'scope_gpu_remapped_rows_total{{{GPU},cause="corrected"}}': hold(9_000)},
        ],
        {f'scope_gpu_remapped_rows_total{{{GPU},cause="uncorrected"}}': f"511x99 0x{LENGTH}"},
    ),
    Case(
        "ScopeHardwareThrottle",
        {
            # Hopper counts the seconds and tells the bits; an Ampere tells the bits alone, of the reason and what it
            # stands under; the third one tells only that.
            f'scope_gpu_throttle_seconds_total{{{GPU},reason="hw_thermal"}}': grow(0.2),
            f'scope_gpu_throttle_active{{{GPU},reason="hw_thermal"}}': hold(1),
            f'scope_gpu_throttle_active{{{GPU},reason="hw_slowdown"}}': hold(1),
            f'scope_gpu_throttle_active{{{GPU1},reason="hw_thermal"}}': hold(1),
            f'scope_gpu_throttle_active{{{GPU1},reason="hw_slowdown"}}': hold(1),
            f'scope_gpu_throttle_seconds_total{{{GPU1},reason="thermal"}}': grow(0.2),
            f'scope_gpu_throttle_active{{{N},gpu="2",uuid="I",reason="hw_slowdown"}}': hold(1),
        },
        15,
        [
            {f'scope_gpu_throttle_seconds_total{{{GPU},reason="sw_power_cap"}}': grow(0.9)},
            {f'scope_gpu_throttle_seconds_total{{{GPU},reason="hw_thermal"}}': grow(0.01)},
            {
                f'scope_gpu_throttle_active{{{GPU},reason="sw_power_cap"}}': hold(1),
                f'scope_gpu_throttle_active{{{GPU},reason="hw_thermal"}}': hold(0),
                f'scope_gpu_throttle_active{{{GPU},reason="hw_slowdown"}}': hold(0),
            },
            # One scrape in five minutes.
            {f'scope_gpu_throttle_active{{{GPU},reason="hw_thermal"}}': "0x30 1 0x800"},
        ],
        counter_reset(f'scope_gpu_throttle_seconds_total{{{GPU},reason="hw_thermal"}}'),
        count=3,
    ),
    Case(
        "ScopeGpuHot",
        {
            f'scope_gpu_temperature_celsius{{{GPU},sensor="margin"}}': hold(1),
            f'scope_gpu_temperature_celsius{{{GPU},sensor="core"}}': hold(88),
            f'scope_gpu_temperature_celsius{{{GPU1},sensor="core"}}': hold(86),
        },
        15,
        [
            {
                f'scope_gpu_temperature_celsius{{{GPU},sensor="margin"}}': hold(10),
                f'scope_gpu_temperature_celsius{{{GPU},sensor="core"}}': hold(88),
            },
            {f'scope_gpu_temperature_celsius{{{GPU},sensor="core"}}': hold(84)},
        ],
        count=2,
    ),
    Case(
        "ScopeGpuTooHot",
        {f'scope_gpu_temperature_celsius{{{GPU},sensor="core"}}': hold(95)},
        15,
        [{f'scope_gpu_temperature_celsius{{{GPU},sensor="core"}}': hold(94)}],
    ),
    Case(
        "ScopeMemoryHot",
        {f'scope_gpu_temperature_celsius{{{GPU},sensor="memory"}}': hold(96)},
        15,
        [{f'scope_gpu_temperature_celsius{{{GPU},sensor="core"}}': hold(94)}],
    ),
    Case(
        "ScopeNvlinkDown",
        {
            f'scope_nvlink_up{{{GPU},link="3"}}': change(1, 0, after=40),
            f'scope_nvlink_up{{{GPU},link="4"}}': hold(1),
            # A reboot gave this GPU another index, and its link did not come back.
            f'scope_nvlink_up{{{N},gpu="2",uuid="J",link="5"}}': f"1x40 stale _x{LENGTH}",
            f'scope_nvlink_up{{{N},gpu="1",uuid="J",link="5"}}': f"_x42 0x{LENGTH}",
        },
        15,
        [
            {f'scope_nvlink_up{{{GPU},link="3"}}': hold(0)},
            {f'scope_nvlink_up{{{GPU},link="3"}}': hold(1)},
            # The GPU that has the index now is another one, whose link never was up.
            {
                f'scope_nvlink_up{{{GPU},link="3"}}': f"1x40 stale _x{LENGTH}",
                f'scope_nvlink_up{{{N},gpu="0",uuid="J",link="3"}}': f"_x42 0x{LENGTH}",
            },
        ],
        count=2,
    ),
    Case(
        "ScopeNvlinkErrors",
        {f'scope_nvlink_gpu_errors_total{{{GPU},type="replay"}}': jump(2, after=40)},
        12,
        [
            {f'scope_nvlink_gpu_errors_total{{{GPU},type="crc_flit"}}': jump(2, after=40)},
            {f'scope_nvlink_gpu_errors_total{{{GPU},type="replay"}}': hold(7)},
        ],
        counter_reset(f'scope_nvlink_gpu_errors_total{{{GPU},type="replay"}}'),
    ),
    Case(
        "ScopeNvlinkCrc",
        {f'scope_nvlink_gpu_errors_total{{{GPU},type="crc_flit"}}': grow(150)},
        8,
        [{f'scope_nvlink_gpu_errors_total{{{GPU},type="crc_flit"}}': grow(50)}],
        counter_reset(f'scope_nvlink_gpu_errors_total{{{GPU},type="crc_flit"}}'),
    ),
    Case(
        "ScopeNvlinkSlow",
        {
            **link_speeds("4.0", 26_562_000_000, 20_000_000_000),
            # All links of another GPU are equally slow for what they are.
            f'scope_nvlink_speed_bytes_per_second{{{GPU1},link="0"}}': hold(26_562_000_000),
            f'scope_nvlink_info{{{GPU1},link="0",version="5.0"}}': hold(1),
        },
        8,
        [
            link_speeds("4.0", 26_562_000_000, 26_562_000_000),
            link_speeds("5.0", 53_125_000_000, 53_125_000_000),
            # A version whose speed is not known is compared within the GPU alone.
            link_speeds("3.0", 20_000_000_000, 20_000_000_000),
        ],
        count=2,
    ),
    Case(
        "ScopeNvlinkAsymmetry",
        {
            **{
                f'scope_nvlink_transmit_bytes_total{{{GPU},link="{link}",layer="data"}}': grow(5e9) for link in range(3)
            },
            f'scope_nvlink_transmit_bytes_total{{{GPU},link="3",layer="data"}}': grow(1e9),
        },
        15,
        [
            # Idle: the links carry too little to compare.
            {
                f'scope_nvlink_transmit_bytes_total{{{GPU},link="0",layer="data"}}': grow(1e6),
                f'scope_nvlink_transmit_bytes_total{{{GPU},link="1",layer="data"}}': grow(0),
            },
            {
                f'scope_nvlink_transmit_bytes_total{{{GPU},link="{link}",layer="data"}}': grow(5e9 - link * 1e8)
                for link in range(4)
            },
        ],
        {
            f'scope_nvlink_transmit_bytes_total{{{GPU},link="{link}",layer="data"}}': f"0+75e9x200 0+75e9x{LENGTH}"
            for link in range(4)
        },
    ),
    Case(
        "ScopeFabricFault",
        {f'scope_gpu_fabric_fault{{{GPU},fault="degraded_bandwidth"}}': hold(1)},
        8,
        [
            {f'scope_gpu_fabric_fault{{{GPU},fault="degraded_bandwidth"}}': hold(0)},
            {f'scope_gpu_fabric_fault{{{GPU},fault="route_recovery"}}': "0x100 1x10 0x800"},
        ],
    ),
    Case(
        "ScopePcieWidth",
        {f"scope_pcie_link_width{{{GPU}}}": hold(8), f"scope_pcie_link_width_max{{{GPU}}}": hold(16)},
        15,
        [{f"scope_pcie_link_width{{{GPU}}}": hold(16), f"scope_pcie_link_width_max{{{GPU}}}": hold(16)}],
    ),
    Case(
        "ScopePcieGeneration",
        {
            f"scope_pcie_link_generation{{{GPU}}}": hold(3),
            f"scope_pcie_link_generation_max{{{GPU}}}": hold(5),
            f"scope_gpu_utilization_ratio{{{GPU}}}": hold(0.9),
        },
        15,
        [
            {
                f"scope_pcie_link_generation{{{GPU}}}": hold(1),
                f"scope_pcie_link_generation_max{{{GPU}}}": hold(5),
                f"scope_gpu_utilization_ratio{{{GPU}}}": hold(0),
            }
        ],
    ),
    Case(
        # Generation 5 with 16 lanes allows ceil(16 * 0.06 * 32) = 31 a minute.
        "ScopePcieReplays",
        {
            f"scope_pcie_replays_total{{{GPU}}}": grow(32 / 60),
            f"scope_pcie_link_width{{{GPU}}}": hold(16),
            f"scope_pcie_link_generation{{{GPU}}}": hold(5),
        },
        15,
        [
            {
                f"scope_pcie_replays_total{{{GPU}}}": grow(30 / 60),
                f"scope_pcie_link_width{{{GPU}}}": hold(16),
                f"scope_pcie_link_generation{{{GPU}}}": hold(5),
            }
        ],
        {
            **counter_reset(f"scope_pcie_replays_total{{{GPU}}}"),
            f"scope_pcie_link_width{{{GPU}}}": hold(16),
            f"scope_pcie_link_generation{{{GPU}}}": hold(5),
        },
    ),
]


def on_sockets(
    node: str, *, run: str = "r", active: int = 1, sent: str = "", rdma: str | None = None, state: str | None = None
) -> Series:
    """A node with a rank, 1 GB/s of Ethernet unless told otherwise, and an RDMA port where its counter is given."""
    port = f'{{instance="{node}",device="mlx5_0",port="1"}}'
    return {
        f'scope_net_transmit_bytes_total{{instance="{node}",device="eth0"}}': sent or grow(1e9),
        f'scope_train_active{{instance="{node}",run="{run}",rank="{node[1:]}"}}': hold(active),
        **({f"scope_rdma_transmit_bytes_total{port}": rdma} if rdma else {}),
        **({f"scope_rdma_port_state{port}": state} if state else {}),
    }


def events(kind: str, counter: str) -> str:
    """Name of an RDMA event counter."""
    return f'scope_rdma_{kind}_events_total{{{PORT},counter="{counter}"}}'


NETWORK = [
    Case(
        "ScopeRdmaPortDown",
        {
            f"scope_rdma_port_state{{{PORT}}}": change(4, 1, after=40),
            # The other one was active, for a moment deferred, active again, and went down.
            f'scope_rdma_port_state{{{N},device="mlx5_1",port="1"}}': f"4x10 5 4x25 1x{LENGTH}",
        },
        13,
        [
            {f"scope_rdma_port_state{{{PORT}}}": hold(1)},
            {f"scope_rdma_port_state{{{PORT}}}": hold(4)},
            # Active deferred: the port keeps its connections.
            {f"scope_rdma_port_state{{{PORT}}}": change(4, 5, after=40)},
        ],
        count=2,
    ),
    Case(
        "ScopeRdmaPortFlaps",
        {events("port", "link_downed"): grow(0.001), f"scope_rdma_port_state{{{PORT}}}": hold(4)},
        100,
        [{events("port", "link_downed"): jump(2, after=40), f"scope_rdma_port_state{{{PORT}}}": hold(4)}],
        {**counter_reset(events("port", "link_downed")), f"scope_rdma_port_state{{{PORT}}}": hold(4)},
    ),
    Case(
        "ScopeRdmaLinkErrors",
        {events("port", "link_error_recovery"): jump(5, after=40), events("port", "symbol_error"): jump(20, after=40)},
        13,
        [{events("port", "link_error_recovery"): jump(2, after=40), events("port", "symbol_error"): jump(5, after=40)}],
        counter_reset(events("port", "symbol_error")),
        count=2,
    ),
    Case(
        "ScopeRdmaCongestion",
        {
            events("hardware", "np_ecn_marked_roce_packets"): grow(200),
            f"scope_rdma_receive_packets_total{{{PORT}}}": grow(10_000),
        },
        15,
        [
            {
                events("hardware", "np_ecn_marked_roce_packets"): grow(50),
                f"scope_rdma_receive_packets_total{{{PORT}}}": grow(10_000),
            }
        ],
        {
            **counter_reset(events("hardware", "np_ecn_marked_roce_packets")),
            f"scope_rdma_receive_packets_total{{{PORT}}}": grow(10_000),
        },
    ),
    Case(
        "ScopeRdmaRetries",
        {events("hardware", "out_of_sequence"): grow(1)},
        15,
        [{events("hardware", "out_of_sequence"): hold(77)}],
        counter_reset(events("hardware", "packet_seq_err")),
    ),
    Case(
        "ScopeRdmaTimeouts",
        {events("hardware", "local_ack_timeout_err"): grow(0.5)},
        15,
        [{events("hardware", "np_cnp_sent"): grow(10)}],
        counter_reset(events("hardware", "local_ack_timeout_err")),
    ),
    Case(
        "ScopePfcStorm",
        {f'scope_net_pfc_pause_seconds_total{{{N},device="eth2",priority="3",direction="rx"}}': grow(0.3)},
        6,
        [
            {f'scope_net_pfc_pause_seconds_total{{{N},device="eth2",priority="3",direction="tx"}}': grow(0.3)},
            {f'scope_net_pfc_pause_seconds_total{{{N},device="eth2",priority="3",direction="rx"}}': grow(0.05)},
        ],
        counter_reset(f'scope_net_pfc_pause_seconds_total{{{N},device="eth2",priority="3",direction="rx"}}'),
    ),
    Case(
        "ScopeNicUnderspeed",
        {f"scope_rdma_port_rate_bytes_per_second{{{PORT}}}": hold(25e9), f"scope_rdma_port_state{{{PORT}}}": hold(4)},
        8,
        [
            {
                f"scope_rdma_port_rate_bytes_per_second{{{PORT}}}": hold(50e9),
                f"scope_rdma_port_state{{{PORT}}}": hold(4),
            },
            {
                f"scope_rdma_port_rate_bytes_per_second{{{PORT}}}": hold(25e9),
                f"scope_rdma_port_state{{{PORT}}}": hold(1),
            },
        ],
    ),
    Case(
        "ScopeTrainingOnSockets",
        {
            # RDMA stands idle on one node, and its device is gone from another; a third one was made without.
            **on_sockets("n1", rdma=grow(0), state=hold(4)),
            **on_sockets("n2", rdma=f"0x30 stale _x{LENGTH}", state=f"4x30 stale _x{LENGTH}"),
            **on_sockets("n3"),
        },
        25,
        [
            # RDMA carries the traffic.
            {**on_sockets("n1", rdma=grow(1e9), state=hold(4)), **on_sockets("n2", rdma=grow(1e9), state=hold(4))},
            # The run has ended.
            {**on_sockets("n1", active=0, rdma=grow(0), state=hold(4)), **on_sockets("n2", active=0)},
            # One node alone: its Ethernet carries data or checkpoints.
            on_sockets("n1", rdma=grow(0), state=hold(4)),
            # Two runs of one node each.
            {**on_sockets("n1", rdma=grow(0), state=hold(4)), **on_sockets("n2", run="s", rdma=grow(0), state=hold(4))},
            # A cluster without RDMA.
            {**on_sockets("n1"), **on_sockets("n2")},
        ],
        {
            **on_sockets("n1", sent=f"1000x100 0x{LENGTH}", rdma=grow(0), state=hold(4)),
            **on_sockets("n2", sent=hold(0)),
        },
        count=3,
    ),
    Case(
        "ScopeNfsQueue",
        {
            f'scope_nfs_queue_seconds_total{{{N},mount="/m",operation="WRITE"}}': grow(20),
            f'scope_nfs_operations_total{{{N},mount="/m",operation="WRITE"}}': grow(100),
        },
        15,
        [
            {
                f'scope_nfs_queue_seconds_total{{{N},mount="/m",operation="WRITE"}}': grow(1),
                f'scope_nfs_operations_total{{{N},mount="/m",operation="WRITE"}}': grow(100),
            },
            {
                f'scope_nfs_queue_seconds_total{{{N},mount="/m",operation="WRITE"}}': hold(5),
                f'scope_nfs_operations_total{{{N},mount="/m",operation="WRITE"}}': hold(5),
            },
        ],
        {
            **counter_reset(f'scope_nfs_queue_seconds_total{{{N},mount="/m",operation="WRITE"}}'),
            f'scope_nfs_operations_total{{{N},mount="/m",operation="WRITE"}}': grow(1),
        },
    ),
    Case(
        "ScopeNfsBacklog",
        {
            f'scope_nfs_backlog_requests_total{{{N},mount="/m"}}': grow(500),
            f'scope_nfs_rpc_requests_total{{{N},mount="/m"}}': grow(100),
        },
        15,
        [
            {
                f'scope_nfs_backlog_requests_total{{{N},mount="/m"}}': grow(50),
                f'scope_nfs_rpc_requests_total{{{N},mount="/m"}}': grow(100),
            }
        ],
        {
            **counter_reset(f'scope_nfs_backlog_requests_total{{{N},mount="/m"}}'),
            f'scope_nfs_rpc_requests_total{{{N},mount="/m"}}': grow(100),
        },
    ),
    Case(
        "ScopeMemoryPressure",
        {f'scope_pressure_stalled_seconds_total{{{N},resource="memory",extent="full"}}': grow(0.2)},
        15,
        [
            {f'scope_pressure_stalled_seconds_total{{{N},resource="io",extent="full"}}': grow(0.9)},
            {f'scope_pressure_stalled_seconds_total{{{N},resource="memory",extent="some"}}': grow(0.9)},
        ],
        counter_reset(f'scope_pressure_stalled_seconds_total{{{N},resource="memory",extent="full"}}'),
    ),
    Case(
        "ScopeOomKill",
        {f"scope_oom_kills_total{{{N}}}": jump(1, after=40)},
        12,
        [{f"scope_oom_kills_total{{{N}}}": hold(4)}],
        counter_reset(f"scope_oom_kills_total{{{N}}}"),
    ),
]

EXPORTER = [
    Case(
        "ScopeExporterStale",
        {f"scope_exporter_sample_age_seconds{{{N}}}": hold(61)},
        5,
        [
            {f"scope_exporter_sample_age_seconds{{{N}}}": hold(60)},
            # The clock of the node stands still, or is years behind; its samples are fresh.
            {
                f"scope_exporter_sample_age_seconds{{{N}}}": hold(1),
                f"scope_exporter_sample_timestamp_seconds{{{N}}}": hold(0),
            },
        ],
    ),
    Case(
        "ScopeExporterDown",
        {f'up{{{N},job="scope"}}': hold(0)},
        8,
        [{f'up{{{N},job="scope"}}': hold(1)}, {f'up{{{N},job="other"}}': hold(0)}],
    ),
    Case(
        "ScopeCollectorDown",
        {f'scope_collector_up{{{N},collector="rdma"}}': hold(0)},
        15,
        [{f'scope_collector_up{{{N},collector="rdma"}}': hold(1)}],
    ),
    Case(
        "ScopeSampleSlow",
        {
            f'scope_exporter_sample_duration_seconds{{{N},collector="gpu"}}': hold(4),
            f'scope_exporter_sample_duration_seconds{{{N},collector="rdma"}}': hold(2),
        },
        15,
        [{f'scope_exporter_sample_duration_seconds{{{N},collector="gpu"}}': hold(4)}],
    ),
]


def ranks(name: str, *values: str) -> Series:
    """One series a rank."""
    return {f"{name}{{{labels}}}": value for labels, value in zip((RANK, RANK1, RANK2), values, strict=False)}


def peers(*places: str) -> Series:
    """What each rank is, with its place on the axes that are not data parallel."""
    return {
        f'scope_train_info{{{labels},attempt="0",peers="{place}"}}': hold(1)
        for labels, place in zip((RANK, RANK1, RANK2), places, strict=False)
    }


def attempts(*numbers: str) -> Series:
    """What each rank is, with its attempt."""
    return {
        f'scope_train_info{{{labels},attempt="{number}",peers=""}}': hold(1)
        for labels, number in zip((RANK, RANK1, RANK2), numbers, strict=False)
    }


def first_step(age: str, *, steps: str = "", active: int = 1) -> Series:
    """A rank with the age of its main thread's heartbeat; the recorder's own is fresh."""
    return {
        f'scope_train_heartbeat_age_seconds{{{RANK},thread="training"}}': age,
        f'scope_train_heartbeat_age_seconds{{{RANK},thread="recorder"}}': hold(1),
        f"scope_train_steps_total{{{RANK}}}": steps or hold(0),
        f"scope_train_active{{{RANK}}}": hold(active),
    }


TRAINING = [
    Case(
        "ScopeStepStalled",
        {
            f"scope_train_last_step_timestamp_seconds{{{RANK}}}": hold(10),
            f"scope_train_step_median_seconds{{{RANK}}}": hold(2),
            f"scope_train_active{{{RANK}}}": hold(1),
        },
        9,
        [
            # Steps of a minute: ten of them have not passed.
            {
                f"scope_train_last_step_timestamp_seconds{{{RANK}}}": clock(400),
                f"scope_train_step_median_seconds{{{RANK}}}": hold(60),
                f"scope_train_active{{{RANK}}}": hold(1),
            },
            # The run is over.
            {
                f"scope_train_last_step_timestamp_seconds{{{RANK}}}": hold(10),
                f"scope_train_step_median_seconds{{{RANK}}}": hold(2),
                f"scope_train_active{{{RANK}}}": hold(0),
            },
        ],
        {
            f"scope_train_last_step_timestamp_seconds{{{RANK}}}": restarted_clock(2),
            f"scope_train_step_median_seconds{{{RANK}}}": hold(2),
            f"scope_train_active{{{RANK}}}": hold(1),
        },
    ),
    Case(
        "ScopeFirstStepLate",
        first_step(f"0+{STEP_S}x{LENGTH}"),
        33,
        [
            # Start-up is slow, and goes on.
            first_step("0+15x100 0+15x100 0+15x100 0+15x600"),
            # It makes steps; that the last one is long ago is another alert's business.
            first_step(f"0+{STEP_S}x{LENGTH}", steps="0x40 1x800"),
            # It has ended without a step.
            first_step(f"0+{STEP_S}x{LENGTH}", active=0),
        ],
        # The attempt is started anew.
        first_step(f"0+{STEP_S}x110 _x20 0+{STEP_S}x100 0+{STEP_S}x{LENGTH}", steps="0x110 _x20 0x50 1x800"),
    ),
    Case(
        "ScopeRankSilent",
        {
            f'scope_train_heartbeat_age_seconds{{{RANK},thread="recorder"}}': hold(90),
            f"scope_train_active{{{RANK}}}": hold(1),
        },
        3,
        [
            {
                f'scope_train_heartbeat_age_seconds{{{RANK},thread="training"}}': hold(90),
                f'scope_train_heartbeat_age_seconds{{{RANK},thread="recorder"}}': hold(1),
                f"scope_train_active{{{RANK}}}": hold(1),
            }
        ],
    ),
    Case(
        "ScopeRankLost",
        {
            **attempts("0", "0"),
            f"scope_train_active{{{RANK}}}": hold(0),
            f"scope_train_lost_seconds{{{RANK}}}": f"0+{STEP_S}x{LENGTH}",
            f"scope_train_active{{{RANK1}}}": hold(1),
        },
        4,
        [
            # It ended in order.
            {
                **attempts("0", "0"),
                f"scope_train_active{{{RANK}}}": hold(0),
                f"scope_train_active{{{RANK1}}}": hold(1),
            },
            # The run ends: all ranks go within the minute.
            {
                **attempts("0", "0"),
                f"scope_train_active{{{RANK}}}": hold(0),
                f"scope_train_lost_seconds{{{RANK}}}": f"0+{STEP_S}x{LENGTH}",
                f"scope_train_active{{{RANK1}}}": change(1, 0, after=4),
                f"scope_train_lost_seconds{{{RANK1}}}": f"_x4 0+{STEP_S}x{LENGTH}",
            },
            # A new attempt runs on another node.
            {
                **attempts("0", "1"),
                f"scope_train_active{{{RANK}}}": hold(0),
                f"scope_train_lost_seconds{{{RANK}}}": f"0+{STEP_S}x{LENGTH}",
                f"scope_train_active{{{RANK1}}}": hold(1),
            },
            # Another run goes on.
            {
                f'scope_train_info{{{RANK},attempt="0",peers=""}}': hold(1),
                f"scope_train_active{{{RANK}}}": hold(0),
                f"scope_train_lost_seconds{{{RANK}}}": f"0+{STEP_S}x{LENGTH}",
                f'scope_train_info{{{N},run="other",rank="1",attempt="0",peers=""}}': hold(1),
                f'scope_train_active{{{N},run="other",rank="1"}}': hold(1),
            },
        ],
        # The rank is started anew within the minute, over and over.
        {
            **attempts("0", "0"),
            f"scope_train_active{{{RANK}}}": "0x2 1x20 0x2 1x800",
            f"scope_train_lost_seconds{{{RANK}}}": "0+15x2 stale _x19 0+15x2 stale _x800",
            f"scope_train_active{{{RANK1}}}": hold(1),
        },
    ),
    Case(
        "ScopeStepRegression",
        {
            f"scope_train_step_median_seconds{{{RANK}}}": change(1, 1.24, after=240),
            # Two nodes of another run: their ranks share the steps.
            'scope_train_step_median_seconds{instance="n1",run="s",rank="0"}': change(1, 2, after=240),
            'scope_train_step_median_seconds{instance="n2",run="s",rank="8"}': change(1, 2, after=240),
        },
        80,
        [
            {f"scope_train_step_median_seconds{{{RANK}}}": change(1, 1.1, after=240)},
            # It was slow and is fast.
            {f"scope_train_step_median_seconds{{{RANK}}}": change(2, 1, after=240)},
            # Its first minutes do not count.
            {f"scope_train_step_median_seconds{{{RANK}}}": change(1, 1.24, after=20)},
        ],
        count=2,
    ),
    Case(
        "ScopeStragglerRank",
        {
            **ranks("scope_train_step_seconds_total", grow(1), grow(1), grow(1)),
            **ranks("scope_train_communication_wait_seconds_total", grow(0.5), grow(0.5), grow(0.1)),
            **peers("", "", ""),
        },
        20,
        [
            {
                **ranks("scope_train_step_seconds_total", grow(1), grow(1), grow(1)),
                **ranks("scope_train_communication_wait_seconds_total", grow(0.5), grow(0.48), grow(0.46)),
                **peers("", "", ""),
            },
            # The last stage of a pipeline works longer than the first; that is its model, not its fault.
            {
                **ranks("scope_train_step_seconds_total", grow(1), grow(1), grow(1)),
                **ranks("scope_train_communication_wait_seconds_total", grow(0.5), grow(0.5), grow(0.1)),
                **peers("pp0", "pp0", "pp1"),
            },
        ],
        {
            **ranks("scope_train_step_seconds_total", *[f"0+15x200 0+15x{LENGTH}"] * 3),
            **ranks("scope_train_communication_wait_seconds_total", *[f"0+7.5x200 0+7.5x{LENGTH}"] * 3),
            **peers("", "", ""),
        },
    ),
    Case(
        "ScopeImposedWait",
        {
            f"scope_train_imposed_wait_ratio{{{RANK}}}": hold(0.2),
            'scope_train_imposed_wait_ratio{instance="n2",run="r",rank="0"}': hold(0.2),
        },
        15,
        [{f"scope_train_imposed_wait_ratio{{{RANK}}}": hold(0.02)}],
    ),
    Case(
        "ScopeVerdict",
        # Two nodes tell of one finding.
        {
            f'scope_train_verdict{{{N},run="r",rank="3",kind="hang",severity="critical"}}': hold(1),
            'scope_train_verdict{instance="n2",run="r",rank="3",kind="hang",severity="critical"}': hold(1),
        },
        2,
        [{f'scope_train_verdict{{{N},run="r",rank="3",kind="straggler",severity="warning"}}': hold(1)}],
    ),
    Case(
        "ScopeCommunicationBusyWait",
        {
            f"scope_gpu_utilization_ratio{{{GPU}}}": hold(1),
            f"scope_gpu_power_watts{{{GPU}}}": hold(150),
            f"scope_gpu_power_limit_watts{{{GPU}}}": hold(700),
        },
        8,
        [
            {
                f"scope_gpu_utilization_ratio{{{GPU}}}": hold(1),
                f"scope_gpu_power_watts{{{GPU}}}": hold(650),
                f"scope_gpu_power_limit_watts{{{GPU}}}": hold(700),
            },
            {
                f"scope_gpu_utilization_ratio{{{GPU}}}": hold(0),
                f"scope_gpu_power_watts{{{GPU}}}": hold(90),
                f"scope_gpu_power_limit_watts{{{GPU}}}": hold(700),
            },
        ],
    ),
    Case(
        "ScopeIdleAllocated",
        {
            f'scope_gpu_sm_active_ratio{{{GPU},mig=""}}': hold(0.01),
            f'scope_gpu_job_info{{{GPU},job_id="7"}}': hold(1),
        },
        40,
        [
            {f'scope_gpu_sm_active_ratio{{{GPU},mig=""}}': hold(0.01)},
            {
                f'scope_gpu_sm_active_ratio{{{GPU},mig=""}}': hold(0.4),
                f'scope_gpu_job_info{{{GPU},job_id="7"}}': hold(1),
            },
        ],
    ),
    Case(
        "ScopeDataloaderBound",
        {
            f'scope_train_phase_seconds_total{{{RANK},phase="input"}}': grow(0.4),
            f"scope_train_step_seconds_total{{{RANK}}}": grow(1),
        },
        25,
        [
            {
                f'scope_train_phase_seconds_total{{{RANK},phase="input"}}': grow(0.05),
                f'scope_train_phase_seconds_total{{{RANK},phase="forward"}}': grow(0.9),
                f"scope_train_step_seconds_total{{{RANK}}}": grow(1),
            }
        ],
        {
            **counter_reset(f'scope_train_phase_seconds_total{{{RANK},phase="input"}}'),
            f"scope_train_step_seconds_total{{{RANK}}}": grow(1),
        },
    ),
    Case(
        "ScopeGoodputLow",
        {f"scope_train_goodput_ratio{{{RANK}}}": hold(0.7), f"scope_train_active{{{RANK}}}": hold(1)},
        70,
        [
            {f"scope_train_goodput_ratio{{{RANK}}}": hold(0.95), f"scope_train_active{{{RANK}}}": hold(1)},
            {f"scope_train_goodput_ratio{{{RANK}}}": hold(0.7), f"scope_train_active{{{RANK}}}": hold(0)},
        ],
    ),
]

CASES = HARDWARE + NETWORK + EXPORTER + TRAINING
