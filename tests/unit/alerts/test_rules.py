"""Every rule by promtool: it fires, stays quiet, and copes with absent, reset and stale series."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_cases import CASES
from alert_cases.series import LENGTH, STEP_S, Case
from promtool import ask_promtool, count_firing, make_test, rules_for

from dashboards.alerts.__main__ import main
from dashboards.alerts.generate import (
    ALERTS,
    build_groups,
    find_setting_names,
    render_manifest,
    render_rules,
    render_runbook,
)
from dashboards.alerts.grafana import ROWS, render_dashboard
from dashboards.alerts.model import choose_values
from dashboards.alerts.settings import SETTINGS
from dashboards.alerts.training_rules import RECORDINGS
from exporters import metrics, training_series
from exporters.series import Metric
from scope.errors import UsageError

FOLDER = Path(metrics.__file__).parent.parent / "dashboards" / "alerts"
DEFAULTS = choose_values(SETTINGS, [])
INTERVAL = f"{STEP_S}s"
GROUPS = build_groups(DEFAULTS, interval=INTERVAL)


def die(values: str, minute: int) -> str:
    """Return the series up to a time, and then nothing: the exporter is dead."""
    kept = minute * 60 // STEP_S
    head = values.split(" ")[0]
    number = re.fullmatch(r"(.+)x\d+", head)
    assert number is not None
    rest = " ".join(values.split(" ")[1:])
    if rest:
        match = re.fullmatch(r"(.+)x(\d+)", head)
        assert match is not None
        first = int(match[2]) + 1
        second = rest.split(" ")[-1].rpartition("x")[0]
        middle = rest.split(" ")[:-1]
        left = max(1, kept - first - len(middle))
        return " ".join([head, *middle, f"{second}x{left}", "stale", f"_x{LENGTH}"])
    return f"{number[1]}x{kept} stale _x{LENGTH}"


def with_gap(values: str) -> str:
    """Return a series with twenty samples missing at its beginning, as after a restart of the exporter."""
    return f"_x20 {values}"


def make_tests(case: Case) -> list[dict[str, Any]]:
    """Return the five kinds of tests of one alert."""
    late = case.at_minute + 20
    reset = case.reset or {key: with_gap(values) for key, values in case.quiet[0].items()}
    dead = {key: die(values, case.at_minute + 5) for key, values in case.fires.items()}
    plans: list[tuple[str, dict[str, str], dict[int, int]]] = [
        ("fire", case.fires, {case.at_minute: case.count}),
        ("absent", {}, {case.at_minute: 0}),
        *((f"quiet {number}", series, {case.at_minute: 0, late: 0}) for number, series in enumerate(case.quiet)),
        ("reset", reset, dict.fromkeys(range(40, 80, 2), 0)),
        ("stale", dead, {late: case.count_when_dead}),
    ]
    return [
        make_test(
            series,
            [count_firing(case.alert, minute, count) for minute, count in expected.items()],
            interval=INTERVAL,
            name=name,
        )
        for name, series, expected in plans
    ]


def test_every_alert_has_its_case() -> None:
    """No alert goes untested, and none is tested that does not exist."""
    assert sorted(case.alert for case in CASES) == sorted(alert.name for alert in ALERTS)
    assert all(case.quiet for case in CASES)


@pytest.mark.system("promtool")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_fire_quiet_absent_reset_stale(case: Case, tmp_path: Path) -> None:
    """The alert fires on its fault and on nothing else."""
    ask_promtool(tmp_path, rules_for(case.alert, GROUPS), make_tests(case), interval=INTERVAL)


@pytest.mark.system("promtool")
def test_the_committed_files_are_the_table(tmp_path: Path) -> None:
    """Rule file, manifest and runbook are what the table gives, and promtool has nothing to say of the rules."""
    assert (FOLDER / "scope.rules.yml").read_text() == render_rules(DEFAULTS)
    assert (FOLDER / "scope.prometheusrule.yaml").read_text() == render_manifest(DEFAULTS)
    assert (FOLDER / "RUNBOOK.md").read_text() == render_runbook()
    assert (FOLDER / "scope.grafana.json").read_text() == render_dashboard()
    for scale in (1, 60):
        path = tmp_path / f"{scale}.yml"
        path.write_text(render_rules(choose_values(SETTINGS, [], scale=scale)))
        command = ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_manifest_holds_the_same_groups() -> None:
    """The operator gets exactly the rules of the file."""
    manifest = yaml.safe_load(render_manifest(DEFAULTS))
    assert manifest["kind"] == "PrometheusRule"
    assert manifest["spec"]["groups"] == yaml.safe_load(render_rules(DEFAULTS))["groups"] == build_groups(DEFAULTS)


def test_every_alert_says_what_it_is() -> None:
    """Severity, summary, description and a runbook section that exists."""
    runbook = (FOLDER / "RUNBOOK.md").read_text()
    anchors = {line[3:].strip().lower() for line in runbook.splitlines() if line.startswith("## ")}
    for group in build_groups(DEFAULTS):
        for rule in group["rules"]:
            if "alert" not in rule:
                continue
            assert rule["labels"]["severity"] in {"critical", "warning", "info"}
            assert all(rule["annotations"][name] for name in ("summary", "description"))
            assert rule["annotations"]["runbook_url"].rpartition("#")[2] in anchors


def test_every_setting_is_used_and_every_use_is_a_setting() -> None:
    """No dead threshold, no unknown one."""
    used = find_setting_names(rule.expression for rule in (*ALERTS, *RECORDINGS))
    assert used == {setting.name for setting in SETTINGS}


def test_rules_speak_of_metrics_that_exist() -> None:
    """A metric that was renamed breaks no alert in silence."""
    known = {value.name for module in (metrics, training_series) for value in flatten(vars(module).values())}
    recorded = {rule["record"] for rule in build_groups(DEFAULTS)[0]["rules"]}
    for group in build_groups(DEFAULTS):
        for rule in group["rules"]:
            used = set(re.findall(r"scope[_:][a-z0-9_:]+", rule["expr"]))
            assert used <= known | recorded, used - known - recorded


@pytest.mark.system("promtool")
def test_grafana_speaks_of_metrics_that_exist(tmp_path: Path) -> None:
    """Every query of the dashboard is valid PromQL over known metrics."""
    known = {value.name for module in (metrics, training_series) for value in flatten(vars(module).values())}
    known |= {rule["record"] for rule in build_groups(DEFAULTS)[0]["rules"]}
    queries = [query for _, row in ROWS for panel in row for query, _ in panel.queries]
    for query in queries:
        assert set(re.findall(r"scope[_:][a-z0-9_:]+", query)) <= known, query
    rules = [{"record": f"q:{place}", "expr": query} for place, query in enumerate(queries)]
    (tmp_path / "q.yml").write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(tmp_path / "q.yml")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def flatten(values: Any) -> list[Metric]:
    """Return the metrics among a module's values."""
    found: list[Metric] = []
    for value in values:
        if isinstance(value, Metric):
            found.append(value)
        elif isinstance(value, dict):
            found += [item for item in value.values() if isinstance(item, Metric)]
    return found


def test_a_site_changes_a_threshold() -> None:
    """The value lands in the expression; mistakes are listed together."""
    rules = render_rules(choose_values(SETTINGS, ["nic_bytes_per_second=2.5e10"]))
    assert "scope_rdma_port_rate_bytes_per_second < 2.5e+10" in rules
    with pytest.raises(UsageError, match=r"no setting 'nope' \(there are core_.*\); 'x' is no number for goodput"):
        choose_values(SETTINGS, ["nope=1", "goodput=x"])


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One clear line and the exit code of bad input, where a file stands in the way of the folder."""
    (tmp_path / "file").write_text("")
    assert main(["--output", str(tmp_path / "file" / "rules")]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"scope: cannot write to {tmp_path}/file/rules: Not a directory")
    assert said.count("\n") == 1
