"""How FLOPs grow with the length of what forwards get, out of counted steps that say so beyond doubt.

What a model does to every row, every position and every pair of positions (attention) adds up to

    FLOPs = a x rows + b x positions + c x pairs of positions

with the same a, b and c in all steps of one kind. Counts are exact, so that one counted step more than there are
unknowns proves the form: it fits to the last FLOP, or nothing is worked out.
"""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Final, NamedTuple

_TERMS: Final = ((1,), (1, 2), (0, 1), (0, 1, 2))
"""Places in `Size` of what FLOPs may grow with, the fewest first."""


class Size(NamedTuple):
    """How much the forwards of a step got; sums over these."""

    rows: int
    positions: int
    position_pairs: int

    def is_in_proportion(self, other: Size) -> bool:
        """Return whether all three are in one proportion to those of another step: more or fewer rows of one length."""
        return bool(self.rows and other.rows) and all(
            own * other.rows == others * self.rows for own, others in zip(self, other, strict=True)
        )


class Work(NamedTuple):
    """FLOPs of a step."""

    model_flop: float
    hardware_flop: float


def fit_work(known: tuple[tuple[Size, Work], ...], size: Size) -> Work | None:
    """Return the FLOPs of a step of another length; `None` where those known do not prove how they grow.

    Args:
        known: Counted steps of the kind.
        size: The step in question.
    """
    fitted = _fit(known)
    if fitted is None:
        return None
    terms, weights = fitted
    model, hardware = (
        sum(weight[which] * size[term] for term, weight in zip(terms, weights, strict=True)) for which in (0, 1)
    )
    return Work(float(model), float(hardware)) if model >= 0 and hardware >= 0 else None


@functools.lru_cache(maxsize=16)
def _fit(known: tuple[tuple[Size, Work], ...]) -> tuple[tuple[int, ...], list[list[Fraction]]] | None:
    """Return the terms that FLOPs grow with and, for each, its weight in model and hardware FLOPs."""
    # More rows of one length prove nothing of another one.
    lengths = {tuple(Fraction(each, size.rows) for each in size) for size, _ in known if size.rows}
    for terms in _TERMS:
        if len(lengths) > len(terms):
            rows = [
                [*(Fraction(size[term]) for term in terms), *(Fraction(flop) for flop in work)] for size, work in known
            ]
            weights = _solve(rows, len(terms))
            if weights is not None:
                return terms, weights
    return None


def _solve(rows: list[list[Fraction]], num_unknowns: int) -> list[list[Fraction]] | None:
    """Return the one solution of equations, by elimination; `None` where there is none, or more than one.

    Args:
        rows: An equation each: factors of the unknowns, then the right sides.
        num_unknowns: How many of the columns are factors.
    """
    for place in range(num_unknowns):
        pivot = next((number for number in range(place, len(rows)) if rows[number][place]), None)
        if pivot is None:
            return None
        rows[place], rows[pivot] = rows[pivot], rows[place]
        rows[place] = [value / rows[place][place] for value in rows[place]]
        for number, row in enumerate(rows):
            if number != place and row[place]:
                rows[number] = [value - row[place] * own for value, own in zip(row, rows[place], strict=True)]
    if any(any(row) for row in rows[num_unknowns:]):
        return None
    return [row[num_unknowns:] for row in rows[:num_unknowns]]
