"""A rank that no process group holds, as one given by hand may be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_rank_in_no_group_is_read_like_any_other(scope: Callable[..., Any], shared_traces: Path) -> None:
    """One of eight ranks is called 77: all eight are reported, and nobody is said to wait for a rank of no group."""
    folder = shared_traces / "param" / "dlrm_v100_8ranks"
    (path,) = folder.glob("worker0_*.json.gz")
    done = scope("analyze", folder, "--rank", f"{path.name}=77", "--no-cache", "--json")
    assert done.code == 0
    report = json.loads(done.out)
    assert sorted(rank["rank"] for rank in report["ranks"]) == [*range(1, 8), 77]
    assert 77 not in [rank["rank"] for rank in report["stragglers"]["ranks"]]
