"""MIG: the instances of a GPU, each figure once.

Power, temperature and NVLink belong to the parent and are read there. Memory and activity belong to a GPU instance and
stand in its first compute instance only, so that sums over instances are right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scope.probe.nvml.gpm import GpmReader
from scope.probe.nvml.library import GpuHandle, NvmlFailure, text
from scope.probe.plausible import is_plausible
from scope.probe.records import MigReading

if TYPE_CHECKING:
    from scope.probe.nvml.fields import Report


class MigReader:
    """Reads the MIG instances of one GPU.

    Args:
        gpu: The parent.
    """

    def __init__(self, gpu: GpuHandle) -> None:
        self._gpu = gpu
        self._gpm: dict[tuple[int, str], GpmReader] = {}

    def read(self, now_ns: int, report: Report, *, with_gpm: bool) -> list[MigReading]:
        """Return the instances that exist now.

        Args:
            now_ns: A monotonic clock, for GPM's windows.
            report: Told of each activity that cannot be.
            with_gpm: Read the activity of each GPU instance.

        Raises:
            NvmlFailure: The parent failed.
        """
        readings: list[MigReading] = []
        seen: set[int] = set()
        for slot in range(int(self._gpu.ask("nvmlDeviceGetMaxMigDeviceCount"))):
            try:
                device = self._gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", slot)
                reading = self._read_instance(device)
            except NvmlFailure as failure:
                # No instance in this slot, or it was destroyed just now.
                if failure.absent:
                    continue
                raise
            if reading.gpu_instance not in seen:
                seen.add(reading.gpu_instance)
                self._read_memory(reading, device)
                if with_gpm:
                    reading.activity_ratio = self._read_activity(reading, now_ns, report)
            readings.append(reading)
        self._forget({(reading.gpu_instance, reading.profile) for reading in readings})
        return readings

    def _read_instance(self, device: Any) -> MigReading:
        reading = MigReading(
            text(self._gpu.call("nvmlDeviceGetUUID", device)),
            int(self._gpu.call("nvmlDeviceGetGpuInstanceId", device)),
            int(self._gpu.call("nvmlDeviceGetComputeInstanceId", device)),
        )
        name = self._optional("nvmlDeviceGetName", device)
        # NVML gives "NVIDIA H100 80GB HBM3 MIG 3g.40gb"; what stands after the model is the profile.
        reading.profile = text(name).rpartition("MIG ")[2] if name is not None else ""
        attributes = self._optional("nvmlDeviceGetAttributes_v2", device)
        if attributes is not None:
            reading.num_slices = int(attributes.gpuInstanceSliceCount)
        return reading

    def _read_memory(self, reading: MigReading, device: Any) -> None:
        memory = self._optional("nvmlDeviceGetMemoryInfo", device)
        if memory is not None and is_plausible(memory.total, "memory_bytes"):
            reading.memory_total_bytes = int(memory.total)
            if is_plausible(memory.used, "memory_bytes"):
                reading.memory_used_bytes = int(memory.used)

    def _read_activity(self, reading: MigReading, now_ns: int, report: Report) -> dict[str, float]:
        key = (reading.gpu_instance, reading.profile)
        reader = self._gpm.get(key)
        if reader is None:
            reader = GpmReader(self._gpu, gpu_instance=reading.gpu_instance)
            self._gpm[key] = reader
        try:
            return reader.read(now_ns, lambda error, where: report(error, f"mig {reading.gpu_instance} {where}"))
        except NvmlFailure as failure:
            if failure.lost or failure.driver_gone:
                raise
            return {}

    def _forget(self, alive: set[tuple[int, str]]) -> None:
        for key in self._gpm.keys() - alive:
            self._gpm.pop(key).close()

    def _optional(self, name: str, *arguments: Any) -> Any:
        try:
            return self._gpu.call(name, *arguments)
        except NvmlFailure as failure:
            if failure.lost or failure.driver_gone:
                raise
            return None
