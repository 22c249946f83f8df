"""Element types: one name each, whatever a trace, a kernel name or a collective calls them, and their sizes."""

from __future__ import annotations

import re
from typing import Final

from scope.units import BITS_PER_BYTE

_BITS: Final = {
    "bool": 8,
    "uint8": 8,
    "int8": 8,
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
    "float4_e2m1fn_x2": 8,
    "int16": 16,
    "uint16": 16,
    "float16": 16,
    "bfloat16": 16,
    "int32": 32,
    "uint32": 32,
    "float32": 32,
    "complex32": 32,
    "int64": 64,
    "uint64": 64,
    "float64": 64,
    "complex64": 64,
    "complex128": 128,
}
_ALIASES: Final = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "c10::half": "float16",
    "bfloat16": "bfloat16",
    "c10::bfloat16": "bfloat16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "short": "int16",
    "short int": "int16",
    "char": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
    "unsigned short": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
    "c10::complex<c10::half>": "complex32",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "float8_e4m3": "float8_e4m3fn",
    "float8": "float8_e4m3fn",
}
# `at::ScalarType`, which traces print where an operator takes a dtype (c10/core/ScalarType.h).
_SCALAR_TYPES: Final = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
    "complex128", "bool", None, None, None, "bfloat16", None, None, None, None, None, None, None, "float8_e5m2",
    "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64",
)  # fmt: skip
_FLOATS: Final = ("float8_e4m3fn", "float16", "bfloat16", "float32", "float64")
INTEGRAL: Final = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64"})
"""Types whose sums are int64."""
_INTEGERS: Final = ("uint8", "int8", "int16", "int32", "int64")
_IN_KERNEL_NAME: Final = (
    (re.compile(r"c10::BFloat16|__nv_bfloat16|hip_bfloat16|\bbf16\b|bfloat16"), "bfloat16"),
    (re.compile(r"c10::Half|__half\b|\bf16\b"), "float16"),
    (re.compile(r"OpaqueType<1u?>|\bunsigned char\b|\bsigned char\b|\bbool\b"), "uint8"),
    (re.compile(r"OpaqueType<2u?>"), "float16"),
    (re.compile(r"OpaqueType<4u?>"), "float32"),
    (re.compile(r"OpaqueType<8u?>|\bdouble\b|\blong\b"), "int64"),
    (re.compile(r"\bfloat\b"), "float32"),
    (re.compile(r"\bint\b"), "int32"),
)


# A copy between lists of two types: neither is the type of both.
_CAST: Final = re.compile(r"(?:Copy(?:Functor)?|chunk_cat_cuda_kernel)<\s*([\w:]+)\s*,\s*([a-zA-Z][\w:]*)")


def normalise_dtype(text: str | None) -> str | None:
    """Return torch's name of an element type as traces spell it (`c10::BFloat16`, `long int`); None when unknown.

    Examples:
        >>> normalise_dtype("c10::BFloat16")
        'bfloat16'
        >>> normalise_dtype("Float8_e4m3fn")
        'float8_e4m3fn'
    """
    if not text:
        return None
    lowered = text.strip().lower()
    plain = _ALIASES.get(lowered) or lowered.removeprefix("c10::")
    return plain if plain in _BITS else None


def element_bytes(dtype: str | None) -> int | None:
    """Return the bytes of one element of a normalised dtype; None when unknown.

    `float4_e2m1fn_x2` holds two values in its one byte.
    """
    bits = _BITS.get(dtype or "")
    return None if bits is None else bits // BITS_PER_BYTE


def scalar_type(number: int | None) -> str | None:
    """Return the dtype of an `at::ScalarType` number; None when unknown."""
    return _SCALAR_TYPES[number] if number is not None and 0 <= number < len(_SCALAR_TYPES) else None


def matrix_path(dtype: str | None) -> str | None:
    """Return which matrix peak a product of this dtype runs against: `float8`, `int8`, `float4` or the dtype itself.

    `float32` stays `float32`: TF32 is a choice of the kernel, which its name shows and its operands do not.
    """
    if dtype is None:
        return None
    if dtype.startswith("float8"):
        return "float8"
    if dtype.startswith("float4"):
        return "float4"
    return {"uint8": "int8"}.get(dtype, dtype)


def promote(dtypes: list[str]) -> str | None:
    """Return the dtype of a result of these operands, as torch promotes tensors that have dimensions."""
    if not dtypes:
        return None
    for ladder in (_FLOATS, _INTEGERS):
        present = [dtype for dtype in dtypes if dtype in ladder]
        if not present:
            continue
        if {"float16", "bfloat16"} <= set(present):
            return max([*present, "float32"], key=_FLOATS.index)
        return max(present, key=ladder.index)
    return dtypes[0]


def dtype_in_kernel_name(name: str) -> str | None:
    """Return the element type that a kernel's template arguments show first; None when they show none.

    Traces do not say what a list of tensors holds, while the names of torch's own kernels do. An `OpaqueType<2>` tells
    the size alone: any type of that size serves. A copy that casts has two types, so none.
    """
    _, bracket, arguments = name.partition("<")
    if not bracket:
        return None
    cast = _CAST.search(name)
    if cast is not None and normalise_dtype(cast[1]) != normalise_dtype(cast[2]):
        return None
    first = [(match.start(), dtype) for pattern, dtype in _IN_KERNEL_NAME if (match := pattern.search(arguments))]
    return min(first)[1] if first else None
