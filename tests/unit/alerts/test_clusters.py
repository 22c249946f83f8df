"""Clusters whose nodes have the same names, and nodes that two jobs scrape, in one Prometheus: none meet by mistake."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from alert_cases import CASES
from alert_cases.series import GPU, PORT, RANK, RANK1, STEP_S, Case, N, grow, hold
from promtool import ask_promtool, make_check, make_test, rules_for

from dashboards.alerts.generate import build_groups
from dashboards.alerts.grafana import render_dashboard
from dashboards.alerts.model import choose_values
from dashboards.alerts.settings import SETTINGS
from dashboards.alerts.training_rules import RECORDINGS
from dashboards.links import KINDS
from dashboards.server_overview import _FIGURES  # pyright: ignore[reportPrivateUsage]

if TYPE_CHECKING:
    from pathlib import Path

OF_A_RUN = {"ScopeStepRegression", "ScopeImposedWait", "ScopeVerdict", "ScopeDataloaderBound", "ScopeGoodputLow"}
"""Alerts on a run as a whole, whoever scrapes its nodes."""
INTERVAL = f"{STEP_S}s"
GROUPS = build_groups(choose_values(SETTINGS, []), interval=INTERVAL)
JOINS = re.compile(r"\bby \(|\bon \(| and | or | unless | / |group_left|(?<!\{)[<>] \S*scope_")
JOINING = [case for case in CASES if any(JOINS.search(rule["expr"]) for rule in rules_for(case.alert, GROUPS))]


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
    question = f'count by (cluster) (ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return make_check(question, minute, {f'{{cluster="{name}"}}': count for name, count in expected.items()})


@pytest.mark.system("promtool")
@pytest.mark.parametrize("case", JOINING, ids=lambda case: case.alert)
def test_equal_names_in_two_clusters_and_two_jobs(case: Case, tmp_path: Path) -> None:
    """A fault fires in its own cluster and job alone, and a cluster that is well neither hides nor borrows it."""
    jobs = 1 if case.alert in OF_A_RUN or any('job="' in key for key in case.fires) else 2
    everywhere: dict[str, str] = {}
    for cluster in ("c1", "c2"):
        for job in ("a", "b"):
            everywhere |= within(case.fires, cluster, job)
    count: int = jobs * case.count
    counts = {"c1": count, "c2": count}
    tests = [make_test(everywhere, [count_by_cluster(case.alert, case.at_minute, counts)], interval=INTERVAL)]
    for quiet in case.quiet:
        series = within(case.fires, "c1", "a") | within(quiet, "c2", "a")
        check = count_by_cluster(case.alert, case.at_minute, {"c1": case.count})
        tests.append(make_test(series, [check], interval=INTERVAL))
    ask_promtool(tmp_path, rules_for(case.alert, GROUPS), tests, interval=INTERVAL)


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
        key: grow(RATE)
        for cluster in ("c1", "c2")
        for job in ("a", "b")
        for rank in (RANK, RANK1)
        for key in within({f"{metric}{{{rank},{labels}}}".replace(",}", "}"): ""}, cluster, job)
    }
    expected = {f'{{cluster="{cluster}"}}': 2 * RATE for cluster in ("c1", "c2")}
    check = make_check(f"sum by (cluster) ({record})", 20, expected)
    ask_promtool(tmp_path, rules, [make_test(series, [check], interval=INTERVAL)], interval=INTERVAL)


CLUSTERS = [(cluster, job) for cluster in ("c1", "c2") for job in ("a", "b")]


@pytest.mark.system("promtool")
def test_what_the_dashboard_asks_of_links(tmp_path: Path) -> None:
    """Two links of 40 bytes a second make 80 in each of two clusters, also where two jobs scrape the node."""
    names = {"sent": "transmit", "received": "receive"}
    families = {
        "nvlink": (f'{GPU},link="0",layer="data"', f'{GPU},link="1",layer="data"'),
        "pcie": (GPU,), "rdma": (PORT,), "net": (f'{N},device="eth0"',),
    }  # fmt: skip
    series = {
        key: grow(RATE)
        for cluster, job in CLUSTERS
        for family, places in families.items()
        for place in places
        for word in names.values()
        for key in within({f"scope_{family}_{word}_bytes_total{{{place}}}": ""}, cluster, job)
    }
    checks = [
        make_check(
            f"sum by (cluster) ({expression.replace('$window', '1m')})",
            20,
            {f'{{cluster="{cluster}"}}': len(families[family]) * RATE for cluster in ("c1", "c2")},
        )
        for family, kind in zip(families, KINDS, strict=True)
        for expression in (kind.sent, kind.received)
    ]
    ask_promtool(tmp_path, [], [make_test(series, checks, interval=INTERVAL)], interval=INTERVAL)


@pytest.mark.system("promtool")
def test_what_the_dashboard_asks_of_runs(tmp_path: Path) -> None:
    """Of two ranks, each of 40 tokens a second, both clusters have two that live and 80 tokens a second."""
    series = {
        key: values
        for cluster, job in CLUSTERS
        for rank in (RANK, RANK1)
        for key, values in [
            *dict.fromkeys(within({f"scope_train_tokens_total{{{rank}}}": ""}, cluster, job), grow(RATE)).items(),
            *dict.fromkeys(within({f"scope_train_active{{{rank}}}": ""}, cluster, job), hold(1)).items(),
        ]
    }
    checks = [
        make_check(_FIGURES[name], 20, {f'{{cluster="{cluster}",run="r"}}': value for cluster in ("c1", "c2")})
        for name, value in (("active", 2), ("tokens_per_s", 2 * RATE))
    ]
    ask_promtool(tmp_path, [], [make_test(series, checks, interval=INTERVAL)], interval=INTERVAL)
