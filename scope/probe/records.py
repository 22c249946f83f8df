"""What the probes hand on: plain records, every field with its unit in its name, None where the hardware does not tell.

Counters are cumulative, as the hardware keeps them; nothing here is a rate. A record is small, typed and encodes with
msgspec, so that it can cross from the sampling process to the process that serves it.
"""

from __future__ import annotations

import msgspec


class Problem(msgspec.Struct, frozen=True, array_like=True):
    """Something that could not be read, or was refused.

    Attributes:
        collector: The reader that met it (`gpu`, `rdma`, ...).
        error: A short kind out of a small fixed set (`not_found`, `implausible`, `gpu_is_lost`, ...): it becomes a
            label.
        where: The file, call or GPU concerned.
        message: What was wrong, for the log.
    """

    collector: str
    error: str
    where: str
    message: str


class GpuIdentity(msgspec.Struct, array_like=True):
    """What names one GPU; read once.

    Attributes:
        index: NVML's index on this node.
        uuid: NVML's UUID.
        name: Product name as NVML spells it.
        pci_bus_id: Address in sysfs' form, `0000:1a:00.0`.
        numa_node: NUMA node by sysfs; None when it has none.
        serial: Board serial number; None when not told.
        driver: Driver version.
    """

    index: int
    uuid: str
    name: str = ""
    pci_bus_id: str = ""
    numa_node: int | None = None
    serial: str | None = None
    driver: str = ""


class NvlinkReading(msgspec.Struct, array_like=True):
    """One NVLink of one GPU.

    Attributes:
        link: Link number.
        state: 0 inactive, 1 active, 2 sleep, 3 active with traffic disabled; None when not told.
        speed_bytes_per_s: Raw signalling rate of one direction.
        version: `3.0`, `4.0`, ...; None when not told.
        data_transmit_bytes: Payload sent since the driver was loaded.
        data_receive_bytes: Payload received.
        raw_transmit_bytes: Sent with protocol overhead.
        raw_receive_bytes: Received with protocol overhead.
        errors: Cumulative errors by type.
        symbol_error_ratio: Symbol bit error ratio (NVLink 5).
        remote_pci: Address of the far end in sysfs' form.
        remote_type: `gpu`, `nvswitch`, `npu` or None.
        fec: What forward error correction repaired, by bin of its histogram (NVLink 5).
    """

    link: int
    state: int | None = None
    speed_bytes_per_s: int | None = None
    version: str | None = None
    data_transmit_bytes: int | None = None
    data_receive_bytes: int | None = None
    raw_transmit_bytes: int | None = None
    raw_receive_bytes: int | None = None
    errors: dict[str, int] = {}
    symbol_error_ratio: float | None = None
    remote_pci: str | None = None
    remote_type: str | None = None
    fec: dict[int, int] = {}


class C2cReading(msgspec.Struct, array_like=True):
    """One C2C link between a GPU and the CPU of its board.

    Attributes:
        link: Link number.
        up: 1 active, 0 inactive; None when not told.
        speed_bytes_per_s: Largest rate of one direction of an active link.
        low_power: 1 in the low power state, 0 at full power; None when not told.
        errors: Cumulative errors by type.
    """

    link: int
    up: int | None = None
    speed_bytes_per_s: int | None = None
    low_power: int | None = None
    errors: dict[str, int] = {}


class FabricReading(msgspec.Struct, array_like=True):
    """A GPU's place in the NVLink fabric behind switches.

    Attributes:
        state: 1 not started, 2 joining, 3 completed.
        cluster: UUID of the fabric's cluster; all zeros within one node.
        clique: Number of the part of the fabric whose GPUs reach each other.
        faults: 1 for what is wrong and 0 for what is not, by name; one that the GPU cannot tell is missing.
        configuration: What the configuration lacks; empty for nothing.
    """

    state: int
    cluster: str
    clique: int
    faults: dict[str, int] = {}
    configuration: str = ""


class EccCount(msgspec.Struct, array_like=True):
    """ECC errors of one kind: `type` corrected or uncorrected, `scope` volatile or aggregate, `location` a memory."""

    type: str
    scope: str
    location: str
    count: int


class MigReading(msgspec.Struct, array_like=True):
    """One MIG compute instance; memory belongs to its GPU instance and stands in the first of it only.

    Attributes:
        uuid: UUID of the MIG device.
        gpu_instance: GPU instance id.
        compute_instance: Compute instance id.
        profile: Name such as `MIG 3g.40gb`.
        num_slices: Compute slices of the GPU instance.
        memory_total_bytes: Memory of the GPU instance; None in its further compute instances.
        memory_used_bytes: Used memory of the GPU instance; None in its further compute instances.
        activity_ratio: GPM activities of the GPU instance by name, 0 to 1; empty in its further compute instances.
    """

    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str = ""
    num_slices: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    activity_ratio: dict[str, float] = {}


