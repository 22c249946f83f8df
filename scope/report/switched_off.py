"""Which parts of a recording were switched off since they raised, and so tell of nothing from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.frames.schema import Events

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MISSING: Final = {
    "steps": ("discovery", "evaluation", "optimizer", "scaler", "start", "step", "training"),
    "phases": ("backward", "copy", "forward", "input", "phase", "pipelines"),
    "samples and bytes of batches": ("batch",),
    "tokens": ("tokens",),
    "FLOPs and MFU": ("flops", "inputs", "model"),
    "times on the device": ("device", "device times"),
    "memory": ("memory",),
    "pauses of the garbage collector": ("garbage collection",),
    "checkpoints": ("checkpoint", "checkpoints"),
    "profiler windows": ("capture", "captures"),
    "stacks": ("stacks",),
    "coverage of collectives": ("coverage", "flight recorder"),
    "what other threads do": ("other threads",),
    "how the rank ended": ("ending", "exception", "exit code"),
    "collectives": ("collectives", "completion", "new_group", "post_hook", "pre_hook", "Work.wait"),
}
_OF_HOOKS: Final = {hook: missing for missing, hooks in _MISSING.items() for hook in hooks}
_OPERATIONS: Final = ("::", "ProcessGroup.")
"""Stands in the names of hooks that are an operation's or a method's."""


def find_switched_off(events: pl.DataFrame, *, attempt: int) -> list[dict[str, Any]]:
    """Return the hooks of an attempt that were switched off, with what the first rank said, the ranks and the step.

    The step is the first of any rank, absent where one had none yet.

    Args:
        events: Table `Events`.
        attempt: The attempt.
    """
    told = events.filter(pl.col(Events.kind) == "hook_disabled", pl.col(Events.attempt) == attempt)
    hook = pl.col(Events.detail).str.json_path_match("$.hook")
    step = pl.col(Events.step)
    # What is said of a hook may differ by an address from rank to rank.
    found = told.group_by(hook.fill_null(pl.col(Events.message)).alias("hook"), maintain_order=True).agg(
        pl.col(Events.message).first().alias("what"),
        pl.col(Events.message).n_unique().alias("num_reasons"),
        pl.col(Events.rank).unique().sort().alias("ranks"),
        pl.when(step.is_not_null().all()).then(step.min()).alias(Events.step),
    )
    return found.to_dicts()


def switched_off_lines(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return a line for each, with what is missing for it."""
    for each in found:
        since = "" if each["step"] is None else f" from step {each['step']} on"
        what = f"{_find_missing(each['hook'])} ({describe_ranks(each['ranks'])})"
        more = each["num_reasons"] - 1
        others = f" (and {more} other reason{'s' if more > 1 else ''})" if more else ""
        yield f"not recorded{since}: {what}, since {each['what']}{others}"


def _find_missing(hook: str) -> str:
    if any(part in hook for part in _OPERATIONS):
        return "collectives"
    return _OF_HOOKS.get(hook.removesuffix(" (detach)"), "what it records")
