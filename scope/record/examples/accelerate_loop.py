"""A loop of Hugging Face Accelerate with gradient accumulation; needs `pip install accelerate`.

Example:
    python -m scope.record.examples.accelerate_loop --run-dir runs/accelerate
"""

# Accelerate is no dependency of Scope, and torch annotates only a part of itself.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import argparse
from typing import cast

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from scope.record import Recorder
from scope.record.examples.libraries import require


def main(arguments: list[str] | None = None) -> None:
    """Train for 10 updates of two micro-batches each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", default="runs/accelerate")
    options = parser.parse_args(arguments)
    require("accelerate")
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    samples = cast("Dataset[torch.Tensor]", [torch.randn(32) for _ in range(80)])
    network = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    model, optimizer, loader = accelerator.prepare(
        network, torch.optim.AdamW(network.parameters()), DataLoader(samples, batch_size=4)
    )
    with Recorder(model=model, run_dir=options.run_dir):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).pow(2).mean())
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
