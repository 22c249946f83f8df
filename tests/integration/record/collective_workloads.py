"""Workloads whose collectives are known by hand, run by four gloo ranks; started as a script by the tests.

Each function is one workload. What it sets up (meshes, wrapped models) it sets up before it yields; the calls that
count are those after. The rank writes what the recorder saw as JSON to the file that it is given.
"""

# torch annotates only a part of itself, and calls None what is never None here.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false, reportPrivateImportUsage=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from scope.record.collectives.recorder import CollectiveRecorder
from scope.run.calls import CallLog
from scope.run.layout import FLAG_ASYNCHRONOUS, FLAG_COMPILED, FLAG_COMPLETED, FLAG_CONTROL, FLAG_WAIT_SEEN
from scope.run.schema import DTYPES, OPERATIONS, VARIANTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scope.run.calls import Call, CallShape

WORLD = 4
WORKLOADS: dict[str, Callable[[], Iterator[None]]] = {}


def workload(function: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    """Register a workload under its name."""
    WORKLOADS[function.__name__] = function
    return function


class ListSink(CallLog):
    """Keeps every call in a list."""

    def __init__(self) -> None:
        super().__init__(None)
        self.calls: list[Call] = []

    def issue(self, shape: CallShape, flags: int, issued_ns: int) -> Call:
        """Keep a call."""
        call = super().issue(shape, flags, issued_ns)
        self.calls.append(call)
        return call


def rank() -> int:
    """Return this process's rank."""
    return dist.get_rank()


def linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    """Return a layer with the same weights on all ranks."""
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias)


@workload
def blocking() -> Iterator[None]:
    """Every blocking call of the Python API, by its long-standing name."""
    t = torch.ones(6)
    yield
    dist.all_reduce(t)
    dist.broadcast(t, src=1)
    dist.reduce(t, dst=2)
    dist.all_gather([torch.zeros(6) for _ in range(WORLD)], t)
    dist.all_gather_into_tensor(torch.zeros(24), t)
    dist.reduce_scatter(torch.zeros(6), [torch.ones(6) for _ in range(WORLD)])
    dist.reduce_scatter_tensor(torch.zeros(6), torch.ones(24))
    dist.all_to_all_single(torch.zeros(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64))
    dist.gather(t, [torch.zeros(6) for _ in range(WORLD)] if rank() == 0 else None, dst=0)
    dist.scatter(torch.zeros(6), [torch.ones(6) for _ in range(WORLD)] if rank() == 3 else None, src=3)
    dist.barrier()


@workload
def new_names() -> Iterator[None]:
    """The names that torch 2.13 introduced."""
    yield
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    gather(torch.zeros(12, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16))
    scatter(torch.zeros(3), torch.ones(12))


@workload
def asynchronous() -> Iterator[None]:
    """Asynchronous calls, waited for in another order than issued; the last is never waited for."""
    yield
    first = dist.all_reduce(torch.ones(8), async_op=True)
    second = dist.all_gather_into_tensor(torch.zeros(16), torch.ones(4), async_op=True)
    second.wait()
    first.wait()
    dist.all_reduce(torch.ones(2), async_op=True)
    time.sleep(0.2)


@workload
def coalesced() -> Iterator[None]:
    """Calls that the coalescing manager joins into one."""
    yield
    with dist._coalescing_manager():
        for size in (2, 3, 4):
            dist.all_reduce(torch.ones(size))


