"""Tells which GPU a device is from what traces and NVML call it; says so when it cannot, and never guesses."""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, Final

import msgspec

from scope.hardware.catalogue import builtin_catalogue
from scope.hardware.model import GIGA, Figure, Gpu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GIB_PER_GB: Final = 2**30 / GIGA
# Drivers show less than the data sheet: ECC takes a sixteenth of GDDR, firmware some more. Vendors' GB are 10**9 bytes
# for some devices and 2**30 for others, so both must fit.
_LEAST_SHARE: Final = 0.97
_MOST_SHARE: Final = 1.02
_NAMELESS: Final = frozenset({"", "amd radeon graphics", "graphics device", "nvidia graphics device", "amd instinct"})
_AMD_WORDS: Final = ("amd", "radeon", "instinct")
_MIG: Final = re.compile(r"\bMIG\s+(\d+)g\.(\d+)gb", re.IGNORECASE)
_MIG_MEMORY_SLICES: Final = 8
_LETTERS: Final = frozenset(string.ascii_lowercase + string.digits)


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace's `deviceProperties` or NVML says of a device; None where it says nothing."""

    name: str
    total_memory_bytes: int | None = None
    num_sms: int | None = None
    compute_capability: tuple[int, int] | None = None

    @property
    def is_amd(self) -> bool:
        """Whether its name is one of AMD's."""
        return any(word in self.name.lower() for word in _AMD_WORDS)

    @property
    def unit(self) -> str:
        """What its vendor calls one of `num_sms`."""
        return "CU" if self.is_amd else "SM"

    def __str__(self) -> str:
        """Return the facts as evidence in a sentence."""
        parts = [repr(self.name) if self.name else "a device without a name"]
        if self.total_memory_bytes is not None:
            parts.append(f"{self.total_memory_bytes / 2**30:.1f} GiB")
        if self.num_sms is not None:
            parts.append(f"{self.num_sms} {self.unit}s")
        if self.compute_capability is not None:
            # ROCm gives the first two digits of the architecture as compute capability: 9.4 of a gfx942.
            parts.append(("gfx{}{}x" if self.is_amd else "compute capability {}.{}").format(*self.compute_capability))
        return ", ".join(parts)


