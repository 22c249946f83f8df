"""Rules that compare a count with a threshold: Prometheus stretches what it counts, and may not reach it by that."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml
from alert_cases.series import GPU, LENGTH, PORT, N, hold
from promtool import rules_for

from dashboards.alerts.generate import build_groups
from dashboards.alerts.model import choose_values
from dashboards.alerts.settings import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = build_groups(choose_values(SETTINGS, []), interval="7s")
STATE = {f"scope_rdma_port_state{{{PORT}}}": hold(4)}
COUNTS = {
    "ScopeRdmaPortFlaps": (f'scope_rdma_port_events_total{{{PORT},counter="link_downed"}}', 4, "It went down 4 times"),
    "ScopeRdmaLinkErrors": (f'scope_rdma_port_events_total{{{PORT},counter="symbol_error"}}', 11, "11 within"),
    "ScopeNvlinkErrors": (f'scope_nvlink_gpu_errors_total{{{GPU},type="replay"}}', 1, "1 within"),
    "ScopeEccUncorrected": (
        f'scope_gpu_ecc_errors_total{{{GPU},type="uncorrected",scope="volatile",location="all"}}',
        1,
        "1 uncorrected errors",
    ),
    "ScopeOomKill": (f"scope_oom_kills_total{{{N}}}", 1, "1 within"),
}
"""By alert: the series, the least count at which it fires, and how its description begins then."""


def ask(folder: Path, alert: str, series: str, counted: int) -> str:
    """Return what promtool finds wrong with there being no alert, at a time between scrapes each 15 s.

    The counter stands at 100 and rises one by one, one each scrape, in the ten minutes that the rules look back.
    """
    values = f"100+0x{LENGTH} 101+1x{counted - 1} {100 + counted}+0x20" if counted else f"100+0x{LENGTH + 20}"
    last = LENGTH + counted
    plan = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "7s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    {"series": series, "values": values},
                    *({"series": key, "values": f"4x{2 * LENGTH}"} for key in STATE),
                ],
                # The last rise and five scrapes: well within ten minutes of the first one, and past the rule's `for`.
                "alert_rule_test": [{"eval_time": f"{(last + 5) * 15 + 4}s", "alertname": alert, "exp_alerts": []}],
            }
        ],
    }
    groups = [{"name": "all", "interval": "7s", "rules": rules_for(alert, GROUPS)}]
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    (folder / "test.yml").write_text(yaml.safe_dump(plan))
    command = ["promtool", "test", "rules", "test.yml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.system("promtool")
@pytest.mark.parametrize("alert", COUNTS)
def test_a_count_at_its_threshold_is_no_alert_and_one_more_is(alert: str, tmp_path: Path) -> None:
    """Three flaps, ten symbol errors and no other error are quiet; one more fires and is told as a whole number."""
    series, fires_at, words = COUNTS[alert]
    assert ask(tmp_path, alert, series, fires_at - 1) == ""
    found = ask(tmp_path, alert, series, fires_at)
    assert f'description="{words}' in found or f"description:{words}" in found, found
