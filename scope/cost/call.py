"""An operator call as a trace records it: name, shapes, types, strides and the values of scalar arguments."""

from __future__ import annotations

import json
import math
from typing import Any, Final, Literal, cast

import msgspec

from scope.cost.dtypes import element_bytes, normalise_dtype

Kind = Literal["tensor", "list", "scalar", "none"]
"""What an argument is: a tensor, a list of tensors, a plain value, or nothing (an optional that was left out)."""

_PLAIN: Final = frozenset({"Scalar", "ScalarList"})
_MOST_DIMS: Final = 64


class TensorArg(msgspec.Struct, frozen=True, kw_only=True):
    """Shape, dtype and strides of one tensor; None where the trace does not say."""

    dims: tuple[int, ...]
    dtype: str | None = None
    strides: tuple[int, ...] | None = None

    @property
    def num_elements(self) -> int:
        """Elements of the shape, an expanded dimension counted in full."""
        return math.prod(self.dims)

    @property
    def num_stored(self) -> int:
        """Elements that memory holds: a dimension of stride 0 repeats one element."""
        if self.strides is None or len(self.strides) != len(self.dims):
            return self.num_elements
        return math.prod(size for size, stride in zip(self.dims, self.strides, strict=True) if stride or not size)

    @property
    def stored_bytes(self) -> int | None:
        """Bytes that memory holds; None when the dtype is unknown."""
        size = element_bytes(self.dtype)
        return None if size is None else size * self.num_stored


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """One argument of a call."""

    kind: Kind
    tensors: tuple[TensorArg, ...] = ()
    """One tensor, or those of a list; empty for a list whose shapes the trace leaves out."""
    text: str = ""
    """The value of a scalar or a list of scalars, as printed; empty when unknown."""


class OperatorCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an operator, as `Input Dims`, `Input type`, `Input Strides` and `Concrete Inputs` describe it."""

    name: str
    arguments: tuple[Argument, ...] = ()
    has_shapes: bool = False
    """The trace was recorded with shapes; without them nothing can be computed."""

    @property
    def tensors(self) -> tuple[TensorArg, ...]:
        """The plain tensor arguments in order, lists apart."""
        return tuple(argument.tensors[0] for argument in self.arguments if argument.kind == "tensor")

    @property
    def lists(self) -> tuple[Argument, ...]:
        """The arguments that are lists of tensors, in order."""
        return tuple(argument for argument in self.arguments if argument.kind == "list")

    def tensor(self, position: int) -> TensorArg | None:
        """Return the tensor at a position; None when there is none."""
        if not 0 <= position < len(self.arguments) or self.arguments[position].kind != "tensor":
            return None
        return self.arguments[position].tensors[0]

    def text(self, position: int) -> str:
        """Return the printed value at a position; empty when there is none."""
        return self.arguments[position].text if 0 <= position < len(self.arguments) else ""

    def integer(self, position: int) -> int | None:
        """Return the whole number at a position; None when there is none."""
        try:
            return int(self.text(position))
        except ValueError:
            return None

    def flag(self, position: int) -> bool | None:
        """Return the truth value at a position; None when there is none."""
        return {"true": True, "1": True, "false": False, "0": False}.get(self.text(position).strip().lower())

    def integers(self, position: int) -> tuple[int, ...] | None:
        """Return the list of whole numbers at a position (`True` is 1); None when there is none."""
        try:
            value: object = json.loads(self.text(position).replace("True", "1").replace("False", "0"))
        except ValueError:
            return None
        if isinstance(value, list) and all(isinstance(each, int) for each in cast("list[object]", value)):
            return tuple(cast("list[int]", value))
        return (value,) if isinstance(value, int) else None


def parse_call(
    name: str,
    *,
    input_dims: str | None,
    input_types: str | None = None,
    input_strides: str | None = None,
    concrete_inputs: str | None = None,
) -> OperatorCall:
    """Return the call that a trace describes; each text is a JSON list as in the trace, None where it is absent.

    What is malformed is unknown: the call then has no shapes, and costs are absent with that reason.
    """
    dims = _json_list(input_dims)
    if dims is None:
        return OperatorCall(name=name)
    columns = [_padded(_json_list(text), len(dims)) for text in (input_types, input_strides, concrete_inputs)]
    arguments = tuple(_argument(*row) for row in zip(dims, *columns, strict=True))
    return OperatorCall(name=name, arguments=arguments, has_shapes=True)


def _argument(dims: Any, type_text: Any, strides: Any, text: Any) -> Argument:
    printed = text if isinstance(text, str) else ""
    if isinstance(dims, list) and dims and isinstance(dims[0], list):
        shapes = [_shape(each) for each in cast("list[Any]", dims)]
        rows = (
            _padded(cast("list[Any] | None", strides), len(shapes))
            if isinstance(strides, list)
            else [None] * len(shapes)
        )
        tensors = tuple(
            TensorArg(dims=shape, strides=_shape(row))
            for shape, row in zip(shapes, rows, strict=True)
            if shape is not None
        )
        return Argument(kind="list", tensors=tensors)
    shape = _shape(dims)
    if isinstance(type_text, str):
        if type_text in _PLAIN:
            return Argument(kind="scalar", text=printed)
        if type_text == "" or shape is None:
            return Argument(kind="none", text=printed)
        if type_text.startswith(("TensorList", "GenericList")):
            return Argument(kind="list")
        tensor = TensorArg(dims=shape, dtype=normalise_dtype(type_text), strides=_shape(strides))
        return Argument(kind="tensor", tensors=(tensor,))
    # Traces of torch 1.8 have shapes without types: an empty shape may be anything but a tensor that matters.
    if not shape:
        return Argument(kind="none", text=printed)
    return Argument(kind="tensor", tensors=(TensorArg(dims=shape, strides=_shape(strides)),), text=printed)


def _shape(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    sizes = cast("list[object]", value)
    if len(sizes) > _MOST_DIMS or not all(isinstance(size, int) and size >= 0 for size in sizes):
        return None
    return tuple(cast("list[int]", sizes))


def _padded(values: list[Any] | None, length: int) -> list[Any]:
    known = values or []
    return [*known[:length], *([None] * (length - len(known)))]


def _json_list(text: str | None) -> list[Any] | None:
    if not text:
        return None
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("list[Any]", value) if isinstance(value, list) else None
