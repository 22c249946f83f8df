"""Alerts on the exporter itself."""

from __future__ import annotations

from alert_cases.series import Case, N, hold

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
