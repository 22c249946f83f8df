"""What a newcomer asks at the first look: why goodput is low, what a column tells, what a comparison compares."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from dashboards.sources.catalogue import find_sources
from dashboards.sources.choice import choose_like
from dashboards.tables import same_columns
from scope.report.table import Absent, ReportColumn, ReportTable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamlit.testing.v1 import AppTest

S = 1_000_000_000


def tell(folder: Path, file: str, **changes: Any) -> None:
    """Change fields of a JSON file of a run."""
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_goodput_says_what_start_up_took(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """30 steps of 100 ms after a start-up of 9 s: goodput 25 %, and start-up is the other 75 %."""
    started_ns = json.loads((run_folder / "run.json").read_text())["started_ns"]
    tell(run_folder, "run.json", started_ns=started_ns - 9 * S)
    app = open_app("overview", run_folder)
    assert not app.exception
    (goodput,) = (each.value for each in app.metric if each.label == "Goodput")
    assert goodput == "25.0 %"
    (sentence,) = (each.value for each in app.caption if "Goodput:" in each.value)
    assert "start-up took 9 s (75.0 %)" in sentence


def test_goodput_of_steps_without_a_record_is_a_lower_bound(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """Rank 0 counted 33 steps at its end and 30 have a record: figure and sentence say that it is at least that."""
    started_ns = json.loads((run_folder / "run.json").read_text())["started_ns"]
    end = {"time_ns": started_ns + 3 * S, "kind": "attempt_end", "message": "recording ended: finished"}
    with (run_folder / "attempt-000" / "ranks" / "00000" / "events.jsonl").open("a") as file:
        file.write(json.dumps(end | {"detail": {"num_steps": 33}}) + "\n")
    app = open_app("overview", run_folder)
    assert not app.exception
    assert [each.label for each in app.metric if each.label.startswith("Goodput")] == ["Goodput, at least"]
    (sentence,) = (each.value for each in app.caption if "Goodput:" in each.value)
    assert "at least, since 3 steps that ranks counted have no record" in sentence


def test_a_run_on_a_cpu_has_memory_of_the_machine(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """The limit of a resident set is no memory of a device."""
    device = {"kind": "cpu", "memory_bytes": 8_000_000_000}
    for file in run_folder.glob("attempt-000/ranks/*/rank.json"):
        tell(file.parent, file.name, device=device)
    app = open_app("memory", run_folder)
    assert not app.exception
    (figure,) = (json.loads(each.proto.spec) for each in app.get("plotly_chart"))
    assert [trace["name"] for trace in figure["data"]] == ["resident set of the process", "memory of the machine"]


def test_the_memory_of_a_machine_is_shared_by_its_ranks(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """Ranks 0, 1 and 3 hold 529 MB at most, rank 2 holds 629 MB: of 8 GB 5.784 GB are left, whichever rank is shown."""
    for file in run_folder.glob("attempt-000/ranks/*/rank.json"):
        tell(file.parent, file.name, device={"kind": "cpu", "memory_bytes": 8_000_000_000})
    steps = run_folder / "attempt-000" / "ranks" / "00002" / "steps.jsonl"
    steps.write_text(steps.read_text().replace('"resident_bytes": 529000000', '"resident_bytes": 629000000'))
    for rank in (0, 2):
        app = open_app("memory", run_folder, ranks=str(rank))
        shown = {each.label: each.value for each in app.metric}
        assert shown["Largest resident set of the process, rank 2"] == "629 MB"
        assert shown["Memory of the machine less its ranks' largest"] == "5.784 GB"
        (figure,) = (json.loads(each.proto.spec) for each in app.get("plotly_chart"))
        assert figure["layout"]["title"]["text"] == f"Memory over time, rank {rank}"


def test_the_memory_of_a_device_is_its_rank_s_alone(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """Rank 0 on a device of 8 GB has 8 GB less 529 MB; with no memory known there is no headroom."""
    place = run_folder / "attempt-000" / "ranks"
    tell(place / "00000", "rank.json", device={"kind": "cuda", "memory_bytes": 8_000_000_000})
    shown = {each.label: each.value for each in open_app("memory", run_folder, ranks="0").metric}
    assert shown["Headroom, rank 0"] == "7.471 GB"
    shown = {each.label: each.value for each in open_app("memory", run_folder, ranks="1").metric}
    assert shown["Headroom, rank 1"] == "–"


def test_compare_begins_with_the_two_halves_of_the_run(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """Beside another run, the 30 steps are cut at 15 until somebody asks for two runs."""
    shutil.copytree(run_folder, run_folder.parent / "another")
    app = open_app("compare", run_folder.parent)
    assert not app.exception
    assert app.radio[0].value == "Two ranges of steps"
    assert app.slider[0].value == 15


def test_a_run_is_compared_with_the_latest_of_as_many_ranks(run_folder: Path) -> None:
    """Neither a later run of other size nor a later one that is made up."""
    begun = json.loads((run_folder / "run.json").read_text())["started_ns"]
    for number, (name, changes) in enumerate(
        {"alike": {}, "alike-later": {}, "larger": {"world_size": 8}, "made-up": {"synthetic": True}}.items()
    ):
        shutil.copytree(run_folder, run_folder.parent / name)
        tell(run_folder.parent / name, "run.json", started_ns=begun + number, **changes)
    runs = {source.label: source for source in find_sources([str(run_folder.parent)])}
    others = [source for label, source in runs.items() if label != run_folder.name]
    assert choose_like(runs[run_folder.name], others).label == "alike-later"


def table_of(num_columns: int) -> ReportTable:
    """Return two rows whose columns are alike but the first and the last; the third is not known."""
    columns = tuple(
        ReportColumn(key=f"c{place}", heading=f"c{place}", unit="count", meaning="m") for place in range(num_columns)
    )
    rows = tuple((row, 0, Absent("never told"), *(7 for _ in range(num_columns - 4)), row) for row in range(2))
    return ReportTable(name="t", title="t", columns=columns, rows=rows, num_rows=2)


def test_a_wide_table_says_in_a_sentence_what_is_the_same() -> None:
    """Of eight columns those with one value go; the first, the unknown one and those that differ stay."""
    assert [column.key for column in same_columns(table_of(8))] == ["c1", "c3", "c4", "c5", "c6"]
    assert same_columns(table_of(6)) == []
