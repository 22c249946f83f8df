"""Alerts on GPUs, links, NICs and storage."""

from __future__ import annotations

from typing import Final

from dashboards.alerts.model import Alert

GPU_ALERTS: Final = (
    Alert(
        "ScopeXidCritical",
        "scope-gpu",
        'time() - scope_gpu_xid_last_timestamp_seconds{action=~"reset_gpu|reboot_node"} < $xid_window',
        "0s",
        "critical",
        "XID {{ $labels.xid }} on GPU {{ $labels.gpu }} of {{ $labels.instance }}",
        "An XID that asks for {{ $labels.action }} was seen {{ $value | humanizeDuration }} ago.",
        "The driver logged an error that the GPU does not recover from by itself. Jobs on it have failed or will.",
        "Drain the node. reset_gpu: nvidia-smi --gpu-reset once nothing runs; reboot_node: reboot, and if it comes "
        "back, replace the board. For XID 48 look at ECC and row remaps (XID 63, 64, 94, 95) beside it.",
    ),
    Alert(
        "ScopeXidNvlink",
        "scope-gpu",
        'time() - scope_gpu_xid_last_timestamp_seconds{action="check_nvlink"} < $xid_window',
        "0s",
        "warning",
        "NVLink XID {{ $labels.xid }} on GPU {{ $labels.gpu }} of {{ $labels.instance }}",
        "The driver reported an NVLink error {{ $value | humanizeDuration }} ago.",
        "A link of the GPU, its peer or the switch had an error. One may be noise; repeats are a cable, seat or board.",
        "scope_nvlink_errors_total has the link, scope_nvlink_info its far end. Repeats: drain and reseat.",
    ),
    Alert(
        "ScopeRecoveryActionNeeded",
        "scope-gpu",
        'scope_gpu_recovery_action{action!="none"} == 1',
        "0s",
        "critical",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} asks for {{ $labels.action }}",
        "The driver recommends {{ $labels.action }} (NVML field GET_GPU_RECOVERY_ACTION).",
        "The driver's own verdict on what brings the GPU back; the best single health figure there is.",
        "Drain the node and do what it says.",
    ),
    Alert(
        "ScopeGpuMissing",
        "scope-gpu",
        # Without any GPU there is no series to count: an exporter that answers and shows none shows 0.
        "(count by (cluster, job, instance) (scope_gpu_info) "
        "or 0 * max by (cluster, job, instance) (scope_exporter_sample_age_seconds)) "
        "< on (cluster, job, instance) max_over_time(scope:gpus:count[${remember}s:5m])",
        "10m",
        "critical",
        "{{ $labels.instance }} shows only {{ $value }} GPUs",
        "It showed more within the time of setting remember, and the exporter itself answers.",
        "A GPU fell off the bus, or the driver was restarted without it; at 0, the driver itself is gone. The alert "
        "stays until as many GPUs are there again, at most for the time of setting remember (7 days by default).",
        "nvidia-smi -L and lspci on the node; reboot if the GPU is not on the bus. Where GPUs were taken out, or the "
        "collector switched off, on purpose: silence it for that node, or lower remember.",
    ),
    Alert(
        "ScopeGpuLost",
        "scope-gpu",
        "scope_gpu_up == 0",
        "1m",
        "critical",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} does not answer",
        "NVML reports the GPU as lost, or a call to it hung or crashed and it was set aside "
        "(scope_exporter_quarantined).",
        "The GPU is off the bus, or its driver hangs. Jobs on the node are dead or hang too.",
        "Drain and reboot the node. A process in state D on nvidia* confirms a hang of the driver.",
    ),
    Alert(
        "ScopeEccUncorrected",
        "scope-gpu",
        'floor(increase(scope_gpu_ecc_errors_total{type="uncorrected",scope="volatile",location="all"}[10m])) > 0',
        "0s",
        "critical",
        "Uncorrected ECC error on GPU {{ $labels.gpu }} of {{ $labels.instance }}",
        "{{ $value | printf `%.0f` }} uncorrected errors within ten minutes.",
        "Memory gave wrong bits that could not be repaired; the application was killed or its results are wrong.",
        "Restart the job from its last checkpoint elsewhere; reset the GPU so that the row is remapped.",
    ),
    Alert(
        "ScopeRowRemapFailure",
        "scope-gpu",
        "scope_gpu_row_remap_failure == 1",
        "0s",
        "critical",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} cannot remap a memory row",
        "A row of memory is bad and no spare row is left for it.",
        "The spare rows of a memory bank are used up.",
        "Drain the node and return the board.",
    ),
    Alert(
        "ScopeRowRemapPending",
        "scope-gpu",
        "scope_gpu_row_remap_pending == 1",
        "0s",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} waits for a reset to remap a row",
        "A bad memory row will be replaced at the next reset.",
        "The bad row stays in use until then, and may fail again.",
        "Reset the GPU when its job is over.",
    ),
    Alert(
        "ScopeRowRemapMany",
        "scope-gpu",
        'scope_gpu_remapped_rows_total{cause="uncorrected"} >= $remapped_rows',
        "0s",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} has remapped {{ $value }} rows",
        "So many rows with uncorrectable errors mean that the memory is wearing out.",
        "The board is near the vendor's limit for replacement.",
        "Plan its replacement.",
    ),
    Alert(
        "ScopeHardwareThrottle",
        "scope-gpu",
        # GPUs before Hopper do not count these seconds; there the reasons that are active at each scrape are counted,
        # hw_slowdown, which stands for both, where neither is told.
        '(rate(scope_gpu_throttle_seconds_total{reason=~"hw_.*"}[5m]) > $throttle) '
        "or on (cluster, job, instance, uuid) "
        '(avg_over_time(scope_gpu_throttle_active{reason=~"hw_thermal|hw_power_brake"}[5m]) > $throttle) '
        "or on (cluster, job, instance, uuid) "
        '(avg_over_time(scope_gpu_throttle_active{reason="hw_slowdown"}[5m]) > $throttle)',
        "5m",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} is slowed by {{ $labels.reason }}",
        "Hardware lowered the clocks {{ $value | humanizePercentage }} of the time.",
        "Heat (hw_thermal) or the power supply (hw_power_brake) slows the GPU, and with it every rank of its job. The "
        "share is of time where the GPU counts it (Hopper and later), and of scrapes where it does not.",
        "hw_thermal: fans, inlet temperature, thermal paste. hw_power_brake: power supplies and rack power.",
    ),
    Alert(
        "ScopeGpuHot",
        "scope-gpu",
        '(scope_gpu_temperature_celsius{sensor="margin"} < $margin_celsius) or '
        '(scope_gpu_temperature_celsius{sensor="core"} >= $core_warning '
        'unless on (cluster, job, instance, uuid) scope_gpu_temperature_celsius{sensor="margin"})',
        "10m",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} is hot",
        "Sensor {{ $labels.sensor }} reads {{ $value }} degrees (margin: distance to the slowdown temperature).",
        "The GPU is about to slow itself down.",
        "Check fans, inlet temperature and the neighbours in the rack.",
    ),
    Alert(
        "ScopeGpuTooHot",
        "scope-gpu",
        'scope_gpu_temperature_celsius{sensor="core"} >= $core_critical',
        "10m",
        "critical",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} is at {{ $value }} degrees",
        "The core is beyond what any data-centre GPU is made for.",
        "Cooling has failed.",
        "Drain the node now.",
    ),
    Alert(
        "ScopeMemoryHot",
        "scope-gpu",
        'scope_gpu_temperature_celsius{sensor="memory"} >= $memory_celsius',
        "10m",
        "warning",
        "Memory of GPU {{ $labels.gpu }} of {{ $labels.instance }} is at {{ $value }} degrees",
        "HBM is near the temperature at which it slows down.",
        "Memory heat causes slowdowns and errors before the core's temperature shows anything.",
        "Check cooling as for ScopeGpuHot.",
    ),
)

