"""What the server may show, and how links name it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from dashboards.sources.catalogue import MAX_SOURCES, SourceList, by_id, find_sources
from dashboards.sources.choice import choose_source
from scope.errors import InputError, LimitError

if TYPE_CHECKING:
    from pathlib import Path


def make_run(folder: Path) -> Path:
    """Make a folder that looks like a run."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    return folder


def test_runs_traces_and_servers_are_told_apart(tmp_path: Path) -> None:
    """A folder with run.json is a run, any other folder with traces is traces, an address is a server."""
    make_run(tmp_path / "runs" / "first")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "rank0.json.gz").write_bytes(b"")
    sources = find_sources([str(tmp_path), "http://localhost:9090/"])
    assert {(source.kind, source.label) for source in sources} == {
        ("run", "first"),
        ("trace", "traces"),
        ("prometheus", "localhost:9090"),
    }


def test_a_run_is_not_searched_for_traces(tmp_path: Path) -> None:
    """The captured traces inside a run belong to it."""
    captured = make_run(tmp_path / "run") / "attempt-000" / "ranks"
    captured.mkdir(parents=True)
    (captured / "window.json").write_text("{}")
    assert [source.kind for source in find_sources([str(tmp_path)])] == ["run"]


def test_ids_are_stable_and_tell_no_path(tmp_path: Path) -> None:
    """A link carries a digest: the same for the same place, and nothing of its path."""
    place = str(make_run(tmp_path / "secret-project"))
    (first,), (second,) = find_sources([place]), find_sources([place])
    assert first.source_id == second.source_id
    assert first.source_id.isalnum()
    assert by_id([first], first.source_id) == first
    assert by_id([first], place) is None
    assert by_id([first], None) is None


def write_run(folder: Path, *, started_ns: int, ended_ns: int | None, synthetic: bool = False) -> None:
    """Write a run of one rank, which ran in this process."""
    place = folder / "attempt-000" / "ranks" / "00000"
    place.mkdir(parents=True)
    run = {"schema": "1.0", "run_id": folder.name, "started_ns": started_ns, "synthetic": synthetic}
    (folder / "run.json").write_text(json.dumps(run))
    rank = {"schema": "1.0", "run_id": folder.name, "attempt": 0, "rank": 0, "started_ns": started_ns}
    rank |= {"host": socket.gethostname(), "pid": os.getpid(), "world_size": 1, "ended_ns": ended_ns}
    (place / "rank.json").write_text(json.dumps(rank))


@pytest.mark.parametrize(("lives", "expected"), [(True, "b-lives"), (False, "c-latest")])
def test_a_run_that_lives_is_shown_first_else_the_latest(tmp_path: Path, *, lives: bool, expected: str) -> None:
    """Neither the first name nor a made-up run of today is chosen before a recorded one."""
    now_ns = time.time_ns()
    write_run(tmp_path / "a-crashed", started_ns=now_ns - 9_000, ended_ns=now_ns - 8_000)
    write_run(tmp_path / "b-lives", started_ns=now_ns - 7_000, ended_ns=None if lives else now_ns - 6_000)
    write_run(tmp_path / "c-latest", started_ns=now_ns - 5_000, ended_ns=now_ns - 4_000)
    write_run(tmp_path / "d-synthetic", started_ns=now_ns - 3_000, ended_ns=now_ns - 2_000, synthetic=True)
    make_run(tmp_path / "e-torn")
    found = find_sources(["http://localhost:9090", str(tmp_path)])
    assert choose_source(found).label == expected


def test_a_run_without_ranks_hides_no_other(tmp_path: Path) -> None:
    """A mistyped command left the latest run folder: the recorded run before it is shown, even a made-up one."""
    write_run(tmp_path / "a-made-up", started_ns=1, ended_ns=2, synthetic=True)
    empty = {"schema": "1.0", "run_id": "z", "started_ns": time.time_ns(), "unrecorded": "the command ended"}
    (tmp_path / "z-empty").mkdir()
    (tmp_path / "z-empty" / "run.json").write_text(json.dumps(empty))
    assert choose_source(find_sources([str(tmp_path)])).label == "a-made-up"
    write_run(tmp_path / "b-recorded", started_ns=1, ended_ns=2)
    assert choose_source(find_sources([str(tmp_path)])).label == "b-recorded"
    assert choose_source(find_sources([str(tmp_path / "z-empty")])).label == "z-empty"


