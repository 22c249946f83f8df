"""Counters of network drivers that this machine does not have, by a library that answers in the kernel's place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system("gcc")

READER = """
import json, sys
import msgspec
from scope.probe.net import NetProbe
from scope.probe.tree import Problems, Tree
problems = Problems("net")
probe = NetProbe(Tree(sys.argv[1]))
probe.read(Problems("net"))
devices = probe.read(problems)
probe.close()
print(json.dumps([msgspec.to_builtins(devices), [[p.error, p.where] for p in problems.found]]))
"""


def make_interface(root: Path, name: str, index: int) -> None:
    """Write the files of an interface that a PCI device stands behind."""
    folder = root / "sys/class/net" / name
    (folder / "statistics").mkdir(parents=True)
    for counter in ("bytes", "packets", "errors", "dropped"):
        (folder / "statistics" / f"rx_{counter}").write_text("1\n")
        (folder / "statistics" / f"tx_{counter}").write_text("2\n")
    (folder / "operstate").write_text("up\n")
    (folder / "carrier_down_count").write_text("0\n")
    (folder / "ifindex").write_text(f"{index}\n")


def test_drivers_that_answer_refuse_or_are_another_nodes(fake_ethtool: Path, tmp_path: Path) -> None:
    """Pause frames and durations by priority and direction; a refusal is none or is counted; others are not asked."""
    script = {
        "mlx": ["rx_prio3_pause 5", "rx_prio3_pause_duration 2000", "tx_prio7_pause 6", "rx_discards_phy 7", "ch0_x 8"],
        "without": ["! 95"],
        "broken": ["! 5"],
        "elsewhere": ["rx_prio3_pause 9"],
    }
    for name in script:
        make_interface(tmp_path, name, 4_242 if name != "elsewhere" else 17)
    (tmp_path / "script").write_text("".join(f"{name} {line}\n" for name, lines in script.items() for line in lines))
    environment = {**os.environ, "LD_PRELOAD": str(fake_ethtool), "SCOPE_FAKE_ETHTOOL": str(tmp_path / "script")}
    done = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    devices, problems = json.loads(done.stdout)
    found: dict[str, Any] = {device[0]: device for device in devices}
    # Pause frames, paused nanoseconds and other counters of the driver are the last three of a record.
    assert found["mlx"][-3:] == [{"3/rx": 5, "7/tx": 6}, {"3/rx": 2_000_000}, {"rx_discards_phy": 7}]
    assert [found[name][-3:] for name in ("without", "broken", "elsewhere")] == [[{}, {}, {}]] * 3
    # The second reading: a driver that failed is asked again, one that has no counters is not.
    assert problems == [["io_error", "ethtool broken"]]
