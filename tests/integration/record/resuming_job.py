"""A job that saves its state every five updates, is killed in update 13 of its first attempt, and resumes."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import scope

LAST = 16


def main(folder: Path) -> None:
    """Train to the end, from the checkpoint where there is one."""
    saved = folder / "checkpoint.pt"
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done = 0
    if is_second := saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        done = state["updates"]
    batches = [torch.ones(2, 8)] * (LAST - done)
    with scope.Recorder() as recorder:
        for batch in recorder.steps(batches, start=done):
            time.sleep(0.02)
            if done == 12 and not is_second:
                time.sleep(2.5)  # steps are written once a second
                os.kill(os.getpid(), signal.SIGKILL)
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done % 5 == 0:
                torch.save({"model": model.state_dict(), "updates": done}, saved)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
