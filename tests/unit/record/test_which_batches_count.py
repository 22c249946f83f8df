"""Which batches a step has used, by the rows that its program fed to the model, however its loop fetches them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.data import DataLoader

from scope.record import Recorder, session
from scope.run.reader import read_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scope.run.schema import StepRecord


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test the recording and its hooks are gone."""
    before = nn.Sequential.__dict__.get("__call__")
    yield
    assert session.current is None
    assert nn.Sequential.__dict__.get("__call__") == before


def load(samples: int, batch_size: int, width: int = 6) -> DataLoader[torch.Tensor]:
    """Batches of token ids."""
    rows = torch.zeros(samples, width, dtype=torch.int64)
    return DataLoader(rows, batch_size=batch_size)  # pyright: ignore[reportArgumentType]


class Job:
    """A model of token ids, its optimizer, and the rows of each update."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Embedding(2, 4), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.rows: list[int] = []

    def update(self, *batches: torch.Tensor) -> None:
        """Make one update by a forward for each."""
        for batch in batches:
            self.model(batch).sum().backward()
        self.optimizer.step()
        self.rows.append(sum(map(len, batches)))


def look(model: nn.Module, loader: DataLoader[torch.Tensor]) -> None:
    """Validate without gradients, in whichever mode the model is."""
    with torch.no_grad():
        for batch in loader:
            model(batch)


def join(job: Job) -> None:
    """One forward of what two loaders give."""
    for one, other in zip(load(16, 4), load(48, 12), strict=True):
        job.update(torch.cat([one, other]))


def join_alike(job: Job) -> None:
    """The same, of batches of one shape."""
    for one, other in zip(load(16, 4), load(16, 4), strict=True):
        job.update(torch.cat([one, other]))


def cross(job: Job) -> None:
    """A forward for each of two loaders, the last first."""
    for one, other in zip(load(16, 4), load(48, 12), strict=True):
        job.update(other, one)


def validate_amid(job: Job) -> None:
    """A validation without `eval()`."""
    for number, batch in enumerate(load(16, 4)):
        job.update(batch)
        if number == 1:
            look(job.model, load(32, 8))


def validate_first(job: Job) -> None:
    """A validation before the first update."""
    look(job.model.eval(), load(32, 8))
    job.model.train()
    for batch in load(16, 4):
        job.update(batch)


def validate_average(job: Job) -> None:
    """A validation of a frozen copy."""
    average = copy.deepcopy(job.model).requires_grad_(False).eval()
    for batch in load(16, 4):
        job.update(batch)
        look(average, load(8, 4))


def skip(job: Job) -> None:
    """Every other batch is too long, and skipped."""
    for short, long in zip(load(16, 4), load(16, 4, 50), strict=True):
        for batch in (long, short):
            if batch.shape[1] < 50:
                job.update(batch)


def fetch_ahead(job: Job) -> None:
    """The next batch, at the end a smaller one, is fetched before the last is used."""
    iterator = iter(load(15, 4))
    batch: torch.Tensor | None = next(iterator)
    while batch is not None:
        following = next(iterator, None)
        job.update(batch)
        batch = following


def view_ahead(job: Job) -> None:
    """The same, of which the model gets two views at once."""
    iterator = iter(load(16, 4))
    batch: torch.Tensor | None = next(iterator)
    while batch is not None:
        following = next(iterator, None)
        job.update(torch.cat([batch, batch]))
        job.rows[-1] = len(batch)
        batch = following


def label_ahead(job: Job) -> None:
    """The same, of which the model itself makes the labels."""
    iterator = iter(load(15, 4))
    batch: torch.Tensor | None = next(iterator)
    while batch is not None:
        following = next(iterator, None)
        with torch.no_grad():
            job.model(batch)
        job.update(batch)
        batch = following


def go_on_ahead(job: Job) -> None:
    """The same, of which the model makes longer texts, one call after the other, before it is trained on them."""
    iterator = iter(load(15, 4))
    batch: torch.Tensor | None = next(iterator)
    while batch is not None:
        following = next(iterator, None)
        with torch.no_grad():
            for _ in range(3):
                job.model(batch)
                job.model(torch.cat([batch, batch], dim=1))
        job.update(batch)
        batch = following


def join_validated(job: Job) -> None:
    """One forward of what two loaders give, to one of which a teacher has answered before."""
    teacher = copy.deepcopy(job.model).requires_grad_(False).eval()
    labelled, unlabelled = iter(load(16, 4)), iter(load(48, 12))
    for _ in range(4):
        other = next(unlabelled)
        teacher(other)
        job.update(torch.cat([next(labelled), other]))


def join_of_one(job: Job) -> None:
    """One forward of two batches of one loader; the first step, for all that is known, fetches ahead."""
    iterator = iter(load(32, 4))
    for _ in range(4):
        job.update(torch.cat([next(iterator), next(iterator)]))
    job.rows[0] = 4


def copy_validation(job: Job) -> None:
    """A validation without `eval()` of what is made of its batches, as training is."""
    for number, batch in enumerate(load(16, 4)):
        job.update(batch.clone())
        if number == 1:
            with torch.no_grad():
                for other in load(32, 8):
                    job.model(other.clone())


def fetch_two_ahead(job: Job) -> None:
    """Two batches are in hand; of each the model says something before the next is fetched."""
    iterator = iter(load(15, 4))
    waiting = [next(iterator), next(iterator)]
    while waiting:
        batch = waiting.pop(0)
        with torch.no_grad():
            job.model(batch)
        following = next(iterator, None)
        if following is not None:
            waiting.append(following)
        job.update(batch)


def make_ahead(job: Job, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The next batch is fetched, and the model gets what is made of the last."""
    iterator = iter(load(15, 4))
    batch: torch.Tensor | None = next(iterator)
    while batch is not None:
        following = next(iterator, None)
        job.update(make(batch))
        batch = following


