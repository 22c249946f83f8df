"""The jobs that the recorder's tests run as real processes; each knows nothing of Scope."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH = 64


class SlowSamples(Dataset[torch.Tensor]):
    """Samples that take a while on one rank."""

    def __init__(self, *, pause_s: float, length: int) -> None:
        self.pause_s = pause_s
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.pause_s)
        return torch.full((WIDTH,), float(index % 7))


class SlowBackward(torch.autograd.Function):
    """The identity, whose backward takes a while."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, pause_s: float) -> torch.Tensor:
        """Keep how long to pause."""
        ctx.pause_s = pause_s
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Pause."""
        time.sleep(ctx.pause_s)
        return gradients[0], None


class Model(nn.Module):
    """Two layers, with pauses where a test plants them."""

    def __init__(self, *, forward_s: float = 0.0, backward_s: float = 0.0) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)
        self.two = nn.Linear(WIDTH, WIDTH)
        self.forward_s = forward_s
        self.backward_s = backward_s

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Pause, then both layers."""
        time.sleep(self.forward_s)
        return self.two(SlowBackward.apply(self.one(batch), self.backward_s))


def truth() -> None:
    """Pauses: 20 ms a batch in rank 0's loader, 50 ms in rank 1's forward, 70 ms in its backward, 30 ms in its update.

    A checkpoint of 1,000,000 bytes after step 3, an evaluation of 40 ms after step 5; loader workers are forked. After
    the last step a barrier, and of three all-reduces the second one is called a second late by rank 1.
    """
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(forward_s=0.05 * rank, backward_s=0.07 * rank))
    optimizer = torch.optim.Adam(model.parameters())
    if rank == 1:
        optimizer.register_step_pre_hook(lambda *_: time.sleep(0.03))
    loader = DataLoader(SlowSamples(pause_s=0.0 if rank else 0.005, length=48), batch_size=4)
    for step, batch in enumerate(loader):
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 3 and rank == 0:
            torch.save(torch.zeros(250_000), os.environ["JOB_CHECKPOINT"])
        if step == 5:
            model.eval()
            with torch.no_grad():
                for held_out in DataLoader(SlowSamples(pause_s=0.01, length=4), batch_size=2, num_workers=1):
                    model.module(held_out)
            model.train()
    dist.barrier()
    for num_floats in (3, 5, 7):
        time.sleep(1.0 if rank == 1 and num_floats == 5 else 0.0)
        dist.all_reduce(torch.zeros(num_floats))
    dist.destroy_process_group()


def alone(steps: int | None = None) -> None:
    """One process without a process group, 30 steps unless JOB_STEPS says otherwise; prints what it computed."""
    torch.manual_seed(0)
    model = Model(forward_s=float(os.environ.get("JOB_PAUSE", "0")))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps or int(os.environ.get("JOB_STEPS", "30"))):
        model(torch.full((2, WIDTH), float(step % 3))).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    sys.stdout.write(f"{sum(each.sum().item() for each in model.parameters()):.12f}\n")
    sys.stdout.flush()


