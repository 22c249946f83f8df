"""The commands on traces: their forms of output, their errors, and what names cannot do to them."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import jsonschema
import pytest

import scope.cli as scope_cli
from scope.cli.job import parse_ranks
from scope.cli.layout import read_layout, regular_nodes
from scope.cli.main import app
from scope.cli.registry import COMMANDS, POST_MORTEM
from scope.errors import ConfigError, UsageError
from scope.report.document import document_schema

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES = sorted(set(POST_MORTEM) - {"analyze", "compare", "findings", "stragglers", "collectives"})
HOSTILE = '=HYPERLINK("http://evil.example")[/b]<script>alert(1)</script>\x1b]0;owned\x07\u202e'


def test_a_summary_says_where_the_time_went(scope: Callable[..., Any], trace: Callable[..., Path]) -> None:
    """Compute is 900 of 1,000 us and idle the rest; the step and the trust are there."""
    done = scope("analyze", trace())
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == "rank 0 of 1; step 3: 1 ms on the device"
    assert re.search(r"compute +90\.0 % .* 900 us", done.out)
    assert re.search(r"idle +10\.0 % .* 100 us", done.out)
    assert "Trust: 5 records read, 0 lost" in done.out


def test_json_holds_the_keys_and_obeys_the_schema(scope: Callable[..., Any], trace: Callable[..., Path]) -> None:
    """The document on stdout is valid, and its parts sum to the window."""
    done = scope("analyze", trace(), "--json")
    made = json.loads(done.out)
    jsonschema.Draft202012Validator(document_schema()).validate(made)
    (rank,) = made["ranks"]
    assert (rank["rank"], rank["window_ns"], rank["compute_ns"], rank["idle_ns"]) == (0, 1_000_000, 900_000, 100_000)
    assert rank["overlap_ratio"] is None
    assert rank["absent"]["overlap_ratio"]


@pytest.mark.parametrize("command", TABLES)
def test_every_table_is_had_as_text_csv_and_json(
    scope: Callable[..., Any], trace: Callable[..., Path], command: str
) -> None:
    """All forms hold the same rows under the same keys."""
    path = trace()
    text, as_csv, as_json = (scope(command, path, *form) for form in ((), ("--csv",), ("--json",)))
    assert (text.code, as_csv.code, as_json.code) == (0, 0, 0), text.err
    assert text.out.strip()
    rows = list(csv.DictReader(io.StringIO(as_csv.out)))
    records = json.loads(as_json.out)
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        assert list(row) == list(record)
        for key, value in record.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert float(row[key]) == value
            elif value is None:
                assert row[key] == ""


def test_findings_are_had_in_all_forms(scope: Callable[..., Any], trace: Callable[..., Path]) -> None:
    """JSON holds the records of the report, CSV and text one row each."""
    path = trace()
    records = json.loads(scope("findings", path, "--json").out)
    assert records == json.loads(scope("analyze", path, "--json").out)["findings"]
    rows = list(csv.DictReader(io.StringIO(scope("findings", path, "--csv").out)))
    assert [row["kind"] for row in rows] == [record["kind"] for record in records] == ["trace_too_poor"]
    assert "The traces cannot say everything" in scope("findings", path).out


@pytest.mark.parametrize("command", ["analyze", "kernels"])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_hostile_names_do_nothing_on_a_terminal(
    scope: Callable[..., Any], trace: Callable[..., Path], command: str, form: tuple[str, ...]
) -> None:
    """No control character of a name reaches the output, and markup is shown as it stands."""
    done = scope(command, trace(kernel=HOSTILE), *form)
    assert done.code == 0, done.err
    assert all(character == "\n" or character.isprintable() for character in done.out)
    assert "HYPERLINK" in done.out


def test_hostile_names_do_nothing_in_a_spreadsheet(scope: Callable[..., Any], trace: Callable[..., Path]) -> None:
    """The cell begins with an apostrophe and not with the formula."""
    done = scope("kernels", trace(kernel=HOSTILE), "--csv")
    (row,) = csv.DictReader(io.StringIO(done.out))
    assert row["key"].startswith("'=HYPERLINK")


def test_memory_as_compute_moves_copies(scope: Callable[..., Any], trace: Callable[..., Path]) -> None:
    """A copy of 50 us in the gap is exposed memory, or compute when the user says so."""
    copy = {
        "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "ts": 520,
        "dur": 50, "args": {"device": 0, "stream": 7, "correlation": 99, "bytes": 1000},
    }  # fmt: skip
    path = trace(extra=[copy])
    plain, moved = (
        json.loads(scope("analyze", path, "--json", *flags).out)["ranks"][0] for flags in ((), ("--memory-as-compute",))
    )
    assert (plain["compute_ns"], plain["exposed_memory_ns"], plain["idle_ns"]) == (900_000, 50_000, 50_000)
    assert (moved["compute_ns"], moved["exposed_memory_ns"], moved["idle_ns"]) == (950_000, 0, 50_000)


def test_limit_cuts_rows_and_zero_shows_all(scope: Callable[..., Any], trace: Callable[..., Path]) -> None:
    """A limit says how many rows there are in text, and applies to CSV and JSON too."""
    extra = [
        {"ph": "X", "cat": "kernel", "name": f"k{index}", "pid": 0, "tid": 7, "ts": 2000 + index, "dur": 1,
         "args": {"device": 0, "stream": 7}}
        for index in range(30)
    ]  # fmt: skip
    path = trace(extra=extra)
    assert "20 of 31 rows; --limit 0 shows all." in scope("kernels", path).out
    assert "rows;" not in scope("kernels", path, "--limit", "0").out
    assert len(json.loads(scope("kernels", path, "--json").out)) == 31
    assert len(json.loads(scope("kernels", path, "--json", "--limit", "2").out)) == 2


def test_a_rank_can_be_given(scope: Callable[..., Any], trace: Callable[..., Path]) -> None:
    """A file that does not say its rank gets the user's."""
    path = trace("some.json", rank=None)
    assert "rank unknown" in scope("analyze", path).out
    assert scope("analyze", path, "--rank", "some.json=5").out.startswith("rank 5")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["analyze", "nowhere.json"], 3, ["nowhere.json", "no such file"]),
        (["analyze", "{text}"], 3, ["text.json"]),
        (["analyze", "{empty}"], 3, ["empty.json"]),
        (["analyze", "{trace}", "--rank", "nonsense"], 2, ["--rank nonsense", "FILE=N"]),
        (["analyze", "{trace}", "--gpu", "h1000"], 2, ["h1000", "h100"]),
        (["analyze", "{trace}", "--topology", "{text}"], 3, ["text.json", "not TOML"]),
        (["analyze", "{trace}", "--topology", "{text}", "--ranks-per-node", "8"], 2, ["give one of them"]),
        (["analyze", "{trace}", "--html", "{text}"], 2, ["text.json", "--force"]),
        (["analyze", "{trace}", "--html", "/nonexistent/x.html"], 3, ["/nonexistent/x.html"]),
        (["kernels", "{trace}", "--json", "--csv"], 2, ["--json and --csv"]),
        (["compare", "{trace}", "nowhere.json"], 3, ["nowhere.json"]),
    ],
)
def test_mistakes_are_one_clear_line(
    scope: Callable[..., Any], trace: Callable[..., Path], arguments: list[str], code: int, words: list[str]
) -> None:
    """The exit code tells the kind, the message what is wrong and where; there is no traceback."""
    path = trace()
    text, empty = path.with_name("text.json"), path.with_name("empty.json")
    text.write_text("this is no trace")
    empty.write_text("")
    given = {"trace": str(path), "text": str(text), "empty": str(empty)}
    done = scope(*(argument.format(**given) for argument in arguments))
    assert done.code == code, done.err
    assert done.out == ""
    assert "Traceback" not in done.err
    assert done.err.startswith("scope: ")
    assert len(done.err.splitlines()) == 1
    for word in words:
        assert word in done.err