def cut_ahead(job: Job) -> None:
    """A part of each row."""
    make_ahead(job, lambda batch: batch[:, :3])


def pad_ahead(job: Job) -> None:
    """Longer rows."""
    make_ahead(job, lambda batch: nn.functional.pad(batch, (0, 2)))


def encode_ahead(job: Job) -> None:
    """What a frozen model says of it, before the next is fetched."""
    encoder = nn.Sequential(nn.Embedding(2, 4)).requires_grad_(False)
    job.model = nn.Sequential(nn.Linear(4, 2))
    job.optimizer = torch.optim.SGD(job.model.parameters(), lr=0.1)
    iterator = iter(load(15, 4))
    batch: torch.Tensor | None = next(iterator)
    while batch is not None:
        with torch.no_grad():
            features = encoder(batch)
        following = next(iterator, None)
        job.update(features)
        job.rows[-1] = len(batch)
        batch = following


def split_ahead(job: Job) -> None:
    """The same in two micro-batches."""
    iterator = iter(load(16, 4))
    batch: torch.Tensor | None = next(iterator)
    while batch is not None:
        following = next(iterator, None)
        job.update(*batch.chunk(2))
        batch = following


def compare_ahead(job: Job) -> None:
    """The model gets the batch and something made of it, one after the other, as a siamese one does."""
    iterator = iter(load(15, 4))
    batch: torch.Tensor | None = next(iterator)
    while batch is not None:
        following = next(iterator, None)
        job.update(batch, 1 - batch)
        job.rows[-1] = len(batch)
        batch = following


def roll_out(job: Job) -> None:
    """Four batches are answered without gradients, and then trained on together."""
    iterator = iter(load(64, 4))
    for _ in range(4):
        batches = [next(iterator) for _ in range(4)]
        with torch.no_grad():
            for batch in batches:
                job.model(batch)
        job.update(torch.cat(batches))


def slice_one(job: Job) -> None:
    """Batches that are slices of one tensor, which share its storage, and the next is fetched before."""
    rows = torch.zeros(15, 6, dtype=torch.int64)
    slices = [rows[0:3], rows[3:8], rows[8:15]]
    iterator = iter(DataLoader(slices, batch_size=None))  # pyright: ignore[reportArgumentType]
    batch: torch.Tensor | None = next(iterator)
    while batch is not None:
        following = next(iterator, None)
        job.update(batch)
        batch = following


def sort_list(job: Job) -> None:
    """Batches are fetched in fours and trained on the shortest first, in an update of four."""
    iterator = iter(load(30, 4))
    for _ in range(2):
        batches = [next(iterator) for _ in range(4)]
        job.update(*sorted(batches, key=len))


def list_first(job: Job) -> None:
    """All batches are listed first; the first step, of two updates before that is known, has both of theirs."""
    for batch in list(load(15, 4)):
        job.update(batch)
    job.rows[:2] = [sum(job.rows[:2])]


LOOPS = [
    join,
    join_alike,
    join_validated,
    join_of_one,
    cross,
    validate_amid,
    validate_first,
    validate_average,
    copy_validation,
    skip,
    fetch_ahead,
    fetch_two_ahead,
    view_ahead,
    label_ahead,
    go_on_ahead,
    cut_ahead,
    pad_ahead,
    encode_ahead,
    split_ahead,
    compare_ahead,
    slice_one,
    roll_out,
    sort_list,
    list_first,
]


@pytest.mark.parametrize("loop", LOOPS)
def test_steps_have_the_batches_that_were_trained_on(tmp_path: Path, loop: Callable[[Job], None]) -> None:
    """Samples, tokens and bytes are those of the rows that updates were made of: 6 ids of 8 bytes each."""
    job = Job()
    with Recorder(run_dir=tmp_path) as recorder:
        path = recorder.folder
        loop(job)
    assert path is not None
    steps: list[StepRecord] = read_steps(path)
    assert [step.samples for step in steps] == job.rows
    assert [step.tokens for step in steps] == [6 * rows for rows in job.rows]
    assert [step.input_bytes for step in steps] == [48 * rows for rows in job.rows]


def test_batches_of_a_validation_are_none_of_a_loop_without_a_loader(tmp_path: Path) -> None:
    """Updates of rows that no loader gave, with a validation without `eval()` amid them: nothing is known of rows."""
    job = Job()
    with Recorder(run_dir=tmp_path) as recorder:
        path = recorder.folder
        for number in range(6):
            job.update(torch.zeros(4, 6, dtype=torch.int64))
            if number % 2:
                look(job.model, load(32, 8))
    assert path is not None
    steps = read_steps(path)
    assert sum(step.num_optimizer_steps or 0 for step in steps) == 6
    assert {step.samples for step in steps} == {None}


def test_an_object_of_the_users_own_has_no_bytes(tmp_path: Path) -> None:
    """What a batch of an unknown class holds is not seen: it is absent, not 0."""

    class Pair:
        def __init__(self, rows: list[torch.Tensor]) -> None:
            self.rows = torch.stack(rows)

    job = Job()
    rows = torch.zeros(16, 6, dtype=torch.int64)
    with Recorder(run_dir=tmp_path) as recorder:
        path = recorder.folder
        for pair in DataLoader(rows, batch_size=4, collate_fn=Pair):  # pyright: ignore[reportArgumentType]
            job.update(pair.rows)
    assert path is not None
    steps = read_steps(path)
    assert len(steps) == 4
    assert {(step.samples, step.tokens, step.input_bytes) for step in steps} == {(None, None, None)}
