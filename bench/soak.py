"""Ten minutes of collectives on four gloo ranks while they are recorded: nothing hangs, memory stays flat.

    python bench/soak.py [SECONDS]

Each rank makes blocking, asynchronous, functional and sent calls, and asynchronous ones whose Work it drops. Every
rank's resident set after a tenth of the time is compared with that at the end.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import _functional_collectives as funcol

from scope.record.collectives.recorder import CollectiveRecorder
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.calls import CallLog

RANKS = 4
MAX_GROWTH_BYTES = 16 * 2**20


def resident_bytes() -> int:
    """Return the resident set of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def one_step(rank: int, step: int) -> None:
    """Make calls of every kind; every rank the same."""
    size = 64 << (step % 6)
    works = [dist.all_reduce(torch.ones(size), async_op=True) for _ in range(4)]
    dist.all_reduce(torch.ones(size))
    funcol.all_reduce(torch.ones(size), "sum", dist.group.WORLD).sum()
    for work in works[::-1]:
        work.wait()
    for _ in range(4):
        # Dropped: nobody ever waits for it.
        dist.all_reduce(torch.ones(size), async_op=True)
    operations = [
        dist.P2POp(dist.isend, torch.ones(size), (rank + 1) % RANKS),
        dist.P2POp(dist.irecv, torch.ones(size), (rank - 1) % RANKS),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    dist.barrier()


def run_rank(rank: int, folder: str, seconds: float) -> None:
    """Soak one rank and write what became of it."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    who = BlackBoxIdentity(rank=rank, attempt=0, world_size=RANKS, pid=1, process_start_ticks=1, wall_offset_ns=0)
    log = CallLog(BlackBox(Path(folder) / f"box-{rank}", who))
    recorder = CollectiveRecorder(log)
    recorder.attach()
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, store=store)
    begin = time.monotonic()
    early: int | None = None
    step = calls = 0
    stop = torch.zeros(1)
    while not stop.item():
        one_step(rank, step)
        step += 1
        calls += len(log.next_step(step).seen)
        recorder.tracker.release()
        elapsed = time.monotonic() - begin
        if early is None and elapsed > seconds / 10:
            early = resident_bytes()
        # All stop after the same step.
        stop = torch.tensor([float(elapsed > seconds)])
        dist.broadcast(stop, src=0)
    result = {
        "calls": calls,
        "growth_bytes": resident_bytes() - (early or resident_bytes()),
        "disabled": recorder.guard.reasons,
        "held": len(recorder.tracker.works),
    }
    recorder.close()
    Path(folder, f"{rank}.json").write_text(json.dumps(result), encoding="ascii")
    dist.destroy_process_group()


def main(seconds: float) -> int:
    """Soak for a while; return 1 when a hook failed or memory grew."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.spawn(run_rank, args=(folder, seconds), nprocs=RANKS, join=False)
        deadline = time.monotonic() + seconds * 1.5 + 120
        while not context.join(timeout=1):
            if time.monotonic() > deadline:
                for process in context.processes:
                    process.kill()
                print("hung: the ranks did not end in time")
                return 1
        results = [json.loads(Path(folder, f"{rank}.json").read_text(encoding="ascii")) for rank in range(RANKS)]
    for rank, result in enumerate(results):
        print(f"rank {rank}: {result}")
    good = all(result["growth_bytes"] < MAX_GROWTH_BYTES and not result["disabled"] for result in results)
    calls = sum(result["calls"] for result in results)
    print(f"{calls} calls recorded in {seconds:g} s: memory {'flat' if good else 'NOT flat'}")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 600))
