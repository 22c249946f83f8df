"""What ranks must agree on of a call, as the operator's arguments on each rank tell it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from scope.record.collectives.operations import SPECS  # noqa: E402


@pytest.mark.parametrize(
    "parts", [pytest.param([(2, 2), (2, 3)], id="even on one rank alone"), pytest.param([(2, 2), (2, 2)], id="even")]
)
def test_parts_of_an_exchange_are_each_ranks_own(parts: list[tuple[int, int]]) -> None:
    """Both ranks of an exchange add the same to the hash of their group, whatever sizes they give and get."""
    measures = {spec.name: spec.measure for spec in SPECS}
    single, lists = set(), set()
    for rank, sizes in enumerate(parts):
        tensor = torch.ones(sum(sizes))
        measured = measures["alltoall_base_"]((torch.ones(sum(sizes)), tensor, None, list(sizes), list(sizes)), rank)
        single.add(measured.elements)
        pieces = list(tensor.split(list(sizes)))
        lists.add(measures["alltoall_"]((pieces, pieces, None), rank).elements)
    assert (len(single), len(lists)) == (1, 1)


def test_elements_of_a_sum_are_counted() -> None:
    """Ranks that sum tensors of 300 and 301 elements disagree."""
    measures = {spec.name: spec.measure for spec in SPECS}
    assert [measures["allreduce_"](([torch.ones(n)], None, None), 0).elements for n in (300, 301)] == [300, 301]
