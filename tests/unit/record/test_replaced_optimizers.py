"""Steps go on where a loop without a loader changes its optimizers, and stay whole where an optimizer is only slow."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from scope.record import Recorder
from scope.record.settings import CaptureSettings
from scope.record.steps import StepBoundary
from scope.run.reader import RankReader, read_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from torch.optim import Optimizer

    from scope.run.schema import EventRecord


def count_updates(folder: Path, train: Callable[[Recorder], None], **options: Any) -> list[int | None]:
    """Record a loop; return how many optimizer calls each step has."""
    with Recorder(run_dir=folder, run_id="r", capture=CaptureSettings(reasons=frozenset()), **options) as recorder:
        rank = recorder.folder
        train(recorder)
    assert rank is not None
    return [step.num_optimizer_steps for step in read_steps(rank)]


def read_warnings(folder: Path) -> list[EventRecord]:
    """Return the warnings of the one rank of a run."""
    (rank,) = folder.glob("attempt-*/ranks/*")
    return [event for event in RankReader(rank).new_events() if event.kind == "warning"]


def play(events: str, named: Iterable[str] = ()) -> list[str]:
    """Play a loop without a loader: each letter is a backward pass and a step of that optimizer; return its steps."""
    boundary = StepBoundary()
    for name in named:
        boundary.expect(ord(name))
    steps = [""]
    for event in events:
        if boundary.on_compute():
            boundary.next_step()
            steps.append("")
        boundary.on_work()
        boundary.on_optimizer(ord(event))
        steps[-1] += event
    return steps


def update(model: nn.Module, optimizer: Optimizer, *, passes: int = 1) -> None:
    """One update, of so many backward passes."""
    for _ in range(passes):
        model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("keep", [True, False], ids=["still referenced", "collected"])
@pytest.mark.parametrize("passes", [1, 3])
def test_a_replaced_optimizer_is_not_waited_for(tmp_path: Path, keep: bool, passes: int) -> None:
    """SGD replaced by AdamW after 8 of 20 updates: the first two of AdamW at most share a step, all others have one."""

    def train(_: Recorder) -> None:
        model = nn.Linear(4, 4)
        optimizer: Optimizer = torch.optim.SGD(model.parameters(), 0.1)
        kept: list[Optimizer] = []
        for number in range(20):
            if number == 8:
                kept += [optimizer] * keep
                optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
                gc.collect()
            update(model, optimizer, passes=passes)

    updates = count_updates(tmp_path, train)
    assert updates == [1] * 8 + [2] + [1] * 10 or (not keep and updates == [1] * 20)


def test_a_new_model_and_optimizer_after_the_first(tmp_path: Path) -> None:
    """Two trainings in a row, the second with a model and optimizer of its own, have the steps of both."""
    kept: list[Any] = []

    def train(_: Recorder) -> None:
        for number in (10, 7):
            model = nn.Linear(4, 4)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            kept.append(optimizer)
            for _step in range(number):
                update(model, optimizer)

    assert count_updates(tmp_path, train) == [1] * 10 + [2] + [1] * 5


def test_a_pair_of_optimizers_is_replaced(tmp_path: Path) -> None:
    """Both optimizers of a pair are replaced: rounds still begin with the first of them and hold one update of each."""
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    kept = [torch.optim.SGD(model.parameters(), 0.1) for _ in range(2) for model in models]

    def train(_: Recorder) -> None:
        for pair in (kept[:2], kept[2:]):
            for _round in range(5):
                for model, optimizer in zip(models, pair, strict=True):
                    update(model, optimizer)

    assert count_updates(tmp_path, train, optimizer=kept[:2]) == [2] * 5 + [4] + [2] * 3
    assert play("AB" * 5 + "CD" * 5, "AB") == ["AB"] * 5 + ["CDCD"] + ["CD"] * 3
    assert play("AB" * 5 + "AC" * 5, "AB") == ["AB"] * 5 + ["ACAC"] + ["AC"] * 3


def test_the_first_optimizer_that_is_taken_for_gone_is_told(tmp_path: Path) -> None:
    """A pair is replaced twice, and one warning tells it of the first; a loop that merely changes a loader has none."""
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    kept = [torch.optim.SGD(model.parameters(), 0.1) for _ in range(3) for model in models]

    def train(_: Recorder) -> None:
        for pair in (kept[:2], kept[2:4], kept[4:]):
            for _round in range(5):
                for model, optimizer in zip(models, pair, strict=True):
                    update(model, optimizer)

    def train_on(recorder: Recorder) -> None:
        for optimizer in kept[:2]:
            for _batch in recorder.steps(range(4)):
                update(models[0], optimizer)

    assert count_updates(tmp_path / "replaced", train, optimizer=kept[:2]) == [2] * 5 + [4] + [2] * 3 + [4] + [2] * 3
    (told,) = read_warnings(tmp_path / "replaced")
    assert (told.step, told.detail) == (6, {"num_optimizers": 2})
    assert told.message.startswith("step 5 ended without 2 optimizers that steps had before, since others have gone on")
    count_updates(tmp_path / "loader", train_on, optimizer=kept[0])
    assert read_warnings(tmp_path / "loader") == []


@pytest.mark.parametrize("order", ["critic first", "generator first"])
def test_a_critic_with_several_updates_a_round(tmp_path: Path, order: str) -> None:
    """Five updates of a critic and one of the generator are one step, in either order, also before both are known."""
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    critic, generator = (torch.optim.SGD(model.parameters(), 0.1) for model in models)

    def train(_: Recorder) -> None:
        for _round in range(4):
            pairs = [(models[0], critic)] * 5 + [(models[1], generator)]
            for model, optimizer in pairs if order == "critic first" else reversed(pairs):
                update(model, optimizer)

    # Without a loader a step ends as soon as both have stepped: at the generator, whichever of them is first.
    first = [6, 6, 6, 6] if order == "critic first" else [2, 5, 6, 6, 5]
    assert count_updates(tmp_path, train, optimizer=[critic, generator]) == first
    assert play("CCCCCG" * 4)[-2:] == ["CCCCCG"] * 2
    assert play("CCG" * 8) == ["C", "C", "GC", "CG", *["CCG"] * 6]
    assert play("CCG" * 8, "CG") == ["CCG"] * 8
    assert play("GCCCCC" * 4) == ["G", "CCCCCG", "CCCCCG", "CCCCCG", "CCCCC"]


def test_a_slow_optimizer_is_waited_for() -> None:
    """An optimizer that steps at every hundredth update of the other is none that is gone."""
    assert play(("A" * 100 + "B") * 4, "AB") == ["A" * 100 + "B"] * 4
    assert play("A" * 5 + ("B" + "A" * 100) * 3)[5:] == ["BA", "A" * 99 + "B", "A" * 100 + "B", "A" * 100]


def test_an_optimizer_that_stops_for_ever_does_not_swallow_the_rest() -> None:
    """Where one of two optimizers never steps again after steps with both, one step holds six updates, others one."""
    assert play("AB" * 5 + "A" * 30) == ["A", *["BA"] * 5, "A" * 6, *"A" * 23]
    assert play("AB" * 5 + "A" * 30, "AB") == [*["AB"] * 5, "A" * 6, *"A" * 24]


def test_an_optimizer_that_never_stepped_is_waited_for_longer() -> None:
    """One that was named and has never stepped may be any as slow: a step holds 1,000 updates before it is gone."""
    steps = play("A" * 1_500, "AB")
    assert max(len(step) for step in steps) == 1_001
    assert steps[-400:] == ["A"] * 400


@pytest.mark.parametrize("rounds", [2, 5, 20])
def test_how_long_is_waited_is_what_steps_took(rounds: int) -> None:
    """A generator that steps at each of so many updates of its critic, and at times at four times as many, is none."""
    usual, slow = "C" * rounds + "G", "C" * 4 * rounds + "G"
    assert play((usual * 4 + slow) * 3, "CG") == [*([usual] * 4 + [slow]) * 3]


def test_optimizers_that_are_collected_are_not_waited_for(tmp_path: Path) -> None:
    """A loop that makes a new optimizer for every update, or every third, has a step for each; so has one of pairs."""
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]

    def train(every: int, num_models: int) -> Callable[[Recorder], None]:
        def loop(_: Recorder) -> None:
            pair: list[Optimizer] = []
            for number in range(12):
                if number % every == 0:
                    pair = [torch.optim.Adam(model.parameters()) for model in models[:num_models]]
                for place in range(len(pair)):
                    update(models[place], pair[place])

        return loop

    assert count_updates(tmp_path / "each", train(1, 1)) == [1] * 12
    assert count_updates(tmp_path / "third", train(3, 1)) == [1] * 12
    assert count_updates(tmp_path / "pairs", train(3, 2))[1:-1] == [2] * 11


def test_the_rest_goes_on_where_one_is_collected(tmp_path: Path) -> None:
    """Of two optimizers one is dropped: from then on each update of the other has its step, the first one too."""
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]

    def train(_: Recorder) -> None:
        pair = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
        for number in range(10):
            if number == 4:
                pair.pop()
                gc.collect()
            for place in range(len(pair)):
                update(models[place], pair[place])

    assert count_updates(tmp_path, train) == [1] + [2] * 4 + [1] * 5


def test_a_step_that_holds_several_is_marked(tmp_path: Path) -> None:
    """The one step with six updates, of an optimizer that waited for another, is marked; no other is."""
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    pair = [torch.optim.SGD(model.parameters(), 0.1) for model in models]

    def train(_: Recorder) -> None:
        for number in range(25):
            for model, optimizer in zip(models, pair[: 1 if number >= 10 else 2], strict=False):
                update(model, optimizer)

    updates = count_updates(tmp_path, train, optimizer=pair)
    assert updates == [2] * 10 + [6] + [1] * 9
    (folder,) = tmp_path.glob("attempt-*/ranks/*")
    assert [step.step for step in read_steps(folder) if step.disturbed == "updates_merged"] == [10]


@pytest.mark.parametrize(
    ("before", "after"), [("CBA", "EDC"), ("BCCC", "D"), ("BA", "ECBBB"), ("AC", "BA"), ("CBB", "A")]
)
def test_a_step_of_old_and_new_optimizers_is_no_habit(before: str, after: str) -> None:
    """Where the change falls into a step, which then has those of both, steps soon are rounds of the new ones alone."""
    steps = play(before * 6 + after * 40)
    assert {"".join(sorted(step)) for step in steps[-12:-1]} == {"".join(sorted(after))}


def test_one_that_comes_back_was_not_gone() -> None:
    """Two optimizers with turns of several updates are taken for a change once, and for rounds of both from then."""
    assert play("CCCCCBBBB" * 4)[5:] == ["BB", "B", "B", "CCCCCB", "BBBC", "CCCCB", "BBBC", "CCCCB", "BBB"]
    assert play("A" * 5 + "B" * 5 + "A" * 30)[-19:] == ["A"] * 19


def test_one_update_before_the_real_optimizer() -> None:
    """After a single update of another optimizer steps are found too, though later: a critic would look the same."""
    steps = play("W" + "A" * 30)
    assert steps == ["W", "A" * 11, *"A" * 19]


def test_optimizers_that_step_inside_of_backward(tmp_path: Path) -> None:
    """One optimizer a parameter, stepping from hooks: a step a backward pass, before and after all are replaced."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    kept: list[Any] = []

    def attach(kind: type[Optimizer]) -> list[Any]:
        handles: list[Any] = []
        for parameter in model.parameters():
            own = kind([parameter], lr=0.01)  # pyright: ignore[reportCallIssue]
            kept.append(own)

            def step(tensor: torch.Tensor, own: Optimizer = own) -> None:
                own.step()
                tensor.grad = None

            handles.append(parameter.register_post_accumulate_grad_hook(step))
        return handles

    def train(_: Recorder) -> None:
        for kind in (torch.optim.SGD, torch.optim.AdamW):
            handles = attach(kind)
            for _step in range(6):
                model(torch.ones(2, 4)).sum().backward()
            for handle in handles:
                handle.remove()

    assert count_updates(tmp_path, train) == [4] * 6 + [8] + [4] * 4


