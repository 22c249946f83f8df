"""Batches that are known again by the storages of their tensors."""

from __future__ import annotations

import weakref

import pytest

pytest.importorskip("torch")

import torch

from scope.record.batch_storages import BatchStorages
from scope.record.batches import BatchSize
from scope.record.step_batches import Fetched


def fetched(number: int) -> Fetched:
    """Return a batch of no size."""
    return Fetched(BatchSize(None, None, None), number, loader=1, is_first=False)


def test_views_and_copies_that_were_told_are_the_batch() -> None:
    """A part, a detached or reshaped tensor of a batch is of it, and so is a view of a copy to a device."""
    storages = BatchStorages()
    ids, more = torch.zeros(4, 6), torch.zeros(4)
    known = fetched(1)
    storages.add({"ids": ids, "more": [more]}, known)
    copy = ids.clone()
    assert storages.find(copy) == []
    storages.add_copy(ids, copy)
    views = [ids[1:, :3], more.detach(), copy.view(24)[5:]]
    assert [storages.find(view) for view in views] == [[known]] * 3
    assert storages.find((views, {"all": views})) == [known]
    assert storages.find(torch.zeros(4, 6)) == []


def test_no_memory_of_a_batch_is_kept() -> None:
    """Its tensors go with the program's last reference, and what comes to lie in their place is not taken for it."""
    storages = BatchStorages()
    tensor = torch.zeros(1 << 16)
    gone = weakref.ref(tensor.untyped_storage())
    storages.add(tensor, fetched(1))
    del tensor
    assert gone() is None
    assert all(storages.find(torch.zeros(1 << 16)) == [] for _ in range(64))


def test_a_storage_that_two_batches_wait_in_tells_of_neither() -> None:
    """Slices of one tensor are told apart by order alone; once the first was used, the storage is the second's."""
    storages = BatchStorages()
    rows = torch.zeros(8, 6)
    first, second, third = fetched(1), fetched(2), fetched(3)
    storages.add(rows[:4], first)
    first.taken_in = 0
    storages.add(rows[4:], second)
    assert storages.find(rows) == [second]
    storages.add(rows[:4], third)
    assert storages.find(rows) == []


def test_tensors_without_a_storage_are_passed_over() -> None:
    """A sparse tensor has none of its own; others of its batch have."""
    storages = BatchStorages()
    dense = torch.zeros(3)
    known = fetched(1)
    storages.add([torch.eye(3).to_sparse(), dense], known)
    assert storages.find([torch.eye(3).to_sparse()]) == []
    assert storages.find(dense) == [known]
