"""FLOPs and bytes of every compute kernel, from the operator that launched it.

An operator's FLOPs and bytes go to its matrix kernels (products, attention, convolutions) in proportion to their
duration. A kernel of any other operator has the operator's own work when it is the operator's only kernel, or when all
of them are the same kernel launched in parts (then by their blocks). All else has no known work, with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.cost import dtype_in_kernel_name, estimate_operator, has_model, has_part_models, is_matrix_operator
from scope.trace.columns import Column, Table
from scope.trace.schema import KERNEL_CLASSES, DeviceEvents, Ops

if TYPE_CHECKING:
    from scope.cost import OperatorCost
    from scope.trace.model import RankTrace

MATRIX_CLASSES: Final = ("gemm", "attention", "convolution")
"""Classes of kernels that a matrix operator's FLOPs go to."""

# Kernels of the libraries that change a layout, prepare indices or add up partial results: they do no products, and
# classes by name count them to the products that they help.
_HELPERS: Final = (
    r"(?i)nchwto|nhwcto|tonchw|tonhwc|convert_?tensor|compute(?:w?grad)?b?offsets|splitk_?reduce|reduce_?splitk"
    r"|im2col|col2im|batched_transpose|scalepackedtensor|subtensorop|postgsu|dot_do_o|convert_dq|bwd_preprocess"
)

_MOST_LEVELS: Final = 16
"""How far up the stack an operator with a model is looked for."""
_MOST: Final = 2**53
"""Larger counts are nonsense of a broken shape, and would not fit their column."""
# CUTLASS names the instruction of TF32 products without the word: s1688 with float32 operands is TF32.
_TF32: Final = r"(?i)tf32|xf32|(?:^|[^a-z0-9])s1688(?:gemm|fprop|dgrad|wgrad)"

_PART: Final = "part"
_IS_MATRIX_OP: Final = "is_matrix_operator"
_IS_MATRIX_KERNEL: Final = "is_matrix_kernel"
_HINT: Final = "list_dtype"
_HAS_MODEL: Final = "has_model"
_OWNER: Final = "owner_id"
_WEIGHT: Final = "weight"
_TOTAL: Final = "total_weight"
_SHARERS: Final = "num_sharers"
_TAKES: Final = "takes_work"
_ARGUMENTS: Final = (Ops.name, Ops.input_dims, Ops.input_types, Ops.input_strides, Ops.concrete_inputs)
_KEYS: Final = (*_ARGUMENTS, _HINT, _PART)
_SHARERS_OF: Final = (Ops.op_id, _PART)


class KernelWork(Table):
    """The work of each compute kernel, in the order of the device events."""

    event_id = Column("event_id", pl.UInt32, "row of `DeviceEvents`")
    device = Column("device", pl.Int32, "device")
    stream = Column("stream", pl.Int64, "stream")
    kernel_class = Column("kernel_class", pl.Enum(KERNEL_CLASSES), "class")
    kernel = Column("kernel", pl.Categorical(), "name of the kernel")
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")
    operator = Column("operator", pl.Categorical(), "operator whose work it does", nullable=True)
    shapes = Column("shapes", pl.Categorical(), "JSON list of that operator's shapes", nullable=True)
    path = Column("path", pl.String, "units and dtype of the arithmetic, such as `matrix bfloat16`", nullable=True)
    flops = Column("flops", pl.Int64, "FLOPs; null where unknown", nullable=True)
    num_bytes = Column("num_bytes", pl.Int64, "least bytes read and written; null where unknown", nullable=True)
    reason = Column("reason", pl.String, "why there is no known work; null where there is", nullable=True)


class _Costs(Table):
    """Costs of distinct calls."""

    flops = Column("op_flops", pl.Int64, "FLOPs of the call", nullable=True)
    num_bytes = Column("op_bytes", pl.Int64, "bytes of the call", nullable=True)
    math_dtype = Column("math_dtype", pl.String, "dtype of the arithmetic", nullable=True)
    cost_reason = Column("cost_reason", pl.String, "why neither is known", nullable=True)


def compute_kernel_work(trace: RankTrace) -> pl.DataFrame:
    """Return the table `KernelWork` of one rank."""
    names = trace.device_events[DeviceEvents.name].unique()
    helpers = names.filter(names.cast(pl.String).str.contains(_HELPERS))
    kernels = trace.device_events.filter(
        pl.col(DeviceEvents.category) == "compute", pl.col(DeviceEvents.kind) == "kernel"
    ).select(
        DeviceEvents.event_id,
        DeviceEvents.device,
        DeviceEvents.stream,
        DeviceEvents.kernel_class,
        pl.col(DeviceEvents.name).alias(KernelWork.kernel),
        DeviceEvents.start_ns,
        DeviceEvents.end_ns,
        DeviceEvents.num_blocks,
        DeviceEvents.in_graph,
        DeviceEvents.op_id,
        (
            pl.col(DeviceEvents.kernel_class).is_in(list(MATRIX_CLASSES))
            & ~pl.col(DeviceEvents.name).is_in(helpers.implode())
        ).alias(_IS_MATRIX_KERNEL),
    )
    kernels = _with_costs(_with_owners(kernels, trace.ops), trace.ops)
    return KernelWork.check(_shared_out(kernels).select(*KernelWork.columns()))


