"""Variables of ranks compared byte for byte."""

from __future__ import annotations

from scope.run.environment import compare_variables


def test_equal_variables_are_silent() -> None:
    """Nothing differs, and what is rightly each rank's own does not count."""
    assert compare_variables({0: {"NCCL_ALGO": "Ring"}, 1: {"NCCL_ALGO": "Ring", "NCCL_DEBUG_FILE": "x"}}) == []


def test_differences_down_to_a_byte() -> None:
    """A trailing space, an empty value and a missing one are three different things."""
    found = compare_variables({0: {"NCCL_ALGO": "Ring"}, 1: {"NCCL_ALGO": "Ring "}, 2: {"NCCL_ALGO": ""}, 3: {}})
    assert found == ["NCCL_ALGO is 'Ring' on ranks 0 and 'Ring ' on ranks 1 and '' on ranks 2 and not set on ranks 3"]


def test_many_ranks_are_counted() -> None:
    """A thousand ranks make one readable sentence."""
    (found,) = compare_variables({rank: {"NCCL_P": str(rank % 2)} for rank in range(1_000)})
    assert found.count("492 more") == 2