def test_a_page_is_written_once_and_replaced_only_by_force(
    scope: Callable[..., Any], trace: Callable[..., Path], tmp_path: Path
) -> None:
    """The page holds the plots' library and the data, names no server, and no name of a kernel is markup."""
    page = tmp_path / "report.html"
    path = trace(kernel=HOSTILE)
    assert scope("analyze", path, "--html", page).code == 0
    text = page.read_text()
    assert "alert(1)" in text
    assert "<script>alert(1)" not in text
    own = text.replace(text[text.index("<script>", text.index("</details>")) :], "")
    assert "<script src" not in text
    assert not re.search(r"(?:src|href)\s*=", own)
    assert scope("analyze", path, "--html", page).code == 2
    assert page.read_text() == text
    assert scope("analyze", path, "--html", page, "--force").code == 0


def test_redact_hides_the_path(scope: Callable[..., Any], trace: Callable[..., Path], tmp_path: Path) -> None:
    """Neither the folder nor the file's name appears."""
    done = scope("analyze", trace("secretjob.json"), "--json", "--redact")
    assert done.code == 0, done.err
    assert "secretjob" not in done.out
    assert str(tmp_path) not in done.out
    assert json.loads(done.out)["ranks"][0]["path"] == "path-1.json"


def test_compare_states_what_changed(scope: Callable[..., Any], trace: Callable[..., Path]) -> None:
    """A kernel that the second run lacks is removed, one that it alone has is added."""
    before, after = trace("a/rank0.json", kernel="old_kernel"), trace("b/rank0.json", kernel="new_kernel")
    done = scope("compare", before, after, "--of", "kernels", "--json")
    changes = {record["name"]: record for record in json.loads(done.out)}
    assert changes["old_kernel"]["change"] == "removed"
    assert changes["new_kernel"]["change"] == "added"
    assert changes["old_kernel"]["before_ns"] == 900_000
    assert scope("compare", before, after).code == 0


