"""`scope demo`: a real training run on this machine's processors, recorded, served and drawn, in one command."""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from scope.cli.children import Children
from scope.cli.options import FILE
from scope.errors import InputError, MissingExtraError, ScopeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_SCRIPT: Final = "scope.record.examples.tiny_transformer"
_READY_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.2
_MARKER: Final = "scope-demo.json"
_LEAST_FREE_BYTES: Final = 1 << 16
_REST: Final = {
    "training": "the dashboard goes on",
    "exporter": "the rest goes on without new metrics of this node",
    "prometheus": "the rest goes on without it, and the dashboard says that it does not answer",
}
"""What still works when a process has ended."""

_PROMETHEUS_CONFIG: Final = """\
global:
  scrape_interval: 2s
  evaluation_interval: 5s
rule_files: [{rules}]
scrape_configs:
  - job_name: scope
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What the demo does, and where.

    Attributes:
        folder: Holds all that the demo makes.
        ranks: Training processes.
        steps: Optimizer updates.
        faults: Arguments of the training script that plant faults.
        port: Of the dashboard.
    """

    folder: Path
    ranks: int
    steps: int
    faults: tuple[str, ...]
    port: int

    @property
    def runs(self) -> Path:
        """Folder of the recorded run and the synthetic one."""
        return self.folder / "runs"

    @property
    def synthetic(self) -> Path:
        """What a run on GPUs looks like, made up."""
        return self.runs / "synthetic-8-gpus"

    @property
    def run(self) -> Path:
        """The recorded run."""
        return self.runs / "demo"


