"""What is planted in a synthetic job must be possible there, else the truth known by construction is another one."""

from __future__ import annotations

from typing import Any

import pytest

from scope.errors import UsageError
from scope.testing.jobs import Plant, TrainingJob, straggling_job
from scope.testing.layout import Layout

POSSIBLE: dict[str, Any] = {"rank": 1, "kind": "host", "extra_ns": 5, "steps": range(2)}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"rank": 3}, "planted on rank 3, and the ranks are 0 to 1"),
        ({"rank": 2}, "planted on rank 2, and the ranks are 0 to 1"),
        ({"rank": -1}, "planted on rank -1, and the ranks are 0 to 1"),
        ({"kind": "network"}, "kind 'network' is planted, and the kinds are compute, input, memory, host"),
        ({"extra_ns": -1}, "a delay of -1 ns is planted on rank 1"),
    ],
)
def test_a_plant_that_cannot_be_is_refused(changed: dict[str, Any], why: str) -> None:
    """A job of two ranks has ranks 0 and 1; a plant elsewhere, of another kind or of less than nothing is an error."""
    with pytest.raises(UsageError, match=why):
        TrainingJob(layout=Layout(dp=2), plants=(Plant(**{**POSSIBLE, **changed}),))
    job = TrainingJob(layout=Layout(dp=2), plants=(Plant(**POSSIBLE),))
    assert job.saving_ns(1) >= 0


def test_a_straggler_must_exist() -> None:
    """A straggling job refuses a rank that it does not have, before anything runs."""
    with pytest.raises(UsageError, match="planted on rank 4, and the ranks are 0 to 3"):
        straggling_job(Layout(dp=4), rank=4, kind="compute")


@pytest.mark.parametrize(
    ("slow", "why"),
    [({"mesh_tp:0": 0.5}, "no group 'mesh_tp:0' to be slow"), ({"mesh_dp:0": 0.0}, "keeps 0.0 of its bandwidth")],
)
def test_a_slow_group_that_cannot_be_is_refused(slow: dict[str, float], why: str) -> None:
    """A group that the layout does not have, or one without any bandwidth, is an error; all of them are told."""
    with pytest.raises(UsageError, match=why):
        TrainingJob(layout=Layout(dp=2), slow_groups=slow)
    both = {**slow, "mesh_ep:9": -1.0}
    with pytest.raises(UsageError, match=f"{why}.*; there is no group 'mesh_ep:9' to be slow.*; the group 'mesh_ep:9'"):
        TrainingJob(layout=Layout(dp=2), slow_groups=both)
