"""FLOPs of steps that are unequal, on real training loops: each against the products worked by hand, or absent."""

from __future__ import annotations

import copy
import itertools
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.data import DataLoader

from scope.record import Recorder, session
from scope.record.settings import CaptureSettings
from scope.run.reader import RankReader, read_steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.run.schema import FlopsInfo, StepRecord

NO_CAPTURE = CaptureSettings(reasons=frozenset())


def record(folder: Path, train: Callable[[Recorder], None]) -> tuple[list[StepRecord], FlopsInfo]:
    """Record a loop."""
    with Recorder(run_dir=folder, run_id="r", capture=NO_CAPTURE, peak_flop_per_s=1e9) as recorder:
        rank = recorder.folder
        train(recorder)
    assert rank is not None
    flops = RankReader(rank).info().flops
    assert flops is not None
    return read_steps(rank), flops


def load(num_samples: int, width: int, batch_size: int) -> DataLoader[torch.Tensor]:
    """A loader whose last batch is smaller."""
    samples = cast("torch.utils.data.Dataset[torch.Tensor]", [torch.ones(width)] * num_samples)
    return DataLoader(samples, batch_size=batch_size)


def flop_of_two_layers(samples: int, widths: tuple[int, int, int]) -> int:
    """Forward 2mnk a layer, backward as much for weights, and for the input of the second layer alone."""
    first, second = (2 * samples * given * made for given, made in itertools.pairwise(widths))
    return 2 * first + 3 * second


def test_the_last_batch_of_an_epoch_is_less_work(tmp_path: Path) -> None:
    """Batches of 32, 32 and 4 through 64 x 128 and 128 x 10: 1,294,336 and, for the last, 161,792."""

    def train(recorder: Recorder) -> None:
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for batch in load(68, 64, 32):
                model(batch).sum().backward()
                optimizer.step()

    steps, flops = record(tmp_path, train)
    assert [step.samples for step in steps] == [32, 32, 4] * 2
    assert [step.model_flop for step in steps] == [1_294_336, 1_294_336, 161_792] * 2
    assert steps[2].mfu_ratio == pytest.approx(161_792 / (steps[2].end_ns - steps[2].start_ns))
    # The first batch of another size is counted too: it shows that FLOPs are in proportion to the rows.
    assert [each.step for each in flops.counted] == [0, 2]
    assert not flops.absent