@workload
def point_to_point() -> Iterator[None]:
    """Send and recv between neighbours: blocking, then asynchronous, then batched."""
    yield
    other = rank() ^ 1
    if rank() % 2 == 0:
        dist.send(torch.ones(5), other, tag=7)
        dist.isend(torch.ones(5), other).wait()
    else:
        dist.recv(torch.zeros(5), other, tag=7)
        dist.irecv(torch.zeros(5), other).wait()
    ops = [dist.P2POp(dist.isend, torch.ones(3), other), dist.P2POp(dist.irecv, torch.zeros(3), other)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


@workload
def objects() -> Iterator[None]:
    """Object collectives: sizes and payloads are control traffic."""
    yield
    dist.all_gather_object([None] * WORLD, "x" * rank())
    dist.broadcast_object_list(["y" if rank() == 0 else None], src=0)


@workload
def subgroup() -> Iterator[None]:
    """A group of two ranks and the axes of a device mesh."""
    pair = dist.new_group([1, 3])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    yield
    if rank() in (1, 3):
        dist.all_reduce(torch.ones(4), group=pair)
        dist.broadcast(torch.ones(4), src=3, group=pair)
    dist.all_reduce(torch.ones(10), group=mesh.get_group("tp"))
    dist.all_reduce(torch.ones(11), group=mesh.get_group("dp"))


def _own_group(name: str) -> Any:
    """Return a group that torch.distributed knows nothing of."""
    store = dist.distributed_c10d._get_default_store()
    group = dist.ProcessGroup(dist.PrefixStore(f"{name}/group", store), rank(), WORLD)
    backend = dist.ProcessGroupGloo(dist.PrefixStore(f"{name}/gloo", store), rank(), WORLD, timedelta(seconds=60))
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group


@workload
def own_group() -> Iterator[None]:
    """A group that the program made itself, called without torch.distributed."""
    group = _own_group("direct")
    yield
    group.allreduce([torch.ones(6)]).wait()
    group.allgather([[torch.zeros(3) for _ in range(WORLD)]], [torch.ones(3)]).wait()
    if rank() == 1:
        group.send([torch.ones(5)], 3, 9).wait()
    if rank() == 3:
        group.recv([torch.zeros(5)], 1, 9).wait()
    group.barrier().wait()


@workload
def own_groups_come_and_go() -> Iterator[None]:
    """Ten groups of the program's own, each of which goes with the DDP that used it while calls may be on their way."""
    yield
    for number in range(10):
        model = DistributedDataParallel(linear(300, 300), process_group=_own_group(str(number)))
        for _ in range(2):
            model(torch.ones(2, 300)).sum().backward()
        del model


def _ddp() -> DistributedDataParallel:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 100, bias=False), nn.Linear(100, 100, bias=False))
    # Buckets of 1 KB: every gradient is larger, so every parameter has a bucket of its own.
    return DistributedDataParallel(model, bucket_cap_mb=0.001)


@workload
def ddp() -> Iterator[None]:
    """Two updates of DDP: the reducer sends two buckets each."""
    model = _ddp()
    # The first backward may rebuild the buckets.
    model(torch.ones(2, 100)).sum().backward()
    model(torch.ones(2, 100)).sum().backward()
    yield
    for _ in range(2):
        model(torch.ones(2, 100)).sum().backward()


@workload
def ddp_accumulation() -> Iterator[None]:
    """Three micro-batches, two of them in `no_sync`: only the last one communicates."""
    model = _ddp()
    model(torch.ones(2, 100)).sum().backward()
    model(torch.ones(2, 100)).sum().backward()
    yield
    with model.no_sync():
        model(torch.ones(2, 100)).sum().backward()
        model(torch.ones(2, 100)).sum().backward()
    model(torch.ones(2, 100)).sum().backward()


@workload
def ddp_own_hook() -> Iterator[None]:
    """The user's own communication hook, which halves the gradients' bytes."""

    # torch compares annotations, and those of this file are strings.
    def hook(state, bucket):
        halves = bucket.buffer().to(torch.float16)
        work = dist.all_reduce(halves, async_op=True)
        return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))

    model = _ddp()
    model.register_comm_hook(None, hook)
    model(torch.ones(2, 100)).sum().backward()
    model(torch.ones(2, 100)).sum().backward()
    yield
    model(torch.ones(2, 100)).sum().backward()


