"""Alerts on the exporter itself."""

from __future__ import annotations

from alert_cases.series import LENGTH, Case, N, change, hold

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
        {
            # It answered once, whatever its job is called.
            f'up{{{N},job="gpu-nodes"}}': change(1, 0, after=20),
            f'scope_exporter_build_info{{{N},job="gpu-nodes",version="1"}}': f"1x20 stale _x{LENGTH}",
            # It never answered; its job tells what it is.
            'up{instance="n2",job="scope"}': hold(0),
            'up{instance="n3",job="monitoring/scope-exporter"}': hold(0),
            # It is no target any more.
            'up{instance="n4",job="pods"}': f"1x20 stale _x{LENGTH}",
            'scope_exporter_build_info{instance="n4",job="pods",version="1"}': f"1x20 stale _x{LENGTH}",
        },
        15,
        [
            {f'up{{{N},job="scope"}}': hold(1)},
            {f'up{{{N},job="other"}}': hold(0), 'up{instance="n2",job="telescope"}': hold(0)},
            {
                f'up{{{N},job="gpu-nodes"}}': hold(1),
                f'scope_exporter_build_info{{{N},job="gpu-nodes",version="1"}}': f"1x20 stale {hold(1)}",
                # Another exporter of the same node, whose job is ours in no way.
                f'up{{{N},job="node"}}': hold(0),
                # A new version is no other exporter.
                'up{instance="n2",job="x"}': hold(1),
                'scope_exporter_build_info{instance="n2",job="x",version="1"}': f"1x20 stale _x{LENGTH}",
                'scope_exporter_build_info{instance="n2",job="x",version="2"}': f"_x20 {hold(1)}",
            },
        ],
        count=4,
        # Their targets are gone: those that ever answered are missed.
        count_when_dead=2,
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
