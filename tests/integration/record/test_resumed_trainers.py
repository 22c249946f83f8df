"""Trainers of other libraries that resume: their callbacks say at which update; where the library is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from scope.record.callbacks import hugging_face_callback, lightning_callback
from scope.run import paths
from scope.run.reader import read_steps

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("default")


def numbers(run: Path) -> list[list[int]]:
    """Return the numbers of the steps of each attempt."""
    attempts = paths.list_attempts(run)
    return [[step.step for step in read_steps(paths.rank_folder(run, attempt, 0))] for attempt in attempts]


def test_hugging_face_trainer_resumes(tmp_path: Path) -> None:
    """Four updates and a checkpoint, then from it to the seventh: steps 0 to 3, and 4 to 6."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    data = [{"input_ids": row, "labels": row} for row in torch.randint(16, (40, 4))]
    callback = hugging_face_callback(run_dir=tmp_path / "run", run_id="r")

    def train(max_steps: int, *, resume: bool) -> None:
        arguments = transformers.TrainingArguments(
            output_dir=tmp_path / "out", max_steps=max_steps, per_device_train_batch_size=2,
            gradient_accumulation_steps=2, save_strategy="steps", save_steps=4, report_to=[], use_cpu=True,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[callback])
        trainer.train(resume_from_checkpoint=resume)

    train(4, resume=False)
    train(7, resume=True)
    assert numbers(tmp_path / "run") == [[0, 1, 2, 3], [4, 5, 6]]


def test_lightning_resumes_with_two_optimizers(tmp_path: Path) -> None:
    """Four batches of two optimizers each are four updates, though Lightning counts eight: it resumes at step 4."""
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

        def training_step(self, batch: torch.Tensor, number: int) -> None:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self.two(self.one(batch)).sum())
                optimizer.step()

        def validation_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            return self.one(batch).sum()

        def configure_optimizers(self) -> list[Any]:
            return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.one, self.two)]

    def train(max_steps: int, resume: Path | None) -> Any:
        trainer = lightning.Trainer(
            accelerator="cpu", max_steps=max_steps, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1,
            callbacks=[lightning_callback(run_dir=tmp_path / "run", run_id="r")],
        )  # fmt: skip
        batches = torch.utils.data.DataLoader([torch.ones(8)] * 40, batch_size=2)  # type: ignore[arg-type]
        trainer.fit(Module(), batches, batches, ckpt_path=resume)
        return trainer

    first = train(8, None)
    assert first.global_step == 8
    first.save_checkpoint(tmp_path / "last.ckpt")
    train(14, tmp_path / "last.ckpt")
    assert numbers(tmp_path / "run") == [[0, 1, 2, 3], [4, 5, 6]]