def _with_owners(kernels: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Point each kernel at the operator whose work it does: the innermost with a model.

    Above an operator without one, only a matrix operator may own a matrix kernel: what another operator costs says
    nothing of one kernel among the many below it.
    """
    names = ops[Ops.name].unique().cast(pl.String).to_list()
    modelled = [name for name in names if has_model(name)]
    matrix = [name for name in names if is_matrix_operator(name)]
    above = ops.select(
        pl.col(Ops.op_id).alias(_OWNER),
        Ops.parent_id,
        pl.col(Ops.name).cast(pl.String).is_in(matrix).alias(_HAS_MODEL),
    )
    innermost = above.with_columns(ops.select(pl.col(Ops.name).cast(pl.String).is_in(modelled).alias(_HAS_MODEL)))
    lost = kernels.with_columns(pl.col(Ops.op_id).alias(_OWNER)).join(innermost, on=_OWNER, how="left")
    is_lost = pl.col(_IS_MATRIX_KERNEL) & ~pl.col(_HAS_MODEL) & pl.col(Ops.parent_id).is_not_null()
    settled: list[pl.DataFrame] = []
    for _ in range(_MOST_LEVELS):
        settled.append(lost.filter(~is_lost.fill_null(value=False)))
        lost = lost.filter(is_lost)
        if lost.is_empty():
            break
        climbed = lost.with_columns(pl.col(Ops.parent_id).alias(_OWNER)).drop(Ops.parent_id, _HAS_MODEL)
        lost = climbed.join(above, on=_OWNER, how="left")
    # Where no operator above has a model, the innermost is named in the reason.
    owner = pl.when(pl.col(_HAS_MODEL)).then(pl.col(_OWNER)).otherwise(pl.col(Ops.op_id))
    walked = pl.concat([*settled, lost]).with_columns(owner.alias(Ops.op_id))
    return walked.drop(_OWNER, Ops.parent_id, _HAS_MODEL).sort(DeviceEvents.event_id)


def _with_costs(kernels: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Add what the owning operator costs, computed once for each distinct call."""
    arguments = ops.select(Ops.op_id, *(pl.col(column).cast(pl.String) for column in _ARGUMENTS))
    kernels = kernels.join(arguments, on=Ops.op_id, how="left")
    hints = {
        str(name): dtype_in_kernel_name(str(name))
        for name in kernels.filter(pl.col(Ops.input_types).str.contains("TensorList"))[KernelWork.kernel]
        .unique()
        .cast(pl.String)
        .to_list()
    }
    hint = pl.col(KernelWork.kernel).cast(pl.String).replace_strict(hints, default=None, return_dtype=pl.String)
    kernels = kernels.with_columns(pl.when(pl.col(Ops.input_types).str.contains("TensorList")).then(hint).alias(_HINT))
    parted = [name for name in kernels[Ops.name].drop_nulls().unique().to_list() if has_part_models(name)]
    part = pl.when(pl.col(Ops.name).is_in(parted)).then(pl.col(KernelWork.kernel).cast(pl.String))
    kernels = kernels.with_columns(part.alias(_PART))
    calls = kernels.select(*_KEYS).unique(maintain_order=True)
    rows = [_cost_row(*row) for row in calls.iter_rows()]
    costs = pl.DataFrame(rows, schema=_Costs.schema(), orient="row")
    matrix = [name for name in calls[Ops.name].drop_nulls().unique().to_list() if is_matrix_operator(name)]
    table = pl.concat([calls, costs], how="horizontal").with_columns(
        pl.col(Ops.name).is_in(matrix).fill_null(value=False).alias(_IS_MATRIX_OP)
    )
    return kernels.join(table, on=_KEYS, how="left", nulls_equal=True)


def _cost_row(*texts: str | None) -> tuple[int | None, int | None, str | None, str | None]:
    name, *rest, part = texts
    if name is None:
        return None, None, None, "no operator around its launch"
    cost = estimate_operator(name, *rest, part=part)
    flops, num_bytes = _sane(cost.flops), _sane(cost.num_bytes)
    if num_bytes is not None:
        return flops, num_bytes, cost.math_dtype, None
    return flops, num_bytes, cost.math_dtype, _reason(cost)


def _reason(cost: OperatorCost) -> str:
    return cost.bytes_reason or cost.flops_reason or "its counts are beyond any machine"


def _sane(count: int | None) -> int | None:
    return None if count is None or count > _MOST else count


def _shared_out(kernels: pl.DataFrame) -> pl.DataFrame:
    """Divide each operator's work among its kernels, exactly, and say why the others get none."""
    length = pl.col(KernelWork.end_ns) - pl.col(KernelWork.start_ns)
    # A kernel with a model of its own shares with its namesakes alone.
    same_kernel = (pl.col(KernelWork.kernel).n_unique().over(Ops.op_id) == 1) | pl.col(_PART).is_not_null()
    has_matrix_kernel = pl.col(_IS_MATRIX_KERNEL).any().over(*_SHARERS_OF)
    takes = (
        pl.when(pl.col(Ops.op_id).is_null() | pl.col(_Costs.cost_reason).is_not_null())
        .then(pl.lit(value=False))
        .when(pl.col(_IS_MATRIX_OP) & has_matrix_kernel)
        .then(pl.col(_IS_MATRIX_KERNEL))
        .otherwise(same_kernel)
    )
    by_blocks = ~pl.col(_IS_MATRIX_OP) & pl.col(DeviceEvents.num_blocks).is_not_null().all().over(*_SHARERS_OF)
    weight = pl.when(by_blocks).then(pl.col(DeviceEvents.num_blocks)).otherwise(length).cast(pl.Float64)
    shared = kernels.with_columns(takes.alias(_TAKES)).with_columns(
        pl.when(pl.col(_TAKES)).then(weight).otherwise(0.0).alias(_WEIGHT)
    )
    shared = shared.with_columns(
        pl.col(_WEIGHT).sum().over(*_SHARERS_OF).alias(_TOTAL), pl.col(_TAKES).sum().over(Ops.op_id).alias(_SHARERS)
    )
    shared = shared.with_columns(
        _part(_Costs.flops).alias(KernelWork.flops), _part(_Costs.num_bytes).alias(KernelWork.num_bytes)
    )
    return shared.with_columns(
        pl.col(Ops.name).cast(pl.Categorical()).alias(KernelWork.operator),
        pl.col(Ops.input_dims).cast(pl.Categorical()).alias(KernelWork.shapes),
        _path().alias(KernelWork.path),
        _why().alias(KernelWork.reason),
    )


def _part(column: Column) -> pl.Expr:
    """A kernel's part of its operator's count; the parts sum to it exactly: the last one takes what rounding left."""
    alone = pl.col(_SHARERS) == 1
    share = (pl.col(column) * (pl.col(_WEIGHT) / pl.col(_TOTAL))).fill_nan(0.0).floor().cast(pl.Int64)
    share = pl.when(alone).then(pl.col(column)).otherwise(share)
    share = pl.when(pl.col(_TAKES)).then(share)
    rest = pl.col(column) - share.sum().over(*_SHARERS_OF)
    last = pl.col(_TAKES) & (
        pl.col(DeviceEvents.event_id)
        == pl.when(pl.col(_TAKES)).then(pl.col(DeviceEvents.event_id)).max().over(*_SHARERS_OF)
    )
    return pl.when(last & ~alone).then(share + rest).otherwise(share)


def _path() -> pl.Expr:
    """Which units the arithmetic ran on: matrix kernels on matrix units, all others on vector units."""
    is_matrix = pl.col(_IS_MATRIX_KERNEL) | (pl.col(_IS_MATRIX_OP) & pl.col(_TAKES))
    name = pl.col(KernelWork.kernel).cast(pl.String)
    dtype = pl.col(_Costs.math_dtype)
    dtype = pl.when((dtype == "float32") & name.str.contains(_TF32)).then(pl.lit("tf32")).otherwise(dtype)
    vector = pl.when(pl.col(_Costs.math_dtype) == "float64").then(pl.lit("float64")).otherwise(pl.lit("float32"))
    return (
        pl.when(~pl.col(_TAKES))
        .then(None)
        .when(is_matrix)
        .then(pl.lit("matrix ") + dtype)
        .otherwise(pl.lit("vector ") + vector)
    )


def _why() -> pl.Expr:
    """Why a kernel has no known work."""
    several = pl.lit("one of several kernels of ") + pl.col(Ops.name) + pl.lit(", whose own share is not known")
    helper = pl.lit("a helper of the matrix kernels of ") + pl.col(Ops.name)
    no_op = (
        pl.when(pl.col(DeviceEvents.in_graph))
        .then(pl.lit("launched by the replay of a graph, without an operator"))
        .otherwise(pl.lit("no operator around its launch"))
    )
    return (
        pl.when(pl.col(_TAKES))
        .then(None)
        .when(pl.col(Ops.op_id).is_null())
        .then(no_op)
        .when(pl.col(_Costs.cost_reason).is_not_null())
        .then(pl.col(_Costs.cost_reason))
        .when(pl.col(_IS_MATRIX_OP))
        .then(helper)
        .otherwise(several)
    )
