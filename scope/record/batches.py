"""How much a batch holds: bytes, samples and tokens, from its tensors' shapes."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

_MAX_DEPTH: Final = 4
_MAX_ITEMS: Final = 64
_TOKEN_FIELDS: Final = ("input_ids", "tokens", "token_ids")
_WHOLE: Final = frozenset((torch.int64, torch.int32))


@dataclass(frozen=True, slots=True)
class BatchSize:
    """What a batch holds; what its shapes do not tell is `None`.

    Attributes:
        num_bytes: Bytes of all its tensors; `None` without any, as in an object of a class of the user's own.
        samples: Length of the first dimension of its first tensor.
        tokens: Elements of its token ids: the field `input_ids`, `tokens` or `token_ids`, else the first tensor when it
            is a matrix of integers.
    """

    num_bytes: int | None
    samples: int | None
    tokens: int | None


def measure_batch(batch: Any) -> BatchSize:
    """Return what a batch holds; no value of any tensor is read, so that no device is waited for."""
    tensors = list(tensors_in(batch))
    first = tensors[0] if tensors else None
    with torch._C.DisableTorchFunction():  # pyright: ignore[reportPrivateUsage] - modes of the program see none of it
        return BatchSize(
            num_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors) if tensors else None,
            samples=int(first.shape[0]) if first is not None and first.dim() else None,
            tokens=_count_tokens(batch, first),
        )


def first_rows(values: Any) -> int | None:
    """Return the first dimension of the first tensor that has any; `None` where none has, or it is nested."""
    with torch._C.DisableTorchFunction():  # pyright: ignore[reportPrivateUsage] - modes of the program see none of it
        tensor = next((tensor for tensor in tensors_in(values) if tensor.dim() and not tensor.is_nested), None)
        return None if tensor is None else int(tensor.shape[0])


def _count_tokens(batch: Any, first: torch.Tensor | None) -> int | None:
    if isinstance(batch, Mapping):
        for name in _TOKEN_FIELDS:
            value = batch.get(name)
            if isinstance(value, torch.Tensor):
                return value.numel()
        return None
    if first is not None and first.dim() == 2 and first.dtype in _WHOLE:
        return first.numel()
    return None


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested lists, tuples and mappings, of each the first 64 members and no more than 4 deep."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _MAX_DEPTH:
        inner = list(value.values()) if isinstance(value, Mapping) else value
        if isinstance(inner, list | tuple):
            for item in inner[:_MAX_ITEMS]:
                yield from tensors_in(item, depth + 1)
