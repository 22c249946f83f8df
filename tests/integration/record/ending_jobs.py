"""Programs that end in every way there is; they know nothing of Scope, and have to end as if it were not there."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

STEPS = 5


class Model(nn.Module):
    """A layer whose call raises in one step."""

    def __init__(self, *, fails_in: int = -1) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.fails_in = fails_in
        self.step = -1

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Raise what was caused by something else, or run the layer."""
        self.step += 1
        if self.step == self.fails_in:
            try:
                {}["missing"]
            except KeyError as error:
                message = "the job's own"
                raise ValueError(message) from error
        return self.layer(batch)


def train(*, fails_in: int = -1, pause_s: float = 0.0) -> None:
    """Train a few steps and print what came out of them."""
    torch.manual_seed(0)
    model = Model(fails_in=fails_in)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = [torch.full((8,), float(number)) for number in range(STEPS)]
    for batch in DataLoader(samples, batch_size=1):  # pyright: ignore[reportArgumentType]
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(pause_s)
    sys.stdout.write(f"{sum(each.sum().item() for each in model.parameters()):.12f}\n")
    sys.stdout.flush()


def raise_in_a_backward() -> None:
    """Raise in a hook of a tensor."""
    value = torch.ones(2, requires_grad=True)
    value.register_hook(lambda _: {}["no such gradient"])
    value.sum().backward()


def raise_in_a_collective() -> None:
    """Hand a collective sizes that do not fit, and receive the backend's error from C++."""
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    dist.reduce_scatter_tensor(torch.ones(3), torch.ones(2))


def raises_in_threads() -> None:
    """Let a thread die of an exception in a model's call, print and log others, and hand one on to this thread."""
    for function in (raise_in_a_backward, train_and_fail):
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            wait([(future := pool.submit(function))])
            try:
                future.result()
            except (KeyError, ValueError):
                traceback.print_exc()
                logging.getLogger("job").exception("it failed")


def train_and_fail() -> None:
    """Raise in the first call of a model."""
    train(fails_in=0)


def raises() -> None:
    """Print two exceptions as Python would; die of a third one in a model's call, which another one caused."""
    for function in (raise_in_a_backward, raise_in_a_collective):
        try:
            function()
        except (KeyError, RuntimeError, ValueError):
            sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType] - there is one
    raises_in_threads()
    train(fails_in=3)


def has_a_hook() -> None:
    """Raise where the program prints exceptions by itself, and passes them on to nobody."""
    sys.excepthook = lambda kind, error, traceback: print(f"own hook: {error!r}", file=sys.stderr)  # noqa: T201
    train(fails_in=2)


class Interrupt(weakref.ref["Cycle"]):
    """Sends what Ctrl-C sends when what it refers to is freed, by code of C, behind which no Python code runs yet."""

    _as_parameter_ = int(signal.SIGINT)


class Cycle:
    """Refers to itself, so that only a collection of garbage frees it."""

    def __init__(self) -> None:
        self.me = self


def is_interrupted() -> None:
    """Receive what Ctrl-C sends, while garbage is collected."""
    train()
    interrupt = Interrupt(Cycle(), ctypes.CDLL(None)["raise"])
    gc.collect()
    time.sleep(60)
    del interrupt


def is_terminated() -> None:
    """Receive what a scheduler sends, without a handler for it."""
    train()
    time.sleep(1.2)  # ranks write once a second
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def ends_at_once() -> None:
    """Leave without any of Python's endings."""
    train()
    time.sleep(1.2)
    os._exit(9)


class Grudging(dict[str, torch.Tensor]):
    """A batch that shows its tensors to nobody who does not know their names."""

    def values(self) -> Any:
        """Raise."""
        message = "ask for a name"
        raise LookupError(message)


class Secretive(Model):
    """A model that raises when somebody looks at its parts."""

    def modules(self, remove_duplicate: bool = True) -> Any:
        """Raise."""
        del remove_duplicate
        message = "no parts to see"
        raise PermissionError(message)


def exits_with_words() -> None:
    """Train with batches and a model that make Scope's hooks raise; leave with a message, and so with a code."""
    torch.manual_seed(0)
    model = Secretive()
    optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.01)
    samples = [torch.full((8,), float(number)) for number in range(STEPS)]
    for batch in DataLoader(samples, batch_size=1, collate_fn=lambda rows: Grudging(x=torch.stack(rows))):  # pyright: ignore
        model(batch["x"]).sum().backward()
        optimizer.step()
    sys.stdout.write(f"{sum(each.sum().item() for each in model.layer.parameters()):.12f}\n")
    sys.exit("no more data")


def tears_everything_away() -> None:
    """Close all descriptors, clear the environment, and change directory, umask and session; then write a file."""
    train()
    os.closerange(3, 20_000)
    os.environ.clear()
    folder = Path(sys.argv[2])
    os.chdir("/")
    os.umask(0o077)
    with contextlib.suppress(PermissionError):  # of the one that leads its group already
        os.setsid()
    own = folder / "own.txt"
    with own.open("wb", buffering=0) as file:
        # Whoever still writes to a number that was once its own now writes in here.
        others = [os.dup(file.fileno()) for _ in range(300)]
        file.write(b"mine\n")
        train(pause_s=0.3)
        for other in others:
            os.close(other)
    sys.stdout.write(own.read_text())


def takes_the_clocks_away() -> None:
    """Train, and leave nothing of the clocks that count nanoseconds: for the rest of the program, and for its end."""
    train()
    for name in ("perf_counter_ns", "monotonic_ns", "time_ns"):
        setattr(time, name, None)
    train()


def kill_parent(rank: int, folder: str) -> None:
    """Train as a spawned rank, kill whoever spawned it, and wait for what torch sends it then."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=1)
    train()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def loses_its_parent() -> None:
    """Spawn a rank that kills this process."""
    torch.multiprocessing.spawn(kill_parent, args=(sys.argv[2],))  # pyright: ignore[reportPrivateImportUsage]


if __name__ == "__main__":
    jobs = (exits_with_words, raises, has_a_hook, is_interrupted, is_terminated, ends_at_once, tears_everything_away)
    jobs += (loses_its_parent, takes_the_clocks_away)
    {job.__name__: job for job in jobs}[sys.argv[1]]()
