"""Device events: their launches, operators, classes and copies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.structs import Record
from scope.trace import classes
from scope.trace.eager import is_true, not_negative, taken
from scope.trace.hostcalls import rows_by_external_id, usable_external_ids
from scope.trace.launches import LAUNCHING_KINDS
from scope.trace.nesting import covered
from scope.trace.raw import RawDevice, RawFlows, RawOps, RawSpans
from scope.trace.schema import (
    CATEGORIES,
    COPY_KINDS,
    DEVICE_EVENT_KINDS,
    KERNEL_CLASSES,
    DeviceEvents,
    Launches,
    Ops,
)

if TYPE_CHECKING:
    from scope.trace.reader import ReadTrace
    from scope.trace.texts import Texts

_MOST_THREADS: Final = 2**31 - 1
_LARGEST_DEVICE: Final = 2**31 - 1
_UNKNOWN_DEVICE: Final = -2
_FOLDED_DEVICES: Final = 2**30
_ROW: Final = "row"
_LAUNCH_ROW: Final = "launch_row"
_END: Final = "span_end"
_KIND, _CATEGORY, _CLASS, _COPY, _IS_OPEN = "kind", "category", "class", "copy", "open"
"""Columns of what `_classified` finds."""


class OperatorsNeededError(Exception):
    """The operators were not read, but the category of a device event hangs on the operator that launched it."""


class Devices(Record, frozen=True):
    """The table without its calls, and what the calls need beside it."""

    frame: pl.DataFrame
    raw_rows: pl.Series
    """Row of each event in file order."""
    negative_length: int


class HostSide(Record, frozen=True, kw_only=True):
    """What device events are linked to."""

    launches: pl.DataFrame
    ops: pl.DataFrame | None
    """None where the operators were not read."""
    flows: pl.DataFrame


def device_events(
    read: ReadTrace, host: HostSide, *, texts: Texts, base_ns: int, patterns: tuple[classes.Pattern, ...]
) -> Devices:
    """Link and classify what ran on devices."""
    launches, ops = host.launches, host.ops
    raw = read.collected.frame(RawSpans, RawDevice).with_row_index(_ROW)
    raw = raw.with_columns(_device_numbers(raw[RawDevice.device]))
    if raw[RawDevice.stream].null_count():
        raw = raw.with_columns(pl.col(RawDevice.stream).fill_null(-1))
    raw = raw.sort(RawSpans.start_ns, RawDevice.device, RawDevice.stream, RawSpans.duration_ns, maintain_order=True)
    lengths = raw[RawSpans.duration_ns]
    ends = raw[RawSpans.start_ns] + not_negative(lengths)
    launch_ids = _launch_ids(raw, launches, host.flows, base_ns)
    op_ids, op_classes = None, pl.Series([None] * raw.height, dtype=pl.Enum(KERNEL_CLASSES))
    if ops is not None:
        op_ids = _op_ids(raw, launch_ids, launches, ops)
        op_classes = _operator_classes(ops, op_ids)
    classified = _classified(raw, texts, op_classes, patterns)
    kinds = classified[_KIND]
    if op_ids is None:
        _refuse_if_decided_by_operators(read, texts, launches, launch_ids.filter(classified[_IS_OPEN]), base_ns)
    next_start = pl.col(RawSpans.start_ns).shift(-1).over(RawDevice.device, RawDevice.stream)
    clipped_ends = raw.select(pl.min_horizontal(ends, next_start)).to_series()
    is_graph = is_true(taken(launches[Launches.kind] == "graph", launch_ids))
    frame = pl.DataFrame(
        [
            pl.int_range(raw.height, dtype=pl.UInt32, eager=True).alias(DeviceEvents.event_id),
            raw[RawDevice.device].cast(pl.Int32).alias(DeviceEvents.device),
            raw[RawDevice.stream].alias(DeviceEvents.stream),
            kinds.alias(DeviceEvents.kind),
            classified[_CATEGORY].alias(DeviceEvents.category),
            classified[_CLASS].alias(DeviceEvents.kernel_class),
            texts.name_column(raw[RawSpans.name], DeviceEvents.name),
            (raw[RawSpans.start_ns] + base_ns).alias(DeviceEvents.start_ns),
            (ends + base_ns).alias(DeviceEvents.end_ns),
            (clipped_ends + base_ns).alias(DeviceEvents.clipped_end_ns),
            raw[RawDevice.correlation].alias(DeviceEvents.correlation),
            launch_ids.alias(DeviceEvents.launch_id),
            taken(launches[Launches.step_id], launch_ids).alias(DeviceEvents.step_id),
            (is_graph | is_true(raw[RawDevice.graph_id] > 0)).alias(DeviceEvents.in_graph),
            classified[_COPY].alias(DeviceEvents.copy_kind),
            _copied_bytes(raw, kinds).alias(DeviceEvents.copy_bytes),
            texts.of_texts(raw[RawDevice.grid], _product, pl.Int64).alias(DeviceEvents.num_blocks),
            texts.of_texts(raw[RawDevice.block], _num_threads, pl.Int32).alias(DeviceEvents.threads_per_block),
            raw[RawDevice.registers].cast(pl.Int32, strict=False).alias(DeviceEvents.registers_per_thread),
            raw[RawDevice.shared_memory].alias(DeviceEvents.shared_memory_bytes),
            (raw[RawDevice.occupancy] / 100).cast(pl.Float32).alias(DeviceEvents.occupancy_ratio),
        ]
    )
    if op_ids is not None:
        frame = frame.hstack([op_ids.cast(pl.UInt32).alias(DeviceEvents.op_id)])
    return Devices(frame, raw[_ROW], int((lengths < 0).sum()))


def _device_numbers(devices: pl.Series) -> pl.Series:
    """Return numbers of 32 bits that tell devices apart; ids that are none become numbers below -1.

    So does -1, which is what analyses call the host.
    """
    lowest: Any = devices.min()
    highest: Any = devices.max()
    if not devices.null_count() and (lowest is None or (lowest >= 0 and highest <= _LARGEST_DEVICE)):
        return devices
    folded = _UNKNOWN_DEVICE - 1 - devices % _FOLDED_DEVICES
    is_number = (devices >= 0) & (devices <= _LARGEST_DEVICE)
    numbers = pl.select(pl.when(is_number).then(devices).otherwise(folded)).to_series()
    return numbers.fill_null(_UNKNOWN_DEVICE).alias(RawDevice.device)


def _op_ids(raw: pl.DataFrame, launch_ids: pl.Series, launches: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """Return the operator around each event's launch; where there is none, that of its External id."""
    op_ids = taken(launches[Launches.op_id], launch_ids)
    if op_ids.null_count() and ops.height:
        ids = usable_external_ids(raw[RawDevice.external_id], raw[RawDevice.correlation])
        op_ids = op_ids.fill_null(rows_by_external_id(ids, ops))
    return op_ids