def test_gradients_that_can_be_differentiated_again_are_no_recompute(tmp_path: Path) -> None:
    """Of functional gradients and of a penalty on gradients all is the model's: 8,192, and three products."""

    def train(recorder: Recorder) -> None:
        layer = nn.Linear(32, 32)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        weights = dict(layer.named_parameters())
        for _ in range(2):
            lose = torch.func.grad(lambda each: torch.func.functional_call(layer, each, (torch.ones(2, 32),)).sum())
            for name, gradient in lose(weights).items():
                weights[name].grad = gradient
            optimizer.step()

    _, flops = record(tmp_path / "functional", train)
    assert [(each.model_flop, each.hardware_flop) for each in flops.counted] == [(8192, 8192)]

    def penalise(recorder: Recorder) -> None:
        layer = nn.Linear(32, 32, bias=False)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(2):
            x = torch.ones(2, 32, requires_grad=True)
            (gradient,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
            gradient.pow(2).sum().backward()
            optimizer.step()

    _, flops = record(tmp_path / "penalty", penalise)
    # Forward, its gradient of the input, and the gradient of that by the weights.
    assert [(each.model_flop, each.hardware_flop) for each in flops.counted] == [(3 * 4096, 3 * 4096)]


def test_a_torn_first_step_is_no_measure_of_whole_ones(tmp_path: Path) -> None:
    """Two updates of a critic and one of its generator: 3,025,920 for 40 samples, 680,832 for 9, as worked by hand."""

    def train(recorder: Recorder) -> None:
        generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
        critic = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
        of_generator, of_critic = (torch.optim.Adam(model.parameters()) for model in (generator, critic))
        for _ in range(2):
            for batch in load(40 * 7 + 9, 32, 40):
                for _ in range(2):
                    fake = generator(torch.ones(len(batch), 16)).detach()
                    of_critic.zero_grad()
                    (critic(batch) - critic(fake)).sum().backward()
                    of_critic.step()
                of_generator.zero_grad()
                critic(generator(torch.ones(len(batch), 16))).sum().backward()
                of_generator.step()

    steps, flops = record(tmp_path, train)
    whole = {40: 3_025_920, 9: 680_832}
    known = [step for step in steps if step.num_optimizer_steps == 3 and step.model_flop is not None]
    assert [step.model_flop for step in known] == [whole[step.samples or 0] for step in known]
    assert {step.samples for step in known} == {40, 9}
    later = steps[6:]
    assert all(step.model_flop is not None for step in later)
    # What was counted first is what that step did: two of the three updates.
    assert (steps[0].num_optimizer_steps, steps[0].model_flop) == (2, 1_863_680)
    assert {each.num_optimizer_steps for each in flops.counted} == {2, 3}
    assert "unlike those counted" in flops.absent["model_flop"]
    assert [step.step for step in steps if step.disturbed == "flops_counted"] == [each.step for each in flops.counted]


@pytest.mark.parametrize(
    "sizes",
    [((16, 16), (16, 16, 8, 4)), ((8, 16, 24), (8,), (8, 16)), ((16,), (16, 16), (16, 16, 16))],
    ids=["a rest", "growing", "equal"],
)
def test_passes_of_unknown_size_are_counted_not_guessed(tmp_path: Path, sizes: tuple[tuple[int, ...], ...]) -> None:
    """Updates of so many passes, their samples unknown: each is by hand or absent, and after twelve steps by hand."""

    def train(recorder: Recorder) -> None:
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in recorder.steps(range(20)):
            for size in sizes[number % len(sizes)]:
                model(torch.ones(size, 64)).sum().backward()
            optimizer.step()

    steps, flops = record(tmp_path, train)
    by_hand = [flop_of_two_layers(sum(sizes[number % len(sizes)]), (64, 128, 8)) for number in range(20)]
    told: list[Any] = [step.model_flop for step in steps]
    assert all(flop in (None, true) for flop, true in zip(told, by_hand, strict=True))
    assert told[12:] == by_hand[12:]
    assert len(flops.counted) <= len(sizes)
    assert sum(step.disturbed == "flops_counted" for step in steps) <= 6


def test_what_never_comes_again_is_not_waited_for(tmp_path: Path) -> None:
    """One update of two passes through one forward has no FLOPs, says so, and slows no other step down."""

    def train(recorder: Recorder) -> None:
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in recorder.steps(range(10)):
            loss = model(torch.ones(2, 8)).sum()
            if number == 5:
                loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()

    steps, flops = record(tmp_path, train)
    flop = 2 * (2 * 2 * 8 * 4)
    assert [step.model_flop for step in steps] == [*[flop] * 5, None, *[flop] * 4]
    assert "unlike those counted" in flops.absent["model_flop"]
    assert [step.step for step in steps if step.disturbed == "flops_counted"] == [0]


@pytest.mark.parametrize("odd", [(2, 3), (2, 5), (2, 4, 7)], ids=str)
def test_a_kind_that_stays_away_has_others_counted_once_at_most(tmp_path: Path, odd: tuple[int, ...]) -> None:
    """Of updates of two passes through one forward, in the steps `odd` alone, one step is counted in vain for each."""

    def train(recorder: Recorder) -> None:
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in recorder.steps(range(30)):
            loss = model(torch.ones(2, 8)).sum()
            if number in odd:
                loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()

    steps, _ = record(tmp_path, train)
    flop = 2 * (2 * 2 * 8 * 4)
    assert all(step.model_flop in (flop, None) for step in steps if step.step not in odd)
    vain = [step.step for step in steps if step.disturbed == "flops_counted" and step.step not in odd]
    # Each is where the next would be, after as many steps as lie between the two before.
    assert vain == [0, *(2 * later - one for one, later in itertools.pairwise(odd))]


def test_kinds_that_come_by_chance_are_counted_within_bounds(tmp_path: Path) -> None:
    """Updates of one, two or three passes at random: all kinds are by hand in the end, few others counted for it."""
    draw = random.Random(1)
    passes = [draw.choice((1, 2, 3)) for _ in range(120)]

    def train(recorder: Recorder) -> None:
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in recorder.steps(range(120)):
            loss = model(torch.ones(2, 8)).sum()
            for _ in range(passes[number]):
                loss.backward(retain_graph=True)
            optimizer.step()

    steps, flops = record(tmp_path, train)
    by_hand = [128 * (1 + number) for number in passes]
    assert all(step.model_flop in (None, flop) for step, flop in zip(steps, by_hand, strict=True))
    assert [step.model_flop for step in steps[60:]] == by_hand[60:]
    assert len(flops.counted) == 3
    assert sum(step.disturbed == "flops_counted" for step in steps) <= 1 + 2 * 8


def test_a_kind_is_counted_where_it_comes_again_at_a_fixed_distance(tmp_path: Path) -> None:
    """Every fourth update is of two passes: the third of them is counted, and no other step for it."""

    def train(recorder: Recorder) -> None:
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in recorder.steps(range(24)):
            loss = model(torch.ones(2, 8)).sum()
            if number % 4 == 3:
                loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()

    steps, _ = record(tmp_path, train)
    # Forward and gradient of the weights: 128 each.
    assert [step.model_flop for step in steps[11:]] == [384 if step.step % 4 == 3 else 256 for step in steps[11:]]
    assert [step.step for step in steps if step.disturbed == "flops_counted"] == [0, 11]


def test_a_model_that_was_compiled_since_is_not_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be compiled once more for that: unlike steps have no FLOPs, and those like the first keep theirs."""

    def train(recorder: Recorder) -> None:
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in recorder.steps(range(10)):
            if number == 1:
                assert session.current is not None
                monkeypatch.setattr(session.current.hooks, "is_compiled", lambda: True)
            model(torch.ones(2, *[3] * (number % 2), 8)).sum().backward()
            optimizer.step()

    steps, flops = record(tmp_path, train)
    assert [step.model_flop for step in steps] == [256, None] * 5
    assert [step.step for step in steps if step.disturbed == "flops_counted"] == [0]
    assert flops.source == "counter"
    assert "mfu" not in flops.absent


def test_counting_again_changes_no_parameter(tmp_path: Path) -> None:
    """Updates of rows and of sequences with dropout give the same parameters, bit by bit, recorded or not."""

    def run() -> list[torch.Tensor]:
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(), nn.Linear(16, 4))
        optimizer = torch.optim.Adam(model.parameters())
        for number in range(12):
            model(torch.randn(2, *[3] * (number % 2), 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in model.parameters()]

    recorded: list[torch.Tensor] = []
    _, flops = record(tmp_path, lambda _: recorded.extend(run()))
    assert len(flops.counted) == 2
    assert all(torch.equal(one, other) for one, other in zip(recorded, run(), strict=True))


class Encoder(nn.Module):
    """Attention and a feed-forward layer over sequences, of which batches come first or second."""

    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, bias=False, batch_first=batch_first)
        self.up = nn.Linear(16, 32, bias=False)
        self.down = nn.Linear(32, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run both."""
        x = self.attention(x, x, x, need_weights=False)[0]
        return self.down(torch.relu(self.up(x)))


def flop_of_encoder(rows: int, length: int) -> int:
    """Products of 16 x 48, 16 x 16, 16 x 32 and 32 x 16 a position, three times but for the input's gradient.

    Attention is 4 x length x 16 a position, and twice that in backward.
    """
    per_position = 2 * (3 * (48 + 16 + 32 + 32) - 48) * 16 + 3 * 4 * length * 16
    return rows * length * per_position


def train_encoder(shapes: list[tuple[int, int]], **options: bool) -> Callable[[Recorder], None]:
    """A loop over batches of so many rows of such a length."""

    def train(recorder: Recorder) -> None:
        model = Encoder(**options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows, length in recorder.steps(shapes):
            shape = (rows, length) if options.get("batch_first", True) else (length, rows)
            model(torch.ones(*shape, 16)).sum().backward()
            optimizer.step()

    return train


def test_samples_of_unequal_length_are_unequal_work(tmp_path: Path) -> None:
    """4 samples of 16 or 64 positions a step: 41,943,040 and 167,772,160 FLOPs through 128 x 512 and 512 x 128."""

    def train(recorder: Recorder) -> None:
        model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        samples = cast(
            "torch.utils.data.Dataset[torch.Tensor]", [torch.ones(16 + 48 * (n // 4 % 2), 128) for n in range(32)]
        )
        for batch in DataLoader(samples, batch_size=4):
            model(batch).sum().backward()
            optimizer.step()

    steps, flops = record(tmp_path, train)
    assert [step.samples for step in steps] == [4] * 8
    assert [step.model_flop for step in steps] == [41_943_040, 167_772_160] * 4
    assert [each.step for each in flops.counted] == [0, 1]
    assert not flops.absent


def test_batches_of_no_loader_are_told_apart(tmp_path: Path) -> None:
    """96 rows every third step and 32 in the others, made by the loop itself, are in proportion."""

    def train(recorder: Recorder) -> None:
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in recorder.steps(range(9)):
            model(torch.ones(32 if number % 3 else 96, 64)).sum().backward()
            optimizer.step()

    steps, flops = record(tmp_path, train)
    sizes = [32 if number % 3 else 96 for number in range(9)]
    assert [step.model_flop for step in steps] == [flop_of_two_layers(size, (64, 128, 8)) for size in sizes]
    assert [each.step for each in flops.counted] == [0, 1]


def test_attention_over_many_lengths_is_exact(tmp_path: Path) -> None:
    """After three lengths that prove how FLOPs grow, steps of twenty others are by hand, and none of them counts."""
    shapes = [(4, 8), (4, 24), (4, 40), *((2 + length % 3, length) for length in range(17, 37))]
    steps, flops = record(tmp_path, train_encoder(shapes))
    assert [step.model_flop for step in steps] == [flop_of_encoder(*shape) for shape in shapes]
    assert len(flops.counted) == 3
    assert not flops.absent


def test_rows_that_are_no_batch_are_not_scaled(tmp_path: Path) -> None:
    """Where the first dimension is the length, attention is not in its proportion: by hand or absent, never guessed."""
    shapes = [(4, 16), (4, 32), (4, 48), (4, 48), (4, 16), (4, 64), (4, 48)]
    steps, flops = record(tmp_path, train_encoder(shapes, batch_first=False))
    told = [step.model_flop for step in steps]
    assert all(flop in (None, flop_of_encoder(*shape)) for flop, shape in zip(told, shapes, strict=True))
    assert told[:2] == [flop_of_encoder(4, 16), flop_of_encoder(4, 32)]
    assert told[-1] == flop_of_encoder(4, 48)
    assert "unlike those counted" in flops.absent["model_flop"]


def test_two_models_of_one_class_are_told_apart(tmp_path: Path) -> None:
    """Steps of a wide and of a narrow model, on batches of one shape, are each by hand."""

    def train(recorder: Recorder) -> None:
        models = [nn.Linear(8, width) for width in (4, 32)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for number in recorder.steps(range(8)):
            models[number // 4](torch.ones(2, 8)).sum().backward()
            optimizers[number // 4].step()
            recorder.end_step()

    steps, _ = record(tmp_path, train)
    by_hand = {4: 2 * (2 * 2 * 8 * 4), 32: 2 * (2 * 2 * 8 * 32)}
    told = [step.model_flop for step in steps if step.num_microbatches]
    assert told == [by_hand[4]] * 4 + [by_hand[32]] * 4


class OfObject(nn.Module):
    """Gets its rows in an object, and a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 64)

    def forward(self, graph: Any, factor: torch.Tensor) -> torch.Tensor:
        """Multiply the object's rows."""
        return self.layer(graph.x) * factor


def test_objects_are_told_by_tokens(tmp_path: Path) -> None:
    """128 or 64 rows in an object beside a tensor of one shape: in proportion to the tokens that the program tells."""

    def train(recorder: Recorder) -> None:
        model = OfObject()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in recorder.steps(range(8)):
            rows = 128 if number % 4 else 64
            model(SimpleNamespace(x=torch.ones(rows, 32)), torch.ones(1)).sum().backward()
            recorder.add_tokens(rows)
            optimizer.step()

    steps, _ = record(tmp_path, train)
    assert [step.model_flop for step in steps] == [2 * 2 * (step.tokens or 0) * 32 * 64 for step in steps]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_switch_no_hook_off(tmp_path: Path, layout: torch.layout) -> None:
    """Their rows have no one shape: steps have their phases, and their FLOPs by the tokens."""
    model = nn.Linear(32, 8)

    def train(recorder: Recorder) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in recorder.steps(range(6)):
            lengths = (3, 5 + number % 2)
            model(torch.nested.nested_tensor([torch.ones(n, 32) for n in lengths], layout=layout))
            model(torch.ones(sum(lengths), 32)).sum().backward()
            recorder.add_tokens(sum(lengths))
            optimizer.step()
        assert session.current is not None
        assert session.current.guard.reasons == {}

    steps, _ = record(tmp_path, train)
    assert all(step.phases.get("forward") for step in steps)
    assert {step.tokens for step in steps} == {8, 9}


class Making(nn.Module):
    """Makes so many rows of nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 512), nn.Linear(512, 32)

    def forward(self, rows: int) -> torch.Tensor:
        """Make them."""
        return self.down(self.up(torch.ones(rows, 32)))


def test_a_step_is_counted_from_its_first_forward_on(tmp_path: Path) -> None:
    """A critic gets 16 or 64 rows of what gets a number alone: no step without the FLOPs of the latter."""

    def train(recorder: Recorder) -> None:
        maker, critic = Making(), nn.Linear(32, 8)
        optimizer = torch.optim.SGD([*maker.parameters(), *critic.parameters()], lr=0.1)
        for number in recorder.steps(range(8)):
            critic(maker(64 if number % 4 else 16)).sum().backward()
            optimizer.step()

    steps, _ = record(tmp_path, train)
    per_row = 2 * (2 * 32 * 512 + 3 * 512 * 32 + 3 * 32 * 8)
    assert [step.model_flop for step in steps] == [per_row * (64 if number % 4 else 16) for number in range(8)]


def test_lists_of_more_tensors_are_more_work(tmp_path: Path) -> None:
    """Lists of 128 or 80 tensors of 4 x 32 through 32 x 64."""

    class OfList(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 64)

        def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
            return torch.cat([self.layer(part) for part in parts])

    def train(recorder: Recorder) -> None:
        model = OfList()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in recorder.steps(range(6)):
            model([torch.ones(4, 32)] * (128 if number % 3 else 80)).sum().backward()
            optimizer.step()

    steps, _ = record(tmp_path, train)
    by_hand = [2 * 2 * 4 * 32 * 64 * (128 if number % 3 else 80) for number in range(6)]
    assert [step.model_flop for step in steps] == by_hand


def test_copies_for_each_step_are_one_kind(tmp_path: Path) -> None:
    """A copy of the model, called once a step: the first step alone is counted, and tells of all."""

    def train(recorder: Recorder) -> None:
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in recorder.steps(range(10)):
            fast = copy.deepcopy(model)
            fast(torch.ones(2, 8))
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()

    steps, flops = record(tmp_path, train)
    assert [step.model_flop for step in steps] == [3 * 2 * 2 * 8 * 4] * 10
    assert len(flops.counted) == 1


def test_shapes_that_never_come_again_slow_few_steps_down(tmp_path: Path) -> None:
    """A graph of other edges each step: five steps are counted, and the others have no FLOPs, and say so."""

    class OfEdges(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            return self.layer(x[edges[0]])

    def train(recorder: Recorder) -> None:
        model = OfEdges()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in recorder.steps(range(40)):
            model(torch.ones(5, 8), torch.zeros(2, 10 + number, dtype=torch.int64)).sum().backward()
            optimizer.step()

    steps, flops = record(tmp_path, train)
    by_hand = [2 * 2 * (10 + number) * 8 * 4 for number in range(40)]
    assert [step.model_flop for step in steps] == by_hand[:5] + [None] * 35
    assert sum(step.disturbed == "flops_counted" for step in steps) == 5
    assert "cannot be worked out" in flops.absent["model_flop"]
