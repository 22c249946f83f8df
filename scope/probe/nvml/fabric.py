"""The NVLink fabric of a GPU behind switches: whether it has joined, which part it is in, and what is wrong with it."""

from __future__ import annotations

import ctypes
import uuid
from typing import Any, Final

from scope.probe.nvml.library import GpuHandle, NvmlFailure
from scope.probe.nvml.tables import FABRIC_CONFIGURATIONS, FABRIC_FAULTS
from scope.probe.records import FabricReading

NOT_SUPPORTED: Final = 0
COMPLETED: Final = 3
_VERSION_MISMATCH: Final = 25
_CONFIGURATION_SHIFT: Final = 8
_CONFIGURATION_BITS: Final = 0xF


class FabricReader:
    """Asks a GPU for its place in the fabric, in the newest form that the driver has.

    Args:
        gpu: The GPU.
    """

    def __init__(self, gpu: GpuHandle) -> None:
        self._gpu = gpu
        self._form = "c_nvmlGpuFabricInfo_v3_t"

    def read(self) -> FabricReading | None:
        """Return the GPU's place; None for a GPU that belongs to no fabric.

        Raises:
            NvmlFailure: The call failed; one that the driver lacks is absent.
        """
        try:
            info = self._ask(self._form)
        except NvmlFailure as failure:
            if failure.code != _VERSION_MISMATCH or self._form.endswith("_v2_t"):
                raise
            self._form = "c_nvmlGpuFabricInfo_v2_t"
            info = self._ask(self._form)
        if int(info.state) == NOT_SUPPORTED:
            return None
        return FabricReading(
            int(info.state),
            str(uuid.UUID(bytes=bytes(info.clusterUuid))),
            int(info.cliqueId),
            **decode_health(int(info.healthMask), joined=int(info.state) == COMPLETED, status=int(info.status)),
        )

    def _ask(self, form: str) -> Any:
        record = getattr(self._gpu.library.bindings, form, None)
        if record is None:
            raise NvmlFailure(_VERSION_MISMATCH)
        info = record()
        # The bindings hand on what they get, and a record itself would go by value.
        self._gpu.ask("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info))
        return info


def decode_health(mask: int, *, joined: bool, status: int) -> dict[str, Any]:
    """Return `faults` and `configuration` of a fabric reading.

    Args:
        mask: NVML's health mask: two bits a fault, of which 1 means that it is there, 2 that it is not and 0 that the
            GPU cannot tell; and four bits of what the configuration lacks.
        joined: The GPU has finished joining, so that `status` counts.
        status: NVML's return code of the joining.

    Examples:
        >>> decode_health(0b01, joined=True, status=0)["faults"]["degraded_bandwidth"]
        1
    """
    faults = {
        name: int((mask >> shift) & 0x3 == present)
        for name, (shift, present) in FABRIC_FAULTS.items()
        if (mask >> shift) & 0x3
    }
    number = (mask >> _CONFIGURATION_SHIFT) & _CONFIGURATION_BITS
    if number:
        faults["misconfigured"] = int(number > 1)
    if joined:
        faults["registration_failed"] = int(status != 0)
    return {"faults": faults, "configuration": FABRIC_CONFIGURATIONS.get(number, "other")}
