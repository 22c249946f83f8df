"""The report for programs: one JSON document, schema `scope.report/1`, and that schema as data.

Keys bear their units: `_ns` integer nanoseconds, `_bytes` integer bytes, `_bytes_per_s` decimal and one way, `_ratio`
0 to 1. A figure that is not known is null, and `absent` of the same record holds the reason under its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import scope
from scope.report.findings import FINDING_KINDS
from scope.report.findings.evidence_keys import EVIDENCE_KEYS, evidence_column
from scope.report.rows import ABSENT_KEY, record_schema, to_records
from scope.report.sections import breakdown, collectives, host, idle, kernels, memory, path, roofline, stragglers
from scope.report.sections.breakdown import BREAKDOWN_COLUMNS, device_name
from scope.report.sections.quality import MISSING_RANKS, QUALITY_COLUMNS, format_ranks, quality_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.analysis.breakdown import Breakdown
    from scope.analysis.job import DeviceAnalysis, RankAnalysis
    from scope.analysis.result import Result
    from scope.report.findings import Finding
    from scope.report.results import Results
    from scope.report.table import ReportColumn

SCHEMA_NAME: Final = "scope.report/1"
"""Grows by keys within one number; a key that changes its meaning or goes away takes the next number."""

OPTIONS: Final = {
    "memory_as_compute": "Copies and sets count as compute (`--memory-as-compute`); Scope's own definition is false.",
    "sets_as_compute": "Sets count as compute, copies do not (`--sets-as-compute`); Scope's own definition is false.",
    "linked_only": (
        "Only device events whose launch is in the trace count (`--linked-only`); Scope's own definition is false."
    ),
    "critical_path": "Critical paths were computed.",
}
"""By name of each field of `scope.analysis.options.Options`: what true means."""

_BREAKDOWN_KEYS: Final = tuple(each.key for each in BREAKDOWN_COLUMNS)
_IDLE_KEYS: Final = tuple(each.key for each in idle.IDLE_COLUMNS[1:])
_QUEUE_KEYS: Final = tuple(each.key for each in idle.QUEUE_COLUMNS[1:])
_NO_OVERRUN: Final = "no event runs into the next of its stream"
_NO_EVENTS: Final = "the trace holds no device event and no host range that counts"


def to_document(results: Results, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the whole report as plain values, ready for JSON."""
    analysis = results.analysis
    return {
        "schema": SCHEMA_NAME,
        "scope_version": scope.__version__,
        "options": {name: getattr(analysis.options, name) for name in OPTIONS},
        "world_size": analysis.world_size,
        "missing_ranks": format_ranks(analysis.missing_ranks),
        "warnings": list(analysis.warnings),
        "ranks": [_rank(rank) for rank in analysis.ranks],
        "total": _breakdown(analysis.breakdown, analysis.absent.get("breakdown", _NO_EVENTS)),
        "host_total": None if analysis.host_breakdown is None else _breakdown(analysis.host_breakdown, _NO_EVENTS),
        "steps": to_records(breakdown.steps_table(analysis)),
        "rank_steps": to_records(breakdown.rank_steps_table(analysis)),
        "kernels": to_records(kernels.kernels_table(analysis)),
        "kernel_classes": to_records(kernels.kernels_table(analysis, by="kernel_class")),
        "operators": to_records(kernels.kernels_table(analysis, by="operator")),
        "modules": to_records(kernels.kernels_table(analysis, by="module")),
        "launches": to_records(host.launches_table(analysis)),
        "syncs": to_records(host.syncs_table(analysis)),
        "copies": to_records(host.copies_table(analysis)),
        "memory": to_records(memory.memory_table(analysis)),
        "critical_paths": to_records(path.critical_path_table(analysis)),
        "exposed_collectives": to_records(collectives.exposed_table(results.exposed)),
        "collectives": _collectives(results),
        "stragglers": _stragglers(results),
        "roofline": {
            "coverage": to_records(roofline.coverage_table(results.rooflines)),
            "points": to_records(roofline.roofline_table(results.rooflines)),
        },
        "findings": [finding.to_record() for finding in findings],
        ABSENT_KEY: {
            **({"world_size": analysis.absent["world_size"]} if analysis.world_size is None else {}),
            **({"host_total": analysis.absent["host_breakdown"]} if analysis.host_breakdown is None else {}),
            **{name: results.absent[name] for name in ("collectives", "stragglers") if name in results.absent},
        },
    }


