"""Names from traces have no power over a terminal, a page, a spreadsheet or a Markdown file."""

from __future__ import annotations

import csv
import html
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from scope.report.encoding import encode_json
from scope.report.inert import capped, csv_text, html_text, kernel_title, markdown_text, shortened, visible
from scope.report.table import ReportColumn, ReportTable
from scope.report.text import make_console, print_table

HOSTILE = (
    "[/b]",
    "[bold red]x[/]",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    '=HYPERLINK("http://example.org")',
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\x1b]0;owned\x07",
    "\x9b31m",
    "a\u202eb",
    "![x](http://example.org/pixel)",
    "a|b",
    "a\nb",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_control_character_reaches_a_terminal(name: str) -> None:
    """What is left is printable, whatever was given."""
    assert visible(name).isprintable()


def test_what_is_written_out_can_be_told_apart() -> None:
    """Escapes show which character stood there."""
    assert visible("\x1b\x9b\u202e\n\t") == "\\x1b\\x9b\\u202e\\n\\t"


@given(st.text())
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    """Only unprintable characters are changed."""
    assert visible(visible(text)) == visible(text)
    if text.isascii() and text.isprintable():
        assert visible(text) == text


@pytest.mark.parametrize("name", [name for name in HOSTILE if name.lstrip("\t\r ")[:1] in "=+-@"])
def test_formulas_become_text_in_a_spreadsheet(name: str) -> None:
    """A cell that would begin a formula begins with an apostrophe."""
    assert csv_text(name).startswith("'")


@given(st.text(st.characters(codec="utf-8")))
def test_csv_text_survives_a_reader_of_csv_and_never_begins_a_formula(text: str) -> None:
    """A written cell reads back as it was written and starts with none of the starts of formulas."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([csv_text(text)])
    rows = list(csv.reader(io.StringIO(out.getvalue())))
    (cell,) = rows[0] if rows and rows[0] else ("",)
    assert cell == csv_text(text)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))


@pytest.mark.parametrize("name", HOSTILE)
def test_html_shows_a_name_letter_by_letter(name: str) -> None:
    """No tag, attribute or entity of a name survives, and unescaping gives the visible name."""
    shown = html_text(name)
    assert not set("<>\"'") & set(shown)
    assert html.unescape(shown) == visible(name)


def test_markdown_shows_a_name_letter_by_letter() -> None:
    """Every character that Markdown reads is escaped."""
    assert markdown_text("![x](http://a)|*b*") == "\\!\\[x\\]\\(http\\://\u2060a\\)\\|\\*b\\*"


@pytest.mark.parametrize("name", HOSTILE)
def test_rich_reads_no_markup_in_a_name(name: str) -> None:
    """A name that looks like markup is printed as it stands."""
    out = io.StringIO()
    Console(file=out, markup=False, width=200, force_terminal=False).print(Text(visible(name)))
    assert out.getvalue() == visible(name) + "\n"


@pytest.mark.parametrize("name", [*HOSTILE, "\udcff", "\U000e0041"])
def test_json_holds_a_name_that_a_terminal_does_not_obey(name: str) -> None:
    """Programs read back what was there; the bytes hold no control character but newlines."""
    text = encode_json({"name": name})
    assert all(character == "\n" or character.isprintable() for character in text)
    assert json.loads(text)["name"] == name.encode("utf-8", "backslashreplace").decode()


def test_a_name_is_shortened_in_its_middle() -> None:
    """Both ends stay, and the result is no longer than allowed."""
    assert shortened("abcdefghij", length=7) == "abc…hij"
    assert shortened("abc", length=7) == "abc"


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("void at::native::elementwise_kernel<128, 2>(int, lambda(int)#1)", "elementwise_kernel<128, 2>"),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax<float>"),
        ("void kernel(", "kernel("),
        ("ncclDevKernel_AllReduce(ncclDevKernelArgs)", "ncclDevKernel_AllReduce(ncclDevKernelArgs)"),
        ("void (int)", "(int)"),
    ],
)
def test_titles_of_kernels_drop_what_all_share(name: str, title: str) -> None:
    """Return type, arguments and usual namespaces go; a name without them stays."""
    assert kernel_title(name) == title


def test_long_names_are_cut_and_the_cut_is_counted() -> None:
    """A name of a megabyte takes a few lines, what was left out is said, and both ends of it stand."""
    name = "first" + "x" * 1_000_000 + "last"
    cut = capped(f"the kernel {name} is slow")
    assert cut.startswith("the kernel firstxxx")
    assert cut.endswith("xxxlast is slow")
    assert "…[999,709 characters left out]…" in cut
    assert len(cut) == len("the kernel  is slow") + 300 + len("…[999,709 characters left out]…")


def test_long_texts_of_short_words_are_cut_too() -> None:
    """Spaces in a name keep nothing from being cut, and a text of common length stays as it is."""
    text = "void f(int, int) " * 100_000
    cut = capped(text)
    assert len(cut) == 4_000 + len(f"…[{len(text) - 4_000:,} characters left out]…")
    assert capped(text[:4_000]) == text[:4_000]


def test_no_name_floods_a_terminal() -> None:
    """A paragraph and a table's cell of a megabyte are printed in a few kilobytes."""
    out = io.StringIO()
    console = make_console(out, width=100)
    console.print_wrapped("kernel " + "x" * 1_000_000)
    column = ReportColumn(key="name", heading="kernel", meaning="Its name.", unit="text")
    print_table(
        ReportTable(name="t", title="T", columns=(column,), rows=(("void " + "y" * 1_000_000,),), num_rows=1), console
    )
    assert len(out.getvalue()) < 1_000
    assert "999,700 characters left out" in out.getvalue().replace("\n", " ")


def test_a_name_without_an_end_is_cut_on_a_page_and_a_kernel_is_not() -> None:
    """Of five million characters some thousands remain, still escaped; 4,000 of a template's name stay whole."""
    assert len(html_text("<" + "a" * 5_000_000)) < 6_000
    assert html_text("<" + "a" * 5_000_000).startswith("&lt;aaa")
    kernel = "gemm" * 1_000
    assert html_text(kernel) == kernel
