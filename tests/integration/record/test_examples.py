"""The examples run as they stand; those of other libraries where the library is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

pytest.importorskip("torch")

from typing import TYPE_CHECKING

from scope.record.examples import accelerate_loop, hugging_face_trainer, lightning_module, plain_loop
from scope.run import paths
from scope.run.reader import RankReader, read_steps

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from scope.run.schema import StepRecord


def steps_of(run: Path, rank: int = 0) -> list[dict[str, int]]:
    """The phases of each step of a rank."""
    return [dict(step.phases) for step in read_steps(paths.rank_folder(run, 0, rank))]


def test_plain_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty updates of four micro-batches, the phase of its own in each; it says where they lie."""
    plain_loop.main(["--run-dir", str(tmp_path / "run")])
    assert capsys.readouterr().out == f"recorded in {tmp_path / 'run'}\n"
    steps = read_steps(paths.rank_folder(tmp_path / "run", 0, 0))
    assert [step.num_microbatches for step in steps] == [4] * 20
    assert [step.samples for step in steps] == [32] * 20
    assert all({"augmentation", "input", "forward", "backward", "optimizer"} <= set(step.phases) for step in steps)


of_another_library = pytest.mark.filterwarnings("default")
"""What other libraries warn of, of themselves and of this torch, is no failure of an example."""


@pytest.mark.parametrize(
    ("example", "libraries"),
    [
        (accelerate_loop, "accelerate"),
        (hugging_face_trainer, "transformers and accelerate"),
        (lightning_module, "lightning"),
    ],
)
def test_a_library_that_is_missing_is_asked_for_in_one_line(
    example: ModuleType, libraries: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What to install, exit code 1 (a text as the code of SystemExit is that), and no recording was begun."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        example.main(["--run-dir", str(tmp_path / "run")])
    assert ended.value.code == f"this example needs {libraries}: pip install {libraries.replace(' and ', ' ')}"
    assert not (tmp_path / "run").exists()


@of_another_library
def test_accelerate_loop(tmp_path: Path) -> None:
    """Ten updates of two micro-batches, though Accelerate fetches a batch ahead."""
    pytest.importorskip("accelerate")
    accelerate_loop.main(["--run-dir", str(tmp_path / "run")])
    steps = read_steps(paths.rank_folder(tmp_path / "run", 0, 0))
    assert [(step.num_microbatches, step.samples) for step in steps] == [(2, 8)] * 10


@of_another_library
def test_hugging_face_trainer(tmp_path: Path) -> None:
    """Ten updates with their tokens; counted FLOPs equal the closed formula of the model's configuration."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    hugging_face_trainer.main(["--run-dir", str(tmp_path / "run")])
    folder = paths.rank_folder(tmp_path / "run", 0, 0)
    assert [step.tokens for step in read_steps(folder)] == [64] * 10
    flops = RankReader(folder).info().flops
    assert flops is not None
    assert flops.formula_difference_ratio == 0


@of_another_library
def test_lightning_module(tmp_path: Path) -> None:
    """Ten updates with forward, backward and optimizer."""
    pytest.importorskip("lightning")
    lightning_module.main(["--run-dir", str(tmp_path / "run")])
    steps = steps_of(tmp_path / "run")
    assert len(steps) == 10
    assert all({"forward", "backward", "optimizer"} <= set(step) for step in steps[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "num_ranks", "axes", "operations"),
    [
        ("sharded_tensor_parallel", 4, {"dp_shard", "tp"}, {"all_gather", "reduce_scatter", "all_reduce"}),
        ("pipeline", 2, {None}, {"send", "recv"}),
    ],
)
def test_distributed_examples(
    tmp_path: Path, example: str, num_ranks: int, axes: set[str | None], operations: set[str]
) -> None:
    """Ten steps on every rank, the collectives on the groups of the named axes."""
    own = {"SCOPE_SPOOL": str(tmp_path / "spool"), "SCOPE_REGISTRY": str(tmp_path / "registry"), "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    command = [sys.executable, "-m", "scope", "run", "--run-dir", str(tmp_path / "run"), "--", *launch, "-m"]
    done = subprocess.run(
        [*command, f"scope.record.examples.{example}"],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(num_ranks):
        reader = RankReader(paths.rank_folder(tmp_path / "run", 0, rank))
        steps = read_steps(reader.folder)
        assert len(steps) == 10
        assert {group.mesh_axis for group in reader.info().groups} == axes
        seen = {total.operation for step in steps for total in step.collectives}
        assert operations <= seen
        if example == "pipeline":
            check_pipeline(rank, steps)


def check_pipeline(rank: int, steps: list[StepRecord]) -> None:
    """Four micro-batches of two samples through two layers of 64 x 64; what a step receives is its own.

    Each layer takes a product forward and two backward, but that nobody needs the gradient of the batch. The first step
    finds out shapes too: that is traffic, and neither a micro-batch nor FLOPs.
    """
    product = 2 * 2 * 64 * 64
    flop = 4 * product * (6 - (rank == 0))
    assert [(step.num_microbatches, step.model_flop, step.hardware_flop) for step in steps] == [(4, flop, flop)] * 10
    sums = [Counter[str]() for _ in steps]
    for step, numbers in zip(steps, sums, strict=True):
        for total in step.collectives:
            numbers[total.operation] += total.num_calls
    assert sums[1:] == [Counter(send=4, recv=4)] * 9