@workload
def fsdp1() -> Iterator[None]:
    """FullyShardedDataParallel with one flat parameter."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(linear(16, 16), device_id=torch.device("cpu"))
    model(torch.ones(2, 16)).sum().backward()
    yield
    model(torch.ones(2, 16)).sum().backward()


def _fsdp2() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


@workload
def fsdp2() -> Iterator[None]:
    """fully_shard on two layers and the root, which has no parameters of its own."""
    model = _fsdp2()
    model(torch.ones(2, 16)).sum().backward()
    yield
    model(torch.ones(2, 16)).sum().backward()


@workload
def tensor_parallel() -> Iterator[None]:
    """DTensor tensor parallelism over four ranks: one all-reduce in forward, one in backward."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tp",))
    model = nn.Sequential(linear(8, 16), linear(16, 8))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    yield
    model(torch.ones(2, 8, requires_grad=True)).sum().backward()


@workload
def sequence_parallel() -> Iterator[None]:
    """DTensor with the activations sharded between the layers: all-gather before, reduce-scatter after."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
    model = nn.Sequential(linear(8, 16), linear(16, 8))
    plan = {
        "0": ColwiseParallel(input_layouts=Shard(0)),
        "1": RowwiseParallel(output_layouts=Shard(0)),
    }
    parallelize_module(model, mesh, plan)
    yield
    with torch.no_grad():
        model(torch.ones(4, 8)).sum()


@workload
def functional() -> Iterator[None]:
    """Functional collectives."""
    from torch.distributed import _functional_collectives as funcol

    group = dist.group.WORLD
    yield
    funcol.all_reduce(torch.ones(4), "sum", group).sum()
    funcol.all_gather_tensor(torch.ones(4), 0, group).sum()
    funcol.reduce_scatter_tensor(torch.ones(8), "sum", 0, group).sum()


@workload
def functional_backward() -> Iterator[None]:
    """A functional collective that autograd differentiates in C++: its backward is a collective too."""
    from torch.distributed import _functional_collectives as funcol

    yield
    value = torch.ones(4, requires_grad=True)
    funcol.all_gather_tensor_autograd(value, 0, dist.group.WORLD).sum().backward()


def _compiled(backend: str) -> Iterator[None]:
    from torch.distributed import _functional_collectives as funcol

    group = dist.group.WORLD

    @torch.compile(backend=backend)
    def step(t: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(t * 2, "sum", group) + 1

    step(torch.ones(4))
    yield
    step(torch.ones(4))


@workload
def compiled() -> Iterator[None]:
    """A collective inside a graph that torch.compile captured."""
    return _compiled("aot_eager")


@workload
def compiled_inductor() -> Iterator[None]:
    """The same inside code that inductor generated."""
    return _compiled("inductor")


@workload
def zero_redundancy() -> Iterator[None]:
    """ZeroRedundancyOptimizer: after its part of the update each rank broadcasts its parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.ones(size)) for size in (40, 30, 20, 10)]
    optimizer = ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.SGD, lr=0.1)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    yield
    optimizer.step()


@workload
def sharded_optimizer() -> Iterator[None]:
    """The DeepSpeed way (ZeRO-2 and 3): reduce-scatter of gradients, update of the shard, all-gather of parameters."""
    yield
    shard = torch.zeros(25)
    dist.reduce_scatter_tensor(shard, torch.ones(100))
    gathered = dist.all_gather_into_tensor(torch.zeros(100), shard, async_op=True)
    gathered.wait()


def _pipeline(schedule_name: str, stages_per_rank: int) -> Callable[[], None]:
    from torch.distributed import pipelining
    from torch.distributed.pipelining import PipelineStage

    num_stages = WORLD * stages_per_rank
    stages = [
        PipelineStage(linear(8, 8), rank() + WORLD * turn, num_stages, torch.device("cpu"))
        for turn in range(stages_per_rank)
    ]
    schedule_class = getattr(pipelining, schedule_name)
    schedule = schedule_class(
        stages if stages_per_rank > 1 else stages[0], n_microbatches=4, loss_fn=lambda out, target: out.sum()
    )

    def step() -> None:
        batch = torch.ones(8, 8)
        args = (batch,) if rank() == 0 else ()
        target = batch if rank() == WORLD - 1 else None
        schedule.step(*args, target=target)

    return step


