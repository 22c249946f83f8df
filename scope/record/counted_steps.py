"""What the steps whose FLOPs were counted tell of the others.

A step that does what a counted one did, on more or fewer tokens or samples, has FLOPs in their proportion. One that
makes its update of another number of backward passes does so as well where its tokens or samples are more or fewer
accordingly. Where neither is known, it is by the backward passes, once counted steps have shown that these are alike.
Of all others nothing is known: equal would be a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.run.schema import CountedStep, StepRecord


class Kind(NamedTuple):
    """What a step has to have in common with a counted one, whose FLOPs then are its own in proportion."""

    num_optimizer_steps: int | None
    num_microbatches: int | None
    measure: str | None
    """`tokens`, where they are known, else `samples`; `None` where neither are."""


class Work(NamedTuple):
    """FLOPs of a step."""

    model_flop: float
    hardware_flop: float


def kind_of(step: StepRecord | CountedStep) -> Kind:
    """Return the kind of a step."""
    measure = "tokens" if step.tokens else "samples" if step.samples else None
    return Kind(step.num_optimizer_steps, step.num_microbatches, measure)


def scale_work(counted: Sequence[CountedStep], step: StepRecord | CountedStep) -> Work | None:
    """Return the FLOPs of a step out of those of counted ones; `None` where nothing says how to scale them.

    Args:
        counted: The counted steps.
        step: The step in question.
    """
    kind = kind_of(step)
    alike = [each for each in counted if kind_of(each)._replace(num_microbatches=kind.num_microbatches) == kind]
    same = next((each for each in alike if each.num_microbatches == step.num_microbatches), None)
    if same is not None:
        return _in_proportion(same, _size(step), _size(same))
    in_step = [each for each in alike if _grows_alike(each, step)]
    if in_step:
        nearest = min(in_step, key=lambda each: abs((each.num_microbatches or 0) - (step.num_microbatches or 0)))
        return _in_proportion(nearest, _size(step), _size(nearest))
    equal = [each for each in alike if _size(each) == _size(step)]
    if step.num_microbatches and _has_equal_passes(equal):
        return _in_proportion(equal[0], step.num_microbatches, equal[0].num_microbatches)
    return None


def _size(step: StepRecord | CountedStep) -> int | None:
    return step.tokens or step.samples


def _in_proportion(counted: CountedStep, amount: int | None, counted_amount: int | None) -> Work:
    if not amount or not counted_amount:
        return Work(counted.model_flop, counted.hardware_flop)
    return Work(
        counted.model_flop * amount / counted_amount,
        counted.hardware_flop * amount / counted_amount,
    )


def _grows_alike(counted: CountedStep, step: StepRecord | CountedStep) -> bool:
    """Whether the step has more of both or less of both, backward passes and what they are of.

    More passes over the same batch are other work (a penalty now and then, a search along a line), however much.
    """
    more_passes = (step.num_microbatches or 0) - (counted.num_microbatches or 0)
    return more_passes * ((_size(step) or 0) - (_size(counted) or 0)) > 0


def _has_equal_passes(counted: Sequence[CountedStep]) -> bool:
    """Whether steps of different numbers of backward passes are known, with as many FLOPs in each pass."""
    known = [each for each in counted if each.num_microbatches]
    per_pass = {(each.model_flop / (each.num_microbatches or 1)) for each in known}
    return len(known) > 1 and len(per_pass) == 1
