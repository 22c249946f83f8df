"""The FLOPs of a step and its MFU and HFU: worked out when its record is written, not in the training thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scope import definitions
from scope.record.counted_steps import scale_work
from scope.record.forward_inputs import describe_inputs
from scope.run.schema import MOST_UTILIZATION, CountedStep

if TYPE_CHECKING:
    from scope.record.fitted_steps import Work
    from scope.record.forward_inputs import Forward
    from scope.run.schema import FlopsInfo, StepRecord


def work_of(info: FlopsInfo, step: StepRecord, forwards: dict[Forward, int]) -> dict[str, float | None]:
    """Return the FLOPs of a step and what they are of the peak, by the names of its record's fields.

    Args:
        info: What MFU was counted with when the step ended.
        step: Its record.
        forwards: What its forwards got.
    """
    model, hardware = _flop_of(info, step, forwards) or (None, None)
    length_ns = step.end_ns - step.start_ns
    return {
        "model_flop": model,
        "hardware_flop": hardware,
        "mfu_ratio": _share(model, info.peak_flop_per_s, length_ns),
        "hfu_ratio": _share(hardware, info.peak_flop_per_s, length_ns),
    }


def _flop_of(
    info: FlopsInfo, step: StepRecord, forwards: dict[Forward, int]
) -> Work | tuple[float | None, None] | None:
    if info.source == "counter":
        described = CountedStep(
            step=step.step,
            model_flop=0,
            hardware_flop=0,
            num_optimizer_steps=step.num_optimizer_steps,
            num_microbatches=step.num_microbatches,
            tokens=step.tokens,
            samples=step.samples,
            inputs=describe_inputs(forwards),
        )
        return scale_work(info.counted, described)
    if info.model_flop_per_token is None or step.tokens is None:
        return None
    return info.model_flop_per_token * step.tokens, None


def _share(flop: float | None, peak: float | None, length_ns: int) -> float | None:
    if flop is None or peak is None:
        return None
    ratio = definitions.model_flops_utilization(flop, step_ns=length_ns, peak_flop_per_s=peak)
    return ratio if ratio is None or ratio <= MOST_UTILIZATION else None  # FLOPs or peak are not those of this device
