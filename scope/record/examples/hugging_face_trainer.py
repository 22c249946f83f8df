"""A tiny causal model trained by Hugging Face's Trainer with Scope's callback; needs transformers and accelerate.

Example:
    python -m scope.record.examples.hugging_face_trainer --run-dir runs/trainer
"""

# Transformers is no dependency of Scope, and torch annotates only a part of itself.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import argparse
import tempfile

import torch

from scope.record.callbacks import hugging_face_callback
from scope.record.examples.libraries import require


def main(arguments: list[str] | None = None) -> None:
    """Train for 10 updates of 4 sequences of 16 tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", default="runs/trainer")
    options = parser.parse_args(arguments)
    require("transformers", "accelerate")
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    tokens = torch.randint(128, (40, 16))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    with tempfile.TemporaryDirectory() as folder:
        training = TrainingArguments(
            output_dir=folder,
            max_steps=10,
            per_device_train_batch_size=4,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
        )
        trainer = Trainer(
            model=LlamaForCausalLM(config),
            args=training,
            train_dataset=data,
            callbacks=[hugging_face_callback(run_dir=options.run_dir)],
        )
        trainer.train()


if __name__ == "__main__":
    main()
