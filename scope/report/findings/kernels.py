"""Findings about kernels under the roofline: worth fusing, beside the tensor cores, far from or above their ceiling."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import polars as pl

from scope.analysis.roofline import RooflinePoints
from scope.report.findings.model import Evidence, Finding, Where
from scope.report.inert import kernel_title, shortened
from scope.structs import Record
from scope.trace.schema import Launches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scope.analysis.roofline import Roofline
    from scope.report.findings.basis import Basis
    from scope.report.results import Results
    from scope.trace.model import RankTrace

FUSABLE: Final = ("elementwise", "normalisation", "reduction")
FUSABLE_SHARE: Final = 0.10
"""Share of step time above which memory-bound kernels are worth a word."""
TENSOR_SHARE: Final = 0.05
SLOW_SHARE: Final = 0.05
ABOVE_SHARE: Final = 0.01
ABOVE_RATIO: Final = 1.05
ALIGNMENT_BYTES: Final = 16
"""Tensor cores want every inner dimension in multiples of 16 bytes (NVIDIA, Matrix Multiplication Background)."""
_MATRIX_CLASSES: Final = ("gemm", "attention", "convolution")
_ELEMENT_BYTES: Final = {"float16": 2, "bfloat16": 2, "float8": 1, "int8": 1}
_CUTLASS_ALIGNMENT: Final = re.compile(r"_align(\d+)\b")
_GPU_CALL: Final = r"^(?:cuda|cu[A-Z]|hip)"
_MOST_NAMED: Final = 3
_NAME_LENGTH: Final = 80


def memory_bound_kernels(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding when unfused kernels that memory bounds take at least 10 % of step time."""
    points = _points(results).filter(
        pl.col(RooflinePoints.kernel_class).is_in(FUSABLE),
        pl.col(RooflinePoints.bound).is_in(["memory", "latency"]),
    )
    chosen = _Chosen.of(points, basis)
    if chosen.share < FUSABLE_SHARE:
        return
    yield Finding(
        kind="memory_bound_kernels",
        title=(
            f"{chosen.num_kernels:,} elementwise, reduction and normalisation kernels that memory bounds take "
            f"{basis.text(chosen.cost_ns)}"
        ),
        where=Where(kernels=chosen.names),
        evidence=(
            Evidence.of("duration_ns", "their time", chosen.total_ns),
            Evidence.of("num_kernels", "kernels", chosen.num_kernels),
            Evidence.of("saving_ns", "above their ceiling", chosen.saving_ns),
        ),
        cost_ns=chosen.cost_ns,
        share_ratio=chosen.share,
        action=(
            "Fuse neighbours so that data is read once: torch.compile, fused kernels (attention instead of softmax by "
            "hand, fused norms, fused or foreach optimizer), channels_last to drop layout copies."
        ),
    )


