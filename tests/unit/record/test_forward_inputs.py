"""What forwards get, in words and sums: each against figures worked by hand."""

from __future__ import annotations

import copy
import gc
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from scope.record.forward_inputs import UNTOLD, ModuleNames, describe_inputs, rows_of, shapes_of
from scope.run.schema import StepInputs

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_tensors_are_found_wherever_arguments_hold_them() -> None:
    """Positions, names, lists and mappings give their tensors' shapes; what is no tensor gives none."""
    batch = {"ids": torch.ones(4, 16), "more": [torch.ones(2), (torch.ones(()), "text")]}
    assert shapes_of((torch.ones(3, 5),), {}) == [(3, 5)]
    assert shapes_of((batch, 7), {"mask": torch.ones(4, 1)}) == [(4, 16), (2,), (), (4, 1)]
    assert shapes_of((1, "text", None), {"flag": True}) == []


def test_modes_of_the_program_see_nothing() -> None:
    """Asking for shapes is no call of torch that a mode of the program's own could see."""

    class Mode(TorchFunctionMode):
        num_calls = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.num_calls += 1
            return func(*args, **(kwargs or {}))

    tensor = torch.ones(2, 3)
    with Mode() as mode:
        shapes_of((tensor,), {"more": [tensor]})
    assert mode.num_calls == 0


@pytest.mark.parametrize(
    ("seen", "inputs"),
    [
        ({("Net", (32, 64)): 1}, ("Net(B,L)", 1, 32, 32 * 64, 32 * 64**2)),
        ({("Net", (32,)): 2}, ("Net(B)", 2, 64, 0, 0)),
        ({("Net", (4, 3, 8, 9)): 1}, ("Net(B,L,8,9)", 1, 4, 12, 36)),
        # Two passes of unequal length are one pattern; a mask of a length by a length has no rows.
        ({("Net", (4, 7)): 1, ("Net", (2, 5)): 1}, ("Net(B,L)", 2, 6, 38, 4 * 49 + 2 * 25)),
        ({("Net", (4, 7), (4, 7), (7, 7), (1, 7)): 1}, ("Net(B,L; B,L; L,L; 1,L)", 1, 4, 28, 196)),
        ({("Net", (), (6, 2)): 1}, ("Net(; B,L)", 1, 6, 12, 24)),
        ({("Net", ()): 3}, ("Net()", 3, 3, 0, 0)),
        ({("Net", (0, 7)): 1}, ("Net(B,L)", 1, 0, 0, 0)),
        # Forwards of several patterns have their lengths, and their share of the rows.
        ({("G", (40, 16)): 3, ("D", (40, 32)): 5}, ("3 G(B,16) x3 + 5 D(B,32) x5", 8, 40, 0, 0)),
        ({("G", (4, 6)): 2, ("D", (12, 6)): 2}, ("1 D(B,6) x3 + 1 G(B,6) x1", 4, 8, 0, 0)),
    ],
)
def test_forwards_in_words_and_sums(seen: dict[tuple[Any, ...], int], inputs: tuple[Any, ...]) -> None:
    """Pattern, forwards, rows, positions and pairs of positions of a step."""
    assert describe_inputs(seen) == StepInputs(
        **dict(zip(("pattern", "num_forwards", "rows", "positions", "position_pairs"), inputs, strict=True))
    )


def test_the_order_of_forwards_changes_nothing() -> None:
    """A discriminator before its generator is the same step as one after it."""
    seen: Sequence[tuple[tuple[Any, ...], int]] = [(("G", (4, 6)), 2), (("D", (12, 6)), 2)]
    assert describe_inputs(dict(seen)) == describe_inputs(dict(reversed(seen)))
    assert describe_inputs({}) is None


def test_long_patterns_stay_apart() -> None:
    """Of a hundred tensors the pattern is cut, and another in the last of them is another pattern."""
    inputs = [describe_inputs({("Net", *[(4, 5, 6)] * 99, (4, last)): 1}) for last in (7, 8)]
    first, second = (each.pattern for each in inputs if each is not None)
    assert len(first) == len(second) == 160
    assert first != second


def test_rows_are_left_open() -> None:
    """Two sizes of a batch are the same but for their rows."""
    assert rows_of(("Net", (4, 7), (7, 7))) == ("Net(B,7; 7,7)", 4)
    assert rows_of(("Net", (9, 7), (7, 7))) == ("Net(B,7; 7,7)", 9)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_more_than_shapes_tells_has_none() -> None:
    """Objects, nested tensors, and lists that are longer or deeper than is looked at; 128 tensors are looked at."""
    one = torch.ones(1)
    ragged = [torch.ones(number, 4) for number in (3, 5)]
    for argument in (object(), {1}, iter([one]), [[[[[one]]]]], [one] * 513, [object()]):
        assert shapes_of((argument, one), {}) is None
    for layout in (torch.jagged, torch.strided):
        assert shapes_of((torch.nested.nested_tensor(ragged, layout=layout),), {"mask": one}) is None
    assert shapes_of(([one] * 128,), {}) == [(1,)] * 128
    assert shapes_of((one,), {"dtype": torch.float32, "device": torch.device("cpu"), "scale": 0.5}) == [(1,)]
    assert describe_inputs({("Net", (2, 3)): 1, UNTOLD: 1}) is None


def test_modules_of_one_class_have_names_of_their_own() -> None:
    """The second linear layer is told from the first, and so is another one that is made after the first is gone."""
    names = ModuleNames()
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    assert [names.name(each) for each in (first, second, first, nn.ReLU())] == ["Linear", "Linear 2", "Linear", "ReLU"]
    del first
    gc.collect()
    assert [names.name(nn.Linear(1, 2)), names.name(second)] == ["Linear 3", "Linear 2"]


def test_a_copy_for_each_step_has_one_name() -> None:
    """One that is built like another that is gone has its name; another stride is another module."""
    names = ModuleNames()
    model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU())
    fast, told = model, set[str]()
    names.name(model)
    for _ in range(5):
        fast = copy.deepcopy(model)
        gc.collect()
        told.add(names.name(fast))
    assert told == {"Sequential 2"}
    del fast
    gc.collect()
    strided = nn.Sequential(nn.Conv2d(1, 1, 3, stride=2), nn.ReLU())
    assert names.name(strided) == "Sequential 3"
    assert names.name(nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU())) == "Sequential 2"
    assert names.name(nn.LazyLinear(3)) == "LazyLinear"
