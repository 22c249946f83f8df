"""Traces, read and analysed once for all visitors and kept until their files change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import streamlit as st

from dashboards.sources.catalogue import TRACE_SUFFIXES
from scope.report.build import compute_results
from scope.report.findings import find_all
from scope.trace import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.report.findings import Finding
    from scope.report.results import Results

_MAX_KEPT: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceReport:
    """The traces of a job with all that is known from them."""

    results: Results
    findings: Sequence[Finding]
    modified_ns: int
    """When the youngest of the files was written."""


def load_traces(place: str) -> TraceReport:
    """Return the report of a trace or a folder of traces; read again when a file has changed.

    Raises:
        ScopeError: A file cannot be read, or two claim one rank.
    """
    return _read(place, _fingerprint(place))


def _fingerprint(place: str) -> tuple[tuple[str, int, int], ...]:
    path = Path(place)
    files = [path] if path.is_file() else [each for each in path.iterdir() if each.name.endswith(TRACE_SUFFIXES)]
    status = [(each.name, each.stat()) for each in sorted(files)]
    return tuple((name, each.st_size, each.st_mtime_ns) for name, each in status)


@st.cache_resource(max_entries=_MAX_KEPT, show_spinner="Reading traces …")
def _read(place: str, fingerprint: tuple[tuple[str, int, int], ...]) -> TraceReport:
    results = compute_results(load(place))
    return TraceReport(
        results=results,
        findings=find_all(results),
        modified_ns=max((modified for _, _, modified in fingerprint), default=0),
    )
