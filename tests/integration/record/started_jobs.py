"""Programs as users start them: `launch` starts two ranks itself, `again` trains and becomes another program.

`task` is one of two that `srun` starts; `numbered` starts a second process, as Lightning does, by its number.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(name: str) -> None:
    """Five steps; writes the parameters exactly."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    trained = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.01)
    for _ in range(5):
        trained(torch.randn(2, 4)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    exact = [value.hex() for each in model.parameters() for value in each.flatten().tolist()]
    sys.stdout.write(f"{name} trained\n")
    sys.stdout.flush()
    Path(name).write_text("\n".join(exact))


def launch() -> None:
    """A launcher that imports torch, as many do to count devices, and gives each process its rank."""
    for_all = {**os.environ, "WORLD_SIZE": "2", "JOB_RENDEZVOUS": Path("rendezvous").absolute().as_uri()}
    command = [sys.executable, __file__, "rank"]
    processes = [subprocess.Popen(command, env={**for_all, "RANK": str(number)}) for number in range(2)]
    sys.exit(max(process.wait() for process in processes))


def rank() -> None:
    """One of its ranks; the second says so on standard error."""
    number = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=os.environ["JOB_RENDEZVOUS"], rank=number, world_size=2)
    if number:
        sys.stderr.write("here is rank 1\n")
        with Path(os.devnull).open("w") as sys.stdout:
            train("rank1")
    else:
        train("rank0")
    dist.destroy_process_group()


def task() -> None:
    """A task of Slurm, whose variables alone tell its rank."""
    join(int(os.environ["SLURM_PROCID"]))


def numbered() -> None:
    """The first process of a node, which starts the second; each works out its rank by itself."""
    number = os.environ.get("LOCAL_RANK")
    others: list[subprocess.Popen[bytes]] = []
    if number is None:
        variables = {**os.environ, "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
        others = [subprocess.Popen([sys.executable, *sys.argv], env=variables)]
    join(int(os.environ.get("NODE_RANK", "0")) * 2 + int(number or 0))
    sys.exit(max([other.wait() for other in others], default=0))


def join(number: int) -> None:
    """Train as one of two ranks, of which the program knows by itself which it is."""
    rendezvous = Path("rendezvous").absolute().as_uri()
    dist.init_process_group("gloo", init_method=rendezvous, rank=number, world_size=2)
    train(f"rank{number}")
    dist.destroy_process_group()


def again() -> None:
    """Train, then run this file anew in the same process."""
    train("before")
    os.execv(sys.executable, [sys.executable, __file__, "after"])


def after() -> None:
    """What it becomes; ends with a code of its own."""
    train("after")
    sys.exit(7)


if __name__ == "__main__":
    {job.__name__: job for job in (launch, rank, task, numbered, again, after)}[sys.argv[1]]()
