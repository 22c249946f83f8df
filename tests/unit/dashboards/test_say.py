"""Words reach a page through `dashboards.say` alone, and come out letter by letter."""

from __future__ import annotations

import ast
import csv
import inspect
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import streamlit as st
from markdown_it import MarkdownIt
from streamlit.delta_generator import DeltaGenerator
from streamlit.testing.v1 import AppTest

from dashboards import say
from dashboards.tables import csv_of

if TYPE_CHECKING:
    from collections.abc import Iterator

DASHBOARDS = Path(say.__file__).parent
SOURCES = [
    path
    for path in sorted(DASHBOARDS.rglob("*.py"))
    if path.name != "say.py" and path.relative_to(DASHBOARDS).parts[0] != "alerts"
]
WORDY = {"body", "label", "text", "tabs", "caption", "captions", "help", "placeholder", "title", "spinner"}
HOSTILE = [
    "![x](https:evil.example)",
    "[a](javascript:alert(1))",
    "https://evil.example/a",
    "www.evil.example",
    "WWW.evil.example",
    "me@evil.example",
    "<img src=x>",
    ":material/bug_report: :smile: :red[x]",
    "$x^2$",
    "# head",
    "- item",
    "1. item",
    "+ item",
    "`code` *a* _b_ ~c~",
    "a | b",
    "&lt;",
    "---",
    "    code",
    "\\*",
]
BARE_LINK = re.compile(r"(https?://|www\.)[-.\w]|[-.\w+]@[-\w]+\.[-\w]", re.IGNORECASE)
"""Where https://github.github.com/gfm/#autolinks-extension- makes a link."""


def takes_words(call: object) -> bool:
    """Return whether a function of Streamlit draws texts that it is given."""
    try:
        return bool(WORDY & inspect.signature(call).parameters.keys())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


DRAWS = {name for name, call in inspect.getmembers(DeltaGenerator, callable) if takes_words(call)} | {"write", "toast"}
DRAWS -= {"dataframe", "help"}  # its placeholder stands alone; the other draws docstrings
COLUMNS = {name for name, call in inspect.getmembers(st.column_config, callable) if takes_words(call)}


def is_fixed(node: ast.expr, tree: ast.Module) -> bool:
    """Return whether an expression is text that stands in the code."""
    if isinstance(node, ast.IfExp):
        return is_fixed(node.body, tree) and is_fixed(node.orelse, tree)
    if isinstance(node, ast.Name):
        given = [
            each.value
            for each in ast.walk(tree)
            if isinstance(each, ast.Assign) and any(ast.unparse(target) == node.id for target in each.targets)
        ]
        return bool(given) and all(not isinstance(each, ast.Name) and is_fixed(each, tree) for each in given)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def escapes(source: str) -> Iterator[str]:
    """Yield every place in a module that could show a text otherwise than by `say`."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "streamlit":
            yield f"{node.lineno}: from streamlit import"
        if isinstance(node, ast.keyword) and node.arg == "unsafe_allow_html":
            yield f"{node.value.lineno}: {node.arg}"
        if isinstance(node, ast.Attribute):
            base = ast.unparse(node.value)
            is_streamlits = base == "st" or base.startswith("st.")
            if is_streamlits and node.attr in DRAWS | COLUMNS and node.attr != "html":
                yield f"{node.lineno}: {base}.{node.attr}"
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        first = node.args[0] if node.args else None
        if name == "st.html" and ast.unparse(node.args[0]) != "_STYLE":
            yield f"{node.lineno}: {name}"
        if name in {"say.words", "words"} and (first is None or not is_fixed(first, tree)):
            yield f"{node.lineno}: {name} of a text that is not fixed"
        if name in {"say.Words", "Words"}:
            yield f"{node.lineno}: {name}"
        is_method = isinstance(node.func, ast.Attribute) and not name.startswith(("st.", "say.", "sys.std"))
        if is_method and name.rpartition(".")[2] in DRAWS and (node.args or node.keywords):
            yield f"{node.lineno}: {name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(DASHBOARDS)))
def test_no_page_shows_words_by_itself(path: Path) -> None:
    """No module calls a function of Streamlit that draws texts, on the page or in a container, but through `say`."""
    assert not list(escapes(path.read_text()))


@pytest.mark.parametrize(
    "source",
    [
        "st.error(x)",
        "show = st.warning",
        "row.metric(x, y)",
        "st.sidebar.selectbox(x, y)",
        "st.html(x)",
        "from streamlit import error",
        "st.column_config.TextColumn(x)",
        "say.words(f'{x}')",
        "say.words(x)",
        "y = x\nsay.words(y)",
        "say.Words(x)",
        "bar.progress(0, x)",
    ],
)
def test_the_check_finds_what_it_looks_for(source: str) -> None:
    """Each way around `say` is found."""
    assert list(escapes(source))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_is_shown_letter_by_letter(text: str) -> None:
    """Another Markdown parser sees nothing but text in what comes out, and GitHub's rule for bare addresses no link."""
    parser = MarkdownIt("js-default", {"html": True, "linkify": False})
    for shown in (say.inert(text), say.words("{}", text)):
        (start, inline, end) = parser.parse(shown)
        assert (start.type, end.type) == ("paragraph_open", "paragraph_close")
        assert {each.type for each in inline.children or []} <= {"text", "text_special"}
        seen = "".join(each.content for each in inline.children or [])
        assert not BARE_LINK.search(seen)
        assert seen.replace("\u2060", "") == text.strip()


