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
    from collections.abc import Callable

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
_IS_HELPER: Final = "is_helper"
_HINT: Final = "list_dtype"
_WEIGHT: Final = "weight"
_TOTAL: Final = "total_weight"
_SHARERS: Final = "num_sharers"
_TAKES: Final = "takes_work"
_LAST: Final = "last_event_id"
_ARGUMENTS: Final = (Ops.name, Ops.input_dims, Ops.input_types, Ops.input_strides, Ops.concrete_inputs)
_KEYS: Final = (*_ARGUMENTS, _HINT, _PART)
_LIST_TYPE: Final = "TensorList"


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
    names = trace.device_events[DeviceEvents.name]
    is_helper = _among(names, _HELPERS)
    is_matrix = pl.col(DeviceEvents.kernel_class).is_in(list(MATRIX_CLASSES)) & ~is_helper
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
        is_matrix.alias(_IS_MATRIX_KERNEL),
        is_helper.alias(_IS_HELPER),
    )
    kernels = _with_costs(kernels.with_columns(_owners(kernels, trace.ops)), trace.ops)
    return KernelWork.check(_shared_out(kernels).select(*KernelWork.columns()))


def _among(names: pl.Series, pattern: str) -> pl.Expr:
    """Whether the name of a kernel is one of those that match; the pattern is tried once for each distinct name."""
    distinct = names.unique()
    matching = distinct.filter(distinct.cast(pl.String).str.contains(pattern))
    return pl.col(names.name).is_in(matching.implode())


