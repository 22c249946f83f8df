"""Alerts on NICs, storage and the node."""

from __future__ import annotations

from alert_cases.series import LENGTH, PORT, Case, N, Series, change, counter_reset, grow, hold, jump


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
            # Its link has trained; no subnet manager ever came, or came halfway.
            f'scope_rdma_port_state{{{N},device="mlx5_2",port="1"}}': hold(2),
            f'scope_rdma_port_state{{{N},device="mlx5_3",port="1"}}': hold(3),
        },
        13,
        [
            {f"scope_rdma_port_state{{{PORT}}}": hold(1)},
            {f"scope_rdma_port_state{{{PORT}}}": hold(4)},
            # Active deferred: the port keeps its connections.
            {f"scope_rdma_port_state{{{PORT}}}": change(4, 5, after=40)},
            # A port that comes up for the first time passes through both.
            {f"scope_rdma_port_state{{{PORT}}}": f"1x40 2 3 4x{LENGTH}"},
        ],
        count=4,
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
        {
            f"scope_rdma_port_rate_bytes_per_second{{{PORT}}}": hold(25e9),
            f"scope_rdma_port_state{{{PORT}}}": hold(4),
            f'scope_rdma_port_rate_bytes_per_second{{{N},device="mlx5_1",port="1"}}': hold(25e9),
            f'scope_rdma_port_state{{{N},device="mlx5_1",port="1"}}': hold(5),
        },
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
            # Not active yet: that is another alert's.
            {
                f"scope_rdma_port_rate_bytes_per_second{{{PORT}}}": hold(25e9),
                f"scope_rdma_port_state{{{PORT}}}": hold(2),
            },
        ],
        count=2,
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
