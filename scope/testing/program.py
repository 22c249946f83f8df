"""What one rank of a synthetic job does, instruction by instruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from scope.testing.layout import Group

CopyKind = Literal["H2D", "D2H", "D2D"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BeginStep:
    """A profiler step begins on the host."""

    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EndStep:
    """The step ends on the host; with `synchronize` the host first waits for the device."""

    synchronize: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """The host is busy with something that launches nothing."""

    length_ns: int
    activity: Literal["python", "input", "allocation"] = "python"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """A matrix product on the compute stream: `rows` x `inner` by `inner` x `columns`, BF16."""

    length_ns: int
    rows: int = 1024
    inner: int = 1024
    columns: int = 1024
    name: str = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off"
    overrun_ns: int = 0
    """How far the recorded end lies behind the true one, into the next kernel of the stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """A copy on a stream of its own; later compute waits for it unless it is prefetched."""

    length_ns: int
    num_bytes: int
    kind: CopyKind = "H2D"
    is_prefetch: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A collective. It starts when the compute before it is done, and ends on the terms of its operation.

    Symmetric operations end everywhere `transfer_ns` after the last arrival; receivers of a broadcast or scatter end
    that long after both the root and they arrived, its root that long after its own arrival; the root of a reduce or
    gather ends that long after the last arrival, the others after their own.
    """

    group: Group
    operation: str
    """One of `scope.trace.schema.OPERATIONS`, send and recv apart."""
    in_elements: int
    out_elements: int
    transfer_ns: int
    dtype: str = "BFloat16"
    element_bytes: int = 2
    root: int | None = None
    """Global rank of the root."""
    in_split: tuple[int, ...] = ()
    """Elements to each rank of the group, for an uneven all_to_all."""
    out_split: tuple[int, ...] = ()
    num_kernels: int = 1
    """More than one for a coalesced call."""
    is_blocking: bool = True
    """Whether later compute waits for it."""
    follows: Group | None = None
    """A group whose last call of this rank it waits for too, since it takes up the result."""
    library: Literal["nccl", "deep_ep"] = "nccl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """One side of a point-to-point transfer; both sides end `transfer_ns` after the later of them arrived."""

    group: Group
    is_send: bool
    peer: int
    """Global rank of the other side."""
    elements: int
    transfer_ns: int
    dtype: str = "BFloat16"
    element_bytes: int = 2


Instruction = BeginStep | EndStep | Host | Compute | Copy | Call | Exchange
Program = tuple[Instruction, ...]

SYMMETRIC: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
