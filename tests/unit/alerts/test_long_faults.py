"""Alerts on what lasts: they stay for days, and end when their runbook says; by promtool, a sample a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from promtool import ask_promtool, count_firing, make_test, rules_for

from dashboards.alerts.generate import build_groups
from dashboards.alerts.model import choose_values
from dashboards.alerts.settings import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system("promtool")

INTERVAL = "1m"
HOUR = 60
DAY = 24 * HOUR
PORT = 'instance="n1",device="mlx5_0",port="1"'
MEDIAN = 'scope_train_step_median_seconds{instance="n1",run="r",rank="0"}'


def check(folder: Path, alert: str, series: dict[str, str], expected: dict[int, int], *given: str) -> None:
    """Let promtool say whether an alert fires so often at each minute."""
    groups = build_groups(choose_values(SETTINGS, list(given)), interval=INTERVAL)
    checks = [count_firing(alert, minute, count) for minute, count in expected.items()]
    ask_promtool(folder, rules_for(alert, groups), [make_test(series, checks, interval=INTERVAL)], interval=INTERVAL)


def up_then_down(good: float, bad: float, *, after: int, lasting: int) -> str:
    """A gauge that is well for so many minutes, and then is not."""
    return f"{good:g}x{after - 1} {bad:g}x{lasting}"


LINK = 'scope_nvlink_up{instance="n1",gpu="0",uuid="G",link="3"}'


def test_a_link_that_stays_down(tmp_path: Path) -> None:
    """Six hours, a day and six days later the alert stands; it ends after the seven that the runbook names."""
    series = {LINK: up_then_down(1, 0, after=HOUR, lasting=9 * DAY)}
    expected = {30: 0, 2 * HOUR: 1, 8 * HOUR: 1, DAY: 1, 6 * DAY: 1, 7 * DAY + 2 * HOUR: 0}
    check(tmp_path, "ScopeNvlinkDown", series, expected)


def test_a_port_that_stays_down(tmp_path: Path) -> None:
    """The alert stands for as long as setting remember says."""
    series = {f"scope_rdma_port_state{{{PORT}}}": up_then_down(4, 1, after=HOUR, lasting=2 * DAY)}
    expected = {30: 0, 2 * HOUR: 1, 8 * HOUR: 1, 23 * HOUR: 1, DAY + 2 * HOUR: 0}
    check(tmp_path, "ScopeRdmaPortDown", series, expected, "remember=86400")


def test_a_link_that_comes_back(tmp_path: Path) -> None:
    """The alert ends with the fault, also after days, and begins again with the next one."""
    series = {LINK: f"1x{HOUR} 0x{2 * DAY} 1x{HOUR} 0x{DAY}"}
    expected = {2 * DAY: 1, 2 * DAY + 90: 0, 2 * DAY + 2 * HOUR + 30: 1}
    check(tmp_path, "ScopeNvlinkDown", series, expected)


def test_an_exporter_that_is_away_meanwhile(tmp_path: Path) -> None:
    """A link is still known to have been up once its node is read again, half a day later."""
    series = {LINK: f"1x{HOUR} 0x30 stale _x{12 * HOUR} 0x{DAY}"}
    check(tmp_path, "ScopeNvlinkDown", series, {90: 1, 6 * HOUR: 0, 15 * HOUR: 1})


def test_a_site_remembers_for_less(tmp_path: Path) -> None:
    """Setting remember is how long the alert stays."""
    series = {LINK: up_then_down(1, 0, after=HOUR, lasting=DAY)}
    check(tmp_path, "ScopeNvlinkDown", series, {2 * HOUR: 1, 5 * HOUR: 0}, "remember=7200")


BUILD = 'scope_exporter_build_info{instance="n1",job="pods",version="1"}'
UP = 'up{instance="n1",job="pods"}'


def test_an_exporter_that_stays_down(tmp_path: Path) -> None:
    """It is known for what it was after days too, and the alert ends when it answers again."""
    series = {BUILD: f"1x{HOUR} stale _x{2 * DAY} 1x{DAY}", UP: f"1x{HOUR} 0x{2 * DAY} 1x{DAY}"}
    check(tmp_path, "ScopeExporterDown", series, {30: 0, 90: 1, DAY: 1, 2 * DAY: 1, 2 * DAY + 3 * HOUR: 0})


def test_an_exporter_that_is_no_target_any_more(tmp_path: Path) -> None:
    """It is missed for a day: a node that is taken out on purpose is not told of for ever."""
    gone = f"1x{HOUR} stale _x{3 * DAY}"
    check(tmp_path, "ScopeExporterDown", {BUILD: gone, UP: gone}, {30: 0, 90: 1, DAY: 1, DAY + 2 * HOUR: 0})


@pytest.mark.parametrize("left", [0, 1])
def test_gpus_that_stay_away(tmp_path: Path, left: int) -> None:
    """A node that lost one of its two GPUs, or both with the driver, is told of for as long as remember says."""
    gpus = [f'scope_gpu_info{{instance="n1",gpu="{gpu}",uuid="G{gpu}"}}' for gpu in range(2)]
    series = {
        **dict.fromkeys(gpus[left:], f"1x{HOUR} stale _x{3 * DAY}"),
        **dict.fromkeys(gpus[:left], f"1x{3 * DAY}"),
        'scope_exporter_sample_age_seconds{instance="n1"}': f"1x{3 * DAY}",
    }
    expected = {30: 0, 2 * HOUR: 1, 8 * HOUR: 1, 23 * HOUR: 1, DAY + 2 * HOUR: 0}
    check(tmp_path, "ScopeGpuMissing", series, expected, "remember=86400")


def test_steps_that_stay_slow(tmp_path: Path) -> None:
    """A run 30 % slower than before is told of after hours too, until its fastest hour is a day ago."""
    series = {MEDIAN: up_then_down(1, 1.3, after=3 * HOUR, lasting=2 * DAY)}
    expected = {2 * HOUR: 0, 3 * HOUR + 15: 1, 4 * HOUR: 1, 12 * HOUR: 1, DAY + 2 * HOUR: 1, DAY + 5 * HOUR: 0}
    check(tmp_path, "ScopeStepRegression", series, expected)


def test_steps_that_slow_down_little_by_little(tmp_path: Path) -> None:
    """A drift that no single hour shows is told of once it adds up."""
    series = {MEDIAN: f"1+0.0005x{10 * HOUR}"}
    check(tmp_path, "ScopeStepRegression", series, {5 * HOUR: 0, 9 * HOUR: 1})