def identical() -> None:
    """Fifty steps of DDP and of FSDP2, recorded and not, in one process: prints whether all bits are the same."""
    from torch.distributed.fsdp import fully_shard

    from scope.record import Recorder

    def train(*, sharded: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model: nn.Module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        if sharded:
            fully_shard(model[0])
            fully_shard(model)
        else:
            model = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(50):
            model(torch.randn(4, WIDTH)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [getattr(each, "_local_tensor", each).detach().clone() for each in model.parameters()]

    dist.init_process_group("gloo")
    for sharded in (False, True):
        plain = train(sharded=sharded)
        with Recorder(run_dir=os.environ["JOB_FOLDER"] + f"/run-{sharded}", run_id="identical"):
            recorded = train(sharded=sharded)
        same = all(torch.equal(one, other) for one, other in zip(plain, recorded, strict=True))
        sys.stdout.write(f"sharded={sharded} same={same}\n")
    dist.destroy_process_group()


class SlowFile(io.FileIO):
    """A file whose writing takes 300 ms longer."""

    slept = False

    def write(self, content: Any) -> int:
        """Pause before the first write."""
        if not self.slept:
            self.slept = True
            time.sleep(0.3)
        return super().write(content)


def checkpoints() -> None:
    """DDP with two micro-batches a step: `dcp.save` after step 2, `dcp.async_save` after 4, `torch.save` after 6.

    Rank 1 is slow to save. Step 40 takes 20 times as long as the others. Then the process group is destroyed, a new one
    is made, and three more steps are trained in it.
    """
    import torch.distributed.checkpoint as dcp

    rank, folder = int(os.environ["RANK"]), Path(os.environ["JOB_FOLDER"])
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Model(forward_s=0.005))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state = {f"shard{rank}": torch.zeros(250_000)}
    for step in range(44):
        with model.no_sync():
            model(torch.ones(2, WIDTH)).sum().backward()
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 2:
            dcp.save(state, checkpoint_id=folder / "blocking")  # pyright: ignore[reportPrivateImportUsage]
        if step == 4:
            dcp.async_save(state, checkpoint_id=str(folder / "asynchronous")).result()  # pyright: ignore
        if step == 6:
            with (SlowFile if rank else io.FileIO)(folder / f"plain-{rank}.pt", "w") as file:
                torch.save(torch.zeros(250_000), file)
        if step == 40:
            time.sleep(0.4)
    dist.destroy_process_group()
    # A store of its own: gloo would find the first group's addresses in the launcher's.
    dist.init_process_group("gloo", init_method=f"file://{folder}/second", rank=rank, world_size=2)
    model = DistributedDataParallel(model.module)
    for step in range(3):
        if step == 2:
            # Threads that wait for the interpreter wait until it is let go: completions of this step are still on their
            # way when its process group, the reducer that holds it and the program end.
            sys.setswitchinterval(10)
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


def group_checkpoints() -> None:
    """Distributed checkpoints of two ranks: each in a group of its own, without a group, and one that rank 1 fails."""
    import torch.distributed.checkpoint as dcp

    rank, folder = int(os.environ["RANK"]), Path(os.environ["JOB_FOLDER"])
    dist.init_process_group("gloo")
    mine = [dist.new_group([each]) for each in (0, 1)][rank]
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"weights": torch.zeros(1_000 * (1 + rank))}
    for step in range(4):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if step == 0:
            dcp.save(state, checkpoint_id=folder / f"group-{rank}", process_group=mine)  # pyright: ignore
        if step == 1:
            dcp.save(state, checkpoint_id=folder / f"alone-{rank}", no_dist=True)  # pyright: ignore
        if step == 2:
            unwritable = {f"state-{rank}": (lambda: 0) if rank else 0}
            with contextlib.suppress(dcp.api.CheckpointException):
                dcp.async_save(unwritable, checkpoint_id=folder / "failed").result()  # pyright: ignore
    dist.destroy_process_group()


def spawned_rank(rank: int, address: str) -> None:
    """Five steps of DDP in a process that `spawns` made."""
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


def spawns() -> None:
    """Two ranks without a launcher: `torch.multiprocessing.spawn`."""
    address = f"file://{os.environ['JOB_FOLDER']}/rendezvous"
    torch.multiprocessing.spawn(  # pyright: ignore[reportPrivateImportUsage]
        spawned_rank, args=(address,), nprocs=2
    )


def failing_rank(rank: int, address: str) -> None:
    """A rank of two, of which the second fails once both are there."""
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    if rank == 1:
        message = "planted"
        raise ValueError(message)


def spawns_again() -> None:
    """Two ranks of a fork server, then two that are spawned and fail, then the program trains itself."""
    address = f"file://{os.environ['JOB_FOLDER']}"
    torch.multiprocessing.start_processes(  # pyright: ignore[reportPrivateImportUsage]
        spawned_rank, args=(f"{address}/first",), nprocs=2, start_method="forkserver"
    )
    try:
        torch.multiprocessing.spawn(  # pyright: ignore[reportPrivateImportUsage]
            failing_rank, args=(f"{address}/second",), nprocs=2
        )
    except torch.multiprocessing.ProcessRaisedException:  # pyright: ignore[reportPrivateImportUsage]
        alone()


if __name__ == "__main__":
    jobs = (truth, alone, identical, checkpoints, group_checkpoints, spawns, spawns_again)
    {job.__name__: job for job in jobs}[sys.argv[1]]()