def _pipeline_workload(name: str, schedule_name: str, stages_per_rank: int) -> None:
    def run() -> Iterator[None]:
        step = _pipeline(schedule_name, stages_per_rank)
        # The first step exchanges the shapes.
        step()
        yield
        step()

    run.__name__ = name
    workload(run)


_pipeline_workload("pipeline_gpipe", "ScheduleGPipe", 1)
_pipeline_workload("pipeline_1f1b", "Schedule1F1B", 1)
_pipeline_workload("pipeline_interleaved", "ScheduleInterleaved1F1B", 2)


@workload
def expert_parallel() -> Iterator[None]:
    """Tokens to experts and back: counts by an even all-to-all, tokens by uneven ones."""
    yield
    me = rank()
    width = 16
    to_send = [(me + other) % 3 + 1 for other in range(WORLD)]
    to_get = torch.zeros(WORLD, dtype=torch.int64)
    dist.all_to_all_single(to_get, torch.tensor(to_send))
    counts = to_get.tolist()
    tokens = torch.ones(sum(to_send), width)
    routed = torch.zeros(sum(counts), width)
    dist.all_to_all_single(routed, tokens, output_split_sizes=counts, input_split_sizes=to_send)
    dist.all_to_all_single(tokens, routed, output_split_sizes=to_send, input_split_sizes=counts)


@workload
def checkpoint() -> Iterator[None]:
    """A distributed checkpoint: its plans travel as objects."""
    from torch.distributed import checkpoint as dcp

    state = {"weight": torch.ones(64)}
    yield
    dcp.save(state, checkpoint_id=os.environ["SCOPE_TEST_CHECKPOINT"])


@workload
def context_parallel_stand_in() -> Iterator[None]:
    """What ring attention calls, without the attention: keys and values go round, gradients are reduced."""
    yield
    after, before = (rank() + 1) % WORLD, (rank() - 1) % WORLD
    keys = torch.ones(2, 8)
    for _ in range(WORLD - 1):
        arriving = torch.zeros(2, 8)
        ops = [dist.P2POp(dist.isend, keys, after), dist.P2POp(dist.irecv, arriving, before)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        keys = arriving
    dist.all_reduce(torch.ones(2, 8))


@workload
def late_rank() -> Iterator[None]:
    """Rank 2 comes 300 ms late to an all-reduce: the others are blocked that long, it is not."""
    dist.barrier()
    yield
    if rank() == 2:
        time.sleep(0.3)
    dist.all_reduce(torch.ones(4))


@workload
def late_rank_asynchronous() -> Iterator[None]:
    """The same asynchronously: the others compute for 100 ms first and are blocked for the remaining 200 ms."""
    dist.barrier()
    yield
    if rank() == 2:
        time.sleep(0.3)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    if rank() != 2:
        time.sleep(0.1)
    work.wait()


@workload
def late_rank_functional() -> Iterator[None]:
    """The same through a functional collective."""
    from torch.distributed import _functional_collectives as funcol

    dist.barrier()
    yield
    if rank() == 2:
        time.sleep(0.3)
    funcol.all_reduce(torch.ones(4), "sum", dist.group.WORLD).sum()


class _Late(torch.autograd.Function):
    """Sleeps in the backward of rank 2."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        """Pass the value on."""
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Pass the gradient on, late."""
        if rank() == 2:
            time.sleep(0.3)
        return gradient


@workload
def late_rank_ddp() -> Iterator[None]:
    """Rank 2 is late between the two buckets of DDP: the others wait at the end of their backward."""
    model = _ddp()
    first, second = model.module
    model.module.forward = lambda value: second(_Late.apply(first(value)))  # type: ignore[method-assign]
    model(torch.ones(2, 100)).sum().backward()
    model(torch.ones(2, 100)).sum().backward()
    dist.barrier()
    yield
    model(torch.ones(2, 100)).sum().backward()


@workload
def reinitialised() -> Iterator[None]:
    """The default group destroyed and made anew: the new one is another group."""
    dist.barrier()
    dist.destroy_process_group()
    store = dist.FileStore(os.environ["SCOPE_TEST_STORE"] + "-again", WORLD)
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=WORLD, store=store)
    yield
    dist.all_reduce(torch.ones(4))


