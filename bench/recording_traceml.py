"""What TraceML adds to the step that bench_recording measures under Scope.

It is installed beside the benchmark, without its dependencies, since a torch of its own would replace the one measured;
it needs those that Scope's development environment has. It cannot be taken out of a process again, hence a process of
its own: in turn, blocks with its wrappers armed and `trace_step` around each step, and blocks with the wrappers passing
through. Its aggregator runs as a process beside it, as its manual asks, and is not counted.

    python bench/recording_traceml.py
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
FOLDER = HERE / ".cache" / "traceml"
PACKAGE = "traceml-ai==0.5.0"
START_S = 60

if TYPE_CHECKING:
    from collections.abc import Iterator


def measure() -> dict[str, Any]:
    """Return the CPU microseconds of a step, `base` without and `added` with it; or `error`, why there are none."""
    ready = FOLDER / ".ready"
    if not ready.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER), PACKAGE]
        if subprocess.run(command, check=False, stdout=sys.stderr, stderr=subprocess.DEVNULL).returncode:
            return {"error": f"{PACKAGE} cannot be installed"}
        ready.touch()
    done = subprocess.run([sys.executable, __file__], check=False, capture_output=True, text=True, timeout=300)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = done.stderr.strip().splitlines() or ["nothing said"]
        return {"error": f"ended with status {done.returncode}: {said[-1][:200]}"}
    return json.loads(lines[-1])


@contextlib.contextmanager
def aggregator(folder: str) -> Iterator[int]:
    """Run TraceML's aggregator and give its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "traceml_ai.launcher.cli", "serve", "--mode", "summary", "--logs-dir", folder]
    command += ["--aggregator-port", str(port), "--run-name", "bench"]
    environment = {"PYTHONPATH": str(FOLDER), "PATH": "/usr/bin:/bin", "HOME": folder}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run() -> dict[str, Any]:
    """Measure in this process."""
    sys.path.append(str(FOLDER))
    import torch
    import torch.distributed as dist
    import traceml_ai
    from bench_recording import compare, make_training
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from traceml_ai.runtime.arming import _set_tracing_armed

    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    model, train = make_training()
    traced = 0

    with tempfile.TemporaryDirectory() as folder, aggregator(folder) as port:
        traceml_ai.init(mode="auto", aggregator_port=port, session_id="bench", logs_dir=folder)

        @contextlib.contextmanager
        def armed(on: bool) -> Iterator[None]:
            nonlocal traced
            _set_tracing_armed(on)
            traced = on
            yield

        def step() -> None:
            if traced:
                with traceml_ai.trace_step(model):
                    train()
            else:
                train()

        variants: dict[str, Any] = {"none": lambda: armed(False), "traceml": lambda: armed(True)}
        cost = compare(step, variants, rounds=40, repeat=10, clock=time.process_time_ns, least=False)
        dist.destroy_process_group()
    return {"base": cost["base"], "added": cost["traceml"]}


if __name__ == "__main__":
    print(json.dumps(run()))
