"""Figures of the host where no device event was recorded: every face says that they are the host's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Done


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """Return a file of one rank that ends after two operators of a step, before the first device event."""
    thread = {"ph": "X", "pid": 9, "tid": 9}
    records = [
        {**thread, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 500},
        {**thread, "cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 40},
        {**thread, "cat": "cpu_op", "name": "aten::add", "ts": 90, "dur": 10},
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 100, "dur": 10, "args": {"device": 0, "stream": 7}},
    ]
    text = json.dumps({"traceEvents": records})
    path = tmp_path / "rank0.json"
    path.write_text(text[: text.index('"cat": "kernel"')])
    return path


def test_one_rank_without_device_events_is_said_to_be_the_host(scope: Callable[..., Done], cut: Path) -> None:
    """The heading, a remark and the findings say it; no share of a device time that there is not."""
    said = " ".join(scope("analyze", cut).out.split())
    assert "Where the time went on the host (" in said
    assert "no device events in the trace; compute and communication are ranges on the host" in said
    assert "they lack: records (files are cut or damaged), device events (none stands in what is left" in said
    assert "device time" not in said


def test_a_page_of_the_host_alone_says_so(scope: Callable[..., Done], cut: Path, tmp_path: Path) -> None:
    """The line above the tiles names the host."""
    page = tmp_path / "report.html"
    assert scope("analyze", cut, "--html", page).code == 0
    text = page.read_text()
    assert "Whole window on the host of " in text
    assert text.index("compute and communication are ranges on the host") < text.index('class="tiles"')


def test_no_operator_has_a_share_of_no_device_time(scope: Callable[..., Done], cut: Path) -> None:
    """Where nothing ran on a device, the share of device time with a known operator is absent, with the reason."""
    (rank,) = json.loads(scope("quality", cut, "--json").out)
    assert rank["attributed_ratio"] is None
    assert rank["absent"]["attributed_ratio"] == "no device event to attribute"


def test_a_trace_of_devices_does_not_speak_of_the_host(scope: Callable[..., Done], trace: Callable[..., Path]) -> None:
    """Device events are the device's."""
    assert "on the host" not in scope("analyze", trace()).out