@click.command()
@click.option("--straggler", type=int, metavar="RANK", default=-1, help="Slow this rank down; -1, the default, none.")
@click.option("--slow-input", is_flag=True, help="Make the data loader slow.")
@click.option("--hang", is_flag=True, help="Let the last rank stop halfway.")
@click.option("--steps", type=click.IntRange(min=1), default=300, show_default=True, help="Optimizer updates.")
@click.option("--ranks", type=click.IntRange(1, 64), default=4, show_default=True, help="Training processes.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8501,
    show_default=True,
    help="Port of the dashboard; 0 takes a free one.",
)
@click.option("--folder", type=FILE, default="demo-run", show_default=True, help="Where the demo keeps its files.")
@click.option("--once", is_flag=True, help="Run, check what the dashboard shows, and exit.")
def demo(
    *,
    straggler: int,
    slow_input: bool,
    hang: bool,
    steps: int,
    ranks: int,
    port: int,
    folder: Path,
    once: bool,
) -> None:
    """Train a small transformer on this machine, record it, and open the dashboard on it.

    Example: scope demo --straggler 2
    """
    _require("torch", "demo")
    _require("streamlit", "dashboard")
    if not -1 <= straggler < ranks:
        message = f"--straggler {straggler}: the demo has ranks 0 to {ranks - 1}; choose one of them, or more --ranks"
        raise UsageError(message)
    if hang and once:
        message = "--hang never ends and --once waits for the end: choose one of them"
        raise UsageError(message)
    faults = _faults(straggler=straggler, slow_input=slow_input, hang_at=steps // 2 if hang else None)
    try:
        with _own_folder(folder):
            plan = Plan(folder=folder.resolve(), ranks=ranks, steps=steps, faults=faults, port=_choose_port(port))
            _run(plan, once=once)
    except OSError as error:
        message = f"the demo cannot write into {folder}: {error.strerror}; make room there, or name another --folder"
        raise InputError(message) from error


def _run(plan: Plan, *, once: bool) -> None:
    # Of its own: the exporter shows this demo alone, and no other exporter takes its spool.
    children = Children(plan.folder, variables={"SCOPE_REGISTRY": str(plan.folder / "registry")})
    # A plain kill must end the children too, just as Ctrl-C does.
    signal.signal(signal.SIGTERM, _stop_on_signal)
    # A script that starts the demo with `&` lets it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _play(plan, children, once=once)
    except KeyboardInterrupt:
        print("\nThe demo ends; its files stay in", plan.folder, flush=True)
    except ScopeError as error:
        if _is_full(plan.folder):
            # What failed for want of room could not write why, either.
            message = f"the disk of {plan.folder} is full: make room there, or name another --folder ({error})"
            raise InputError(message) from error
        raise
    finally:
        children.stop()


def _is_full(folder: Path) -> bool:
    return shutil.disk_usage(folder).free < _LEAST_FREE_BYTES


def _stop_on_signal(number: int, frame: object) -> None:
    del frame
    raise SystemExit(128 + number)


def _play(plan: Plan, children: Children, *, once: bool) -> None:
    training = children.start("training", training_command(plan))
    print(f"Training {plan.ranks} processes for {plan.steps} steps; the run directory is {plan.run}")
    _write_synthetic(plan)
    places = [str(plan.run), str(plan.synthetic), *_start_metrics(plan, children)]
    _wait_until_recorded(plan, children, training)
    address = _start_dashboard(plan, children, places)
    print(f"Dashboard: {address}   (Ctrl-C ends the demo)", flush=True)
    if once:
        _check(plan, children, training)
        return
    _watch(plan, children)


def _watch(plan: Plan, children: Children) -> None:
    """Say which processes end, and that the disk is full, until there is nothing more to look at."""
    said: set[str] = set()
    has_room = True
    while True:
        if has_room and _is_full(plan.folder):
            has_room = False
            print(f"The disk of {plan.folder} is full: nothing more is recorded until there is room.", flush=True)
        for name in children.ended() - said:
            said.add(name)
            if name == "dashboard":
                raise children.error_of(name)
            print(f"The {name} {children.end_of(name)}; {_REST[name]}, until Ctrl-C.", flush=True)
        time.sleep(_POLL_S)


def training_command(plan: Plan) -> list[str]:
    """Return the command that trains and records, as a user would type it after `python -m`."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(plan.ranks)]
    script = ["-m", _SCRIPT, "--steps", str(plan.steps), "--checkpoint", str(plan.folder / "model.pt"), *plan.faults]
    return [
        *(sys.executable, "-P", "-m", "scope", "run", "--run-dir", str(plan.run), "--run-id", "demo"),
        *("--capture", "file", "--capture-ranks", ",".join(map(str, range(plan.ranks))), "--"),
        *(sys.executable, "-m", *launcher, *script),
    ]


def _faults(*, straggler: int, slow_input: bool, hang_at: int | None) -> tuple[str, ...]:
    planted: list[str] = []
    if straggler >= 0:
        planted += ["--straggler", str(straggler)]
    if slow_input:
        planted += ["--slow-input"]
    if hang_at is not None:
        planted += ["--hang-at", str(hang_at)]
    return tuple(planted)


def _require(library: str, extra: str) -> None:
    if find_spec(library) is None:
        message = f"the demo needs {library}: pip install 'stepscope[{extra}]'"
        raise MissingExtraError(message)


@contextmanager
def _own_folder(folder: Path) -> Generator[None]:
    """Empty the demo's folder and hold it, so that a second demo does not take it away."""
    marker = folder / _MARKER
    if folder.exists() and not marker.is_file() and any(folder.iterdir()):
        message = f"{folder} holds files that are not the demo's: name another with --folder"
        raise InputError(message)
    folder.mkdir(parents=True, exist_ok=True)
    with marker.open("a") as held:
        try:
            # The lock goes with the process, however it ends.
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"another demo is running in {folder}: end it with Ctrl-C, or name another with --folder"
            raise InputError(message) from error
        # Only what an earlier demo made is removed.
        for old in folder.iterdir():
            if old.name != _MARKER:
                shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        marker.write_text(json.dumps({"made_by": "scope demo"}))
        (folder / "runs").mkdir()
        yield


def _write_synthetic(plan: Plan) -> None:
    from scope.testing.demo import write_demo_run  # msgspec and all of scope.testing: only when the demo runs

    write_demo_run(plan.synthetic)


def _start_metrics(plan: Plan, children: Children) -> list[str]:
    exporter_port = _free_port()
    command = [
        sys.executable,
        "-P",
        "-m",
        "exporters",
        "--port",
        str(exporter_port),
        "--runs",
        str(plan.run),
        "--no-publish",
    ]
    children.start("exporter", command)
    _wait_for(f"http://127.0.0.1:{exporter_port}/healthz", children, "exporter")
    print(f"Node exporter: http://127.0.0.1:{exporter_port}/metrics")
    if shutil.which("prometheus") is None:
        print("Prometheus is not installed (make setup-system): the demo goes on without it")
        return []
    config = plan.folder / "prometheus.yml"
    config.write_text(_PROMETHEUS_CONFIG.format(port=exporter_port, rules=json.dumps(_rules())))
    address = f"127.0.0.1:{_free_port()}"
    children.start(
        "prometheus",
        [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={plan.folder / 'prometheus'}",
            f"--web.listen-address={address}",
        ],
        orphan_signal=signal.SIGKILL,  # it misses a SIGTERM while it starts, and loses nothing: its log is replayed
    )
    _wait_for(f"http://{address}/-/ready", children, "prometheus")
    print(f"Prometheus: http://{address}")
    return [f"http://{address}"]


def _rules() -> str:
    """Return the path of the alert rules that come with the dashboards."""
    found = find_spec("dashboards")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent / "alerts" / "scope.rules.yml")


