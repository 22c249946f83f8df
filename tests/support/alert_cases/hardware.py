"""Alerts on GPUs, NVLink and PCIe."""

from __future__ import annotations

from alert_cases.series import GPU, GPU1, LENGTH, Case, N, change, counter_reset, grow, hold, jump, link_speeds

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