def _refuse_if_decided_by_operators(
    read: ReadTrace, texts: Texts, launches: pl.DataFrame, launch_ids: pl.Series, base_ns: int
) -> None:
    """Raise where operators of communication may have launched some of the events, of which these are the launches.

    No such operator can have launched an event whose call lies in operators that are all of another kind. Where the
    call lies in none, the event's External id may still name an operator, so this is not told without them.
    """
    spans = read.collected.frame(RawSpans, RawOps)
    is_communication = texts.of_names(spans[RawSpans.name], classes.is_communication_operator, pl.Boolean)
    if not len(launch_ids) or not is_communication.any():
        return
    bounds = pl.DataFrame(
        [
            spans[RawSpans.thread],
            spans[RawSpans.start_ns] + base_ns,
            (spans[RawSpans.start_ns] + not_negative(spans[RawSpans.duration_ns]) + base_ns).alias(_END),
        ]
    )
    points = launches[launch_ids.drop_nulls()].select(
        pl.col(Launches.thread).alias(RawSpans.thread), pl.col(Launches.start_ns).alias(RawSpans.start_ns)
    )
    is_sure = ~covered(points, bounds.filter(is_communication)) & covered(points, bounds)
    if launch_ids.null_count() or not is_sure.all():
        raise OperatorsNeededError


