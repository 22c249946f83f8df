"""Files of one job: which are read, whose they are, and what comes from the cache."""

from __future__ import annotations

import gzip
import json
import os
import random
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from homeless import forget_home
from polars.testing import assert_frame_equal

import scope.trace
from scope.errors import ConfigError, LimitError, TraceError, UsageError
from scope.trace import Limits, RankTrace, ReadOptions, load, load_rank, read_patterns
from scope.trace.cache import SMALLEST_BYTES, Cache
from scope.trace.ranks import rank_of_name
from scope.trace.schema import TABLES, DeviceEvents

if TYPE_CHECKING:
    from pathlib import Path

NO_CACHE = ReadOptions(use_cache=False)


def write(path: Path, *, rank: int | None = None, num_kernels: int = 3, world_size: int = 4, seed: int = 0) -> Path:
    """Write a small trace; `seed` varies its names so that it doesn't compress away."""
    text = random.Random(seed)
    records = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": f"kernel_{text.random()}",
            "pid": 0,
            "tid": 7,
            "ts": index * 10 + 1,
            "dur": 5,
            "args": {"device": 0, "stream": 7, "correlation": index},
        }
        for index in range(num_kernels)
    ]
    document: dict[str, Any] = {"traceEvents": records}
    if rank is not None:
        document["distributedInfo"] = {"rank": rank, "world_size": world_size}
    content = json.dumps(document).encode()
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the cache of each test to itself."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SCOPE_CACHE_DIR", str(folder))
    return folder


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("sampled_rank-1.json.gz", 1),
        ("a100_train_rank3of8.json.gz", 3),
        ("worker0_step_12.1694128201545.pt.trace.json.gz", 0),
        ("worker12_step_3.pt.trace.json", 12),
        ("rank_0.json", 0),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("trace_RANK7.json", 7),
        ("global_rank_5_local_rank_1.json", 5),
        ("local_rank_1.json", None),
        ("rank1_vs_rank2.json", None),
        ("frank3.json", None),
        ("trace-0.json", None),
        ("host_1234.1694128201545.pt.trace.json", None),
        ("rank/trace.json", None),
        ("rank_3/trace.json", None),
    ],
)
def test_rank_of_a_file_name(name: str, rank: int | None) -> None:
    """A name says a rank only where it says so in words, and only one."""
    assert rank_of_name(name) == rank


def test_the_trace_outranks_its_name(tmp_path: Path) -> None:
    """What the trace says of its rank wins over the file's name, and the user's word over both."""
    path = write(tmp_path / "rank_1.json", rank=2)
    assert load(path).ranks[0].rank == 2
    assert load(path, ranks={"rank_1.json": 3}).ranks[0].label == "rank 3"
    assert load(path, ranks={str(path): 0}).ranks[0].rank == 0


def test_unknown_rank_stays_unknown(tmp_path: Path) -> None:
    """A file without a rank is a numbered file, the last in the job, and the job says so."""
    unknown = write(tmp_path / "a.json")
    known = write(tmp_path / "b.json", rank=2)
    job = load([unknown, known])
    assert [(trace.label, trace.rank) for trace in job.ranks] == [("rank 2", 2), ("file 1", None)]
    assert job.missing_ranks == (0, 1, 3)
    assert job.ranks[0].quality.missing_ranks == (0, 1, 3)
    assert "--rank" in job.warnings[0]
    assert "a.json" in job.warnings[0]


def test_two_files_of_one_rank(tmp_path: Path) -> None:
    """Two files that claim one rank are an error that names both; the user can tell them apart."""
    first, second = write(tmp_path / "a.json", rank=1), write(tmp_path / "b.json", rank=1)
    with pytest.raises(TraceError, match=r"a\.json and .*b\.json both claim rank 1; .*--rank"):
        load([first, second])
    assert [trace.rank for trace in load([first, second], ranks={"b.json": 0}).ranks] == [0, 1]


