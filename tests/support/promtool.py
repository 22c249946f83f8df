"""Ask promtool what alerts do on series that a test writes down."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

Rules = list[dict[str, Any]]


def rules_for(alert: str, groups: Rules) -> Rules:
    """Return an alert after the recording rules that it reads: promtool evaluates every rule of its file each time.

    Args:
        alert: Its name.
        groups: All rule groups, the recording rules first.
    """
    recordings, *others = groups
    rules = [rule for group in others for rule in group["rules"] if rule["alert"] == alert]
    for recording in reversed(recordings["rules"]):
        # One that reads another stands behind it.
        if any(recording["record"] in other["expr"] for other in rules):
            rules.insert(0, recording)
    return rules


def make_check(expression: str, minute: int, expected: dict[str, float]) -> dict[str, Any]:
    """Return what an expression must give at a time: value by labels, nothing for none."""
    samples = [{"labels": labels, "value": value} for labels, value in expected.items()]
    return {"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples}


def count_firing(alert: str, minute: int, expected: int) -> dict[str, Any]:
    """Return the check that so many instances of an alert fire at a time."""
    question = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return make_check(question, minute, {"{}": expected} if expected else {})


def make_test(series: dict[str, str], checks: Rules, *, interval: str, name: str = "") -> dict[str, Any]:
    """Return one test group: series with a value each interval, and what must hold of them."""
    inputs = [{"series": key, "values": values} for key, values in series.items()]
    return {"name": name, "interval": interval, "input_series": inputs, "promql_expr_test": checks}


def ask_promtool(folder: Path, rules: Rules, tests: Rules, *, interval: str) -> None:
    """Let promtool evaluate rules each interval and judge the tests; fail with what it says.

    Args:
        folder: Where its files are written.
        rules: In the order of their evaluation.
        tests: Test groups.
        interval: Length of time in Prometheus' form.
    """
    groups = [{"name": "all", "interval": interval, "rules": rules}]
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    plan = {"rule_files": ["rules.yml"], "evaluation_interval": interval, "tests": tests}
    (folder / "test.yml").write_text(yaml.safe_dump(plan))
    command = ["promtool", "test", "rules", "test.yml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "err" not in done.stderr, done.stderr