@pytest.mark.parametrize("width", ["40", "60", "80", "200"])
def test_narrow_terminals_get_whole_lines(
    scope: Callable[..., Any], trace: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    """Tables and paragraphs keep within the width; remarks may wrap."""
    monkeypatch.setenv("COLUMNS", width)
    done = scope("kernels", trace(kernel="k" * 300))
    assert max(len(line) for line in done.out.splitlines()) <= int(width)


def test_every_command_has_help_with_an_example(scope: Callable[..., Any]) -> None:
    """`scope COMMAND --help` ends its description with a command that can be typed."""
    for command in POST_MORTEM:
        done = scope(command, "--help")
        assert done.code == 0
        assert f"Example: scope {command} " in done.out, command
        assert "--json" in done.out, command


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_their_own_help_says(name: str) -> None:
    """The registry, which imports no command, holds the first paragraph of each command's help."""
    command = app.get_command(click.Context(app), name)
    assert command is not None
    assert command.name == name
    assert " ".join((command.help or "").partition("\n\n")[0].split()) == COMMANDS[name]


def test_every_module_of_a_command_is_registered() -> None:
    """No command is forgotten: each module that defines one of its own name is in the registry."""
    assert len(list(Path(scope_cli.__file__).parent.glob("*.py"))) > len(COMMANDS)
    for path in Path(scope_cli.__file__).parent.glob("*.py"):
        if re.search(rf"^@(?:click|takes).*\ndef {path.stem}\(", path.read_text(), flags=re.MULTILINE):
            assert path.stem.replace("_", "-") in COMMANDS


def test_the_list_of_commands_imports_none_of_them() -> None:
    """`scope --help` loads the module of no command, nor what commands share."""
    code = (
        "import sys\nfrom scope.cli.main import run\nsys.argv = ['scope', '--help']\nrun()\n"
        "sys.stderr.write(' '.join(sorted(name for name in sys.modules if name.startswith('scope'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stderr.split())
    assert "scope.cli.main" in loaded
    assert not loaded & {f"scope.cli.{name.replace('-', '_')}" for name in (*COMMANDS, "job", "options", "tables")}


def test_help_loads_no_analysis() -> None:
    """The help of a command needs neither polars nor rich nor plotly."""
    code = (
        "import sys\nfrom scope.cli.main import run\nsys.argv = ['scope', 'analyze', '--help']\nrun()\n"
        "sys.stderr.write(','.join(sorted({'polars', 'rich', 'plotly', 'torch', 'msgspec'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""


def test_a_missing_extra_names_the_command_that_installs_it(trace: Callable[..., Path], tmp_path: Path) -> None:
    """Without polars the message says which extra brings it, and the exit code is 5."""
    blocker = tmp_path / "blocked" / "sitecustomize.py"
    blocker.parent.mkdir()
    blocker.write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name == 'polars' else find(name, package)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "scope", "analyze", str(trace())],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(blocker.parent)},
    )
    assert done.returncode == 5
    assert done.stderr == "scope: this needs polars, which is not installed: pip install 'stepscope[trace]'\n"