def test_many_files_of_one_rank_are_one_sentence(tmp_path: Path) -> None:
    """A folder of traces that have nothing to do with each other: a sentence a rank, however many files claim it."""
    files = [
        write(tmp_path / f"{name}.json", rank=rank) for name, rank in zip("abcdef", (0, 0, 0, 0, 1, 1), strict=True)
    ]
    with pytest.raises(TraceError) as raised:
        load(files)
    said = str(raised.value).replace(f"{tmp_path}/", "")
    assert said.startswith(
        "a.json and b.json both claim rank 0 (2 more too); e.json and f.json both claim rank 1; keep "
    )


@pytest.mark.parametrize("wrong", [{"absent.json": 1}, {"a.json": -1}, {"a.json": 1 << 20}, {"a.json": 10**20}])
def test_wrong_ranks(tmp_path: Path, wrong: dict[str, int]) -> None:
    """A rank for a file that is not read, below 0, or beyond all jobs, is the user's mistake."""
    with pytest.raises(UsageError, match="--rank"):
        load(write(tmp_path / "a.json"), ranks=wrong)


def test_folders_globs_and_lists(tmp_path: Path) -> None:
    """A folder, a glob and a list find the same files, each once; what is no trace is skipped and said."""
    for rank in range(3):
        write(tmp_path / f"t{rank}.json.gz", rank=rank)
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "notes.json").write_text("not JSON")
    (tmp_path / "notes.txt").write_text("x")
    for paths in (tmp_path, str(tmp_path / "*"), str(tmp_path / "*.json*"), [tmp_path, tmp_path / "t0.json.gz"]):
        job = load(paths)
        assert [trace.rank for trace in job.ranks] == [0, 1, 2]
        assert any("config.json" in warning for warning in job.warnings)
    with pytest.raises(TraceError, match="no traceEvents"):
        load([tmp_path / "t0.json.gz", tmp_path / "config.json"])


def test_folders_without_traces(tmp_path: Path) -> None:
    """An empty folder and one of other files say what is missing."""
    with pytest.raises(TraceError, match="holds no file"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TraceError, match="none of the files is a profiler trace"):
        load(tmp_path)
    with pytest.raises(UsageError):
        load([])


@pytest.mark.parametrize("odd", ["a pipe", "a link to nothing"])
def test_a_file_that_is_none_is_not_left_out_in_silence(odd: str, tmp_path: Path) -> None:
    """Beside a good trace it would be a rank that nobody misses."""
    write(tmp_path / "rank0.json", rank=0)
    if odd == "a pipe":
        os.mkfifo(tmp_path / "rank1.json")
    else:
        (tmp_path / "rank1.json").symlink_to("nowhere.json")
    with pytest.raises(TraceError, match=r"rank1\.json: is no regular file"):
        load(tmp_path)


def test_different_world_sizes_are_said(tmp_path: Path) -> None:
    """Files of jobs of different sizes are read with a warning."""
    job = load([write(tmp_path / "a.json", rank=0, world_size=2), write(tmp_path / "b.json", rank=1, world_size=8)])
    assert job.world_size == 8
    assert any("world sizes" in warning for warning in job.warnings)


def same(left: RankTrace, right: RankTrace) -> bool:
    """Compare two traces, tables and all."""
    names = [name for name in RankTrace.__struct_fields__ if isinstance(getattr(left, name), pl.DataFrame)]
    assert len(names) == len(TABLES)
    for name in names:
        assert_frame_equal(getattr(left, name), getattr(right, name))
    return all(getattr(left, name) == getattr(right, name) for name in RankTrace.__struct_fields__ if name not in names)


