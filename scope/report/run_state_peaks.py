"""What MFU and HFU of a recorded run are counted against: peaks of its devices, their source, and the convention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.frames.schema import Ranks
from scope.units import format_flop_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CONVENTIONS: Final = {"full": "attention counted whole", "causal_halved": "causal attention counted half"}
_OF_USER: Final = "attention as the user counts it"
_KINDS: Final = {"source": Ranks.peak_source, "dtype": Ranks.peak_dtype, "convention": Ranks.flop_convention}


def find_peaks(ranks: pl.DataFrame, *, attempt: int) -> list[dict[str, Any]]:
    """Return each source, type and convention with its number of ranks and their least and largest peak in FLOP/s.

    And what a rank of these says of operators whose FLOPs are in no figure, if any does.

    Args:
        ranks: Table `Ranks`.
        attempt: The attempt whose ranks count; those without a peak are left out.
    """
    peak = pl.col(Ranks.peak_flop_per_s)
    return (
        ranks.filter(pl.col(Ranks.attempt) == attempt, peak.is_not_null())
        .group_by(pl.col(column).cast(pl.String).alias(name) for name, column in _KINDS.items())
        .agg(
            pl.len().alias("num_ranks"),
            peak.min().alias("least_flop_per_s"),
            peak.max().alias("largest_flop_per_s"),
            pl.col(Ranks.uncounted_flop_reason).drop_nulls().first().alias("uncounted"),
        )
        .sort(*_KINDS, nulls_last=True)
        .to_dicts()
    )


def describe_mfu(speed: Mapping[str, Any], peaks: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what MFU is counted against, without a full stop; None where there is no MFU.

    Args:
        speed: `RunSpeed` as a document.
        peaks: What `find_peaks` returns.
    """
    if speed["mfu_ratio"] is None or not peaks:
        return None
    conventions = list(dict.fromkeys(_CONVENTIONS.get(str(peak["convention"]), _OF_USER) for peak in peaks))
    against = " and ".join(_against(peak) for peak in peaks)
    steps = f"{speed['num_mfu_steps']} of these {speed['num_steps']} steps"
    uncounted = next((f"; {peak['uncounted']}" for peak in peaks if peak["uncounted"]), "")
    return f"MFU: model FLOPs ({' or '.join(conventions)}) of {steps} against {against}{uncounted}"


def _against(peak: Mapping[str, Any]) -> str:
    low, high = format_flop_rate(peak["least_flop_per_s"]), format_flop_rate(peak["largest_flop_per_s"])
    rate = low if low == high else f"{low} to {high}"
    return f"{peak['dtype'] or 'a type unknown'} at {rate} a rank ({peak['source'] or 'source unknown'})"
