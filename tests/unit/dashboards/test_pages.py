"""Every page of the app on a recorded run and on nothing; plotted values against the files they came from."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from scope.frames import Run
from scope.run.blackbox import BlackBoxIdentity, BlackBoxState, GroupState
from scope.testing.plotted import read_figure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamlit.testing.v1 import AppTest

MS = 1_000_000
START_NS = 1_790_000_000 * 1_000_000_000
RUN_PAGES = ("overview", "steps", "ranks", "memory", "collectives", "post_mortem", "compare", "quality")
ALL_PAGES = (*RUN_PAGES, "kernels", "timeline", "links")


def figures_of(app: AppTest) -> list[dict[str, Any]]:
    """Return the plotly figures that a page shows, as the browser gets them."""
    return [read_figure(element.proto.spec) for element in app.get("plotly_chart")]


def bars_of(figure: dict[str, Any]) -> dict[str, list[float]]:
    """Return the values of a bar chart by the name of the part."""
    return {trace["name"]: trace["y"] for trace in figure["data"]}


@pytest.mark.parametrize("page", ALL_PAGES)
def test_a_page_without_data_says_what_to_do(open_app: Callable[..., AppTest], tmp_path: Path, page: str) -> None:
    """On an empty folder no page fails; each says what is missing and names a command."""
    app = open_app(page, tmp_path)
    assert not app.exception
    assert len(app.info) == 1
    assert "scope " in "".join(each.value for each in app.markdown)


@pytest.mark.parametrize("page", RUN_PAGES)
def test_a_page_draws_a_run(open_app: Callable[..., AppTest], run_folder: Path, page: str) -> None:
    """No page fails on a recorded run."""
    app = open_app(page, run_folder)
    assert not app.exception
    assert not app.error


def test_the_overview_names_the_slow_rank(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """Rank 2 computes 30 ms longer in forward; the others wait 30 ms for it: 100 against 70 ms."""
    app = open_app("overview", run_folder)
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["Ranks recorded"] == "4 of 4"
    assert figures["Step time (median)"] == "100 ms"
    assert figures["Tokens/s"] == "20,480"
    assert figures["MFU"] == "–"
    (warning,) = app.warning
    assert "Rank 2" in warning.value
    assert "30 ms" in warning.value
    assert "forward" in warning.value


def slow_down_input(run_folder: Path) -> None:
    """Let every rank wait 25 in place of 5 of its 100 ms for data, at the cost of its backward."""
    for file in run_folder.rglob("steps.jsonl"):
        text = file.read_text().replace('"input": 5000000', '"input": 25000000')
        for length in (60, 30):
            text = text.replace(f'"backward": {length}000000', f'"backward": {length - 20}000000')
        file.write_text(text)


def test_a_run_that_waits_for_data_says_how_long(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """25 of 100 ms in `input`, on rank 2 alone while others wait: input-bound; 5 ms are not worth a word."""
    assert not any("Input-bound" in each.value for each in open_app("overview", run_folder).warning)
    slow = run_folder.parent / "slow-input"
    shutil.copytree(run_folder, slow)
    slow_down_input(slow)
    (sentence,) = [each.value for each in open_app("overview", slow).warning if "Input-bound" in each.value]
    assert "25 ms" in sentence
    assert "(25.0 % of the step), on rank 2." in sentence


@pytest.mark.parametrize(("num_lines", "is_said"), [(10, False), (11, True)])
def test_few_steps_do_not_say_that_a_run_waits_for_data(
    open_app: Callable[..., AppTest], run_folder: Path, num_lines: int, is_said: bool
) -> None:
    """Ten tell, beside the first, in which a loader starts: as many as `scope show` asks for."""
    slow_down_input(run_folder)
    for file in run_folder.rglob("steps.jsonl"):
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:num_lines]))
    assert any("Input-bound" in each.value for each in open_app("overview", run_folder).warning) == is_said


def test_plotted_phases_are_those_of_the_files(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """The bars of the steps page hold 5 ms input, 60 forward, 30 backward, 5 optimizer of each of 30 steps."""
    (figure,) = figures_of(open_app("steps", run_folder))
    bars = bars_of(figure)
    assert set(bars) == {"input", "forward", "backward", "optimizer"}
    assert all(len(values) == 30 for values in bars.values())
    # All ranks are equally long; rank 2 is the one that the others wait for.
    assert (bars["input"][0], bars["forward"][0], bars["backward"][0]) == (5.0, 60.0, 30.0)


def test_a_link_chooses_rank_and_step(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """`?ranks=2&from=3&to=5&step=4` shows rank 2's steps 3 to 5, and step 4 on every rank."""
    app = open_app("steps", run_folder, **{"ranks": "2", "from": "3", "to": "5", "step": "4"})
    over_steps, on_ranks = figures_of(app)
    assert bars_of(over_steps)["forward"] == [60.0] * 3
    assert bars_of(on_ranks)["forward"] == [30.0, 30.0, 60.0, 30.0]


