"""Objects have numbers of their own, and that one was collected is told."""

from __future__ import annotations

import gc

from scope.record.identities import Identities


class Thing:
    """An object that can be watched, and may be equal to any other."""

    def __eq__(self, other: object) -> bool:
        """Be equal to everything."""
        return True

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def test_no_number_is_given_twice() -> None:
    """Of a thousand objects, each made where the one before was freed, all have numbers of their own and are told."""
    told: list[int] = []
    identities = Identities(told.append)
    numbers = [identities.number_of(Thing()) for _ in range(1_000)]
    gc.collect()
    assert len(set(numbers)) == 1_000
    assert told == numbers


def test_an_object_keeps_its_number() -> None:
    """As long as an object exists it has the same number, unlike another that is equal to it."""
    told: list[int] = []
    identities = Identities(told.append)
    one, other = Thing(), Thing()
    assert identities.number_of(one) == identities.number_of(one) != identities.number_of(other)
    assert told == []


def test_what_cannot_be_watched_has_a_number_too() -> None:
    """An object without room for a weak reference is one that exists for all that is known."""
    told: list[int] = []
    identities = Identities(told.append)
    one, other = (1, 2), (1, 3)
    assert identities.number_of(one) == identities.number_of(one) != identities.number_of(other)
    assert told == []
