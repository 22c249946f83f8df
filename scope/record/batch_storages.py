"""Knows a batch again by the memory of its tensors: views share it, and copies to a device are told.

No tensor is kept. A weak reference to a storage keeps its address from being given to another, and none of its memory.
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from scope.record.batches import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scope.record.step_batches import Fetched

_MAX_TENSORS: Final = 16
"""Tensors of a batch, and of a call, that are looked at; one that both have is enough."""
_MAX_STORAGES: Final = 4096


class BatchStorages:
    """From the storages of tensors to the batch that they came with."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, Fetched | None]] = {}

    def add(self, values: Any, batch: Fetched) -> None:
        """Note the tensors of a batch.

        Where a batch that still waits lies in the same storage, as slices of one tensor do, that tells of neither.
        """
        known = self._known
        for storage in _storages_of(values):
            entry = known.get(storage._cdata)
            shared = entry is not None and (entry[1] is None or not (entry[1] is batch or entry[1].is_taken))
            reference = StorageWeakRef(storage)
            known[reference.cdata] = reference, None if shared else batch
        if len(known) > _MAX_STORAGES:
            self._forget()

    def add_copy(self, source: torch.Tensor, copy: Any) -> None:
        """Note that a tensor was copied: who gets the copy gets the batch."""
        if self._known and copy is not source:
            for batch in self.find(source):
                self.add(copy, batch)

    def find(self, values: Any) -> list[Fetched]:
        """Return the batches whose tensors, or views of them, are among values; each once."""
        if not self._known:
            return []
        entries = (self._known.get(storage._cdata) for storage in _storages_of(values))
        return list({id(batch): batch for _, batch in filter(None, entries) if batch is not None}.values())

    def _forget(self) -> None:
        """Forget storages that are gone, then the older half of what is left if that is still too much."""
        alive = [(key, entry) for key, entry in self._known.items() if not entry[0].expired()]
        self._known = dict(alive if len(alive) <= _MAX_STORAGES // 2 else alive[len(alive) // 2 :])


def _storages_of(values: Any) -> Iterator[Any]:
    with torch._C.DisableTorchFunction():  # pyright: ignore[reportPrivateUsage] - modes of the program see none of it
        for tensor in islice(tensors_in(values), _MAX_TENSORS):
            try:
                yield tensor.untyped_storage()
            except (NotImplementedError, RuntimeError):
                continue  # sparse tensors, among others, have none of their own