def describe(call: Call, recorder: CollectiveRecorder) -> dict[str, Any]:
    """Return what the tests compare."""
    shape = call.shape
    group = {info.group: info for info in recorder.groups.infos()}[shape.group]
    return {
        "operation": OPERATIONS[shape.operation],
        "variant": VARIANTS[shape.variant],
        "in_bytes": shape.in_bytes,
        "out_bytes": shape.out_bytes,
        "dtype": DTYPES[shape.dtype],
        "ranks": list(group.ranks),
        "axis": group.mesh_axis,
        "group": group.group,
        "sequence": call.sequence,
        "asynchronous": bool(call.flags & FLAG_ASYNCHRONOUS),
        "control": bool(call.flags & FLAG_CONTROL),
        "compiled": bool(call.flags & FLAG_COMPILED),
        "completed": bool(call.flags & FLAG_COMPLETED),
        "wait_seen": bool(call.flags & FLAG_WAIT_SEEN),
        "blocked_ns": call.blocked_ns,
        "duration_ns": call.completed_ns - call.issued_ns if call.completed_ns else None,
        "peer": shape.peer,
        "tag": shape.tag,
        "num_tensors": shape.num_tensors,
    }


def watch(names: list[str], *, route: str | None, begin: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Run workloads under a recorder of a route, the best one for None, and return what it saw.

    Args:
        names: The workloads.
        route: The recorder's route.
        begin: Called once the recorder is attached.
    """
    sink = ListSink()
    disabled: list[tuple[str, str]] = []
    recorder = CollectiveRecorder(sink, hook_disabled=lambda hook, reason: disabled.append((hook, reason)), route=route)
    recorder.attach()
    begin()
    seen: dict[str, Any] = {}
    for name in names:
        started = time.monotonic()
        try:
            steps = WORKLOADS[name]()
            next(steps)
            mark = len(sink.calls)
            next(steps, None)
            recorder.tracker.release()
            # Completions come from gloo's threads; the last may need a moment to get the interpreter.
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and any(not call.completed_ns for call in sink.calls[mark:]):
                time.sleep(0.01)
            seen[name] = [describe(call, recorder) for call in sink.calls[mark:]]
        except Exception as error:  # noqa: BLE001 - told to the test, which fails by name
            seen[name] = f"{type(error).__name__}: {error}"
        print(name, round(time.monotonic() - started, 2), flush=True)  # noqa: T201 - shown when a test fails
    assert recorder.flight_recorder is not None
    recorder.flight_recorder.poll(sink)
    coverage = [{**vars(item), "ratio": item.ratio} for item in recorder.flight_recorder.coverage(sink)]
    attached = recorder.route
    recorder.close()
    return {"seen": seen, "disabled": disabled, "attached": attached, "left": kernels_left(), "coverage": coverage}


def main(output: str, names: list[str]) -> None:
    """Run workloads in this process, one of the ranks; those after `methods` by that route."""
    store = dist.FileStore(os.environ["SCOPE_TEST_STORE"], WORLD)

    def begin() -> None:
        dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=WORLD, store=store)

    at = names.index("methods")
    results = [watch(names[:at], route=None, begin=begin), watch(names[at + 1 :], route="methods")]
    Path(output).write_text(json.dumps(results))
    dist.destroy_process_group()


def kernels_left() -> list[str]:
    """Return the operators that still have a kernel where the recorder puts its own."""
    names = [schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith(("c10d::", "_c10d_"))]
    return [name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, "BackendSelect")]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], sys.argv[2:])