def test_ranks_are_read_from_the_last_equals_sign() -> None:
    """File names may hold equals signs; nonsense is refused."""
    assert parse_ranks(["lr=0.1/a.json=3"]) == {"lr=0.1/a.json": 3}
    for wrong in ("a.json", "a.json=", "=3", "a.json=x", "a.json=-1"):
        with pytest.raises(UsageError, match="FILE=N"):
            parse_ranks([wrong])
    with pytest.raises(UsageError, match="named twice"):
        parse_ranks(["a=1", "a=2"])


def test_a_topology_says_nodes_and_links(tmp_path: Path) -> None:
    """Rates become bytes a second: 450 GB/s, and 400 Gb/s as 50e9 bytes a second."""
    path = tmp_path / "nodes.toml"
    path.write_text("[nodes]\na = [0, 1]\nb = [2, 3]\n[links]\nnode_gb_per_s = 450\nnic_gbit_per_s = 400\n")
    layout = read_layout(path)
    assert layout.nodes == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert layout.node_bytes_per_s == 450e9
    assert layout.nic_bytes_per_s == 50e9
    assert regular_nodes(4, ranks_per_node=2) == {0: "node 0", 1: "node 0", 2: "node 1", 3: "node 1"}


def test_all_mistakes_of_a_topology_are_listed(tmp_path: Path) -> None:
    """Unknown keys, wrong types and ranks on two nodes, each with its path."""
    path = tmp_path / "nodes.toml"
    path.write_text('[nodes]\na = [0, "x"]\nb = [0]\nc = 3\n[links]\nnode_gb_per_s = -1\nspeed = 2\n[other]\n')
    with pytest.raises(ConfigError) as caught:
        read_layout(path)
    for where in ("$.other", "$.nodes.a", "$.nodes.b", "$.nodes.c", "$.links.node_gb_per_s", "$.links.speed"):
        assert where in str(caught.value)


def test_the_critical_path_of_a_step_that_is_named(scope: Callable[..., Any], trace: Callable[..., Path]) -> None:
    """Step 3 of the trace is the only one, so its path is the median step's; a step that is not there is an error."""
    path = trace()
    named = scope("critical-path", path, "--step", "3", "--json")
    assert (named.code, named.out) == (0, scope("critical-path", path, "--json").out)
    assert [row["step"] for row in json.loads(named.out)] == [3]
    assert "Critical path of step 3" in scope("critical-path", path, "--step", "3").out
    missing = scope("critical-path", path, "--step", "8")
    assert missing.code == 2
    assert "no rank has a step 8; the traces hold 3" in missing.err