class GpuReading(msgspec.Struct, array_like=True):
    """All that one sample tells of one GPU.

    Attributes:
        identity: Which GPU.
        state: `ok`, `lost` (it no longer answers) or `quarantined` (set aside after a call that hung).
        read_ns: When it was read, on the sampling process's monotonic clock; 0 when it was not.
        utilization_ratio: Share of the last 1/6 to 1 s in which a kernel was resident.
        memory_total_bytes: Device memory.
        memory_used_bytes: Allocated, without what the driver reserves.
        memory_reserved_bytes: Kept by driver and firmware.
        memory_free_bytes: Free.
        power_mw: Draw of the GPU in milliwatts.
        power_limit_mw: Enforced limit in milliwatts.
        energy_mj: Energy since the driver was loaded, millijoules.
        sm_clock_hz: Clock of the multiprocessors.
        memory_clock_hz: Clock of the memory.
        temperature_celsius: By sensor: `core`, `memory`, `margin` (distance to slowdown).
        throttle_mask: NVML's bits of active clock event reasons.
        throttle_ns: Time throttled by reason since the driver was loaded.
        ecc: ECC counts.
        remapped_rows: Rows remapped by cause, `corrected` or `uncorrected`.
        row_remap_pending: A remap waits for a reset.
        row_remap_failure: A remap failed.
        recovery_action: NVML's recommended action, 0 none to 7 (`RECOVERY_ACTIONS`).
        pcie_transmit_bytes: Sent over PCIe; the hardware counter may wrap.
        pcie_receive_bytes: Received over PCIe; may wrap.
        pcie_replays: Replays.
        pcie_errors: Other PCIe error counters by type.
        pcie_generation: Current generation.
        pcie_generation_max: Largest generation of card and slot.
        pcie_width: Current number of lanes.
        pcie_width_max: Largest number of lanes of card and slot.
        activity_ratio: GPM activities of the whole GPU by name, 0 to 1.
        nvlinks: One reading a link.
        mig_enabled: MIG mode; None when the GPU has none.
        mig: MIG instances.
        pids: Processes that use the GPU, in the host's numbering.
        c2c: One reading a C2C link.
        fabric: Place in the NVLink fabric; None for a GPU that belongs to none.
        memory_utilization_ratio: Share of the same time in which memory was read or written.
        encoder_ratio: Share of the time of its own window in which the video encoder worked.
        decoder_ratio: The same of the video decoder.
    """

    identity: GpuIdentity
    state: str = "ok"
    read_ns: int = 0
    utilization_ratio: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_free_bytes: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    energy_mj: int | None = None
    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    temperature_celsius: dict[str, int] = {}
    throttle_mask: int | None = None
    throttle_ns: dict[str, int] = {}
    ecc: list[EccCount] = []
    remapped_rows: dict[str, int] = {}
    row_remap_pending: int | None = None
    row_remap_failure: int | None = None
    recovery_action: int | None = None
    pcie_transmit_bytes: int | None = None
    pcie_receive_bytes: int | None = None
    pcie_replays: int | None = None
    pcie_errors: dict[str, int] = {}
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    activity_ratio: dict[str, float] = {}
    nvlinks: list[NvlinkReading] = []
    mig_enabled: bool | None = None
    mig: list[MigReading] = []
    pids: list[int] = []
    c2c: list[C2cReading] = []
    fabric: FabricReading | None = None
    memory_utilization_ratio: float | None = None
    encoder_ratio: float | None = None
    decoder_ratio: float | None = None


class XidEvent(msgspec.Struct, frozen=True, array_like=True):
    """One XID that a GPU reported.

    Attributes:
        source: `nvml` or `kmsg`.
        pci_bus_id: Address in sysfs' form.
        uuid: UUID when the source tells it, else empty.
        xid: The number.
        time_ns: When it was seen, since the epoch.
    """

    source: str
    pci_bus_id: str
    uuid: str
    xid: int
    time_ns: int


