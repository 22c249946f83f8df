"""No alert without its live test: the table of planted faults covers the rules, and the committed table is that one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from dashboards.alerts.generate import ALERTS

LIVE = Path(__file__).parents[2] / "integration" / "exporters"


@pytest.fixture
def scenes() -> Any:
    """The live test's table."""
    specification = importlib.util.spec_from_file_location("alert_scenes", LIVE / "alert_scenes.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["alert_scenes"] = module
    specification.loader.exec_module(module)
    return module


def test_every_alert_is_planted_live(scenes: Any) -> None:
    """Each alert stands in the table once, in the order of the rules, with its objects, neighbours and end."""
    assert [row.alert for row in scenes.PLANTED] == [alert.name for alert in ALERTS]
    for row in scenes.PLANTED:
        assert all(row.objects), row.alert
        assert row.neighbours, row.alert
        assert row.ends, row.alert


def test_the_live_test_reads_this_table(scenes: Any) -> None:
    """The test that the table names exists and takes what it expects from the table, every row of it."""
    name, _, function = scenes.TEST.partition("::")
    source = (LIVE / name).read_text()
    assert f"def {function}(" in source
    assert "{row.alert: row.objects for row in scenes.PLANTED}" in source


def test_the_committed_table_is_the_table(scenes: Any) -> None:
    """`python tests/integration/exporters/alert_scenes.py` makes the committed file, byte for byte."""
    assert (LIVE / "LIVE_ALERTS.md").read_text(encoding="utf-8") == scenes.render_table()