def test_steps_typed_one_after_the_other_are_drawn(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """Each number that is typed into the field is looked at, also after a link has chosen one."""
    app = open_app("steps", run_folder, step="4")
    for step in (7, 8, 3):
        (field,) = [each for each in app.number_input if each.label == "Look at step"]
        field.set_value(step).run()
        assert not app.exception
        assert [each.value for each in app.subheader] == [f"Step {step} on every rank"]
        assert app.query_params["step"] in (str(step), [str(step)])


def test_the_heat_map_holds_who_is_busy_for_longer(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """100 ms less the wait of 30 ms, but for rank 2, which waits for nobody: 30 ms longer than the median."""
    heat = figures_of(open_app("ranks", run_folder))[1]["data"][0]
    rows = heat["z"]
    assert [row[0] for row in rows] == [0.0, 0.0, 30.0, 0.0]
    assert all(len(set(row)) == 1 for row in rows)
    assert (heat["zmin"], heat["zmid"], heat["zmax"]) == (-30.0, 0.0, 30.0)


def test_a_first_step_that_is_out_of_all_proportion_does_not_stretch_the_colours(
    open_app: Callable[..., AppTest], run_folder: Path
) -> None:
    """Rank 0 warms up for 60 s in step 0: the colours reach as far as they do without."""
    file = run_folder / "attempt-000" / "ranks" / "00000" / "steps.jsonl"
    first, *others = file.read_text().splitlines()
    step = json.loads(first)
    step["start_ns"] -= 60_000 * MS
    step["phases"]["forward"] += 60_000 * MS
    file.write_text("\n".join([json.dumps(step), *others, ""]))
    heat = figures_of(open_app("ranks", run_folder))[1]["data"][0]
    assert (heat["zmin"], heat["zmax"]) == (-30.0, 30.0)
    assert heat["z"][0][0] == 60_000.0


def test_hostile_addresses_and_names_do_nothing(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """Values of an address that name nothing in the list change nothing; a hostile folder name is shown as text."""
    hostile = run_folder.rename(run_folder.parent / "[x](javascript:alert(1)) <b>")
    app = open_app("overview", hostile, source="../../etc/passwd", ranks="<script>", step="9" * 50)
    assert not app.exception
    assert {metric.label: metric.value for metric in app.metric}["Last step"] == "29"


def test_missing_ranks_are_named(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """A run of which rank 3 has recorded nothing says so."""
    shutil.rmtree(run_folder / "attempt-000" / "ranks" / "00003")
    app = open_app("overview", run_folder)
    assert any("1 rank has recorded nothing: 3" in each.value for each in app.warning)


def test_a_torn_file_is_named_and_hides_no_rank(open_app: Callable[..., AppTest], run_folder: Path) -> None:
    """A rank whose rank.json is damaged is an error that names the file; the others are drawn."""
    torn = run_folder / "attempt-000" / "ranks" / "00001" / "rank.json"
    torn.write_text("{")
    app = open_app("overview", run_folder)
    assert not app.exception
    assert any("00001" in each.value for each in app.error)
    assert {metric.label: metric.value for metric in app.metric}["Ranks recorded"] == "3 of 4"


def without_end(run_folder: Path, *, since_ns: int) -> None:
    """Take the end from every rank, and move the run so that its last step ended some time ago."""
    shift = time.time_ns() - since_ns - (START_NS + 3_000 * MS)
    for name in ("rank.json", "run.json"):
        for file in run_folder.rglob(name):
            info = json.loads(file.read_text())
            info.pop("ended_ns", None)
            file.write_text(json.dumps(info | {"started_ns": info["started_ns"] + shift}))
    for file in run_folder.rglob("steps.jsonl"):
        steps = [json.loads(line) for line in file.read_text().splitlines()]
        moved = [each | {name: each[name] + shift for name in ("start_ns", "end_ns")} for each in steps]
        file.write_text("".join(json.dumps(each) + "\n" for each in moved))


@pytest.mark.parametrize("page", ["overview", "post_mortem"])
def test_a_run_that_fell_silent_is_told_calmly(open_app: Callable[..., AppTest], run_folder: Path, page: str) -> None:
    """Ranks without an end whose last sign of life is of September have ended without a goodbye: no error."""
    for file in run_folder.rglob("rank.json"):
        info = json.loads(file.read_text())
        del info["ended_ns"]
        file.write_text(json.dumps(info))
    app = open_app(page, run_folder)
    assert not app.exception
    assert not app.error
    # 1,790,000,000 s is 2026-09-21 14:13:20 UTC; thirty steps of 100 ms end 3 s later.
    told = "ended without a goodbye at 2026-09-21 14:13:23 UTC"
    assert any(told in each.value.replace("\\", "") for each in app.caption)


@pytest.mark.parametrize(("since_s", "stands_still"), [(30, True), (2, False)])
@pytest.mark.parametrize("page", ["overview", "post_mortem"])
def test_only_a_run_that_stands_still_accuses(
    open_app: Callable[..., AppTest],
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    page: str,
    *,
    since_s: int,
    stands_still: bool,
) -> None:
    """Rank 3 has issued four calls and the others five: an error after 30 s without a step, nothing after 2 s."""
    began = time.monotonic()
    without_end(run_folder, since_ns=since_s * 10**9)
    monkeypatch.setattr(
        Run, "black_boxes", lambda _: {rank: black_box(rank, 4 if rank == 3 else 5) for rank in range(4)}
    )
    app = open_app(page, run_folder)
    most_s = since_s + time.monotonic() - began
    assert not app.exception
    told = [each.value.replace("\\", "") for each in app.error]
    assert bool(told) == stands_still
    assert all("rank 3 has not arrived at all_reduce 5 of group default_pg" in each for each in told)
    if page == "overview":
        goodput = {each.label: each.value for each in app.metric}["Goodput"]
        # 3 s in steps of 3 s and what has passed since, the time that the page took to open among it.
        assert 100 * 3 / (3 + most_s) - 1 < float(goodput.removesuffix(" %")) < 100 * 3 / (3 + since_s) + 1


@pytest.mark.parametrize("has_boxes", [True, False])
def test_a_run_whose_ranks_cannot_be_read_says_why(
    open_app: Callable[..., AppTest], run_folder: Path, monkeypatch: pytest.MonkeyPatch, *, has_boxes: bool
) -> None:
    """Each rank.json is torn: Post-mortem names them, and shows what the black boxes know, where there are any."""
    files = list(run_folder.rglob("rank.json"))
    for file in files:
        file.write_text("{torn")
    monkeypatch.setattr(Run, "black_boxes", lambda _: {0: black_box(0, 5)} if has_boxes else {})
    app = open_app("post_mortem", run_folder)
    assert not app.exception
    told = [each.value.replace("\\", "") for each in app.error]
    assert len(told) == len(files)
    assert all("rank.json: is torn or foreign" in each for each in told)
    why = [each.value.replace("\\", "") for each in app.info]
    expected = "No rank has a rank.json that can be read" if has_boxes else "No rank has a black box"
    assert [each for each in why if each.startswith(expected)]


def black_box(rank: int, enqueued: int) -> BlackBoxState:
    """Return a black box whose rank has issued so many calls of its one group, and gave a sign of life just now."""
    group = GroupState(
        group=0,
        enqueued=enqueued,
        completed=4,
        enqueued_ns=None,
        completed_ns=None,
        hash_low=enqueued,
        operation="all_reduce",
        dtype="float32",
    )
    now_ns = time.time_ns()
    return BlackBoxState(
        identity=BlackBoxIdentity(
            rank=rank, attempt=0, world_size=4, pid=1, process_start_ticks=None, wall_offset_ns=0
        ),
        step=30,
        num_steps=30,
        step_start_ns=now_ns,
        phase="backward",
        phase_start_ns=now_ns,
        beat_ns=now_ns,
        pulse_ns=now_ns,
        last_step_duration_ns=100 * MS,
        num_dropped=0,
        closed=False,
        exception=False,
        groups=(group,),
    )


def test_the_check_says_its_result_and_nothing_of_the_browser(run_folder: Path) -> None:
    """As a process of its own, it draws all pages and prints one line; streamlit misses no browser aloud."""
    command = [sys.executable, "-m", "dashboards.check", str(run_folder), "--steps", "30", "--ranks", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "The dashboard shows 4 ranks and 30 steps on all its pages.\n"
    assert "ScriptRunContext" not in done.stderr
