"""`scope analyze`: figures over ranks are told from those of single ranks, and a written file is said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from scope.report.build import compute_results
from scope.trace import ReadOptions, load
from scope.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Done

SAMPLES = Path(__file__).parents[3] / "sample_traces"
TWO_RANKS = SAMPLES / "gloo-2-ranks-healthy"


def test_the_summary_titles_each_table_once_and_says_what_is_summed(scope: Callable[..., Done]) -> None:
    """The time of the job stands under its own heading, that of ranks under another; both say over what they sum."""
    lines = scope("analyze", TWO_RANKS).out.splitlines()
    (heading,) = [line for line in lines if line.startswith("Where the time went")]
    assert heading.endswith("summed over 2 ranks)")
    assert lines.count("By rank") == 1
    assert "Kernels, summed over 2 ranks" in lines
    assert "By step: parts summed over ranks, lengths of single ranks" in lines


def test_rows_that_are_left_out_are_where_the_summary_says(scope: Callable[..., Done]) -> None:
    """The summary has no --limit: it names the command, which prints as many rows as the summary says there are."""
    shown = scope("analyze", TWO_RANKS).out
    ((num_rows, command),) = re.findall(r"5 of (\d+) rows; scope (.*) shows all\.", shown)
    arguments = [TWO_RANKS if each == "PATH" else each for each in command.split()]
    assert len(scope(*arguments, "--csv").out.splitlines()) == 1 + int(num_rows)


def test_the_summary_says_which_length_of_a_step_it_tells(scope: Callable[..., Done]) -> None:
    """Two steps that differ have a median, and shares of a window are told from the findings' of step time."""
    shown = scope("analyze", TWO_RANKS).out
    assert "steps 40 to 41: median " in shown
    assert "Where the time went on the host (shares of the whole window of " in shown
    assert "% of step time" in shown


def test_one_rank_is_summed_over_nothing(scope: Callable[..., Done], trace: Callable[..., Path]) -> None:
    """With a single device no figure speaks of a sum."""
    assert "summed" not in scope("analyze", trace()).out


def test_a_page_that_was_written_is_said(scope: Callable[..., Done], tmp_path: Path) -> None:
    """One line on stderr names the file; the page says what its figures are sums over, and titles its table by rank."""
    page = tmp_path / "report.html"
    done = scope("analyze", TWO_RANKS, "--html", page)
    assert (done.code, done.err) == (0, f"wrote {page}\n")
    text = page.read_text()
    assert re.search(r"Whole window on the host of [^<]+, summed over 2 ranks\.", text)
    assert "Where each step went, summed over 2 ranks" in text
    assert text.count("<summary>Where the time went, by rank</summary>") == 1
    again = scope("analyze", TWO_RANKS, "--html", page)
    assert again.code == 2
    assert "wrote" not in again.err


def test_what_analyze_returns_prints_as_one_line() -> None:
    """`repr` names ranks, steps and analyses; no figure of a table is computed or printed for it."""
    job = load(TWO_RANKS, options=ReadOptions(use_cache=False))
    results = compute_results(job)
    shown = repr(results)
    assert shown.startswith("Results(Analysis(rank 0, rank 1 of 2, 2 steps, ")
    assert shown.endswith("of window), collectives, stragglers, collective_roofline, 0 rooflines)")
    assert repr(results.analysis.ranks[1]).startswith("RankAnalysis('rank 1', 1 device, 2 steps, path=")
    assert repr(job) == "Job(rank 0, rank 1 of 2)"
    assert repr(job.ranks[0]).startswith("RankTrace('rank 0', ")
    assert "\n" not in repr(job.ranks[0]) + shown


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_read(
    scope: Callable[..., Done], trace: Callable[..., Path]
) -> None:
    """Of a folder one damaged file costs itself alone: the summary and the JSON say which it is."""
    folder = trace("job/rank0.json").parent
    (folder / "rank1.json.gz").write_bytes(b"\x1f\x8b\x08 is no gzip")
    done = scope("analyze", folder, "--no-cache")
    assert done.code == 0, done.err
    assert "skipped" in done.out
    assert "rank1.json.gz" in done.out.replace("\n", "")
    document = json.loads(scope("analyze", folder, "--no-cache", "--json").out)
    assert [rank["rank"] for rank in document["ranks"]] == [0]
    assert any("rank1.json.gz" in warning for warning in document["warnings"])