def test_a_scaler_that_skips_the_first_update_of_a_new_optimizer(tmp_path: Path) -> None:
    """An update that the scaler skips counts as one: each has its step, but for the two that show the change."""
    model = nn.Linear(4, 4)
    kept = [torch.optim.SGD(model.parameters(), 0.1), torch.optim.AdamW(model.parameters(), 1e-3)]

    def train(_: Recorder) -> None:
        scaler = torch.amp.GradScaler("cpu")
        for optimizer in kept:
            for number in range(6):
                loss = model(torch.ones(2, 4)).sum() * (float("inf") if number == 0 else 1.0)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    assert count_updates(tmp_path, train) == [1] * 6 + [2] + [1] * 4


def test_the_program_says_where_steps_end(tmp_path: Path) -> None:
    """With `steps()` or `end_step()` each step is as the program says, whatever its optimizers are."""
    model = nn.Linear(4, 4)
    kept = [torch.optim.SGD(model.parameters(), 0.1) for _ in range(2)]

    def loop(recorder: Recorder) -> None:
        for number in recorder.steps(range(8)):
            update(model, kept[number >= 4])

    def told(recorder: Recorder) -> None:
        for number in range(8):
            update(model, kept[number >= 4])
            recorder.end_step()

    assert count_updates(tmp_path / "loop", loop) == [1] * 8
    assert count_updates(tmp_path / "told", told) == [1] * 8
