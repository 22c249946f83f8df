"""However a program ends: exit code, output and errors are to the byte those without Scope, and its record is read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from scope.cli.show import show
from scope.run import paths
from scope.run.blackbox import read_black_box
from scope.run.listing import list_runs
from scope.run.reader import RankReader, read_steps

SCRIPT = Path(__file__).parent / "ending_jobs.py"
ENDINGS = {
    "exits_with_words": (1, "exited with code 1"),
    "raises": (1, "exception"),
    "has_a_hook": (1, "exception"),
    "is_interrupted": (-signal.SIGINT, "interrupted"),
    "is_terminated": (-signal.SIGTERM, "terminated by signal 15"),
    "ends_at_once": (9, "exited with code 9"),
    "tears_everything_away": (0, "finished"),
    "takes_the_clocks_away": (0, "finished"),
}
"""Exit code, and what the record says of it."""
COMPARED = ("raises", "is_interrupted")
"""Those run without Scope as well: their tracebacks are compared."""
ERRORS = {"exits_with_words": "no more data\n", "has_a_hook": 'own hook: ValueError("the job\'s own")\n'}
"""What the others have on standard error, which is nothing elsewhere."""
AT_ONCE = 2


class Ending(NamedTuple):
    """How a program ended, with Scope and without."""

    folder: Path
    plain: subprocess.CompletedProcess[bytes] | None
    recorded: subprocess.CompletedProcess[bytes]

    @property
    def rank(self) -> Path:
        """The folder of its one rank in the run directory."""
        return paths.rank_folder(self.folder / "run", 0, 0)


def run_both(name: str, folder: Path) -> Ending:
    """Run a program with Scope, and without it where tracebacks are to be compared."""
    folder.mkdir()
    own = {"SCOPE_SPOOL": str(folder / "spool"), "SCOPE_REGISTRY": str(folder / "registry"), "OMP_NUM_THREADS": "1"}

    def run(*command: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*command, sys.executable, str(SCRIPT), name, str(folder)],
            env={**os.environ, **own},
            capture_output=True,
            timeout=200,
            check=False,
        )

    recorded = run(sys.executable, "-m", "scope", "run", "--run-dir", str(folder / "run"), "--")
    return Ending(folder, run() if name in COMPARED else None, recorded)


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ending]:
    """Every program, run once; two at a time, for most of it is the import of torch."""
    folder = tmp_path_factory.mktemp("endings")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(ENDINGS, pool.map(lambda name: run_both(name, folder / name), ENDINGS), strict=True))


@pytest.mark.parametrize("name", ENDINGS)
def test_it_ends_as_without_scope(endings: dict[str, Ending], name: str) -> None:
    """Exit code, output and standard error, tracebacks in it, are the same to the byte; one line of ours follows."""
    _, plain, recorded = endings[name]
    assert recorded.returncode == ENDINGS[name][0], recorded.stderr.decode()
    errors, _, ours = recorded.stderr.rpartition(b"scope: ")
    assert ours.startswith(b"1 rank was recorded")
    if plain is None:
        assert errors.decode() == ERRORS.get(name, "")
        assert recorded.stdout.startswith(b"" if name == "has_a_hook" else trained(endings))
        return
    assert plain.returncode == ENDINGS[name][0]
    assert without_times(errors) == without_times(plain.stderr) != ""
    assert recorded.stdout == plain.stdout


def without_times(errors: bytes) -> str:
    """Leave out the instant that an error of torch's C++ bears."""
    return re.sub(r"\d{2}:\d{2}:\d{2}\.\d+", "TIME", errors.decode())


def trained(endings: dict[str, Ending]) -> bytes:
    """What training comes to without Scope."""
    plain = endings["is_interrupted"].plain
    assert plain is not None
    assert float(plain.stdout)
    return plain.stdout.strip()


def test_a_program_that_tears_everything_away_keeps_its_files(endings: dict[str, Ending]) -> None:
    """With all descriptors closed under it the recorder writes into no file of the program's, and records on."""
    ending = endings["tears_everything_away"]
    assert ending.recorded.stdout.splitlines() == [trained(endings)] * 2 + [b"mine"]
    assert len(read_steps(ending.rank)) == 10


@pytest.mark.parametrize("name", ENDINGS)
def test_what_was_recorded_is_readable(endings: dict[str, Ending], name: str) -> None:
    """Every finished step is there; the record says how it ended, and the black box is closed where Python told it."""
    ending, reason = endings[name], ENDINGS[name][1]
    finished = {"raises": 3, "has_a_hook": 2, "is_terminated": 4, "ends_at_once": 4}.get(name, 5)
    assert [step.step for step in read_steps(ending.rank)][:finished] == list(range(finished))
    info = RankReader(ending.rank).info()
    assert (info.exit_reason, info.command_returncode) == (reason, ENDINGS[name][0])
    box = read_black_box(ending.rank / paths.BLACK_BOX_FILE)
    # What a signal ended, or `os._exit`, could not close it: `scope run` wrote the reason.
    in_order = not reason.startswith("terminated") and name != "ends_at_once"
    assert (box.closed, box.exception) == (in_order, reason == "exception")
    assert [entry.ended for entry in list_runs(ending.folder / "run")[0]] == [True]
    told = [event for event in RankReader(ending.rank).new_events() if event.kind == "attempt_end"]
    assert [event.message for event in told] == [f"recording ended: {reason}"]
    counted = [event.detail["num_steps"] for event in told if in_order]
    assert counted == [len(read_steps(ending.rank))] * in_order
    assert not list((ending.folder / "spool").iterdir())


def test_a_run_whose_command_was_killed_has_not_finished(tmp_path: Path) -> None:
    """Its spawned rank ends in order, as torch has it when the parent is gone; what ended the job is told as well."""
    ending = run_both("loses_its_parent", tmp_path / "job")
    assert ending.recorded.returncode == -signal.SIGKILL
    info = RankReader(ending.rank).info()
    assert (info.exit_reason, info.command_returncode) == ("finished", -signal.SIGKILL)
    shown = CliRunner().invoke(show, [str(ending.folder / "run")]).output
    assert ": killed (the command was ended by signal 9 (SIGKILL)) at " in shown.splitlines()[0]


def test_the_record_names_the_exception(endings: dict[str, Ending]) -> None:
    """The exception that ended the program is told, whoever printed it."""
    for name in ("raises", "has_a_hook"):
        told = [event.message for event in RankReader(endings[name].rank).new_events() if event.kind == "exception"]
        assert told[-1] == "ValueError: the job's own"


def test_hooks_that_raised_are_told(endings: dict[str, Ending]) -> None:
    """Hooks that the program made raise were switched off, each with what it raised; the phases are recorded on."""
    rank = endings["exits_with_words"].rank
    events = [event for event in RankReader(rank).new_events() if event.kind == "hook_disabled"]
    assert {event.detail["hook"]: event.message.rpartition(": ")[2] for event in events} == {
        "batch": "ask for a name",
        "flops": "no parts to see",
    }
    assert all({"input", "forward", "backward", "optimizer"} <= set(step.phases) for step in read_steps(rank))
