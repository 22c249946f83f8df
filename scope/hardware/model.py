"""What a GPU can do at best, as data: figures with their sources, and shares of a partitioned device."""

from __future__ import annotations

from typing import Final

import msgspec

from scope import definitions
from scope.hardware.links import pcie_bytes_per_s

GIGA: Final = 1_000_000_000
TERA: Final = 1_000_000_000_000

MATRIX_DTYPES: Final[tuple[str, ...]] = (
    "float64",
    "float32",
    "tf32",
    "bfloat16",
    "float16",
    "float8",
    "float4",
    "int8",
)
"""Dtypes that a table of matrix peaks may hold; `tf32` is float32 data on matrix units."""
VECTOR_DTYPES: Final[tuple[str, ...]] = ("float64", "float32", "float16")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A number and where it was read."""

    value: float
    source: str


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One device as torch sees it (one die of a two-die AMD module), whole or a partition of it.

    Peaks are dense and in FLOP/s (operations a second for int8), bandwidths one way in bytes a second. A figure that
    no source states is missing, and `absent` says why.
    """

    gpu_id: str
    title: str
    vendor: str
    architecture: str
    form: str
    """SXM, PCIe, NVL, OAM, APU, Grace or card."""
    names: tuple[str, ...]
    """Words of what drivers call it, each whole: a letter more is another GPU's name."""
    not_names: tuple[str, ...] = ()
    """Substrings that rule it out."""
    memory_bytes: int | None = None
    """The vendor's size in decimal bytes."""
    num_sms: int | None = None
    """Streaming multiprocessors or compute units of the whole device."""
    compute_capability: tuple[int, int] | None = None
    mig_instances: int | None = None
    """The most MIG instances; None where there is no MIG."""
    matrix_flop_per_s: dict[str, Figure] = msgspec.field(default_factory=dict[str, Figure])
    vector_flop_per_s: dict[str, Figure] = msgspec.field(default_factory=dict[str, Figure])
    memory_bytes_per_s: Figure | None = None
    link_bytes_per_s: Figure | None = None
    """NVLink or Infinity Fabric, all links together, one way."""
    pcie_generation: Figure | None = None
    absent: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Reasons for figures that are missing, by their name in the catalogue."""
    share: str | None = None
    """How this was scaled down from the whole device; None for the whole."""

    def matrix_peak(self, dtype: str) -> Figure | None:
        """Return the dense peak for matrix products of a dtype; None when unknown.

        Full float32 and float64 run on the vector units of a GPU whose matrix units do not take them.
        """
        figure = self.matrix_flop_per_s.get(dtype)
        return self.vector_peak(dtype) if figure is None and dtype in {"float32", "float64"} else figure

    def vector_peak(self, dtype: str = "float32") -> Figure | None:
        """Return the peak of the vector units for a dtype; None when unknown."""
        return self.vector_flop_per_s.get(dtype)

    def pcie_bytes_per_s(self) -> Figure | None:
        """Return the nominal one-way rate of its 16 PCIe lanes; None when the generation is unknown."""
        if self.pcie_generation is None:
            return None
        rate = pcie_bytes_per_s(int(self.pcie_generation.value))
        return None if rate is None else Figure(value=rate, source=self.pcie_generation.source)

    def balance_flop_per_byte(self, dtype: str = "bfloat16") -> float | None:
        """Return matrix peak / memory bandwidth; None when either is unknown."""
        peak = self.matrix_peak(dtype)
        if peak is None or self.memory_bytes_per_s is None:
            return None
        return definitions.machine_balance_flop_per_byte(
            peak_flop_per_s=peak.value, bandwidth_bytes_per_s=self.memory_bytes_per_s.value
        )

    def why_absent(self, name: str) -> str:
        """Return why a figure is missing, in words."""
        return self.absent.get(name, f"the catalogue has no {name} for {self.title}")

    def scaled(self, *, compute_share: float, memory_share: float, reason: str) -> Gpu:
        """Return the partition that has these shares of the compute units and of the memory.

        A MIG instance or an AMD compute partition owns its units, so its peak is its share of them, and its bandwidth
        is its share of the memory slices (NVIDIA MIG user guide). Links belong to the whole device and are left out.
        """
        memory = self.memory_bytes_per_s
        return msgspec.structs.replace(
            self,
            matrix_flop_per_s={key: _scale(each, compute_share) for key, each in self.matrix_flop_per_s.items()},
            vector_flop_per_s={key: _scale(each, compute_share) for key, each in self.vector_flop_per_s.items()},
            memory_bytes_per_s=None if memory is None else _scale(memory, memory_share),
            memory_bytes=None if self.memory_bytes is None else round(self.memory_bytes * memory_share),
            link_bytes_per_s=None,
            absent={**self.absent, "link_gb_per_s": "links belong to the whole device"},
            share=reason,
        )


def _scale(figure: Figure, share: float) -> Figure:
    return Figure(value=figure.value * share, source=figure.source)
