"""The words by which rules of classes are skipped: they may save a search, never a class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.trace import classes

if TYPE_CHECKING:
    from scope.trace.classes import Rule

RULES = tuple(
    rule
    for value in vars(classes).values()
    if isinstance(value, tuple)
    for rule in value
    if isinstance(rule, classes.Rule) and rule.words
)
ASCII = st.characters(max_codepoint=127)


def test_most_rules_have_words() -> None:
    """The rules with words are found here, all tables of them."""
    assert len(RULES) > 40


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.label}-{rule.words[0]}")
@given(data=st.data())
def test_every_name_that_a_rule_finds_holds_one_of_its_words(rule: Rule, data: st.DataObject) -> None:
    """Whatever a pattern finds holds one of its words, so that no name is passed over."""
    name = data.draw(st.from_regex(rule.pattern, alphabet=ASCII))
    assert any(word in name.lower() for word in rule.words)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Nccl_\N{GREEK SMALL LETTER ALPHA}", "nccl"),
        ("n\N{LATIN SMALL LETTER LONG S}nccl", "nccl"),
        ("m\N{LATIN SMALL LETTER LONG S}ccl", "rccl"),
        ("my_kernel_\N{GREEK SMALL LETTER ALPHA}", None),
    ],
)
def test_names_beyond_ascii_are_searched_by_the_patterns_alone(name: str, expected: str | None) -> None:
    """A letter that is equal to a Latin one but for its case is found as before."""
    assert classes.communication_library(name) == expected
