"""Write rule files, manifest and runbook from the table, so that they cannot differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from dashboards.alerts.hardware_rules import GPU_ALERTS, LINK_ALERTS, NETWORK_ALERTS
from dashboards.alerts.model import Alert, Values, choose_values, format_number
from dashboards.alerts.settings import SETTINGS
from dashboards.alerts.training_rules import EXPORTER_ALERTS, RECORDINGS, TRAINING_ALERTS

if TYPE_CHECKING:
    from collections.abc import Iterable

ALERTS: Final[tuple[Alert, ...]] = (*GPU_ALERTS, *LINK_ALERTS, *NETWORK_ALERTS, *EXPORTER_ALERTS, *TRAINING_ALERTS)
RUNBOOK_URL: Final = "https://github.com/stepscope/stepscope/blob/main/dashboards/alerts/RUNBOOK.md"
_HEADER: Final = (
    "# Made from the table in dashboards/alerts by `python -m dashboards.alerts`; edit the table instead.\n"
)


def build_groups(values: Values, *, interval: str = "30s", runbook_url: str = RUNBOOK_URL) -> list[dict[str, Any]]:
    """Return the rule groups as Prometheus reads them.

    Args:
        values: The site's settings.
        interval: How often rules are evaluated.
        runbook_url: Address of the runbook; each alert adds its own anchor.
    """
    recordings = [
        {"record": recording.name, "expr": values.expression(recording.expression)} for recording in RECORDINGS
    ]
    groups: dict[str, list[dict[str, Any]]] = {"scope-recording": recordings}
    for alert in ALERTS:
        groups.setdefault(alert.group, []).append(_build_alert(alert, values, runbook_url))
    pace = values.duration(interval)
    return [{"name": name, "interval": pace, "rules": rules} for name, rules in groups.items()]


def _build_alert(alert: Alert, values: Values, runbook_url: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"alert": alert.name, "expr": values.expression(alert.expression)}
    if alert.hold != "0s":
        rule["for"] = values.duration(alert.hold)
    if alert.keep is not None:
        rule["keep_firing_for"] = values.duration(alert.keep)
    rule["labels"] = {"severity": alert.severity}
    rule["annotations"] = {
        "summary": alert.summary,
        "description": alert.description,
        "runbook_url": f"{runbook_url}#{alert.name.lower()}",
    }
    return rule


def render_rules(values: Values) -> str:
    """Return the rule file for `rule_files`."""
    return _HEADER + _dump({"groups": build_groups(values)})


def render_manifest(values: Values, *, namespace: str = "monitoring") -> str:
    """Return a PrometheusRule for the Prometheus operator."""
    return _HEADER + _dump(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "scope", "namespace": namespace, "labels": {"app.kubernetes.io/name": "scope"}},
            "spec": {"groups": build_groups(values)},
        }
    )


def render_runbook() -> str:
    """Return the runbook: a section an alert, and the settings."""
    lines = [
        "# Runbook",
        "",
        "One section an alert, and at the end the thresholds. Made from the table in `dashboards/alerts` by",
        "`python -m dashboards.alerts`; edit the table instead.",
        "",
        "A run is called by its label, eight characters: `scope runs list FOLDER` shows which run directory has it,",
        '`scope_train_info{run="..."}` which run id. `scope show` and `scope doctor` take that directory.',
        "",
        "One Prometheus may hold several clusters: series of a node meet within their `cluster`, `job` and `instance`,",
        "those of a run within their `cluster`. No label `cluster` is needed: where it is absent, all is one cluster.",
        "",
    ]
    for alert in ALERTS:
        lines += _runbook_section(alert)
    lines += [
        "## Settings",
        "",
        "`python -m dashboards.alerts --set NAME=VALUE` writes rules with other thresholds.",
        "",
    ]
    lines += ["| setting | default | may be | unit | what it decides |", "|---|---|---|---|---|"]
    for setting in SETTINGS:
        low, high = (format_number(bound) for bound in setting.bounds)
        default = format_number(setting.default)
        lines.append(f"| `{setting.name}` | {default} | {low} to {high} | {setting.unit} | {setting.meaning} |")
    return "\n".join(lines) + "\n"


def _runbook_section(alert: Alert) -> list[str]:
    when = "at once" if alert.hold == "0s" else f"after {alert.hold}"
    defaults = choose_values(SETTINGS, [])
    return [
        f"## {alert.name}",
        "",
        f"**{alert.severity}**, fires {when}.",
        "",
        "```promql",
        defaults.expression(alert.expression),
        "```",
        "",
        f"**What it means.** {alert.meaning}",
        "",
        f"**What to do.** {alert.action}",
        "",
    ]


def find_setting_names(texts: Iterable[str]) -> set[str]:
    """Return the settings that expressions refer to."""
    from string import Template

    return {name for text in texts for name in Template(text).get_identifiers()}


def _dump(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=10_000, allow_unicode=True)