def test_side_by_side_is_the_same(tmp_path: Path) -> None:
    """Files read in several processes give the tables, ranks and progress that one process gives."""
    for rank in range(3):
        write(tmp_path / f"t{rank}.json", rank=rank, num_kernels=12_000, seed=rank)
    told: list[tuple[int, int]] = []
    together = load(tmp_path, options=NO_CACHE, processes=2, progress=lambda done, total, _: told.append((done, total)))
    alone = load(tmp_path, options=NO_CACHE, processes=1)
    assert sorted(told) == [(1, 3), (2, 3), (3, 3)]
    assert all(same(left, right) for left, right in zip(together.ranks, alone.ranks, strict=True))


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of traces that also holds a module of a library's name, or ours, is read like any other."""
    for rank in range(2):
        write(tmp_path / f"t{rank}.json", rank=rank, num_kernels=20_000, seed=rank)
    for name in ("polars.py", "scope.py", "msgspec.py"):
        (tmp_path / name).write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert [trace.rank for trace in load(tmp_path, options=NO_CACHE, processes=2).ranks] == [0, 1]


def test_errors_cross_the_processes(tmp_path: Path) -> None:
    """An error of another process is the same error, with its message."""
    for rank in range(2):
        write(tmp_path / f"t{rank}.json", rank=rank, num_kernels=20_000, seed=rank)
    options = ReadOptions(use_cache=False, limits=Limits(max_bytes=1000))
    with pytest.raises(LimitError, match="SCOPE_MAX_TRACE_BYTES"):
        load(tmp_path, options=options, processes=2)
    (tmp_path / "other.json").write_text('{"a": 1}')
    assert any("other.json" in warning for warning in load(tmp_path, options=NO_CACHE, processes=2).warnings)


def test_cache_gives_the_same(tmp_path: Path, own_cache: Path) -> None:
    """The second reading comes from the cache, equals the first, and follows the content, not the name."""
    path = write(tmp_path / "rank_5.json", num_kernels=3_000)
    assert path.stat().st_size > SMALLEST_BYTES
    cold = load(path)
    entries = wait_for_entries(own_cache, 1)
    warm = load(path)
    assert same(cold.ranks[0], warm.ranks[0])
    moved = path.rename(tmp_path / "rank_6.json")
    assert load(moved).ranks[0].label == "rank 6"
    assert load(moved).ranks[0].path == str(moved)
    assert wait_for_entries(own_cache, 1) == entries
    write(moved, num_kernels=3_001)
    assert load(moved).ranks[0].device_events.height == 3_001


def wait_for_entries(folder: Path, number: int) -> list[Path]:
    """Wait for the threads that write entries, and return those there are."""
    import threading

    for thread in threading.enumerate():
        if thread.name == "scope-cache":
            thread.join()
    entries = sorted((folder / "traces").iterdir())
    assert len(entries) == number
    return entries


def test_cache_is_private(tmp_path: Path, own_cache: Path) -> None:
    """The folder and its entries are the user's alone; one that others can write is not believed."""
    path = write(tmp_path / "a.json", num_kernels=3_000)
    load(path)
    (entry,) = wait_for_entries(own_cache, 1)
    assert (own_cache / "traces").stat().st_mode & 0o777 == 0o700
    assert entry.stat().st_mode & 0o777 == 0o700
    cache = Cache(own_cache / "traces")
    assert cache.get(entry.name) is not None
    entry.chmod(0o777)
    assert cache.get(entry.name) is None
    entry.chmod(0o700)
    entry.parent.chmod(0o777)
    assert cache.get(entry.name) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_cache_of_somebody_else_is_ignored(tmp_path: Path, own_cache: Path) -> None:
    """An entry that another user owns is not read."""
    path = write(tmp_path / "a.json", num_kernels=3_000)
    load(path)
    (entry,) = wait_for_entries(own_cache, 1)
    os.chown(entry, 12345, 12345)
    assert Cache(own_cache / "traces").get(entry.name) is None
    assert load(path).ranks[0].device_events.height == 3_000


