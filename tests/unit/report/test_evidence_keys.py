"""Every figure that findings rest on, and every option of a report, is documented, in code and on the page."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from scope.analysis.options import Options
from scope.report.document import document_schema, to_document
from scope.report.findings import Evidence, Finding, Where
from scope.report.findings.evidence_keys import EVIDENCE_KEYS
from scope.report.schema_page import render_schema_page
from scope.report.sections.base import column
from scope.report.sections.findings import findings_table
from scope.report.table import Absent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scope.report.results import Results

RULES = Path(__file__).parents[3] / "scope" / "report" / "findings"
REASONS = ("compute", "input", "memory", "host")
"""What a straggler may be late by: a part of one key."""


def keys_in(source: str) -> Iterator[str]:
    """Yield the keys of the figures that a rule gives, as they stand in its source."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "Evidence.of":
            continue
        match node.args[0]:
            case ast.Constant(value=str(key)):
                yield key
            case ast.JoinedStr(values=[ast.FormattedValue(), ast.Constant(value=str(end))]):
                yield from (f"{reason}{end}" for reason in REASONS)
            case ast.Name():
                # The table of counts beside it: key, heading and count.
                tuples = (each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Tuple))
                heads = (each.elts[0] for each in tuples if len(each.elts) == 3)
                yield from (str(head.value) for head in heads if isinstance(head, ast.Constant))
            case other:
                pytest.fail(f"a key that this test cannot read: {ast.unparse(other)}")


def finding(*evidence: Evidence) -> Finding:
    """Return a finding that rests on some figures and singles out nothing."""
    where = Where()
    return Finding(kind="recompute", title="t", where=where, evidence=evidence, cost_ns=1, share_ratio=0.5, action="a")


def test_the_keys_of_all_rules_are_documented_and_no_others() -> None:
    """The keys that stand in the source of the rules are those that the list of meanings holds."""
    sources = [path.read_text() for path in RULES.glob("*.py")]
    assert {key for source in sources for key in keys_in(source)} == set(EVIDENCE_KEYS)
    made_by_hand = sum(source.count("Evidence(") - source.count("class Evidence(") for source in sources)
    assert made_by_hand == 1, "only Evidence.of makes evidence, which looks the key up"


def test_a_key_that_is_not_documented_is_refused() -> None:
    """No rule can give a figure under a key without a meaning."""
    with pytest.raises(KeyError, match="new_figure_ns"):
        Evidence.of("new_figure_ns", "new figure", 1)


def test_the_schema_refuses_what_is_not_documented(builder: Any, results_of: Callable[..., Results]) -> None:
    """A document whose finding has another key than the documented ones, or an option more, is not valid."""
    builder.step(1, 0, 100)
    builder.launch("gemm", 10, 20, 30)
    schema = jsonschema.Draft202012Validator(document_schema())
    good = to_document(results_of(builder), [finding(Evidence.of("num_ops", "operators", 3))])
    schema.validate(good)
    odd = to_document(results_of(builder), [finding(Evidence(column("odd_ns", "odd", "Odd."), 3))])
    assert not schema.is_valid(odd)
    assert not schema.is_valid({**good, "options": {**good["options"], "odd": True}})


def test_the_page_says_what_each_key_and_option_means() -> None:
    """Each has a row of its own with words in it."""
    rows = [line.split(" | ") for line in render_schema_page().splitlines() if line.startswith("| `")]
    meanings = {row[0].strip("| `"): row[-1].strip(" |") for row in rows}
    assert all(len(meanings[key]) > 10 for key in (*EVIDENCE_KEYS, *Options.__struct_fields__))


def test_findings_that_single_out_nothing_do_not_claim_to_be_everywhere() -> None:
    """An empty `where` is absent in the table, with one reason, and an empty list in JSON."""
    alone = finding(Evidence.of("num_ops", "operators", 3))
    row, second = findings_table([alone, alone]).rows
    assert (row[0], second[0]) == (1, 2), "other findings name them by these numbers"
    assert Absent("it singles out none") in row
    assert set(map(tuple, alone.to_record()["where"].values())) == {()}