def tensor_cores_unused(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding when matrix products in full FP32, or with misaligned shapes, take at least 5 % of step time."""
    labels = frozenset(trace.label for trace in results.job.ranks if _is_gpu(trace, results.rooflines.get(trace.label)))
    matrix = _points(results, of=labels).filter(pl.col(RooflinePoints.kernel_class).is_in(_MATRIX_CLASSES))
    full = matrix.filter(pl.col(RooflinePoints.path).is_in(["matrix float32", "vector float32"]))
    yield from _unused(
        basis,
        full,
        title="Matrix products in full FP32, beside the tensor cores,",
        action=(
            "Allow TF32 (torch.set_float32_matmul_precision('high')) or train in bfloat16 with torch.autocast; check "
            "that no input is silently float32."
        ),
    )
    products = matrix.filter(pl.col(RooflinePoints.kernel_class) == "gemm")
    texts = [pl.col(name).cast(pl.String) for name in (RooflinePoints.kernel, RooflinePoints.shapes)]
    described = products.select(*texts, RooflinePoints.path).iter_rows()
    misaligned = pl.Series([_is_misaligned(*row) for row in described], dtype=pl.Boolean)
    yield from _unused(
        basis,
        products.filter(misaligned),
        title=f"Matrix products whose dimensions are no multiple of {ALIGNMENT_BYTES} bytes",
        action=(
            "Pad the vocabulary, hidden and sequence sizes to multiples of 8 (16-bit types; 16 for FP8), better of 64: "
            "misaligned operands use slower kernels or none of the tensor cores."
        ),
    )


def far_below_ceiling(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding when a few kernels at their ceiling would save at least 5 % of step time."""
    points = _points(results).filter(pl.col(RooflinePoints.bound).is_in(["compute", "memory"]))
    worst = points.sort(RooflinePoints.saving_ns, descending=True, maintain_order=True).head(_MOST_NAMED)
    chosen = _Chosen.of(worst, basis)
    saving_ns = basis.within(chosen.saving_ns)
    share = basis.share(saving_ns)
    if share < SLOW_SHARE:
        return
    first = worst.row(0, named=True)
    yield Finding(
        kind="far_below_ceiling",
        title=(
            f"Kernels far below their ceiling: at it they would save {basis.text(saving_ns)}, first "
            f"{_title(chosen.names[0])}"
        ),
        where=Where(kernels=chosen.names, calls=_operators(worst)),
        evidence=(
            Evidence.of("saving_ns", "saving", saving_ns),
            Evidence.of("duration_ns", "their time", chosen.total_ns),
            Evidence.of("attained_ratio", "the first attains", first[RooflinePoints.attained_ratio]),
        ),
        cost_ns=saving_ns,
        share_ratio=share,
        action=(
            "Look for a better kernel for these shapes: a fused operator (scaled_dot_product_attention), another "
            "layout or library backend, larger tiles (batch small products), torch.compile with max-autotune."
        ),
    )


def roofline_exceeded(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding when kernels above their ceiling take at least 1 % of step time."""
    points = _points(results).filter(
        pl.col(RooflinePoints.attained_ratio) > ABOVE_RATIO, pl.col(RooflinePoints.bound) != "latency"
    )
    chosen = _Chosen.of(points, basis)
    if chosen.share < ABOVE_SHARE:
        return
    most = cast("float", points[RooflinePoints.attained_ratio].max())
    yield Finding(
        kind="roofline_exceeded",
        title=f"Kernels that take {basis.text(chosen.cost_ns)} run above their ceiling",
        where=Where(kernels=chosen.names, calls=_operators(points.head(_MOST_NAMED))),
        evidence=(
            Evidence.of("attained_ratio", "at most", most),
            Evidence.of("duration_ns", "their time", chosen.total_ns),
        ),
        cost_ns=None,
        share_ratio=None,
        action=(
            "Not a fault of the job: operands sit in cache, the GPU is not what was assumed (--gpu says which), or "
            "Scope's model of the operator counts too much. Do not trust their saving."
        ),
    )


class _Chosen(Record, frozen=True, kw_only=True):
    """Points of the roofline taken together."""

    names: tuple[str, ...]
    num_kernels: int
    total_ns: int
    saving_ns: int
    cost_ns: int
    """`total_ns`, or all step time where that is less."""
    share: float
    """`cost_ns` of step time."""

    @staticmethod
    def of(points: pl.DataFrame, basis: Basis) -> _Chosen:
        by_kernel = points.group_by(pl.col(RooflinePoints.kernel).cast(pl.String)).agg(
            pl.col(RooflinePoints.duration_ns).sum()
        )
        order = by_kernel.sort(RooflinePoints.duration_ns, RooflinePoints.kernel, descending=[True, False])
        total = int(points[RooflinePoints.duration_ns].sum())
        return _Chosen(
            names=tuple(order[RooflinePoints.kernel].head(_MOST_NAMED)),
            num_kernels=int(points[RooflinePoints.num_kernels].sum()),
            total_ns=total,
            saving_ns=int(points[RooflinePoints.saving_ns].sum()),
            cost_ns=basis.within(total),
            share=basis.share(basis.within(total)),
        )


def _title(kernel: str) -> str:
    return shortened(kernel_title(kernel), length=_NAME_LENGTH)


def _unused(basis: Basis, points: pl.DataFrame, *, title: str, action: str) -> Iterator[Finding]:
    chosen = _Chosen.of(points, basis)
    if chosen.share < TENSOR_SHARE:
        return
    yield Finding(
        kind="tensor_cores_unused",
        title=f"{title} take {basis.text(chosen.cost_ns)}",
        where=Where(kernels=chosen.names, calls=_operators(points.head(_MOST_NAMED))),
        evidence=(
            Evidence.of("duration_ns", "their time", chosen.total_ns),
            Evidence.of("num_kernels", "kernels", chosen.num_kernels),
        ),
        cost_ns=chosen.cost_ns,
        share_ratio=chosen.share,
        action=action,
    )


def _is_gpu(trace: RankTrace, roofline: Roofline | None) -> bool:
    """Return whether a rank's devices are known, or CUDA or HIP launched on them: others may have no tensor cores."""
    if roofline is not None and any(match.usable is not None for match in roofline.devices):
        return True
    return bool(trace.launches[Launches.name].unique().cast(pl.String).str.contains(_GPU_CALL).any())


def _points(results: Results, *, of: frozenset[str] | None = None) -> pl.DataFrame:
    """Return the points of kernels that start in step time, the longest first: of all ranks, or of some by label."""
    tables = [each.step_points for label, each in results.rooflines.items() if of is None or label in of]
    if not tables:
        return RooflinePoints.empty()
    return pl.concat(tables).sort(RooflinePoints.duration_ns, descending=True, maintain_order=True)


def _operators(points: pl.DataFrame) -> tuple[str, ...]:
    return tuple(points[RooflinePoints.operator].drop_nulls().cast(pl.String).unique(maintain_order=True))


def _is_misaligned(kernel: str, shapes: str | None, path: str | None) -> bool:
    """Return whether a product of 16-bit or smaller types reads or writes rows that are no multiple of 16 bytes.

    CUTLASS kernels say the alignment that they were built for. Of others only the last dimension of the last operand
    counts, since strides are not known here: it is the contiguous row of the operand or of the result.
    """
    units, _, dtype = (path or "").partition(" ")
    size = _ELEMENT_BYTES.get(dtype)
    if size is None or units != "matrix":
        return False
    built_for = _CUTLASS_ALIGNMENT.search(kernel)
    if built_for is not None:
        return int(built_for[1]) * size < ALIGNMENT_BYTES
    if shapes is None:
        return False
    try:
        operands = msgspec.json.decode(shapes, type=list[Any])
    except msgspec.DecodeError:
        return False
    matrices = [cast("list[Any]", each) for each in operands if isinstance(each, list)]
    wide = [each for each in matrices if len(each) >= 2]
    last: Any = wide[-1][-1] if wide else 1
    return isinstance(last, int) and last > 1 and last * size % ALIGNMENT_BYTES != 0