def test_what_proves_the_reason_of_a_straggler_stands_beside_it(scope: Callable[..., Done]) -> None:
    """In 100 columns there is room for every excess, that of the reason among them."""
    done = scope("stragglers", SAMPLES / "gloo-2-ranks-straggler")
    (record,) = json.loads(scope("stragglers", SAMPLES / "gloo-2-ranks-straggler", "--json").out)
    heading, row = done.out.splitlines()[1:3]
    assert "excess host" in heading
    assert record["reason"] == "host"
    assert format_duration(record["host_excess_ns"]) in row


def test_a_gpu_that_the_trace_contradicts_is_said(
    scope: Callable[..., Done], trace: Callable[..., Path], tmp_path: Path
) -> None:
    """The summary names the GPU; one that the user chose against the trace's own word is said to be against it."""
    document = json.loads(trace().read_text())
    document["deviceProperties"] = [{"id": 0, "name": "AMD Instinct MI300X VF", "totalGlobalMem": 205_590_757_376}]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(document))
    assert "Instinct MI300X" in scope("analyze", path).out
    for command in ("analyze", "roofline"):
        chosen, agreeing = (" ".join(scope(command, path, "--gpu", gpu).out.split()) for gpu in ("h100-sxm", "mi300x"))
        assert "as the user chose, though the trace names 'AMD Instinct MI300X VF'" in chosen
        assert "as the user chose" in agreeing
        assert "though" not in agreeing


def test_modules_are_read_where_they_are_asked_for(scope: Callable[..., Done], shared_traces: Path) -> None:
    """`--by module` needs no further option; JSON of everything names the option that it was not given."""
    path = shared_traces / "tracelens" / "mi300_bert_small.json.gz"
    rows = json.loads(scope("kernels", path, "--by", "module", "--json").out)
    assert rows == json.loads(scope("kernels", path, "--by", "module", "--modules", "--json").out)
    assert any(row["key"] == "nn.Module: BertSdpaSelfAttention_0" for row in rows)


def test_the_peak_of_memory_is_placed_in_the_window(scope: Callable[..., Done], trace: Callable[..., Path]) -> None:
    """The largest use is that at 700 us; the first kernel begins at 100 us, so it is 600 us after that."""
    record = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
    sizes = {"Device Type": 1, "Device Id": 0, "Bytes": 10, "Total Reserved": 100, "Addr": 7}
    extra = [{**record, "ts": at, "args": {**sizes, "Total Allocated": total}} for at, total in ((300, 10), (700, 20))]
    path = trace(extra=extra)
    (row,) = json.loads(scope("memory", path, "--json").out)
    assert row["peak_offset_ns"] == 600_000
    done = scope("memory", path)
    assert "peak after" in done.out
    assert "600 us" in done.out


def test_how_many_rows_are_printed_is_as_the_help_says(scope: Callable[..., Done], tmp_path: Path) -> None:
    """Text has 20 rows of a table, on a terminal or not; JSON and CSV have all."""
    said = " ".join(scope("kernels", "--help").out.split())
    assert "By default text has 20 of each table, JSON and CSV have all." in said
    text, as_csv, as_json = (scope("kernels", TWO_RANKS, *form).out for form in ((), ("--csv",), ("--json",)))
    num_rows = len(json.loads(as_json))
    assert num_rows > 20
    assert f"20 of {num_rows} rows" in text
    assert len(as_csv.splitlines()) == 1 + num_rows
