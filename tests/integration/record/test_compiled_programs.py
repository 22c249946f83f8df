"""Programs that torch compiles: the compiler does with a recording what it does without, and every call is seen."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import scope

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import contextlib, json, sys
import torch, torch.distributed as dist
from torch._dynamo.utils import counters

kind, run_dir = sys.argv[1:]
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
if kind == "compiled DDP":
    model = torch.compile(torch.nn.parallel.DistributedDataParallel(model), backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def synchronise(values):
    torch._dynamo.graph_break()
    work = dist.all_gather_single(torch.ones(len(values)), torch.ones(len(values)), async_op=True)
    work.wait()
    dist.all_reduce(torch.ones(len(values)))
    return values

def loss(batch):
    values = model(batch) if kind == "compiled DDP" else synchronise(model(batch))
    return values.pow(2).mean()

if kind == "below a graph break":
    loss = torch.compile(loss, backend="aot_eager")

if run_dir:
    from scope.record import Recorder
    recording = Recorder(run_dir=run_dir, run_id="compiled")
else:
    recording = contextlib.nullcontext()
with recording:
    for size in range(4, 10):
        loss(torch.ones(size, 8)).backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
known = {name: dict(counters[name]) for name in ("frames", "stats")}
weights = [parameter.tolist() for parameter in model.parameters()]
print(json.dumps({"compiler": known, "breaks": list(counters["graph_break"]), "weights": weights}))
"""


def run_program(kind: str, run_dir: str) -> tuple[dict[str, Any], str]:
    """Return what the program prints, and its standard error."""
    command = [sys.executable, "-c", PROGRAM, kind, run_dir]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        pytest.param(
            "below a graph break",
            {(operation, size * 4) for operation in ("all_gather", "all_reduce") for size in range(4, 10)},
            id="calls of sizes that change, in a function that a compiled one calls",
        ),
        pytest.param("compiled DDP", {("all_reduce", (8 * 8 + 8) * 4)}, id="the reducer of a compiled model"),
    ],
)
def test_the_compiler_meets_no_code_of_the_recorder(tmp_path: Path, kind: str, calls: set[tuple[str, int]]) -> None:
    """As many frames and graphs, equal weights, nothing on standard error; all calls by operation and bytes."""
    without, words = run_program(kind, "")
    recorded, words_of_recorded = run_program(kind, str(tmp_path / "run"))
    assert recorded["compiler"] == without["compiler"]
    assert recorded["weights"] == without["weights"]
    assert not [reason for reason in recorded["breaks"] if "scope" in reason]
    assert words_of_recorded.count("\n") == words.count("\n")
    run = scope.open_run(tmp_path / "run")
    assert run.problems == []
    assert not run.events().filter(run.events()["kind"] == "hook_disabled").height
    seen = run.collectives().select("operation", "in_bytes").rows()
    assert calls <= set(seen)
    in_loop = [row for row in seen if row in calls]
    assert len(in_loop) == (12 if kind == "below a graph break" else 6)