def _copied_bytes(raw: pl.DataFrame, kinds: pl.Series) -> pl.Series:
    is_copy = kinds.cast(pl.String) != "kernel"
    return pl.select(pl.when(is_copy).then(raw[RawDevice.bytes]).otherwise(None)).to_series()


def _product(text: str | None) -> int | None:
    """Return the product of a grid or block, such as `[8, 1, 1]`."""
    if not text or not text.startswith("[") or len(text) > 64:
        return None
    try:
        extents = json.loads(text)
    except ValueError:
        return None
    product = 1
    for extent in extents:
        if type(extent) is not int or not 0 <= extent < 2**31:
            return None
        product *= extent
    return product if extents and product < 2**63 else None


def _num_threads(text: str | None) -> int | None:
    product = _product(text)
    return product if product is not None and product <= _MOST_THREADS else None


def _launch_ids(raw: pl.DataFrame, launches: pl.DataFrame, flows: pl.DataFrame, base_ns: int) -> pl.Series:
    """Return the launch of each event: by correlation, else by the arrow that ends where the event begins."""
    by_number = launches.select(
        Launches.correlation,
        Launches.launch_id,
        pl.col(Launches.kind).is_in(LAUNCHING_KINDS).alias("launches"),
    ).drop_nulls(Launches.correlation)
    # Where several calls bear one number, the one that launches is meant.
    numbers = by_number
    if by_number[Launches.correlation].n_unique() < by_number.height:
        first = by_number.sort("launches", descending=True, maintain_order=True)
        numbers = first.unique(Launches.correlation, keep="first", maintain_order=True)
    wanted = raw.select(pl.col(RawDevice.correlation).alias(Launches.correlation))
    found = wanted.join(numbers, on=Launches.correlation, how="left", maintain_order="left")[Launches.launch_id]
    if numbers is not by_number:
        launching = by_number.filter("launches")
        if launching.height > launching[Launches.correlation].n_unique():
            found = _last_before(raw, launching.drop("launches"), launches, base_ns).fill_null(found)
    if found.null_count() == 0 or flows.height == 0 or launches.height == 0:
        return found.alias(DeviceEvents.launch_id)
    return found.fill_null(_by_flows(raw, launches, flows.filter(~pl.col(RawFlows.is_backward)), base_ns))


def _last_before(raw: pl.DataFrame, launching: pl.DataFrame, launches: pl.DataFrame, base_ns: int) -> pl.Series:
    """Return the last call of an event's number that began no later than the event.

    Numbers come again where files were merged, and where they wrap around.
    """
    calls = launching.with_columns(taken(launches[Launches.start_ns], launching[Launches.launch_id]))
    wanted = raw.select(
        pl.col(RawDevice.correlation).alias(Launches.correlation),
        (pl.col(RawSpans.start_ns) + base_ns).alias(Launches.start_ns),
    )
    return wanted.join_asof(
        calls.sort(Launches.start_ns),
        on=Launches.start_ns,
        by=Launches.correlation,
        strategy="backward",
        check_sortedness=False,
    )[Launches.launch_id]


def _by_flows(raw: pl.DataFrame, launches: pl.DataFrame, flows: pl.DataFrame, base_ns: int) -> pl.Series:
    calls = launches.select(
        pl.col(Launches.thread).alias(RawFlows.thread),
        (pl.col(Launches.start_ns) - base_ns).alias(RawFlows.time_ns),
    ).with_row_index(_LAUNCH_ROW)
    begins = (
        flows.filter(pl.col(RawFlows.is_start))
        .join(calls, on=[RawFlows.thread, RawFlows.time_ns], how="inner")
        .unique(RawFlows.id, keep="first", maintain_order=True)
        .select(RawFlows.id, _LAUNCH_ROW)
    )
    ends = (
        flows.filter(~pl.col(RawFlows.is_start))
        .join(begins, on=RawFlows.id, how="inner")
        .select(
            pl.col(RawFlows.process).alias(RawDevice.device),
            pl.col(RawFlows.thread).alias(RawDevice.stream),
            pl.col(RawFlows.time_ns).alias(RawSpans.start_ns),
            _LAUNCH_ROW,
        )
        .unique([RawDevice.device, RawDevice.stream, RawSpans.start_ns], keep="first", maintain_order=True)
    )
    keys = [RawDevice.device, RawDevice.stream, RawSpans.start_ns]
    return raw.select(keys).join(ends, on=keys, how="left", maintain_order="left")[_LAUNCH_ROW]