@pytest.mark.parametrize("damage", ["device_events.parquet", "trace.json"])
def test_torn_entry_is_ignored(tmp_path: Path, own_cache: Path, damage: str) -> None:
    """A torn entry is as good as none."""
    path = write(tmp_path / "a.json", num_kernels=3_000)
    cold = load(path)
    (entry,) = wait_for_entries(own_cache, 1)
    (entry / damage).write_bytes(b"torn")
    assert same(load(path).ranks[0], cold.ranks[0])
    wait_for_entries(own_cache, 1)
    assert Cache(own_cache / "traces").get(entry.name) is not None


def test_a_name_that_is_no_utf8_is_cached(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry does not hold the name, which whoever reads it knows: the second look comes from the cache."""
    path = write(tmp_path / "rank2.json", num_kernels=3_000).rename(tmp_path / os.fsdecode(b"rank2-\xff.json"))
    cold = load(path)
    (entry,) = wait_for_entries(own_cache, 1)
    assert Cache(own_cache / "traces").get(entry.name) is not None
    monkeypatch.setattr("scope.trace.loading.read_file", None)
    warm = load(path)
    assert same(warm.ranks[0], cold.ranks[0])
    assert (warm.ranks[0].path, warm.ranks[0].rank) == (str(path), 2)


def test_cache_is_capped(tmp_path: Path) -> None:
    """Beyond the cap the entries that were not used for longest go first."""
    traces = [load_rank(write(tmp_path / f"{seed}.json", num_kernels=2_000, seed=seed)) for seed in range(3)]
    cache = Cache(tmp_path / "cache")
    cache.put("a", traces[0])
    size = sum(file.stat().st_size for file in (tmp_path / "cache" / "a").iterdir())
    cache = Cache(tmp_path / "cache", max_bytes=int(2.5 * size))
    cache.put("b", traces[1])
    os.utime(tmp_path / "cache" / "a", (1, 1))
    os.utime(tmp_path / "cache" / "b", (2, 2))
    assert cache.get("a") is not None
    cache.put("c", traces[2])
    assert cache.get("b") is None
    assert cache.get("a") is not None
    assert cache.get("c") is not None


def test_unwritable_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache cannot be made, reading goes on."""
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("SCOPE_CACHE_DIR", str(blocker / "below"))
    assert load(write(tmp_path / "a.json", num_kernels=3_000)).ranks[0].device_events.height == 3_000


def test_a_user_without_a_home_folder_has_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing tells a home folder traces are read all the same, and nothing is made where the reader stands."""
    forget_home(monkeypatch)
    monkeypatch.chdir(tmp_path)
    assert load(write(tmp_path / "a.json", num_kernels=3_000)).ranks[0].device_events.height == 3_000
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_user_patterns(tmp_path: Path) -> None:
    """The user's patterns come before all other rules."""
    (tmp_path / "classes.toml").write_text('[[kernel]]\npattern = "^kernel_"\nclass = "communication"\n')
    options = ReadOptions(patterns=read_patterns(tmp_path / "classes.toml"))
    trace = load(write(tmp_path / "a.json"), options=options).ranks[0]
    assert trace.device_events[DeviceEvents.category].to_list() == ["communication"] * 3
    assert trace.collective_calls.height == 3


def test_mistakes_in_patterns_are_all_named(tmp_path: Path) -> None:
    """A file of patterns with mistakes names all of them at once."""
    path = tmp_path / "classes.toml"
    path.write_text('[[kernel]]\npattern = "("\nclass = "gemm"\n[[kernel]]\nclass = "magic"\n[other]\n')
    with pytest.raises(ConfigError) as caught:
        read_patterns(path)
    for part in ("$.kernel[0].pattern", "$.kernel[1].pattern", "$.kernel[1].class", "$.other"):
        assert part in str(caught.value)
    path.write_text("[[kernel")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_patterns(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_patterns(tmp_path / "absent.toml")


def test_public_names() -> None:
    """`__all__` is what can be imported."""
    assert all(hasattr(scope.trace, name) for name in scope.trace.__all__)