class RdmaPort(msgspec.Struct, array_like=True):
    """One port of an InfiniBand or RoCE device.

    Attributes:
        device: Name such as `mlx5_0`.
        port: Port number.
        state: 1 down to 4 active, 5 active deferred; None when unreadable.
        physical_state: 3 disabled, 5 link up, ...; None when unreadable.
        rate_bytes_per_s: Port rate.
        link_layer: `InfiniBand` or `Ethernet`.
        netdev: Network interface of a RoCE port, else empty.
        pci_bus_id: Address of the device.
        numa_node: NUMA node; None when it has none.
        counters: `counters/*` by file name; `port_*_data` in bytes, under `port_*_data_bytes`.
        hw_counters: `hw_counters/*` by file name.
        board_id: Board of the device; empty when not told.
        firmware: Firmware version of the device; empty when not told.
        hca_type: Type of the device; empty when not told.
    """

    device: str
    port: int
    state: int | None = None
    physical_state: int | None = None
    rate_bytes_per_s: int | None = None
    link_layer: str = ""
    netdev: str = ""
    pci_bus_id: str = ""
    numa_node: int | None = None
    counters: dict[str, int] = {}
    hw_counters: dict[str, int] = {}
    board_id: str = ""
    firmware: str = ""
    hca_type: str = ""


class NetDevice(msgspec.Struct, array_like=True):
    """One network interface.

    Attributes:
        name: Interface name.
        up: `operstate` is `up`.
        virtual: No hardware stands behind it (bridge, veth, tunnel).
        speed_bytes_per_s: Link speed; None when down or virtual.
        carrier_downs: Times the carrier was lost.
        statistics: `statistics/*` by file name (`rx_bytes`, ...).
        pause_frames: PFC pause frames by (priority, direction), key `3/rx`.
        pause_ns: Time paused by (priority, direction).
        driver_counters: Allow-listed counters of the driver by name.
    """

    name: str
    up: bool
    virtual: bool = False
    speed_bytes_per_s: int | None = None
    carrier_downs: int | None = None
    statistics: dict[str, int] = {}
    pause_frames: dict[str, int] = {}
    pause_ns: dict[str, int] = {}
    driver_counters: dict[str, int] = {}


class NfsOperation(msgspec.Struct, array_like=True):
    """Cumulative figures of one NFS operation on one mount; times are summed over the operations."""

    name: str
    requests: int
    transmissions: int
    major_timeouts: int
    sent_bytes: int
    received_bytes: int
    queue_ns: int
    response_ns: int
    total_ns: int
    errors: int | None = None


class NfsMount(msgspec.Struct, array_like=True):
    """One NFS mount.

    Attributes:
        mount: Mount point.
        export: What is mounted, `server:/path`.
        age_s: Seconds since it was mounted.
        read_bytes: Bytes that applications read over the wire.
        write_bytes: Bytes written over the wire.
        transports: Number of connections (nconnect).
        backlog_cumulative: Sum over requests of the queue's length when each was sent (all transports).
        requests_sent: RPC requests sent, all transports.
        bad_xids: Replies that fitted no request.
        max_slots: Largest number of slots used so far, all transports; None where one does not tell it (RDMA, old UDP).
        operations: The operations that matter.
        protocol: Of its connections (`tcp`, `udp`, `rdma`); empty before the first.
    """

    mount: str
    export: str
    age_s: int
    read_bytes: int | None = None
    write_bytes: int | None = None
    transports: int = 0
    backlog_cumulative: int = 0
    requests_sent: int = 0
    bad_xids: int = 0
    max_slots: int | None = None
    operations: list[NfsOperation] = []
    protocol: str = ""


class Pressure(msgspec.Struct, array_like=True):
    """Time that tasks stalled on a resource (`cpu`, `memory`, `io`): some of them, or all (`full`), cumulative."""

    resource: str
    some_ns: int
    full_ns: int | None = None


class HostReading(msgspec.Struct, array_like=True):
    """CPU, memory and pressure of the node.

    Attributes:
        cpu_ns: CPU time by mode, all CPUs summed.
        num_cpus: CPUs online.
        load1_ratio: One-minute load average.
        memory_bytes: `/proc/meminfo` entries by their names, in bytes; huge pages times their size.
        oom_kills: Processes that the kernel killed for memory.
        pressure: PSI.
        boot_time_ns: Boot time since the epoch.
    """

    cpu_ns: dict[str, int] = {}
    num_cpus: int = 0
    load1_ratio: float | None = None
    memory_bytes: dict[str, int] = {}
    oom_kills: int | None = None
    pressure: list[Pressure] = []
    boot_time_ns: int | None = None


class Affinity(msgspec.Struct, array_like=True):
    """How near one NIC stands to one GPU.

    Attributes:
        gpu_uuid: The GPU.
        device: The RDMA device.
        distance: `PIX` (one switch), `PXB` (several), `PHB` (one host bridge), `NODE` (one NUMA node), `SYS` (crosses
            sockets), or `unknown`.
    """

    gpu_uuid: str
    device: str
    distance: str