def _classified(
    raw: pl.DataFrame, texts: Texts, op_classes: pl.Series, patterns: tuple[classes.Pattern, ...]
) -> pl.DataFrame:
    """Return kind, category, class and direction, found once for each distinct combination of what decides them.

    The last column tells of which events an operator of communication, were it around them, would decide the category.
    """
    keys = pl.DataFrame(
        [
            raw[RawDevice.kind],
            raw[RawSpans.name],
            raw[RawDevice.copy_kind],
            raw[RawDevice.is_collective],
            op_classes.alias("op_class"),
        ]
    )
    names = keys.columns
    distinct = keys.unique(maintain_order=True)
    rows = [_one_class(row, texts, patterns) for row in distinct.iter_rows()]
    category_of = {"communication": "communication", "memory": "memory"}
    answers = distinct.hstack(
        [
            pl.Series(_KIND, [row[0] for row in rows], dtype=pl.Enum(DEVICE_EVENT_KINDS)),
            pl.Series(_CATEGORY, [category_of.get(row[1], "compute") for row in rows], dtype=pl.Enum(CATEGORIES)),
            pl.Series(_CLASS, [row[1] for row in rows], dtype=pl.Enum(KERNEL_CLASSES)),
            pl.Series(_COPY, [row[2] for row in rows], dtype=pl.Enum(COPY_KINDS)),
            pl.Series(_IS_OPEN, [row[3] for row in rows], dtype=pl.Boolean),
        ]
    )
    return keys.join(answers, on=names, how="left", nulls_equal=True, maintain_order="left")


def _one_class(
    key: tuple[int, int, int, bool, str | None], texts: Texts, patterns: tuple[classes.Pattern, ...]
) -> tuple[str, str, str | None, bool]:
    kind_code, name_code, argument_code, is_collective, op_class = key
    name = texts.names[name_code]
    kind = DEVICE_EVENT_KINDS[kind_code]
    if kind != "kernel":
        direction = "set" if kind == "memset" else classes.copy_kind(name, texts.texts[argument_code] or "")
        return kind, "memory", direction, False
    found = classes.fixed_class(name, patterns, is_collective=is_collective)
    if found == "memory":
        direction = classes.copy_kind(name, texts.texts[argument_code] or "")
        return ("memset" if direction == "set" else "memcpy"), "memory", direction, False
    if found is not None:
        return kind, found, None, False
    return (
        kind,
        classes.class_under(op_class, name),
        None,
        classes.class_under("communication", name) == "communication",
    )


def _operator_classes(ops: pl.DataFrame, op_ids: pl.Series) -> pl.Series:
    """Return for each event the class that its innermost telling operator gives."""
    if ops.height == 0:
        return pl.Series([None] * len(op_ids), dtype=pl.Enum(KERNEL_CLASSES))
    names = ops[Ops.name].to_physical()
    distinct = ops[Ops.name].unique()
    by_name = [classes.operator_class(name) for name in distinct.cast(pl.String).to_list()]
    known = names.replace_strict(distinct.to_physical(), by_name, return_dtype=pl.Enum(KERNEL_CLASSES))
    # From each operator to the next outer one, then twice as far in each round: operators may nest very deep.
    own = pl.int_range(ops.height, dtype=pl.UInt32, eager=True)
    telling = own.zip_with(known.is_not_null(), ops[Ops.parent_id].cast(pl.UInt32))
    while taken(known, telling).null_count() > telling.null_count():
        telling = taken(telling, telling)
    return taken(known, taken(telling, op_ids))
