"""A job that keeps a diary of its own, by which a test knows where it was when it was killed.

Two ranks that compute gradients of two layers and reduce them one by one. Each entry, written when something has begun,
says the step, the phase, how many collectives were begun and how many are over. The first two attempts train until they
are killed, the third one for five steps.
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

ENTRY = struct.Struct("<iiii")
PHASES = ("forward", "backward", "optimizer")
PAUSE_S = 0.004
WIDTH = 16


class Diary:
    """The last entry, at the beginning of a file."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
        self.step = self.begun = self.over = 0
        self.phase = PHASES[0]

    def note(self, phase: str | None = None) -> None:
        """Write where we are."""
        self.phase = phase or self.phase
        os.pwrite(self._descriptor, ENTRY.pack(self.step, PHASES.index(self.phase), self.begun, self.over), 0)

    def pause(self, phase: str) -> None:
        """Say that a phase has begun, and stay in it for a while."""
        self.note(phase)
        time.sleep(PAUSE_S)


class SlowBackward(torch.autograd.Function):
    """The identity, which stays in forward and in backward for a while."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, diary: Diary) -> torch.Tensor:
        """Note the forward."""
        ctx.diary = diary
        diary.pause("forward")
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Note the backward."""
        ctx.diary.pause("backward")
        return gradients[0], None


class Model(nn.Module):
    """Two layers."""

    def __init__(self, diary: Diary) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)
        self.two = nn.Linear(WIDTH, WIDTH)
        self.diary = diary

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Both layers, slowly."""
        return self.two(SlowBackward.apply(self.one(batch), self.diary))


def main() -> None:
    """Train until killed, or five steps."""
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    folder = Path(sys.argv[1])
    diary = Diary(folder / f"diary-{attempt}-{rank}")
    (folder / f"pid-{attempt}-{rank}").write_text(f"{os.getpid()}\n")
    # A store of its own: in the launcher's gloo would find the addresses of the attempt before.
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{attempt}", rank=rank, world_size=2)
    model = Model(diary)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: diary.pause("optimizer"))
    for step in range(5 if attempt == 2 else 1_000_000):
        diary.step = step
        model(torch.ones(2, WIDTH)).sum().backward()
        for parameter in model.parameters():
            diary.begun += 1
            diary.note()
            dist.all_reduce(parameter.grad)
            diary.over += 1
            diary.note()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
