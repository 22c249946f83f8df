"""Clusters whose nodes have the same names, and nodes that two jobs scrape, in one Prometheus: none meet by mistake."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.alerts.generate import build_groups
from dashboards.alerts.grafana import render_dashboard
from dashboards.alerts.model import choose_values
from dashboards.alerts.settings import SETTINGS
from dashboards.alerts.training_rules import RECORDINGS


def load_cases() -> Any:
    """Load the table of cases, which lies beside this file."""
    specification = importlib.util.spec_from_file_location("cluster_cases", Path(__file__).with_name("cases.py"))
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["cluster_cases"] = module
    specification.loader.exec_module(module)
    return module


cases = load_cases()
OF_A_RUN = {"ScopeStepRegression", "ScopeImposedWait", "ScopeVerdict", "ScopeDataloaderBound", "ScopeGoodputLow"}
"""Alerts on a run as a whole, whoever scrapes its nodes."""
GROUPS = build_groups(choose_values(SETTINGS, []), interval=f"{cases.STEP_S}s")
JOINS = re.compile(r"\bby \(|\bon \(| and | or | unless | / |group_left|(?<!\{)[<>] \S*scope_")


def rules_for(alert: str) -> list[dict[str, Any]]:
    """Return an alert, after the recording rules that it reads."""
    recordings, *others = GROUPS
    rules = [rule for group in others for rule in group["rules"] if rule["alert"] == alert]
    wanted = [rule for rule in recordings["rules"] if any(rule["record"] in other["expr"] for other in rules)]
    return [*wanted, *rules]


JOINING = [case for case in cases.CASES if any(JOINS.search(rule["expr"]) for rule in rules_for(case.alert))]


def within(series: dict[str, str], cluster: str, job: str) -> dict[str, str]:
    """Return series as one job of one cluster gives them."""
    found: dict[str, str] = {}
    for key, values in series.items():
        name, _, labels = key.partition("{")
        own = f'cluster="{cluster}"' if 'job="' in labels else f'cluster="{cluster}",job="{job}"'
        found[f"{name}{{{own},{labels}"] = values
    return found


def count_by_cluster(alert: str, minute: int, expected: dict[str, int]) -> dict[str, Any]:
    """Return a promtool check: so many instances fire in each cluster, and none in another one."""
    return {
        "expr": f'count by (cluster) (ALERTS{{alertname="{alert}",alertstate="firing"}})',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": f'{{cluster="{name}"}}', "value": count} for name, count in expected.items()],
    }


def ask_promtool(folder: Path, rules: list[dict[str, Any]], tests: list[tuple[dict[str, str], dict[str, Any]]]) -> None:
    """Let promtool judge sets of series, each with one check."""
    groups = [{"name": "all", "interval": f"{cases.STEP_S}s", "rules": rules}]
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    made = [
        {
            "interval": f"{cases.STEP_S}s",
            "input_series": [{"series": key, "values": values} for key, values in series.items()],
            "promql_expr_test": [check],
        }
        for series, check in tests
    ]
    plan = {"rule_files": ["rules.yml"], "evaluation_interval": f"{cases.STEP_S}s", "tests": made}
    (folder / "test.yml").write_text(yaml.safe_dump(plan))
    command = ["promtool", "test", "rules", "test.yml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "err" not in done.stderr, done.stderr


@pytest.mark.system("promtool")
@pytest.mark.parametrize("case", JOINING, ids=lambda case: case.alert)
def test_equal_names_in_two_clusters_and_two_jobs(case: Any, tmp_path: Path) -> None:
    """A fault fires in its own cluster and job alone, and a cluster that is well neither hides nor borrows it."""
    jobs = 1 if case.alert in OF_A_RUN or any('job="' in key for key in case.fires) else 2
    everywhere: dict[str, str] = {}
    for cluster in ("c1", "c2"):
        for job in ("a", "b"):
            everywhere |= within(case.fires, cluster, job)
    count: int = jobs * case.count
    counts = {"c1": count, "c2": count}
    tests = [(everywhere, count_by_cluster(case.alert, case.at_minute, counts))]
    for quiet in case.quiet:
        series = within(case.fires, "c1", "a") | within(quiet, "c2", "a")
        tests.append((series, count_by_cluster(case.alert, case.at_minute, {"c1": case.count})))
    ask_promtool(tmp_path, rules_for(case.alert), tests)


def test_the_rules_that_join_are_known() -> None:
    """The choice of what is tested here leaves out no rule that aggregates or matches."""
    chosen = {case.alert for case in JOINING}
    assert {"ScopeRdmaCongestion", "ScopeRankLost", "ScopeGpuMissing", "ScopePcieWidth", "ScopeGoodputLow"} <= chosen
    assert not chosen & {"ScopeGpuLost", "ScopeOomKill"}


def test_every_match_and_sum_names_its_cluster() -> None:
    """No `by` or `on` of a rule forgets the cluster, nor the job where it names the node."""
    for group in GROUPS:
        for rule in group["rules"]:
            for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"]):
                names = labels.split(", ")
                assert "cluster" in names, rule
                # The nodes of a run are counted once, however many jobs scrape them.
                assert "instance" not in names or "job" in names or names == ["cluster", "instance", "run"], rule


def test_grafana_tells_clusters_apart() -> None:
    """Sums over a run keep the cluster, and the dashboard lets it be chosen."""
    text = render_dashboard()
    assert "by (run" not in text
    assert "label_values(scope_collector_up, cluster)" in text


RATE = 40.0


@pytest.mark.system("promtool")
@pytest.mark.parametrize(
    ("record", "metric", "labels"),
    [
        ("scope:train_tokens:rate", "scope_train_tokens_total", ""),
        ("scope:train_collective_bytes:rate", "scope_train_collective_bytes_total", 'operation="all_reduce",axis="dp"'),
    ],
)
def test_a_rank_that_two_jobs_scrape_counts_once(record: str, metric: str, labels: str, tmp_path: Path) -> None:
    """Two ranks of 40 a second make 80 in each cluster, not 160."""
    rules = [{"record": rule.name, "expr": rule.expression} for rule in RECORDINGS if rule.name == record]
    series = {
        key: cases.grow(RATE)
        for cluster in ("c1", "c2")
        for job in ("a", "b")
        for rank in (cases.RANK, cases.RANK1)
        for key in within({f"{metric}{{{rank},{labels}}}".replace(",}", "}"): ""}, cluster, job)
    }
    samples = [{"labels": f'{{cluster="{cluster}"}}', "value": 2 * RATE} for cluster in ("c1", "c2")]
    check = {"expr": f"sum by (cluster) ({record})", "eval_time": "20m", "exp_samples": samples}
    ask_promtool(tmp_path, rules, [(series, check)])
