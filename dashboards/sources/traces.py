"""Traces, read and analysed once for all visitors and kept until their files change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import streamlit as st

from dashboards.sources.catalogue import TRACE_SUFFIXES
from scope.errors import InputError
from scope.report.build import Choices, compute_results
from scope.report.findings import find_all
from scope.run.reader import read_rank_info, read_run_info
from scope.trace import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.sources.catalogue import Source
    from scope.report.findings import Finding
    from scope.report.results import Results
    from scope.trace.model import Job

_MAX_KEPT: Final = 4
SYNTHETIC_MARK: Final = "SYNTHETIC"
"""A file of this name in a folder of traces says that they were made, not recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceJob:
    """The traces of a job as they were read.

    Attributes:
        job: Their tables.
        modified_ns: When the youngest of the files was written.
        synthetic: Made by `scope.testing`.
    """

    job: Job
    modified_ns: int
    synthetic: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceReport(TraceJob):
    """The traces of a job with all that is known from them.

    Attributes:
        results: What was computed from them.
        findings: What stands out, the costliest first.
    """

    results: Results
    findings: Sequence[Finding]


def load_traces(source: Source) -> TraceReport:
    """Return the report of a trace, a folder of traces or a captured window; read again when a file has changed.

    Raises:
        ScopeError: A file cannot be read or is gone, or two claim one rank.
    """
    return _analyze(_fingerprint(files_of(source)), nodes=_nodes_of(source), _read=load_job(source))


def load_job(source: Source) -> TraceJob:
    """Return what `load_traces` starts from; where nothing more is needed, nobody waits for the analyses.

    Raises:
        ScopeError: As for `load_traces`.
    """
    return _load(_fingerprint(files_of(source)), synthetic=_is_synthetic(source))


def _nodes_of(source: Source) -> tuple[tuple[int, str], ...]:
    """Return the host of each rank, for a window of a run: it tells which links a group of ranks uses."""
    if not source.files:
        return ()
    # RUN/attempt-000/ranks/00042/traces/FILE
    infos = [read_rank_info(Path(each).parent.parent) for each in source.files]
    return tuple((info.rank, info.host) for info in infos)


def files_of(source: Source) -> list[Path]:
    """Return the trace files of a source.

    Raises:
        InputError: They are gone.
    """
    path = Path(source.place)
    if source.files:
        files = [Path(each) for each in source.files]
    elif path.is_file():
        files = [path]
    elif path.is_dir():
        files = [each for each in path.iterdir() if each.name.endswith(TRACE_SUFFIXES) and not each.is_symlink()]
    else:
        files = []
    present = sorted(each for each in files if each.is_file())
    if not present:
        message = f"the traces of {source.label} are gone: choose another source"
        raise InputError(message)
    return present


def _is_synthetic(source: Source) -> bool:
    if source.run_id is not None:
        return read_run_info(Path(source.place)).synthetic
    return (Path(source.place) / SYNTHETIC_MARK).is_file()


def _fingerprint(files: Sequence[Path]) -> tuple[tuple[str, int, int], ...]:
    status = [(str(each), each.stat()) for each in files]
    return tuple((name, each.st_size, each.st_mtime_ns) for name, each in status)


@st.cache_resource(max_entries=_MAX_KEPT, show_spinner="Reading traces …")
def _load(fingerprint: tuple[tuple[str, int, int], ...], *, synthetic: bool) -> TraceJob:
    return TraceJob(
        job=load([name for name, _, _ in fingerprint]),
        modified_ns=max((modified for _, _, modified in fingerprint), default=0),
        synthetic=synthetic,
    )


@st.cache_resource(max_entries=_MAX_KEPT, show_spinner="Analysing traces …")
def _analyze(
    fingerprint: tuple[tuple[str, int, int], ...], *, nodes: tuple[tuple[int, str], ...], _read: TraceJob
) -> TraceReport:
    del fingerprint
    results = compute_results(_read.job, Choices(nodes=dict(nodes) or None))
    return TraceReport(
        job=_read.job,
        modified_ns=_read.modified_ns,
        synthetic=_read.synthetic,
        results=results,
        findings=find_all(results),
    )
