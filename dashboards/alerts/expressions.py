"""Expressions over the exporters' series that more than one place asks."""

from __future__ import annotations


def express_mfu(*, by: str, where: str = "") -> str:
    """Return the MFU of each run in its last step: model FLOPs of all ranks / (slowest rank's step x sum of peaks).

    A rank's peak is no series: it is its FLOPs a step / (its step x its own MFU). A run of which some rank tells no MFU
    has none. Ranks that two jobs scrape count once.

    Args:
        by: Labels that tell runs apart, with commas between them.
        where: Matchers of labels, with commas between them.
    """

    def of_rank(name: str) -> str:
        return f"max by ({by}, rank) (scope_train_{name}{{{where}}})"

    flop = f"({of_rank('model_flop_total')} / {of_rank('steps_total')})"
    step, own = of_rank("step_last_seconds"), of_rank("mfu_ratio")
    return (
        f"sum by ({by}) {flop} / (max by ({by}) ({step}) * sum by ({by}) ({flop} / ({step} * {own})))"
        f" and count by ({by}) ({own}) == count by ({by}) ({of_rank('steps_total')} > 0)"
    )