def test_what_is_inert_already_is_not_escaped_again() -> None:
    """A part that `words` has made goes into another sentence as it is; a plain sentence stays readable."""
    inner = say.words("**{}**", "a*b")
    assert inner == "**a\\*b**"
    assert say.words("{}: {}", inner, "[c]") == "**a\\*b**: \\[c\\]"
    assert say.lines([inner, "*"]) == "- **a\\*b**\n- \\*"
    assert say.inert("No step has ended yet, 98.7 % (median)") == "No step has ended yet, 98.7 % (median)"


def _page() -> None:
    from dashboards import say

    name = "![x](https://evil.example)"
    for call in ("title", "subheader", "markdown", "caption", "error", "warning", "info", "success", "expander"):
        getattr(say, call)(name)
    say.metric(name, name, name, help=name)
    say.tabs([name])
    say.button(name, help=name)
    say.text_input(name)
    say.number_input(label=name)
    say.radio(name, [name])
    say.radio(name, [1], format_func=lambda _: name, key="named")
    say.segmented_control(name, [name])
    say.selectbox(name, [1])
    say.progress(0.5, name)


def test_every_function_makes_its_texts_inert() -> None:
    """What is sent to the browser holds no image, whichever function and parameter took the name."""
    app = AppTest.from_function(_page).run()
    assert not app.exception
    sent: Any = app._tree
    text = "".join(repr(getattr(node, "proto", "")) for node in sent)
    assert len(re.findall("evil", text)) >= 18
    assert "![x](" not in text
    assert "https://evil" not in text.replace("\\\\", "")


def test_no_cell_of_a_download_begins_a_formula() -> None:
    """Cells, lists and headings that a spreadsheet would run get an apostrophe in front."""
    texts = ["=1+1", "+1", "-1", "@x", "\t=1", " =2", "plain"]
    table = pl.DataFrame({"=cmd|x": texts, "numbers": [-1] * len(texts)})
    heading, *rows = csv.reader(io.StringIO(csv_of(table)))
    assert heading == ["'=cmd|x", "numbers"]
    assert [row[0] for row in rows] == ["'=1+1", "'+1", "'-1", "'@x", "'\\t=1", "' =2", "plain"]
    assert {row[1] for row in rows} == {"-1"}
