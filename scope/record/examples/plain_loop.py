"""A plain loop with gradient accumulation and a phase of its own, recorded by the API.

Example:
    python -m scope.record.examples.plain_loop --run-dir runs/plain
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
from typing import cast

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from scope.record import Recorder

MICROBATCHES = 4


def main(arguments: list[str] | None = None) -> None:
    """Train for 20 updates of four micro-batches each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", default="runs/plain")
    options = parser.parse_args(arguments)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = cast("Dataset[torch.Tensor]", [torch.randn(64) for _ in range(20 * MICROBATCHES * 8)])
    with Recorder(model=model, optimizer=optimizer, run_dir=options.run_dir) as recorder:
        for number, batch in enumerate(recorder.steps(DataLoader(samples, batch_size=8))):
            with recorder.phase("augmentation"):
                noisy = batch + 0.1 * torch.randn_like(batch)
            loss = (model(noisy) - batch).pow(2).mean() / MICROBATCHES
            loss.backward()
            if number % MICROBATCHES == MICROBATCHES - 1:
                optimizer.step()
                optimizer.zero_grad()
    print(f"recorded in {recorder.run_dir}")  # noqa: T201 - a training script says where its results lie


if __name__ == "__main__":
    main()
