"""Tracebacks of the program: as without Scope, whatever stands between its frames and torch's."""

from __future__ import annotations

import traceback
from contextlib import nullcontext

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from scope.record.flop_counter import FlopCounter
from scope.record.tracebacks import hide_in_text, hide_own_frames


def fail(*, counted: bool, in_operator: bool) -> RuntimeError:
    """Hand a product what does not fit it, through a layer or by calling the operator itself."""
    layer, x = nn.Linear(2, 2), torch.ones(1, 3)
    with FlopCounter() if counted else nullcontext(), pytest.raises(RuntimeError) as caught:
        torch.ops.aten.mm.default(x, x) if in_operator else layer(x)
    return caught.value


@pytest.mark.parametrize("in_operator", [False, True])
def test_a_counted_operator_that_fails(monkeypatch: pytest.MonkeyPatch, in_operator: bool) -> None:
    """Neither Scope's frames are left nor those that torch puts around it, in the exception and in its text."""
    plain = "".join(traceback.format_exception(fail(counted=False, in_operator=in_operator)))
    assert "mat1 and mat2 shapes cannot be multiplied" in plain
    error = fail(counted=True, in_operator=in_operator)
    assert "".join(traceback.format_exception(error)) != plain
    for name in ("walk_tb", "_walk_tb_with_full_positions"):
        monkeypatch.setattr(traceback, name, getattr(traceback, name))  # so that it is restored
    hide_in_text()
    assert "".join(traceback.format_exception(error)) == plain
    monkeypatch.undo()
    hide_own_frames(error)
    assert "".join(traceback.format_exception(error)) == plain
