"""What the steps whose FLOPs were counted tell of the others.

A step whose forwards got tensors of the same shapes as those of a counted one, but for more or fewer rows, has FLOPs in
their proportion. Those of another length are worked out by `scope.record.fitted_steps`, once counted steps of several
lengths have shown how FLOPs grow.

Where forwards get no tensor, or more than the shapes of tensors tell, a step that does what a counted one did, on more
or fewer tokens or samples, has FLOPs in their proportion. One that makes its update of another number of backward
passes does so as well where its tokens or samples are more or fewer accordingly. Where neither is known, it is by the
backward passes, once counted steps have shown that these are alike. Of all others nothing is known: equal would be a
guess.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from scope.record.fitted_steps import Size, Work, fit_work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.run.schema import CountedStep


class Kind(NamedTuple):
    """What a step has to have in common with a counted one, whose FLOPs then are its own in proportion."""

    num_optimizer_steps: int | None
    num_microbatches: int | None
    measure: str | None
    """`tokens`, where they are known, else `samples`; `None` where neither are, or what forwards got tells more."""
    pattern: str | None = None
    """Of what its forwards got."""
    num_forwards: tuple[int, int] | None = None
    """To each backward pass: a fraction in lowest terms."""


def kind_of(step: CountedStep) -> Kind:
    """Return the kind of a step."""
    if step.inputs is not None:
        forwards, passes = step.inputs.num_forwards, step.num_microbatches or 1
        divisor = math.gcd(forwards, passes)
        return Kind(step.num_optimizer_steps, None, None, step.inputs.pattern, (forwards // divisor, passes // divisor))
    measure = "tokens" if step.tokens else "samples" if step.samples else None
    return Kind(step.num_optimizer_steps, step.num_microbatches, measure)


def scale_work(counted: Sequence[CountedStep], step: CountedStep) -> Work | None:
    """Return the FLOPs of a step out of those of counted ones; `None` where nothing says how to scale them.

    Args:
        counted: The counted steps.
        step: The step in question, whose own FLOPs are not looked at.
    """
    kind = kind_of(step)
    if step.inputs is not None:
        return _by_inputs([each for each in counted if kind_of(each) == kind], _inputs_size(step))
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


def _by_inputs(alike: Sequence[CountedStep], size: Size) -> Work | None:
    """Return the FLOPs of a step out of those of counted ones whose forwards got the same, but for rows and length."""
    known = {_inputs_size(each): Work(each.model_flop, each.hardware_flop) for each in alike}
    if size in known:
        return known[size]
    fitted = fit_work(tuple(known.items()), size)
    if fitted is not None:
        return fitted
    # The first dimension is a batch nearly everywhere; where two sizes of it were counted, they tell.
    in_proportion = {each: work for each, work in known.items() if each.is_in_proportion(size)}
    if not in_proportion or len({Fraction(work.model_flop) / each.rows for each, work in in_proportion.items()}) > 1:
        return None
    each, work = next(iter(in_proportion.items()))
    return Work(work.model_flop * size.rows / each.rows, work.hardware_flop * size.rows / each.rows)


def is_proven(counted: Sequence[CountedStep], step: CountedStep) -> bool:
    """Return whether the FLOPs of a step follow from those of several lengths, whatever rows and length are.

    Args:
        counted: The counted steps.
        step: The step in question.
    """
    kind = kind_of(step)
    known = {_inputs_size(each): Work(each.model_flop, each.hardware_flop) for each in counted if kind_of(each) == kind}
    return step.inputs is not None and fit_work(tuple(known.items()), _inputs_size(step)) is not None


def _inputs_size(step: CountedStep) -> Size:
    inputs = step.inputs
    return Size(0, 0, 0) if inputs is None else Size(inputs.rows, inputs.positions, inputs.position_pairs)


def _size(step: CountedStep) -> int | None:
    return step.tokens or step.samples


def _in_proportion(counted: CountedStep, amount: int | None, counted_amount: int | None) -> Work:
    if not amount or not counted_amount:
        return Work(counted.model_flop, counted.hardware_flop)
    return Work(
        counted.model_flop * amount / counted_amount,
        counted.hardware_flop * amount / counted_amount,
    )


def _grows_alike(counted: CountedStep, step: CountedStep) -> bool:
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
