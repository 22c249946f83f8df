"""A Lightning module trained with Scope's callback; needs `pip install lightning`.

Example:
    python -m scope.record.examples.lightning_module --run-dir runs/lightning
"""

# Lightning is no dependency of Scope, and torch annotates only a part of itself.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUntypedBaseClass=false

from __future__ import annotations

import argparse
from typing import cast

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from scope.record.callbacks import lightning_callback
from scope.record.examples.libraries import require


def main(arguments: list[str] | None = None) -> None:
    """Train for 10 updates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", default="runs/lightning")
    options = parser.parse_args(arguments)
    require("lightning")
    import lightning

    class Module(lightning.LightningModule):
        """Two layers that learn to give nothing."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            """Return the loss of a batch."""
            del number
            return self.layers(batch).pow(2).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Return the optimizer."""
            return torch.optim.AdamW(self.parameters())

    samples = cast("Dataset[torch.Tensor]", [torch.randn(32) for _ in range(40)])
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[lightning_callback(run_dir=options.run_dir)],
    )
    trainer.fit(Module(), DataLoader(samples, batch_size=4))


if __name__ == "__main__":
    main()
