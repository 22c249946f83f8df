"""`python -m dashboards.alerts`: values that make no sense are refused, and files are written whole or not at all."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from dashboards.alerts.__main__ import FOLDER, main
from dashboards.alerts.settings import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ["RUNBOOK.md", "alertmanager.example.yml", "scope.grafana.json", "scope.prometheusrule.yaml", "scope.rules.yml"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("stall_seconds=nan", "stall_seconds=nan must be from 1 to 315360000 (seconds)"),
        ("stall_seconds=inf", "stall_seconds=inf must be from 1 to 315360000 (seconds)"),
        ("stall_seconds=-1", "stall_seconds=-1 must be from 1 to 315360000 (seconds)"),
        ("stall_seconds=1e400", "stall_seconds=1e400 must be from 1 to 315360000 (seconds)"),
        ("straggler=0", "straggler=0 must be from 1 to 100 (ratio)"),
        ("xid_window=0", "xid_window=0 must be from 1 to 315360000 (seconds)"),
        ("remember=1e12", "remember=1e12 must be from 1 to 315360000 (seconds)"),
        ("goodput=1.5", "goodput=1.5 must be from 0 to 1 (ratio)"),
    ],
)
def test_a_setting_out_of_range(tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str, said: str) -> None:
    """The valid range is named, and nothing is written."""
    assert main(["--output", str(tmp_path / "rules"), "--set", given]) == 2
    assert capsys.readouterr().err == f"scope: {said}\n"
    assert not (tmp_path / "rules").exists()


@pytest.mark.parametrize("scale", ["0", "nan", "-1", "inf", "1e300", "1e-300"])
def test_a_scale_out_of_range(tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: str) -> None:
    """Whatever would make rules that Prometheus cannot read is refused, in one line."""
    assert main([f"--output={tmp_path / 'rules'}", f"--scale={scale}"]) == 2
    said = capsys.readouterr().err
    assert said == f"scope: --scale {float(scale):g} makes no sense; it must be from 1 to 10000\n"
    assert not (tmp_path / "rules").exists()


@pytest.mark.system("promtool")
@pytest.mark.parametrize("end", [0, 1], ids=["smallest", "largest"])
@pytest.mark.parametrize("scale", ["1", "10000"])
def test_promtool_takes_the_ends_of_every_range(tmp_path: Path, end: int, scale: str) -> None:
    """All settings at one end of their ranges, at either end of the scale, make rules that Prometheus can read."""
    given = [f"--set={setting.name}={setting.bounds[end]!r}" for setting in SETTINGS]
    assert main(["--output", str(tmp_path), "--scale", scale, *given]) == 0
    command = ["promtool", "check", "rules", str(tmp_path / "scope.rules.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_default_lies_within_its_range() -> None:
    """Nobody is told a range that the product's own value is not in."""
    for setting in SETTINGS:
        low, high = setting.bounds
        assert low <= setting.default <= high, setting


def test_the_files_are_those_of_the_table(tmp_path: Path) -> None:
    """A folder is made, holds the committed files and nothing else, and is overwritten only with --force."""
    folder = tmp_path / "a" / "rules"
    assert main(["--output", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    assert all((folder / name).read_bytes() == (FOLDER / name).read_bytes() for name in NAMES)
    (folder / "RUNBOOK.md").write_text("mine")
    assert main(["--output", str(folder)]) == 2
    assert (folder / "RUNBOOK.md").read_text() == "mine"
    assert main(["--output", str(folder), "--force"]) == 0
    assert (folder / "RUNBOOK.md").read_bytes() == (FOLDER / "RUNBOOK.md").read_bytes()


def test_a_pipe_is_neither_opened_nor_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Writing to a pipe that nobody reads would hang for ever."""
    os.mkfifo(tmp_path / "RUNBOOK.md")
    assert main(["--output", str(tmp_path), "--force"]) == 2
    assert "RUNBOOK.md in" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["RUNBOOK.md"]
    assert (tmp_path / "RUNBOOK.md").is_fifo()


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["plain", "force"])
@pytest.mark.parametrize("exists", [False, True], ids=["dangling", "whole"])
def test_nothing_is_written_through_a_link(tmp_path: Path, force: list[str], *, exists: bool) -> None:
    """A link that leads out of the folder is refused, wherever it leads."""
    outside, folder = tmp_path / "outside", tmp_path / "rules"
    folder.mkdir()
    if exists:
        outside.write_text("mine")
    (folder / "scope.rules.yml").symlink_to(outside)
    assert main(["--output", str(folder), *force]) == 2
    assert [path.name for path in folder.iterdir()] == ["scope.rules.yml"]
    assert outside.read_text() == "mine" if exists else not outside.exists()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there stands, and nothing half is left beside it."""
    assert main(["--output", str(tmp_path)]) == 0

    def fail(_descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", fail)
    assert main(["--output", str(tmp_path), "--force", "--set", "goodput=0.5"]) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES
    assert (tmp_path / "scope.rules.yml").read_bytes() == (FOLDER / "scope.rules.yml").read_bytes()


def test_a_namespace_that_is_none(tmp_path: Path) -> None:
    """What Kubernetes would refuse is refused here."""
    assert main(["--output", str(tmp_path), "--namespace", "Not a name"]) == 2
    assert not list(tmp_path.iterdir())
