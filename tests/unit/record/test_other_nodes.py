"""The variables of `scope run` reach tasks of other nodes, where nobody publishes what they would record."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from scope.errors import RunError
from scope.record import start

if TYPE_CHECKING:
    from pathlib import Path


def make_environment(spool: Path, host: str) -> dict[str, str]:
    """Return what a process has below a `scope run` on some host."""
    return {"SCOPE_RUN_ID": "r", "SCOPE_SPOOL_RUN": str(spool), "SCOPE_LAUNCH_HOST": host}


def test_a_task_of_another_node_is_told_where_scope_run_belongs(tmp_path: Path) -> None:
    """It makes no folder that nobody would look after."""
    with pytest.raises(RunError, match=r"scope run is on login7 and cannot record what runs on .* srun scope run"):
        start.prepare(make_environment(tmp_path / "spool", "login7"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_there", [True, False])
def test_a_process_of_this_node_is_recorded(tmp_path: Path, is_there: bool) -> None:
    """Also where the host has another name inside a container, or the spool was deleted meanwhile."""
    spool = tmp_path / "spool"
    if is_there:
        spool.mkdir()
    folder, info = start.prepare(make_environment(spool, "login7" if is_there else socket.gethostname()))
    assert folder.is_relative_to(spool)
    assert info.rank == 0
