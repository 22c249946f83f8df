"""Train a small causal transformer with DistributedDataParallel over gloo: the script that `scope demo` records.

It knows nothing of Scope, like any script that `scope run` records. The options plant the faults that the demo shows.

Example:
    scope run -- torchrun --standalone --nproc-per-node 4 -m scope.record.examples.tiny_transformer --steps 200
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VOCABULARY = 512
CHECKPOINT_EVERY = 50
MEASURED_STEPS = range(1, 6)
"""Steps, the first left out, whose median a planted pause is scaled with."""
PAUSE_RATIO = 0.5
"""A planted pause as a share of that: one of a fixed length would not show in the long steps of a busy machine."""


class RandomTokens(IterableDataset[torch.Tensor]):
    """An endless stream of random token sequences; a pause before each plants slow input."""

    def __init__(self, sequence_length: int, *, seed: int, pause_s: float) -> None:
        super().__init__()
        self._sequence_length = sequence_length
        self._seed = seed
        self.pause_s = pause_s

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield int64 tensors of `sequence_length + 1` tokens."""
        generator = torch.Generator().manual_seed(self._seed)
        while True:
            time.sleep(self.pause_s)
            yield torch.randint(VOCABULARY, (self._sequence_length + 1,), generator=generator)


class Block(nn.Module):
    """One pre-norm transformer block with causal attention."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map `[batch, sequence, width]` to the same shape."""
        batch, sequence, width = hidden.shape
        heads = self.query_key_value(self.attention_norm(hidden)).view(batch, sequence, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.attention_out(attended.transpose(1, 2).reshape(batch, sequence, width))
        return hidden + self.mlp(self.mlp_norm(hidden))


class TinyTransformer(nn.Module):
    """A causal language model small enough for a laptop's cores."""

    def __init__(self, *, width: int, num_layers: int, num_heads: int, straggle_s: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.straggle_s = straggle_s

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map int64 `[batch, sequence]` to logits `[batch, sequence, vocabulary]`."""
        time.sleep(self.straggle_s)
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def scale_pause_s(lengths_s: Sequence[float], *, least_s: float) -> float:
    """Return how long a planted pause is, in seconds, from the lengths of the first steps.

    Examples:
        >>> scale_pause_s([0.04, 0.05, 9.0], least_s=0.03)
        0.03
        >>> scale_pause_s([0.4, 0.5, 9.0], least_s=0.03)
        0.25
    """
    return max(least_s, PAUSE_RATIO * statistics.median(lengths_s))


def train(options: argparse.Namespace, rank: int) -> None:
    """Run the training loop of one rank."""
    torch.manual_seed(0)
    least_s = options.straggle_ms / 1e3
    straggles = rank == options.straggler
    transformer = TinyTransformer(
        width=options.width, num_layers=options.layers, num_heads=4, straggle_s=least_s if straggles else 0.0
    )
    model = DistributedDataParallel(transformer, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dataset = RandomTokens(options.sequence, seed=rank, pause_s=least_s / options.batch if options.slow_input else 0.0)
    lengths_s: list[float] = []
    began_s = time.monotonic()
    for step, batch in zip(range(options.steps), DataLoader(dataset, batch_size=options.batch), strict=False):
        if step == options.hang_at and rank == dist.get_world_size() - 1:
            time.sleep(options.hang_s)
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and options.checkpoint and (step + 1) % CHECKPOINT_EVERY == 0:
            torch.save(model.module.state_dict(), options.checkpoint)
        if step in MEASURED_STEPS:
            lengths_s.append(time.monotonic() - began_s)
        began_s = time.monotonic()
        if step == MEASURED_STEPS[-1]:
            pause_s = scale_pause_s(lengths_s, least_s=least_s)
            transformer.straggle_s = pause_s if straggles else 0.0
            dataset.pause_s = pause_s / options.batch if options.slow_input else 0.0
        if rank == 0 and step % 20 == 0:
            print(f"step {step}  loss {loss.item():.3f}", flush=True)  # noqa: T201 - a training script reports progress


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small transformer on random tokens.")
    parser.add_argument("--steps", type=int, default=200, help="optimizer updates")
    parser.add_argument("--width", type=int, default=128, help="size of a hidden state")
    parser.add_argument("--layers", type=int, default=4, help="transformer blocks")
    parser.add_argument("--sequence", type=int, default=128, help="tokens in a sequence")
    parser.add_argument("--batch", type=int, default=4, help="sequences a rank and step")
    parser.add_argument("--straggler", type=int, default=-1, help="rank whose forward pass is slowed down")
    least = "by how much a step; half of a usual step where that is more"
    parser.add_argument("--straggle-ms", type=float, default=30.0, help=least)
    parser.add_argument("--slow-input", action="store_true", help="make the data loader slow, by as much")
    parser.add_argument("--hang-at", type=int, default=-1, help="step at which the last rank stops answering")
    parser.add_argument("--hang-s", type=float, default=3600.0, help="for how many seconds")
    parser.add_argument("--checkpoint", default="", help="file that rank 0 saves the model to, now and then")
    return parser.parse_args()


def main() -> None:
    """Train on all ranks that the launcher started."""
    options = parse_options()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    try:
        train(options, dist.get_rank())
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
