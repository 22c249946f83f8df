"""NVML's field values: which exist, and a reader of many in one call.

Each value carries a return code and a type of its own, and both are checked before its eight bytes are believed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final

from scope.probe.nvml.library import GpuHandle, NvmlFailure, error_name

Key = tuple[str, int]
"""Name of a field (without `NVML_FI_DEV_`) and its scope, a link number or 0."""

_ITEM: Final = struct.Struct("=IIqqII8s")
_DECODERS: Final[dict[int, struct.Struct]] = {
    0: struct.Struct("=d"),
    1: struct.Struct("=I"),
    2: struct.Struct("=Q"),
    3: struct.Struct("=Q"),
    4: struct.Struct("=q"),
    5: struct.Struct("=i"),
    6: struct.Struct("=H"),
}
_UNKNOWN: Final = frozenset({2, 3, 13, 26})
Report = Callable[[str, str], None]
"""Called with (error, where) for a value that failed."""


class FieldReader:
    """Reads a fixed list of fields of one GPU.

    Fields that the GPU does not have are left out of later calls until `probe_again`.

    Args:
        gpu: The GPU.
        keys: The fields; those that the bindings do not know are dropped.
    """

    def __init__(self, gpu: GpuHandle, keys: Iterable[Key]) -> None:
        self._gpu = gpu
        self._wanted: list[tuple[Key, int]] = []
        for key in keys:
            number = gpu.library.constant(f"NVML_FI_DEV_{key[0]}")
            if number is not None:
                self._wanted.append((key, number))
        self._asked = self._wanted

    def probe_again(self) -> None:
        """Ask once more for every field, since a driver or a mode may have changed."""
        self._asked = self._wanted

    def read(self, report: Report) -> dict[Key, float]:
        """Return the values that are there.

        Args:
            report: Told of each value that failed other than by not being supported.

        Raises:
            NvmlFailure: The call as a whole failed.
        """
        if not self._asked:
            return {}
        numbers = [(number, key[1]) for key, number in self._asked]
        answers = self._gpu.ask("nvmlDeviceGetFieldValues", numbers)
        values: dict[Key, float] = {}
        missing: set[Key] = set()
        for (key, _), item in zip(self._asked, _ITEM.iter_unpack(memoryview(answers).cast("B")), strict=True):
            code = item[5]
            if code == 0:
                decoder = _DECODERS.get(item[4])
                if decoder is None:
                    report("unknown_value_type", key[0])
                else:
                    values[key] = decoder.unpack_from(item[6])[0]
            elif code in _UNKNOWN:
                missing.add(key)
            elif code in {15, 28}:
                raise NvmlFailure(code)
            else:
                report(error_name(code), key[0])
        if missing:
            self._asked = [wanted for wanted in self._asked if wanted[0] not in missing]
        return values