def _owners(kernels: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """Return for each kernel the operator whose work it does: the innermost with a model.

    Above an operator without one, only a matrix operator may own a matrix kernel: what another operator costs says
    nothing of one kernel among the many below it. Where no operator above has a model, the innermost is named in the
    reason.
    """
    owners, names, parents = kernels[Ops.op_id].clone(), ops[Ops.name], ops[Ops.parent_id]
    has_no_model = ~_holds(names[owners], has_model)
    lost = kernels.select((pl.col(_IS_MATRIX_KERNEL) & has_no_model).fill_null(value=False).arg_true()).to_series()
    above = parents[owners[lost]]
    for _ in range(_MOST_LEVELS):
        is_known = above.is_not_null()
        lost, above = lost.filter(is_known), above.filter(is_known)
        if lost.is_empty():
            break
        is_owner = _holds(names[above], is_matrix_operator)
        owners = owners.scatter(lost.filter(is_owner), above.filter(is_owner))
        lost, above = lost.filter(~is_owner), parents[above.filter(~is_owner)]
    return owners


def _holds(names: pl.Series, says: Callable[[str], bool]) -> pl.Series:
    """Return what a function says of every name, asked once for each distinct one; null where there is no name."""
    distinct = names.unique().drop_nulls()
    said = [name for name in distinct.cast(pl.String).to_list() if says(name)]
    return names.is_in(pl.Series([said], dtype=pl.List(names.dtype)))


def _with_costs(kernels: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Add what the owning operator costs, computed once for each distinct call."""
    owners = kernels[Ops.op_id]
    kernels = kernels.with_columns(ops[column][owners] for column in _ARGUMENTS)
    kernels = kernels.with_columns(_list_dtypes(kernels), _parts_of_operators(kernels))
    calls = kernels.select(*_KEYS).unique(maintain_order=True)
    texts = calls.select(pl.col(column).cast(pl.String) for column in _KEYS)
    costs = pl.DataFrame([_cost_row(*row) for row in texts.iter_rows()], schema=_Costs.schema(), orient="row")
    is_matrix = _holds(calls[Ops.name], is_matrix_operator).fill_null(value=False)
    table = calls.with_columns(*costs, is_matrix.alias(_IS_MATRIX_OP))
    return kernels.join(table, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")


def _list_dtypes(kernels: pl.DataFrame) -> pl.Series:
    """Return for kernels of operators on lists of tensors, whose dtypes traces leave out, that of the kernel's name."""
    types = kernels[Ops.input_types]
    takes_lists = _holds(types, lambda text: _LIST_TYPE in text).fill_null(value=False)
    return _by_name(kernels[KernelWork.kernel], takes_lists, dtype_in_kernel_name).alias(_HINT)


def _parts_of_operators(kernels: pl.DataFrame) -> pl.Series:
    """Return the names of kernels that are one of several parts with models of their own."""
    has_parts = _holds(kernels[Ops.name], has_part_models).fill_null(value=False)
    return _by_name(kernels[KernelWork.kernel], has_parts, str).alias(_PART)


def _by_name(names: pl.Series, chosen: pl.Series, make: Callable[[str], str | None]) -> pl.Series:
    """Return what a function makes of the names of chosen rows, asked once for each; null for the others."""
    texts = names.filter(chosen).unique().cast(pl.String).to_list()
    if not texts:
        return pl.Series([None], dtype=pl.String).new_from_index(0, len(names))
    made = {text: make(text) for text in texts}
    values = names.cast(pl.String).replace_strict(made, default=None, return_dtype=pl.String)
    return values.zip_with(chosen, pl.Series([None], dtype=pl.String))


def _cost_row(*texts: str | None) -> tuple[int | None, int | None, str | None, str | None]:
    name, *rest, part = texts
    if name is None:
        return None, None, None, "no operator around its launch"
    cost = estimate_operator(name, *rest, part=part)
    flops, num_bytes = _sane(cost.flops), _sane(cost.num_bytes)
    if flops is None and is_matrix_operator(name):
        # Its bytes alone would place it far below a roof that is not its own.
        return None, num_bytes, cost.math_dtype, cost.flops_reason or _reason(cost)
    if num_bytes is not None:
        return flops, num_bytes, cost.math_dtype, None
    return flops, num_bytes, cost.math_dtype, _reason(cost)


def _reason(cost: OperatorCost) -> str:
    return cost.bytes_reason or cost.flops_reason or "its counts are beyond any machine"


def _sane(count: int | None) -> int | None:
    return None if count is None or count > _MOST else count


def _shared_out(kernels: pl.DataFrame) -> pl.DataFrame:
    """Divide each operator's work among its kernels, exactly, and say why the others get none."""
    # Almost no operator has parts, and to group by one number takes a fraction of what a number and a text take.
    has_parts = kernels[_PART].null_count() < kernels.height
    sharers = (Ops.op_id, _PART) if has_parts else (Ops.op_id,)
    length = pl.col(KernelWork.end_ns) - pl.col(KernelWork.start_ns)
    # A kernel with a model of its own shares with its namesakes alone.
    same_kernel = (pl.col(KernelWork.kernel).n_unique().over(Ops.op_id) == 1) | pl.col(_PART).is_not_null()
    has_matrix_kernel = pl.col(_IS_MATRIX_KERNEL).any().over(*sharers)
    takes = (
        pl.when(pl.col(Ops.op_id).is_null() | pl.col(_Costs.cost_reason).is_not_null())
        .then(pl.lit(value=False))
        .when(pl.col(_IS_MATRIX_OP) & has_matrix_kernel)
        .then(pl.col(_IS_MATRIX_KERNEL))
        # A product whose own kernel a trace with holes lacks: what is left of it did none of its work.
        .otherwise(same_kernel & ~(pl.col(_IS_MATRIX_OP) & pl.col(_IS_HELPER)))
    )
    by_blocks = ~pl.col(_IS_MATRIX_OP) & pl.col(DeviceEvents.num_blocks).is_not_null().all().over(*sharers)
    weight = pl.when(by_blocks).then(pl.col(DeviceEvents.num_blocks)).otherwise(length).cast(pl.Float64)
    shared = kernels.with_columns(takes.alias(_TAKES)).with_columns(
        pl.when(pl.col(_TAKES)).then(weight).otherwise(0.0).alias(_WEIGHT)
    )
    shared = shared.with_columns(
        pl.col(_WEIGHT).sum().over(*sharers).alias(_TOTAL), pl.col(_TAKES).sum().over(Ops.op_id).alias(_SHARERS)
    )
    # A sum over a group is fast of a column, and slow of an expression.
    shared = shared.with_columns(
        _rounded_down(_Costs.flops).alias(KernelWork.flops),
        _rounded_down(_Costs.num_bytes).alias(KernelWork.num_bytes),
        pl.when(pl.col(_TAKES)).then(pl.col(DeviceEvents.event_id)).alias(_LAST),
    )
    is_last = pl.col(DeviceEvents.event_id) == pl.col(_LAST).max().over(*sharers)
    return shared.with_columns(
        *(
            pl.when(is_last & (pl.col(_SHARERS) != 1))
            .then(pl.col(part) + pl.col(whole) - pl.col(part).sum().over(*sharers))
            .otherwise(pl.col(part))
            .alias(part)
            for part, whole in ((KernelWork.flops, _Costs.flops), (KernelWork.num_bytes, _Costs.num_bytes))
        ),
        pl.col(Ops.name).alias(KernelWork.operator),
        pl.col(Ops.input_dims).alias(KernelWork.shapes),
        _path(kernels[KernelWork.kernel]).alias(KernelWork.path),
        _why().alias(KernelWork.reason),
    )


def _rounded_down(column: Column) -> pl.Expr:
    """A kernel's part of its operator's count, rounded down; the last kernel also takes what rounding left."""
    share = (pl.col(column) * (pl.col(_WEIGHT) / pl.col(_TOTAL))).fill_nan(0.0).floor().cast(pl.Int64)
    share = pl.when(pl.col(_SHARERS) == 1).then(pl.col(column)).otherwise(share)
    return pl.when(pl.col(_TAKES)).then(share)


def _path(names: pl.Series) -> pl.Expr:
    """Which units the arithmetic ran on: matrix kernels on matrix units, all others on vector units."""
    is_matrix = pl.col(_IS_MATRIX_KERNEL) | (pl.col(_IS_MATRIX_OP) & pl.col(_TAKES))
    dtype = pl.col(_Costs.math_dtype)
    dtype = pl.when((dtype == "float32") & _among(names, _TF32)).then(pl.lit("tf32")).otherwise(dtype)
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
    operator = pl.col(Ops.name).cast(pl.String)
    several = pl.lit("one of several kernels of ") + operator + pl.lit(", whose own share is not known")
    helper = pl.lit("a helper of the matrix kernels of ") + operator
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