LINK_ALERTS: Final = (
    Alert(
        "ScopeNvlinkDown",
        "scope-links",
        "scope_nvlink_up == 0 and on (cluster, job, instance, uuid, link) scope:nvlink_up:last_timestamp",
        "2m",
        "critical",
        "NVLink {{ $labels.link }} of GPU {{ $labels.gpu }} of {{ $labels.instance }} is down",
        "The link was up within the time of setting remember.",
        "Collectives in the node run at the pace of the GPU with the fewest links. The alert stays as long as the link "
        "is down, at most for the time of setting remember (7 days by default). Prometheus itself remembers when each "
        "link was up, and forgets it when it is stopped for more than an hour.",
        "Look for NVLink XIDs; reset the GPUs of the node, then reseat. Links that never were up are not meant.",
    ),
    Alert(
        "ScopeNvlinkErrors",
        "scope-links",
        'floor(increase(scope_nvlink_gpu_errors_total{type=~"replay|recovery|recovery_failed"}[10m])) >= 1',
        "0s",
        "warning",
        "NVLink {{ $labels.type }} on GPU {{ $labels.gpu }} of {{ $labels.instance }}",
        "{{ $value | printf `%.0f` }} within ten minutes.",
        "A healthy link has none. Each costs time, and they announce the link's end.",
        "scope_nvlink_errors_total names the link; compare with its far end; plan a reseat.",
    ),
    Alert(
        "ScopeNvlinkCrc",
        "scope-links",
        'rate(scope_nvlink_gpu_errors_total{type=~"crc_.*"}[5m]) > $nvlink_crc_rate',
        "1m",
        "critical",
        "NVLink CRC errors on GPU {{ $labels.gpu }} of {{ $labels.instance }}",
        "{{ $value | humanize }} errors a second.",
        "The link works only by sending again.",
        "Drain and reseat or replace; see ScopeNvlinkErrors.",
    ),
    Alert(
        "ScopeNvlinkSlow",
        "scope-links",
        "(scope_nvlink_speed_bytes_per_second < on (cluster, job, instance, gpu, uuid) group_left () "
        "max by (cluster, job, instance, gpu, uuid) (scope_nvlink_speed_bytes_per_second)) or "
        "(scope_nvlink_speed_bytes_per_second < $nvlink4_speed "
        'and on (cluster, job, instance, uuid, link) scope_nvlink_info{version="4.0"}) or '
        "(scope_nvlink_speed_bytes_per_second < $nvlink5_speed "
        'and on (cluster, job, instance, uuid, link) scope_nvlink_info{version="5.0"})',
        "5m",
        "warning",
        "NVLink {{ $labels.link }} of GPU {{ $labels.gpu }} of {{ $labels.instance }} is slow",
        "It runs at {{ $value | humanize }}B/s, less than its version of NVLink does or the GPU's other links do.",
        "The link trained at a lower speed.",
        "Reset the GPU; if it comes back, reseat.",
    ),
    Alert(
        "ScopeNvlinkAsymmetry",
        "scope-links",
        'min by (cluster, job, instance, gpu, uuid) (rate(scope_nvlink_transmit_bytes_total{layer="data"}[5m])) '
        "< $nvlink_asymmetry * "
        'avg by (cluster, job, instance, gpu, uuid) (rate(scope_nvlink_transmit_bytes_total{layer="data"}[5m])) '
        "and avg by (cluster, job, instance, gpu, uuid) "
        '(rate(scope_nvlink_transmit_bytes_total{layer="data"}[5m])) > $nvlink_busy',
        "5m",
        "warning",
        "A link of GPU {{ $labels.gpu }} of {{ $labels.instance }} carries less than the others",
        "The least used link carries {{ $value | humanize }}B/s, less than half of the mean.",
        "Traffic is spread evenly over the links of a GPU behind switches; one that lags is slow or degraded.",
        "Compare the links on the Links page; look at errors and speed of the slow one.",
    ),
    Alert(
        "ScopeFabricFault",
        "scope-links",
        "scope_gpu_fabric_fault == 1",
        "5m",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} and the NVLink fabric: {{ $labels.fault }}",
        "NVML says so of the GPU's place behind the switches; scope_gpu_fabric_info has its cluster and clique.",
        "The GPU reaches others over fewer links, over a detour, or not at all; multicast and MNNVL may be off.",
        "nvidia-smi -q (Fabric) and the fabric manager's log; degraded_bandwidth: look for NVLinks that are down.",
    ),
    Alert(
        "ScopePcieWidth",
        "scope-links",
        "scope_pcie_link_width < scope_pcie_link_width_max",
        "10m",
        "warning",
        "PCIe of GPU {{ $labels.gpu }} of {{ $labels.instance }} has only {{ $value }} lanes",
        "Card and slot can do more.",
        "Lanes failed to train; host transfers and GPUDirect are slower in proportion.",
        "Reseat card or riser.",
    ),
    Alert(
        "ScopePcieGeneration",
        "scope-links",
        "scope_pcie_link_generation < scope_pcie_link_generation_max and scope_gpu_utilization_ratio > $pcie_busy",
        "10m",
        "warning",
        "PCIe of GPU {{ $labels.gpu }} of {{ $labels.instance }} runs at generation {{ $value }}",
        "The GPU is busy, so this is no power saving.",
        "The link trained at a lower speed; an idle GPU does so on purpose.",
        "Reseat card or riser; check the BIOS.",
    ),
    Alert(
        "ScopePcieReplays",
        "scope-links",
        "rate(scope_pcie_replays_total[5m]) * 60 > "
        "ceil(scope_pcie_link_width * $pcie_replays_lane * 2 ^ scope_pcie_link_generation)",
        "5m",
        "warning",
        "PCIe replays on GPU {{ $labels.gpu }} of {{ $labels.instance }}",
        "{{ $value | humanize }} replays a minute.",
        "More packets are sent again than a bit error rate of 1e-12 explains.",
        "Reseat card or riser.",
    ),
)

