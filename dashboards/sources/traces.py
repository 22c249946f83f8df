"""Traces, read and analysed once for all visitors and kept until their files change."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import streamlit as st

from dashboards import say
from dashboards.sources.catalogue import TRACE_SUFFIXES
from scope.errors import InputError
from scope.report.build import Choices, compute_results
from scope.report.findings import find_all
from scope.report.standing import count
from scope.run.reader import read_rank_info, read_run_info
from scope.trace import load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dashboards.sources.catalogue import Source
    from scope.report.findings import Finding
    from scope.report.results import Results
    from scope.trace.model import Job

_MAX_KEPT: Final = 4
_PATIENCE_S: Final = 0.2
Fingerprint: TypeAlias = tuple[tuple[str, int, int], ...]
"""Path, size and time of writing of each file."""
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
    fingerprint = _fingerprint(files_of(source))
    try:
        job = _reading(fingerprint).job()
    except Exception:
        # The next visitor tries again.
        _reading.clear(fingerprint)
        raise
    modified_ns = max((modified for _, _, modified in fingerprint), default=0)
    return TraceJob(job=job, modified_ns=modified_ns, synthetic=_is_synthetic(source))


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


def _fingerprint(files: Sequence[Path]) -> Fingerprint:
    status = [(str(each), each.stat()) for each in files]
    return tuple((name, each.st_size, each.st_mtime_ns) for name, each in status)


class Reading:
    """Traces that are being read in a thread, once for all visitors; what a visitor does meanwhile breaks nothing off.

    Args:
        files: The traces of one job.
        read: Reads them, and tells after each file.
    """

    def __init__(self, files: Sequence[str], *, read: Callable[..., Job] = load) -> None:
        self._files = files
        self._read = read
        self._began = time.monotonic()
        self._num_read = 0
        self._result: Job | Exception | None = None
        self._thread = threading.Thread(target=self._run, name="scope-read-traces", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._read(self._files, progress=self._note)
        except Exception as error:  # noqa: BLE001 - it is raised where the job is asked for
            self._result = error

    def _note(self, num_read: int, num_files: int, path: str) -> None:
        del num_files, path
        self._num_read = num_read

    def job(self) -> Job:
        """Return the traces once they are read; until then the page says how far that has come.

        Raises:
            ScopeError: A file cannot be read, or two claim one rank.
        """
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            place = st.empty()
            while self._thread.is_alive():
                passed_s, num_files = time.monotonic() - self._began, len(self._files)
                with place:
                    words = f"Reading traces: {self._num_read} of {count(num_files, 'file')}, {passed_s:.0f} s"
                    say.progress(self._num_read / num_files, words)
                self._thread.join(_PATIENCE_S)
            place.empty()
        if isinstance(self._result, Exception):
            raise self._result
        assert self._result is not None
        return self._result


def start_reading(source: Source) -> Reading:
    """Begin to read the traces of a source, if nobody has; a reading is kept until the files change.

    Raises:
        ScopeError: They are gone.
    """
    return _reading(_fingerprint(files_of(source)))


@st.cache_resource(max_entries=_MAX_KEPT, show_spinner=False)
def _reading(fingerprint: Fingerprint) -> Reading:
    return Reading([name for name, _, _ in fingerprint])


@st.cache_resource(max_entries=_MAX_KEPT, show_spinner="Analysing traces …")
def _analyze(fingerprint: Fingerprint, *, nodes: tuple[tuple[int, str], ...], _read: TraceJob) -> TraceReport:
    del fingerprint
    results = compute_results(_read.job, Choices(nodes=dict(nodes) or None))
    return TraceReport(
        job=_read.job,
        modified_ns=_read.modified_ns,
        synthetic=_read.synthetic,
        results=results,
        findings=find_all(results),
    )
