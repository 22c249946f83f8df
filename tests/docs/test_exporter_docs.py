"""What the README says of the exporter and its alerts: every option, file and command of that section is real."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from exporters.options import _EPILOG, parse_options  # pyright: ignore[reportPrivateUsage] - the text of --help

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "README.md").read_text().split("## Exporter and alerts", 1)[1].split("\n## ", 1)[0]

pytestmark = pytest.mark.docs


def commands(name: str) -> list[list[str]]:
    """Return the arguments of each use of a command in the section's shell blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", SECTION, flags=re.MULTILINE | re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    found = [line.split(name, 1)[1] for line in lines if line.startswith(name)]
    return [[word.strip("'") for word in line.split()] for line in found]


def test_every_way_to_start_the_exporter_is_one() -> None:
    """The options of the examples are accepted, and the number of series is that of --help."""
    starts = [arguments for arguments in commands("scope exporter") if arguments[:1] != ["targets"]]
    assert len(starts) == 3
    for arguments in starts:
        parse_options(arguments)
    assert re.findall(r"about ([\d,]+) series", SECTION) == re.findall(r"about ([\d,]+) series", _EPILOG)


def test_help_shows_commands_that_there_are() -> None:
    """The examples of --help begin with `scope exporter` and are accepted; that of the target file too."""
    examples = _EPILOG.split("examples:", 1)[1].strip().splitlines()
    assert len(examples) == 3
    for line in examples:
        program, exporter, *arguments = line.split()
        assert (program, exporter) == ("scope", "exporter")
        parse_options([word.strip("'") for word in arguments])
    done = subprocess.run(
        [sys.executable, "-m", "exporters", "targets", "--help"], capture_output=True, text=True, check=False
    )
    assert "example: scope exporter targets 'node[001-128]'" in done.stdout


@pytest.mark.system("promtool", "prometheus-alertmanager")
def test_the_recipe_for_prometheus_is_valid(tmp_path: Path) -> None:
    """Its commands, run in an empty folder, give files that promtool and amtool accept."""
    recipe = next(
        block for block in re.findall(r"^```sh\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL) if "END" in block
    )
    script = "\n".join(line for line in recipe.splitlines() if not line.startswith("prometheus"))
    script = script.replace("python -m", f"{sys.executable} -m").replace(
        "scope exporter", f"{sys.executable} -m exporters"
    )
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in (
        ["promtool", "check", "config", "prometheus.yml"],
        ["amtool", "check-config", "alertmanager.example.yml"],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "node128:9469" in (tmp_path / "targets.json").read_text()
    again = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "--force" in again.stderr
    forced = script.replace("--output .", "--output . --force").replace("targets.json ", "targets.json --force ")
    assert forced.count("--force") == 2
    done = subprocess.run(["sh", "-ec", forced], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.system("promtool")
def test_the_shipped_prometheus_file_is_valid(tmp_path: Path) -> None:
    """The example for a cluster passes promtool beside the rules and a target file."""
    (tmp_path / "prometheus.yml").write_text((ROOT / "exporters/deploy/prometheus.example.yml").read_text())
    (tmp_path / "scope.rules.yml").write_text((ROOT / "dashboards/alerts/scope.rules.yml").read_text())
    (tmp_path / "scope-targets.json").write_text("[]")
    done = subprocess.run(
        ["promtool", "check", "config", "prometheus.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