NETWORK_ALERTS: Final = (
    Alert(
        "ScopeRdmaPortDown",
        "scope-network",
        # 5 is active deferred: the port keeps its connections over a short fault of the link. 2 and 3, initialising and
        # armed, are links that have trained and wait for their subnet manager; no port should do so for long.
        "scope_rdma_port_state < 4 and on (cluster, job, instance, device, port) scope:rdma_port_active:last_timestamp "
        "or scope_rdma_port_state > 1 < 4",
        "1m",
        "critical",
        "Port {{ $labels.port }} of {{ $labels.device }} of {{ $labels.instance }} is down",
        "Its state is {{ $value }} (1 down, 2 initialising, 3 armed, 4 active); one that is down was active within the "
        "time of setting remember.",
        "Collectives across nodes lose a rail, or the whole job. The alert stays as long as the port is not active, at "
        "most for the time of setting remember (7 days by default). Prometheus itself remembers when each port was "
        "active, and forgets it when it is stopped for more than an hour.",
        "Cable, transceiver, switch port, in this order. One that stays initialising or armed has a link and no subnet "
        "manager that configures it: look at that. Ports that are down and never were active are not meant, and one "
        "that is active deferred (5) counts as active.",
    ),
    Alert(
        "ScopeRdmaPortFlaps",
        "scope-network",
        # Prometheus stretches an increase to the ends of its range: three make 3.007, never less than three.
        'floor(increase(scope_rdma_port_events_total{counter="link_downed"}[3h])) > $link_flaps '
        "and on (cluster, job, instance, device, port) scope_rdma_port_state",
        "1m",
        "warning",
        "Port {{ $labels.port }} of {{ $labels.device }} of {{ $labels.instance }} flaps",
        "It went down {{ $value | printf `%.0f` }} times in three hours.",
        "Each time, NCCL retries or aborts.",
        "Clean or replace the cable; check the transceiver's temperature.",
    ),
    Alert(
        "ScopeRdmaLinkErrors",
        "scope-network",
        '(floor(increase(scope_rdma_port_events_total{counter="link_error_recovery"}[10m])) > $link_recoveries) or '
        '(floor(increase(scope_rdma_port_events_total{counter="symbol_error"}[10m])) > $symbol_errors)',
        "0s",
        "warning",
        "{{ $labels.counter }} rises on {{ $labels.device }} of {{ $labels.instance }}",
        "{{ $value | printf `%.0f` }} within ten minutes.",
        "The cable or its ends are dirty or failing.",
        "Clean or replace the cable before the port goes down.",
    ),
    Alert(
        "ScopeRdmaCongestion",
        "scope-network",
        'rate(scope_rdma_hardware_events_total{counter="np_ecn_marked_roce_packets"}[5m]) '
        "> on (cluster, job, instance, device, port) group_left () "
        "$ecn_ratio * rate(scope_rdma_receive_packets_total[5m])",
        "5m",
        "info",
        "Congestion towards {{ $labels.device }} of {{ $labels.instance }}",
        "{{ $value | humanize }} packets a second arrive marked.",
        "Switches on the way are congested and the senders slow down.",
        "Look at routing, ECMP and rail placement.",
    ),
    Alert(
        "ScopeRdmaRetries",
        "scope-network",
        'rate(scope_rdma_hardware_events_total{counter=~"out_of_sequence|packet_seq_err"}[5m]) > 0',
        "5m",
        "warning",
        "Packets are lost towards {{ $labels.device }} of {{ $labels.instance }}",
        "{{ $labels.counter }}: {{ $value | humanize }} a second for five minutes.",
        "The fabric drops packets; RDMA sends whole windows again.",
        "Check PFC and ECN on the path, and cables.",
    ),
    Alert(
        "ScopeRdmaTimeouts",
        "scope-network",
        'rate(scope_rdma_hardware_events_total{counter=~"local_ack_timeout_err|roce_adp_retrans_to"}[5m]) > 0',
        "5m",
        "critical",
        "{{ $labels.device }} of {{ $labels.instance }} runs into timeouts",
        "{{ $labels.counter }}: {{ $value | humanize }} a second for five minutes.",
        "Such timeouts come before NCCL gives up.",
        "Find the far end by its own counters; drain the worse of the two.",
    ),
    Alert(
        "ScopePfcStorm",
        "scope-network",
        'rate(scope_net_pfc_pause_seconds_total{direction="rx"}[1m]) > $pfc_paused',
        "2m",
        "warning",
        "{{ $labels.device }} of {{ $labels.instance }} is paused on priority {{ $labels.priority }}",
        "It may not send {{ $value | humanizePercentage }} of the time.",
        "The switch stops this port because something behind it cannot take the traffic.",
        "Find the receiver whose tx pauses rise; it is the slow one.",
    ),
    Alert(
        "ScopeNicUnderspeed",
        "scope-network",
        "scope_rdma_port_rate_bytes_per_second < $nic_bytes_per_second and scope_rdma_port_state >= 4",
        "5m",
        "warning",
        "{{ $labels.device }} of {{ $labels.instance }} runs at {{ $value | humanize }}B/s",
        "Every port should have the rate of setting nic_bytes_per_second.",
        "The port trained at a lower rate. Of a port that is not active, ScopeRdmaPortDown tells.",
        "Cable and transceiver; the switch port's configuration.",
    ),
    Alert(
        "ScopeTrainingOnSockets",
        "scope-network",
        # RDMA may be idle, or its devices gone. The run must span nodes, and one of them must have, or have had, RDMA.
        "(sum by (cluster, job, instance) (rate(scope_net_transmit_bytes_total[5m])) > $socket_bytes "
        "unless sum by (cluster, job, instance) (rate(scope_rdma_transmit_bytes_total[5m])) >= 1e6) "
        "and on (cluster, job, instance) (count by (cluster, job, instance, run) (scope_train_active == 1) "
        "and on (cluster, run) "
        "(count by (cluster, run) (count by (cluster, instance, run) (scope_train_active == 1)) > 1) "
        "and on (cluster, run) (count by (cluster, job, instance, run) (scope_train_active == 1) "
        "and on (cluster, job, instance) scope:rdma_port_active:last_timestamp))",
        "5m",
        "warning",
        "Training on {{ $labels.instance }} uses Ethernet while RDMA is idle or gone",
        "{{ $value | humanize }}B/s leave by Ethernet, and less than 1 MB/s by RDMA.",
        "NCCL did not find its RDMA transport and fell back to sockets. Only runs with ranks on several nodes are "
        "meant, of which at least one had an active RDMA port within the time of setting remember.",
        "scope doctor on the node; NCCL_DEBUG=INFO says which NET was chosen and why. Without any RDMA series the "
        "device or its driver is gone: lspci, and mlx5_ib in lsmod.",
    ),
    Alert(
        "ScopeNfsQueue",
        "scope-storage",
        "rate(scope_nfs_queue_seconds_total[5m]) / (rate(scope_nfs_operations_total[5m]) > 0) > $nfs_queue",
        "5m",
        "warning",
        "{{ $labels.operation }} waits in the queue of {{ $labels.mount }} of {{ $labels.instance }}",
        "Each operation waits {{ $value | humanizeDuration }} before it is sent.",
        "All slots of the connection are taken: the client, not the server or the wire, is the limit.",
        "More connections (nconnect), more slots, or fewer ranks that write at once.",
    ),
    Alert(
        "ScopeNfsBacklog",
        "scope-storage",
        "rate(scope_nfs_backlog_requests_total[5m]) / (rate(scope_nfs_rpc_requests_total[5m]) > 0) > $nfs_backlog",
        "5m",
        "warning",
        "Requests pile up for {{ $labels.mount }} of {{ $labels.instance }}",
        "On average {{ $value | humanize }} requests wait behind each one.",
        "See ScopeNfsQueue.",
        "See ScopeNfsQueue.",
    ),
    Alert(
        "ScopeMemoryPressure",
        "scope-host",
        'rate(scope_pressure_stalled_seconds_total{resource="memory",extent="full"}[5m]) > $memory_pressure',
        "5m",
        "warning",
        "{{ $labels.instance }} stalls on memory",
        "All tasks together stood still {{ $value | humanizePercentage }} of the time.",
        "The node is about to kill processes for lack of memory.",
        "Find the largest process; data loaders first.",
    ),
    Alert(
        "ScopeOomKill",
        "scope-host",
        "floor(increase(scope_oom_kills_total[10m])) > 0",
        "0s",
        "warning",
        "{{ $labels.instance }} killed a process for lack of memory",
        "{{ $value | printf `%.0f` }} within ten minutes.",
        "If it was a rank, the run's post-mortem shows one that ended without a word.",
        "dmesg names the process.",
    ),
)