def _start_dashboard(plan: Plan, children: Children, places: Sequence[str]) -> str:
    children.start("dashboard", [sys.executable, "-P", "-m", "dashboards", "--port", str(plan.port), *places])
    address = f"http://127.0.0.1:{plan.port}"
    _wait_for(f"{address}/_stcore/health", children, "dashboard")
    return address


def _wait_until_recorded(plan: Plan, children: Children, training: subprocess.Popen[bytes]) -> None:
    from scope.run.paths import REQUEST_FILE  # loads msgspec, which the help of every command would pay for

    deadline = time.monotonic() + _READY_TIMEOUT_S
    has_asked = False
    while not any(plan.run.glob("attempt-*/ranks/*/steps.jsonl")):
        if not has_asked and len(list(plan.run.glob("attempt-*/ranks/*/rank.json"))) == plan.ranks:
            # Before the first step, so that all ranks take the same steps into their profiler window.
            (plan.run / REQUEST_FILE).touch()
            has_asked = True
        if training.poll() not in (None, 0) or time.monotonic() > deadline:
            error = children.error_of("training")
            raise error
        time.sleep(_POLL_S)


def _check(plan: Plan, children: Children, training: subprocess.Popen[bytes]) -> None:
    while training.poll() is None:
        children.check(but="training")
        time.sleep(_POLL_S)
    if training.returncode != 0:
        error = children.error_of("training")
        raise error
    command = [sys.executable, "-P", "-m", "dashboards.check", str(plan.run), "--steps", str(plan.steps)]
    done = subprocess.run([*command, "--ranks", str(plan.ranks), *plan.faults], check=False)
    if done.returncode != 0:
        message = "what was recorded, or a fault that was planted, is not what is shown; see above"
        raise ScopeError(message)


def _wait_for(url: str, children: Children, name: str) -> None:
    import urllib.request  # loads TLS, which the help of every command would pay for

    deadline = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline and not children.has_ended(name):
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(_POLL_S)
    raise children.error_of(name)


def _choose_port(port: int) -> int:
    """Return the port that was asked for, or a free one where it is 0 or taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            print(f"Port {port} is taken: the dashboard takes another (--port chooses one)")
            return _free_port()
        return int(probe.getsockname()[1])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
