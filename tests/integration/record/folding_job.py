"""Two ranks that make many short steps, and ask for a profiler window in the third of them."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

NUM_STEPS = 1_200
PAUSE_S = 0.004


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(NUM_STEPS):
        if step == 3 and dist.get_rank() == 0:
            (Path(os.environ["JOB_FOLDER"]) / "run" / "capture.request").touch()
        time.sleep(PAUSE_S)
        model(torch.ones(2, 8)).sum().backward()
        dist.all_reduce(torch.ones(10 + step % 5))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
