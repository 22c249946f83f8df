"""MFU as a Prometheus server computes it, against the definition by hand."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from dashboards.alerts.expressions import express_mfu

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.system("promtool")
def test_mfu_is_model_flops_over_the_slowest_step_and_all_peaks(tmp_path: Path) -> None:
    """Two ranks of 100 FLOPs a step, steps of 1 s and 2 s, peaks of 100 and 400 FLOP/s: 200 / (2 x 500) = 20 %.

    The mean of the ranks' own ratios (100 % and 12.5 %) would be 56 %. A run of which one rank tells none has
    none; ranks that two jobs scrape count once.
    """
    known = {
        "scope_train_model_flop_total": (500, 1_000),
        "scope_train_steps_total": (5, 10),
        "scope_train_step_last_seconds": (1, 2),
        "scope_train_mfu_ratio": (1.0, 0.125),
    }
    series = [
        {"series": f'{name}{{run="{run}",rank="{rank}",job="{job}"}}', "values": f"{value}x5"}
        for name, values in known.items()
        for rank, value in enumerate(values)
        for run in ("known", "half")
        for job in ("one", "two")
        if not (run == "half" and rank == 1 and name.endswith("mfu_ratio"))
    ]
    expression = express_mfu(by="run", where='run=~".*"')
    expected = [{"labels": '{run="known"}', "value": 0.2}]
    test = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [{"expr": expression, "eval_time": "3m", "exp_samples": expected}],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps(test))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
