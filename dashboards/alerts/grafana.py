"""A Grafana dashboard from a table of panels, for those who live there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from dashboards.alerts.expressions import express_mfu

_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_WIDTH: Final = 12
_HEIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph.

    Attributes:
        title: What it shows, with what to compare.
        unit: Grafana's name of the unit.
        queries: Expression and legend of each line.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


_RUN: Final = 'cluster=~"$cluster",run=~"$run"'
_NODE: Final = 'cluster=~"$cluster",instance=~"$node"'

ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Is it running, and how fast",
        (
            Panel(
                "Tokens a second",
                "short",
                ((f"sum by (cluster, run) (scope:train_tokens:rate{{{_RUN}}})", "{{cluster}} {{run}}"),),
            ),
            Panel(
                "Model FLOPs utilisation of the run in its last step",
                "percentunit",
                ((express_mfu(by="cluster, run", where=_RUN), "{{cluster}} {{run}}"),),
            ),
            Panel(
                "Median step of a rank: the largest, and that of the median rank",
                "s",
                (
                    (
                        f"max by (cluster, run) (scope_train_step_median_seconds{{{_RUN}}})",
                        "{{cluster}} {{run}} largest",
                    ),
                    (
                        f"quantile by (cluster, run) (0.5, scope_train_step_median_seconds{{{_RUN}}})",
                        "{{cluster}} {{run}} median rank",
                    ),
                ),
            ),
            Panel(
                "Goodput",
                "percentunit",
                ((f"min by (cluster, run) (scope_train_goodput_ratio{{{_RUN}}})", "{{cluster}} {{run}}"),),
            ),
            Panel(
                "Ranks that run, and that are gone without a goodbye",
                "short",
                (
                    (
                        f"sum by (cluster, run) (max by (cluster, run, rank) (scope_train_active{{{_RUN}}}))",
                        "{{cluster}} {{run}} run",
                    ),
                    (
                        f"count by (cluster, run) (max by (cluster, run, rank) (scope_train_lost_seconds{{{_RUN}}}))",
                        "{{cluster}} {{run}} gone",
                    ),
                ),
            ),
        ),
    ),
    (
        "Where the step goes, and who is late",
        (
            Panel(
                "Share of the step by phase",
                "percentunit",
                ((f"scope:train_phase:ratio{{{_RUN}}}", "{{cluster}} {{run}} {{phase}}"),),
            ),
            Panel(
                "Time a rank does not wait, of its step",
                "percentunit",
                ((f"scope:train_own_time:ratio{{{_RUN}}}", "{{cluster}} {{run}} rank {{rank}}"),),
            ),
            Panel(
                "Collective bytes a second",
                "Bps",
                (
                    (
                        f"sum by (operation, axis) (scope:train_collective_bytes:rate{{{_RUN}}})",
                        "{{operation}} {{axis}}",
                    ),
                ),
            ),
            Panel(
                "Peak memory of the last step",
                "bytes",
                ((f'scope_train_memory_bytes{{{_RUN},kind="allocated"}}', "{{cluster}} {{run}} rank {{rank}}"),),
            ),
        ),
    ),
    (
        "GPUs",
        (
            Panel(
                "Multiprocessors and tensor cores at work",
                "percentunit",
                (
                    (f'scope_gpu_sm_active_ratio{{{_NODE},mig=""}}', "{{cluster}} {{instance}} GPU {{gpu}} SM"),
                    (f'scope_gpu_tensor_active_ratio{{{_NODE},mig=""}}', "{{cluster}} {{instance}} GPU {{gpu}} tensor"),
                ),
            ),
            Panel(
                "Power, and its limit",
                "watt",
                (
                    (f"scope_gpu_power_watts{{{_NODE}}}", "{{cluster}} {{instance}} GPU {{gpu}}"),
                    (
                        f"max by (cluster, instance) (scope_gpu_power_limit_watts{{{_NODE}}})",
                        "{{cluster}} {{instance}} limit",
                    ),
                ),
            ),
            Panel(
                "Temperature",
                "celsius",
                (
                    (
                        f'scope_gpu_temperature_celsius{{{_NODE},sensor!="margin"}}',
                        "{{cluster}} {{instance}} GPU {{gpu}} {{sensor}}",
                    ),
                ),
            ),
            Panel(
                "Throttled by hardware",
                "percentunit",
                (
                    (
                        f'rate(scope_gpu_throttle_seconds_total{{{_NODE},reason=~"hw_.*"}}[5m])',
                        "{{cluster}} {{instance}} GPU {{gpu}} {{reason}}",
                    ),
                ),
            ),
        ),
    ),
    (
        "Links",
        (
            Panel(
                "NVLink payload sent by a GPU",
                "Bps",
                ((f"scope:nvlink_transmit:rate{{{_NODE}}}", "{{cluster}} {{instance}} GPU {{gpu}}"),),
            ),
            Panel(
                "Use of each NVLink, raw",
                "percentunit",
                ((f"scope:nvlink_use:ratio{{{_NODE}}}", "{{cluster}} {{instance}} GPU {{gpu}} link {{link}}"),),
            ),
            Panel(
                "Use of each RDMA port",
                "percentunit",
                ((f"scope:rdma_transmit_use:ratio{{{_NODE}}}", "{{cluster}} {{instance}} {{device}}"),),
            ),
            Panel(
                "Paused by flow control",
                "percentunit",
                (
                    (
                        f'rate(scope_net_pfc_pause_seconds_total{{{_NODE},direction="rx"}}[5m])',
                        "{{cluster}} {{instance}} {{device}} priority {{priority}}",
                    ),
                ),
            ),
        ),
    ),
    (
        "Storage, and what is wrong",
        (
            Panel(
                "NFS: time an operation waits in the queue",
                "s",
                (
                    (
                        f"rate(scope_nfs_queue_seconds_total{{{_NODE}}}[5m]) "
                        f"/ (rate(scope_nfs_operations_total{{{_NODE}}}[5m]) > 0)",
                        "{{cluster}} {{instance}} {{mount}} {{operation}}",
                    ),
                ),
            ),
            Panel("Firing alerts", "short", (('count by (alertname) (ALERTS{alertstate="firing"})', "{{alertname}}"),)),
            Panel(
                "Age of the last sample",
                "s",
                ((f"scope_exporter_sample_age_seconds{{{_NODE}}}", "{{cluster}} {{instance}}"),),
            ),
            Panel(
                "Figures that could not be read",
                "short",
                (
                    (
                        f"floor(increase(scope_exporter_sample_errors_total{{{_NODE}}}[1h]))",
                        "{{cluster}} {{instance}} {{collector}} {{error}}",
                    ),
                ),
            ),
        ),
    ),
)


def render_dashboard() -> str:
    """Return the dashboard's JSON, ready to be imported."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(_row(title, len(panels) + 1, top))
        top += 1
        for place, panel in enumerate(row):
            position = {"h": _HEIGHT, "w": _WIDTH, "x": place * _WIDTH % _COLUMNS, "y": top + place // 2 * _HEIGHT}
            panels.append(_graph(panel, len(panels) + 1, position))
        top += (len(row) + 1) // 2 * _HEIGHT
    document = {
        "title": "Scope: training runs and their nodes",
        "uid": "scope-overview",
        "tags": ["scope"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }
    return json.dumps(document, indent=1) + "\n"


def _row(title: str, number: int, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
        "panels": [],
    }


def _graph(panel: Panel, number: int, position: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _DATASOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": {"spanNulls": False}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"datasource": _DATASOURCE, "expr": expression, "legendFormat": legend, "refId": chr(ord("A") + place)}
            for place, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    chosen = {
        "type": "query",
        "datasource": _DATASOURCE,
        "includeAll": True,
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }
    # All of them also where Prometheus knows no clusters: a label that is absent matches .*.
    cluster = {
        **chosen,
        "name": "cluster",
        "label": "Cluster",
        "query": "label_values(scope_collector_up, cluster)",
        "allValue": ".*",
    }
    run = {
        **chosen,
        "name": "run",
        "label": "Run",
        "query": 'label_values(scope_train_active{cluster=~"$cluster"}, run)',
    }
    node = {
        **chosen,
        "name": "node",
        "label": "Node",
        "query": 'label_values(scope_collector_up{cluster=~"$cluster"}, instance)',
    }
    return [source, cluster, run, node]