def test_the_youngest_trace_is_shown_first(tmp_path: Path) -> None:
    """Of two traces the one that was written last, whatever its name; a server comes last."""
    for age, name in enumerate(("young", "old")):
        (tmp_path / f"{name}.json").write_text("{}")
        os.utime(tmp_path / f"{name}.json", (1_790_000_000 - age, 1_790_000_000 - age))
    places = ["http://localhost:9090", *(str(tmp_path / f"{name}.json") for name in ("old", "young"))]
    assert choose_source(find_sources(places)).label == "young.json"


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    """A symbolic link in a given folder leads nowhere."""
    make_run(tmp_path / "outside")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path / "outside")
    assert find_sources([str(inside)]) == ()


def test_a_password_in_an_address_is_not_shown() -> None:
    """The label of a server is its host and port."""
    (source,) = find_sources(["https://user:secret@metrics.example:9090"])
    assert source.label == "metrics.example:9090"


@pytest.mark.parametrize("place", ["/nowhere/at/all", "http://"])
def test_a_place_that_does_not_exist_is_a_clear_error(place: str) -> None:
    """The message names the place."""
    with pytest.raises(InputError, match=place):
        find_sources([place])


def test_a_folder_of_too_many_runs_is_refused(tmp_path: Path) -> None:
    """The list is capped, and the message says what to do."""
    for number in range(MAX_SOURCES + 1):
        make_run(tmp_path / f"{number:05d}")
    with pytest.raises(LimitError, match="name the ones to show"):
        find_sources([str(tmp_path)])


def test_a_list_is_renewed_behind_the_visitors_back(tmp_path: Path) -> None:
    """Until the rest is over the list stands; then a thread looks again, and what vanished is an error."""
    now = [0.0]
    (tmp_path / "a.json").write_text("{}")
    places = SourceList([str(tmp_path)], rest_s=5.0, clock=lambda: now[0])
    assert len(places.now()) == 1
    shutil.rmtree(tmp_path)
    now[0] = 4.9
    assert len(places.now()) == 1
    now[0] = 5.0
    with suppress(InputError):
        places.now()
    for thread in threading.enumerate():
        if thread.name == "scope-sources":
            thread.join()
    with pytest.raises(InputError, match="does not exist"):
        places.now()


def test_a_place_that_was_deleted_hides_no_other(tmp_path: Path) -> None:
    """Of two runs that were named, the one that is still there stays in the list."""
    now = [0.0]
    gone, kept = make_run(tmp_path / "gone"), make_run(tmp_path / "kept")
    places = SourceList([str(gone), str(kept)], rest_s=5.0, clock=lambda: now[0])
    assert [each.label for each in places.now()] == ["gone", "kept"]
    shutil.rmtree(gone)
    now[0] = 5.0
    places.now()
    for thread in threading.enumerate():
        if thread.name == "scope-sources":
            thread.join()
    assert [each.label for each in places.now()] == ["kept"]


def test_one_odd_folder_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is no UTF-8 is listed, and a folder that may not be listed is passed over."""
    make_run(tmp_path / "good")
    make_run(tmp_path / os.fsdecode(b"\xff\xfe"))
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def refuse(path: Path) -> object:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert len(find_sources([str(tmp_path)])) == 2


@pytest.mark.parametrize("address", ["http://a:99999", "http://[::1", "http://"])
def test_an_address_without_host_or_port_is_a_clear_error(address: str) -> None:
    """It says how an address looks."""
    with pytest.raises(InputError, match="looks like"):
        find_sources([address])