def document_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of the document that `to_document` makes."""
    properties: dict[str, Any] = {
        "schema": {"const": SCHEMA_NAME, "description": "Name and version of this schema."},
        "scope_version": {"type": "string", "description": "Version of Scope that wrote it."},
        "options": _described(
            _closed({name: _typed("boolean", meaning) for name, meaning in OPTIONS.items()}),
            "Which events count, and as what.",
        ),
        "world_size": _nullable("integer", "Ranks of the job, as the traces say."),
        "missing_ranks": _typed("string", MISSING_RANKS),
        "warnings": _list({"type": "string"}, "Sentences: files skipped, ranks guessed, windows that barely overlap."),
        "ranks": _list(_rank_schema(), "One record a file, by rank; times are sums over its devices."),
        "total": _described(
            _breakdown_schema(), "Sum over all ranks with devices; over all host timelines where there is no device."
        ),
        "host_total": _or_null(
            _breakdown_schema(),
            "Sum over the host timelines that stand beside devices; null where there are not both.",
        ),
        "steps": _table(
            breakdown.STEP_COLUMNS, "One record a step: times are sums over devices, lengths those of one."
        ),
        "rank_steps": _table(breakdown.RANK_STEP_COLUMNS, "One record a rank, device and step, in the order of time."),
        "kernels": _table(kernels.kernel_columns("name"), "Device events of all ranks by name, most time first."),
        "kernel_classes": _table(kernels.kernel_columns("kernel_class"), "The same by class."),
        "operators": _table(
            kernels.kernel_columns("operator"), "The same by the innermost operator around the launch."
        ),
        "modules": _table(kernels.kernel_columns("module"), "The same by module; empty without Python stacks."),
        "launches": _table(host.LAUNCH_COLUMNS, "Launching calls with the delay to their first event."),
        "syncs": _table(host.SYNC_COLUMNS, "Calls that block the host, and the idle time that they leave."),
        "copies": _table(host.COPY_COLUMNS, "Copies and sets by direction."),
        "memory": _table(memory.PEAK_COLUMNS, "Peak of each device; empty when no memory events were recorded."),
        "critical_paths": _table(path.PATH_COLUMNS, "Critical path of each device's median step by kind of piece."),
        "exposed_collectives": _table(collectives.EXPOSED_COLUMNS, "By operation, group and size, most exposed first."),
        "collectives": _collectives_schema(),
        "stragglers": _stragglers_schema(),
        "roofline": _described(_closed(_roofline_properties()), "How close kernels come to what their GPU can do."),
        "findings": _list(_finding_schema(), "Ranked statements, the costliest first."),
        ABSENT_KEY: _reasons(),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA_NAME,
        **_closed(properties),
    }


def _rank(rank: RankAnalysis) -> dict[str, Any]:
    reason = rank.absent.get("breakdown", _NO_EVENTS)
    idle_reason = rank.absent.get("idle", _NO_EVENTS)
    total = _breakdown(rank.breakdown, reason)
    own = {
        "rank": rank.rank,
        "label": rank.label,
        "path": rank.path,
        "host": rank.host,
        "is_host_timeline": rank.is_host_timeline,
    }
    absent = {name: rank.absent.get(name, "not known") for name, value in own.items() if value is None}
    return {
        **own,
        **total,
        "quality": quality_record(rank),
        "idle": _selected(rank.idle, _IDLE_KEYS, idle_reason),
        "queue": _selected(rank.queue, _QUEUE_KEYS, rank.absent.get("queue", _NO_EVENTS)),
        "devices": [_device(device) for device in rank.devices],
        ABSENT_KEY: {**absent, **total[ABSENT_KEY]},
    }


def _device(device: DeviceAnalysis) -> dict[str, Any]:
    reason = device.whole.absent.get("breakdown", _NO_EVENTS)
    return {
        "device": device_name(device.device),
        **_breakdown(device.whole.breakdown, reason),
        "clipped": _breakdown(device.clipped, device.absent.get("clipped", _NO_OVERRUN)),
    }


def _breakdown(result: Breakdown | None, reason: str) -> dict[str, Any]:
    return _selected(result, _BREAKDOWN_KEYS, reason)


def _selected(result: Result | None, keys: Sequence[str], reason: str) -> dict[str, Any]:
    """Return figures of a result with the reasons of those that are None; all None when there is no result."""
    if result is None:
        return {**dict.fromkeys(keys), ABSENT_KEY: dict.fromkeys(keys, reason)}
    values = {key: getattr(result, key) for key in keys}
    return {
        **values,
        ABSENT_KEY: {key: result.absent.get(key, "not known") for key, value in values.items() if value is None},
    }


_COLLECTIVE_COUNTS: Final = {
    "num_calls": "Calls of all ranks whose rank is known.",
    "num_matched": "Calls with a partner on another rank.",
    "num_by_recorded_clocks": "Of the matched calls, those whose partners are told by clocks that were taken to agree: "
    "nothing shows how these stand, and neither `Seq` nor the numbers of steps decide.",
    "num_alone": "Calls that no other rank's trace shows.",
    "num_ambiguous": "Calls left out because their partners cannot be told.",
    "num_of_unknown_group": "Of the ambiguous calls, those whose group the trace does not say while it shows several.",
    "num_unmatchable": "Calls whose peers or group are unknown.",
    "num_incomplete": "Collectives that some rank of the group is missing from.",
    "num_cut": "Collectives at the edge of some rank's window, left out of waits and skews.",
}


def _collectives(results: Results) -> dict[str, Any] | None:
    found = results.collectives
    if found is None:
        return None
    links = results.collective_roofline
    return {
        **{name: getattr(found, name) for name in _COLLECTIVE_COUNTS},
        "summary": to_records(collectives.collectives_table(found)),
        "each": to_records(collectives.collective_calls_table(found)),
        "rank_waits": to_records(collectives.rank_waits_table(found)),
        "clock": to_records(collectives.clock_table(found)),
        "links": [] if links is None else to_records(collectives.collective_roofline_table(links)),
    }


def _stragglers(results: Results) -> dict[str, Any] | None:
    found = results.stragglers
    if found is None:
        return None
    return {
        "verdict": found.verdict,
        "num_collectives_judged": found.num_collectives_judged,
        "num_collectives_skipped": found.num_collectives_skipped,
        "has_missing_ranks": found.has_missing_ranks,
        "ranks": to_records(stragglers.stragglers_table(found)),
        "together": stragglers.together_record(found),
    }


def _rank_schema() -> dict[str, Any]:
    schema = _breakdown_schema()
    properties = {
        "rank": _nullable("integer", "Global rank."),
        "label": _typed("string", "`rank 3`, or `file 2` where no rank is known."),
        "path": _typed("string", "The file."),
        "host": _nullable("string", "Host, where the trace names it."),
        "is_host_timeline": _typed("boolean", "No device events: compute and communication are ranges on the host."),
        **schema["properties"],
        "quality": _quality_schema(),
        "idle": _described(record_schema(idle.IDLE_COLUMNS[1:]), "Idle time by cause; the causes sum to it."),
        "queue": _described(record_schema(idle.QUEUE_COLUMNS[1:]), "How the host fed the devices."),
        "devices": _list(_device_schema(), "The same for each device."),
        ABSENT_KEY: _reasons(),
    }
    return _closed(properties)


def _device_schema() -> dict[str, Any]:
    properties = {
        "device": _typed("string", "Device index in the trace, or `host`."),
        **_breakdown_schema()["properties"],
        "clipped": _described(_breakdown_schema(), "With every event cut at the next start on its stream."),
    }
    return _closed(properties)


def _breakdown_schema() -> dict[str, Any]:
    return record_schema(BREAKDOWN_COLUMNS)


def _quality_schema() -> dict[str, Any]:
    schema = record_schema(QUALITY_COLUMNS[1:])
    schema["properties"]["missing_ranks"] = _typed("string", MISSING_RANKS)
    return _described(schema, "How far to trust this rank's figures.")


def _collectives_schema() -> dict[str, Any]:
    properties = {
        **{name: _typed("integer", meaning) for name, meaning in _COLLECTIVE_COUNTS.items()},
        "summary": _table(collectives.SUMMARY_COLUMNS, "By group, operation and size."),
        "each": _table(collectives.CALL_COLUMNS, "One by one, by first arrival."),
        "rank_waits": _table(collectives.WAIT_COLUMNS, "What each rank waited for others."),
        "clock": _table(collectives.CLOCK_COLUMNS, "How far the clocks stand apart."),
        "links": _table(collectives.POINT_COLUMNS, "Bus bandwidth by message size, against what links allow."),
    }
    return _or_null(_closed(properties), "Collectives across ranks.")


def _stragglers_schema() -> dict[str, Any]:
    properties = {
        "verdict": _typed("string", "One sentence, also when nobody is named."),
        "num_collectives_judged": _typed("integer", "Collectives in which a straggler could show."),
        "num_collectives_skipped": _typed("integer", "The rest."),
        "has_missing_ranks": _typed("boolean", "Ranks are missing: savings are told as far as the others tell."),
        "ranks": _table(stragglers.STRAGGLER_COLUMNS, "Ranks that make others wait, most imposed wait first."),
        "together": _or_null(
            _closed(
                {
                    "ranks": _list({"type": "integer"}, "Global ranks, sorted."),
                    "saving_ns": _typed("integer", "How much sooner the recorded part would have ended without."),
                }
            ),
            "Ranks that are late, of which mending all saves more than mending any of them alone; else null.",
        ),
    }
    return _or_null(_closed(properties), "Ranks that make others wait.")


def _roofline_properties() -> dict[str, Any]:
    return {
        "coverage": _table(roofline.COVERAGE_COLUMNS, "What is placed, rank by rank, and on which GPU."),
        "points": _table(roofline.ROOFLINE_COLUMNS, "One record a kernel, operator, shapes and units."),
    }


def _finding_schema() -> dict[str, Any]:
    strings, integers = {"type": "string"}, {"type": "integer"}
    where = {
        "ranks": _list(integers, "Ranks."),
        "steps": _list(integers, "Steps."),
        "kernels": _list(strings, "Kernels."),
        "calls": _list(strings, "Operators and calls of the runtime."),
        "groups": _list(strings, "Collectives and process groups."),
    }
    evidence = record_schema([evidence_column(key, key) for key in EVIDENCE_KEYS])
    properties = {
        "kind": {"enum": list(FINDING_KINDS), "description": "What it is about."},
        "title": _typed("string", "One line with the figures that matter."),
        "where": _described(
            _closed(where), "What the finding singles out; an empty list singles out none, and says nothing of any."
        ),
        "evidence": _described(
            # Each finding has the keys of its kind.
            {**evidence, "required": [ABSENT_KEY]},
            "The figures it rests on, of these the keys that its kind has. Times lie in step time (in windows where "
            "there are no steps) and are sums over devices, unless it is said.",
        ),
        "cost_ns": _nullable("integer", "Time that it costs, summed over devices; an upper bound of the saving."),
        "share_ratio": _nullable("number", "The cost as a share of step time (of the window without steps)."),
        "action": _typed("string", "What to do."),
        ABSENT_KEY: _reasons(),
    }
    return _closed(properties)


def _table(columns: Sequence[ReportColumn], description: str) -> dict[str, Any]:
    return _list(record_schema(columns), description)


def _list(items: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"type": "array", "description": description, "items": items}


def _typed(name: str, description: str) -> dict[str, Any]:
    return {"type": name, "description": description}


def _nullable(name: str, description: str) -> dict[str, Any]:
    return {"type": [name, "null"], "description": description}


def _described(schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {**schema, "description": description}


def _or_null(schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {**schema, "type": ["object", "null"], "description": description}


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _reasons() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "Reason by key, for the values of this record that are null.",
        "additionalProperties": {"type": "string"},
    }
