"""The JSON document obeys its schema for every real trace, and holds the figures of the analyses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from scope.report.build import compute_results
from scope.report.document import SCHEMA_NAME, document_schema, to_document
from scope.report.encoding import encode_json
from scope.report.findings import find_all
from scope.testing.jobs import straggling_job
from scope.testing.layout import Layout
from scope.testing.scenarios import Scenario
from scope.trace import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.report.results import Results

TRACES = (
    "hta/a100_alexnet.json.gz",
    "hta/a100_nccl_metadata_rank0of2.json.gz",
    "hta/cpu_only_rank34of300.json.gz",
    "hta/mi250_minitoy.json.gz",
    "hta/triton_example.json.gz",
    "tracelens/mi300_hipgraph_decode.json.gz",
    "tracelens/mi210_gpu_only.json.gz",
    "tracelens/h100_bert_small.json.gz",
    "param/dlrm_v100_8ranks",
)
RANK_KEYS = ("window_ns", "rank", "compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns",
             "communication_ns", "overlap_ns", "quality", "devices")  # fmt: skip


def document(results: Results) -> dict[str, Any]:
    """Return a report as a program reads it."""
    return json.loads(encode_json(to_document(results, find_all(results))))


def test_the_schema_itself_is_one() -> None:
    """The schema is valid JSON schema and names its version."""
    jsonschema.Draft202012Validator.check_schema(document_schema())
    assert document_schema()["title"] == SCHEMA_NAME == "scope.report/1"


@pytest.mark.parametrize("name", TRACES)
def test_reports_of_real_traces_obey_the_schema(shared_traces: Path, name: str) -> None:
    """Every key is there, typed, and every null has its reason and every reason its null."""
    results = compute_results(load([str(shared_traces / name)]))
    made = document(results)
    jsonschema.Draft202012Validator(document_schema()).validate(made)
    assert_absent_has_reasons(made, path="$")
    for rank in made["ranks"]:
        assert set(RANK_KEYS) <= rank.keys()
        if rank["window_ns"] is not None:
            parts = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
            assert sum(rank[part] for part in parts) == rank["window_ns"]
            assert sum(device["window_ns"] for device in rank["devices"]) == rank["window_ns"]


def test_a_job_of_several_ranks_has_collectives_and_stragglers(tmp_path: Path) -> None:
    """Sections that need several ranks are there, and hold what was planted."""
    job = straggling_job(Layout(dp=4), rank=2, kind="host")
    files = Scenario(layout=job.layout, simulation=job.run()).write(tmp_path)
    made = document(compute_results(load([str(file) for file in files])))
    jsonschema.Draft202012Validator(document_schema()).validate(made)
    assert made["stragglers"]["ranks"][0]["rank"] == 2
    assert made["stragglers"]["ranks"][0]["imposed_wait_ns"] == job.saving_ns(2)
    assert made["collectives"]["num_matched"] == made["collectives"]["num_calls"] > 0
    assert [rank["rank"] for rank in made["ranks"]] == [0, 1, 2, 3]


def test_one_rank_says_why_there_are_no_stragglers(builder: Any, results_of: Callable[..., Results]) -> None:
    """A section that cannot be is null, with the reason at the top."""
    builder.launch("gemm_kernel", 0, 100, 10)
    made = document(results_of(builder))
    assert made["stragglers"] is None
    assert "collective" in made["absent"]["stragglers"]


def test_options_state_which_variant_of_a_figure_it_is(builder: Any, results_of: Callable[..., Results]) -> None:
    """The document says that copies count as nothing but copies, unless asked otherwise."""
    builder.launch("gemm_kernel", 0, 100, 10)
    assert document(results_of(builder))["options"]["memory_as_compute"] is False


def assert_absent_has_reasons(value: Any, *, path: str) -> None:
    """Assert that nulls and reasons of every record are the same keys."""
    if isinstance(value, dict):
        if "absent" in value:
            nulls = {key for key, each in value.items() if each is None}
            assert nulls == set(value["absent"]), f"{path}: {nulls ^ set(value['absent'])}"
        for key, each in value.items():
            if key != "absent":
                assert_absent_has_reasons(each, path=f"{path}.{key}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            assert_absent_has_reasons(each, path=f"{path}[{index}]")


def test_a_world_of_a_million_ranks_is_a_short_document(tmp_path: Path) -> None:
    """Whatever a trace claims: missing ranks are ranges, and the document stays small."""
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 5, "args": {"device": 0}}
    trace = {"distributedInfo": {"rank": 3, "world_size": 2**20}, "traceEvents": [event]}
    (tmp_path / "t.json").write_text(json.dumps(trace))
    results = compute_results(load([str(tmp_path / "t.json")]))
    made = document(results)
    jsonschema.Draft202012Validator(document_schema()).validate(made)
    assert made["missing_ranks"] == made["ranks"][0]["quality"]["missing_ranks"] == "0-2, 4-1048575"
    assert len(encode_json(to_document(results, find_all(results)))) < 100_000
