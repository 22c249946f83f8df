"""A pipeline of two stages under the 1F1B schedule of `torch.distributed.pipelining`, on two CPU ranks.

Example:
    scope run --run-dir runs/pp -- torchrun --standalone --nproc-per-node 2 -m scope.record.examples.pipeline
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, MICROBATCHES = 64, 4


def main(num_steps: int = 10) -> None:
    """Train one stage of the pipeline."""
    dist.init_process_group("gloo")
    rank, num_stages = dist.get_rank(), dist.get_world_size()
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    stage = PipelineStage(module, rank, num_stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    for _ in range(num_steps):
        if rank == 0:
            schedule.step(torch.randn(8, WIDTH))
        else:
            schedule.step(target=torch.zeros(8, WIDTH))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