class GpuMatch(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `match_gpu`.

    Exactly one of three: `gpu` is the device; `candidates` are what it may be; neither, it is unknown.
    """

    facts: DeviceFacts
    gpu: Gpu | None
    candidates: tuple[Gpu, ...] = ()
    reason: str
    """Why, in a sentence that names the evidence."""

    @property
    def usable(self) -> Gpu | None:
        """The device, or else one that holds only the figures that all candidates share; None when unknown."""
        if self.gpu is not None:
            return self.gpu
        return agreed(self.candidates) if self.candidates else None


def match_gpu(facts: DeviceFacts, catalogue: Mapping[str, Gpu] | None = None) -> GpuMatch:
    """Return which GPU of the catalogue a device is.

    Names decide first, then memory, SM count and compute capability. A device without a telling name is matched only
    when all three are given and one GPU alone has them. A MIG instance or a compute partition is scaled by its share
    of the SMs (peaks) and of the memory (bandwidth).
    """
    known = tuple((builtin_catalogue() if catalogue is None else catalogue).values())
    name = facts.name.strip().lower()
    if name in _NAMELESS:
        return _by_properties(facts, known)
    named = [gpu for gpu in known if _name_length(gpu, name)]
    if named:
        return _decide(facts, named)
    family = [gpu for gpu in known if _is_family(gpu, name)]
    if not family:
        return GpuMatch(
            facts=facts, gpu=None, reason=f"{facts}: the catalogue knows no such GPU; name it or describe it"
        )
    narrowed = [gpu for gpu in family if _fits(gpu, facts)]
    if len(narrowed) == 1 and facts.num_sms is not None and facts.total_memory_bytes is not None:
        return _matched(facts, narrowed[0])
    return _ambiguous(facts, narrowed) if narrowed else _contradicted(facts, family)


def agreed(candidates: Sequence[Gpu]) -> Gpu:
    """Return a GPU that holds only the figures that are equal in all candidates; the others are absent.

    Args:
        candidates: At least one.
    """
    first, titles = candidates[0], " or ".join(gpu.title for gpu in candidates)
    reason = f"it may be {titles}, whose figures differ"
    matrix = _shared([gpu.matrix_flop_per_s for gpu in candidates])
    vector = _shared([gpu.vector_flop_per_s for gpu in candidates])
    missing = {key: reason for gpu in candidates for key in (*gpu.matrix_flop_per_s, *gpu.vector_flop_per_s)}
    return msgspec.structs.replace(
        first,
        gpu_id="|".join(gpu.gpu_id for gpu in candidates),
        title=titles,
        matrix_flop_per_s=matrix,
        vector_flop_per_s=vector,
        memory_bytes=_same([gpu.memory_bytes for gpu in candidates]),
        num_sms=_same([gpu.num_sms for gpu in candidates]),
        memory_bytes_per_s=_same_figure([gpu.memory_bytes_per_s for gpu in candidates]),
        link_bytes_per_s=_same_figure([gpu.link_bytes_per_s for gpu in candidates]),
        pcie_generation=_same_figure([gpu.pcie_generation for gpu in candidates]),
        absent={**missing, "memory_tb_per_s": reason, "link_gb_per_s": reason, "pcie_generation": reason},
    )


def _decide(facts: DeviceFacts, named: list[Gpu]) -> GpuMatch:
    if _MIG.search(facts.name):
        return _mig(facts, _longest(named, facts.name))
    exact = [gpu for gpu in named if _fits(gpu, facts)]
    if exact:
        best = _longest(exact, facts.name)
        return _matched(facts, best[0]) if len(best) == 1 else _ambiguous(facts, best)
    best = _longest(named, facts.name)
    if len(best) == 1 and _is_part_of(best[0], facts):
        return _matched(facts, _partition(best[0], facts))
    return _contradicted(facts, best)


def _mig(facts: DeviceFacts, best: list[Gpu]) -> GpuMatch:
    profile = _MIG.search(facts.name)
    assert profile is not None
    if facts.num_sms is None:
        return _unknown(facts, "a MIG instance whose SM count is unknown")
    instance_gb = int(profile[2])
    whole = [gpu for gpu in best if gpu.mig_instances is not None and _holds_instance(gpu, facts.name, instance_gb)]
    if len(whole) != 1:
        return _ambiguous(facts, whole or best)
    gpu = whole[0]
    assert gpu.memory_bytes is not None
    assert gpu.num_sms is not None
    slices = min(_MIG_MEMORY_SLICES, max(1, round(_MIG_MEMORY_SLICES * instance_gb * GIGA / gpu.memory_bytes)))
    part = gpu.scaled(
        compute_share=min(1.0, facts.num_sms / gpu.num_sms),
        memory_share=slices / _MIG_MEMORY_SLICES,
        reason=f"MIG {profile[1]}g.{instance_gb}gb: {facts.num_sms} of {gpu.num_sms} SMs, {slices} of 8 memory slices",
    )
    return _matched(facts, part)


def _holds_instance(gpu: Gpu, name: str, instance_gb: int) -> bool:
    stated = re.search(r"(\d+)\s?GB", _MIG.sub("", name), re.IGNORECASE)
    if gpu.memory_bytes is None or gpu.num_sms is None:
        return False
    fits_name = stated is None or gpu.form == "Grace" or int(stated[1]) * GIGA == gpu.memory_bytes
    return fits_name and instance_gb * GIGA <= gpu.memory_bytes * _MOST_SHARE


def _partition(gpu: Gpu, facts: DeviceFacts) -> Gpu:
    assert facts.num_sms is not None
    assert gpu.num_sms is not None
    share = facts.num_sms / gpu.num_sms
    # Whether a partition's memory is its own is a mode of its own (NPS); its fair share of the bandwidth is what all
    # partitions at work leave it.
    return gpu.scaled(
        compute_share=share, memory_share=share, reason=f"a partition: {facts.num_sms} of {gpu.num_sms} compute units"
    )


def _by_properties(facts: DeviceFacts, known: Sequence[Gpu]) -> GpuMatch:
    if facts.total_memory_bytes is None or facts.num_sms is None or facts.compute_capability is None:
        which = f"memory, {facts.unit} count and {'architecture' if facts.is_amd else 'compute capability'}"
        return _unknown(facts, f"{which}, which would tell it, are not all known; choose with --gpu")
    fitting = [
        gpu
        for gpu in known
        if None not in (gpu.memory_bytes, gpu.num_sms, gpu.compute_capability)
        and _fits(gpu, facts)
        and (gpu.vendor == "AMD" or "amd" not in facts.name.lower())
    ]
    if len(fitting) == 1:
        return _matched(facts, fitting[0])
    if not fitting:
        return GpuMatch(facts=facts, gpu=None, reason=f"{facts}: no GPU of the catalogue is like it; choose with --gpu")
    return _ambiguous(facts, fitting)


def _matched(facts: DeviceFacts, gpu: Gpu) -> GpuMatch:
    part = "" if gpu.share is None else f" ({gpu.share})"
    return GpuMatch(facts=facts, gpu=gpu, reason=f"{facts}: {gpu.title}{part}")


def _unknown(facts: DeviceFacts, why: str) -> GpuMatch:
    return GpuMatch(facts=facts, gpu=None, reason=f"{facts}: {why}")


def _ambiguous(facts: DeviceFacts, candidates: Sequence[Gpu]) -> GpuMatch:
    if len(candidates) == 1:
        return _contradicted(facts, candidates)
    reason = f"{facts}: it may be any of {_ids(candidates)}; choose with --gpu"
    return GpuMatch(facts=facts, gpu=None, candidates=tuple(candidates), reason=reason)


def _contradicted(facts: DeviceFacts, named: Sequence[Gpu]) -> GpuMatch:
    """A name of the catalogue on a device whose own properties are others': nothing of those GPUs may be used."""
    reason = f"{facts}: its memory or {facts.unit} count is not that of {_ids(named)}; choose with --gpu"
    return GpuMatch(facts=facts, gpu=None, reason=reason)


def _ids(gpus: Sequence[Gpu]) -> str:
    return ", ".join(gpu.gpu_id for gpu in gpus)


def _fits(gpu: Gpu, facts: DeviceFacts) -> bool:
    if facts.num_sms is not None and gpu.num_sms is not None and facts.num_sms != gpu.num_sms:
        return False
    capability = facts.compute_capability
    if capability is not None and gpu.compute_capability is not None and capability != gpu.compute_capability:
        return False
    if not _fits_stated_memory(gpu, facts.name):
        return False
    if facts.total_memory_bytes is None or gpu.memory_bytes is None:
        return True
    share = facts.total_memory_bytes / gpu.memory_bytes
    return _LEAST_SHARE <= share <= _MOST_SHARE * _GIB_PER_GB


def _fits_stated_memory(gpu: Gpu, name: str) -> bool:
    # "GH200 480GB" states the memory of the processor beside it.
    stated = None if gpu.form == "Grace" else re.search(r"(\d+)\s?GB", name, re.IGNORECASE)
    return stated is None or gpu.memory_bytes is None or int(stated[1]) * GIGA == gpu.memory_bytes


def _is_part_of(gpu: Gpu, facts: DeviceFacts) -> bool:
    """Whether the device can be a partition: fewer units, in equal parts, of a GPU with partition modes."""
    if facts.num_sms is None or gpu.num_sms is None or gpu.vendor != "AMD":
        return False
    memory_fits = (
        facts.total_memory_bytes is None
        or gpu.memory_bytes is None
        or facts.total_memory_bytes <= gpu.memory_bytes * _MOST_SHARE * _GIB_PER_GB
    )
    return facts.num_sms < gpu.num_sms and gpu.num_sms % facts.num_sms == 0 and memory_fits


def _name_length(gpu: Gpu, name: str) -> int:
    if any(each.lower() in name for each in gpu.not_names):
        return 0
    return max((len(each) for each in gpu.names if _holds_words(name, each.lower())), default=0)


def _holds_words(name: str, words: str) -> bool:
    """Whether a name holds these words whole: a letter more makes another GPU, as an L20D is no L20."""
    start = name.find(words)
    while start >= 0:
        end = start + len(words)
        if _LETTERS.isdisjoint(name[max(start - 1, 0) : start] + name[end : end + 1]):
            return True
        start = name.find(words, start + 1)
    return False


def _longest(gpus: list[Gpu], name: str) -> list[Gpu]:
    lowered = name.lower()
    longest = max(_name_length(gpu, lowered) for gpu in gpus)
    return [gpu for gpu in gpus if _name_length(gpu, lowered) == longest]


def _is_family(gpu: Gpu, name: str) -> bool:
    family = gpu.gpu_id.partition("-")[0]
    excluded = any(each.lower() in name for each in gpu.not_names)
    return _holds_words(name, family) and not excluded and family != "rtx"


def _shared(tables: Sequence[dict[str, Figure]]) -> dict[str, Figure]:
    figures = {key: _same_figure([table.get(key) for table in tables]) for key in tables[0]}
    return {key: figure for key, figure in figures.items() if figure is not None}


def _same_figure(figures: Sequence[Figure | None]) -> Figure | None:
    first = figures[0]
    if first is None or any(each is None or each.value != first.value for each in figures):
        return None
    return first


def _same(values: Sequence[int | None]) -> int | None:
    return values[0] if len(set(values)) == 1 else None
