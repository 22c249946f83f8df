"""Names from traces are data: here they lose whatever power they have over a terminal, a page or a spreadsheet.

A kernel may be called `[/b]`, `<script>`, `=HYPERLINK(...)` or hold the escape sequence that renames a terminal. Every
face of the report passes every string through exactly one of these functions, at its edge.
"""

from __future__ import annotations

import re
from typing import Final

# Control characters, and those that are invisible or turn the direction of what follows. A lone surrogate cannot be
# encoded at all.
UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%", "＝", "＋", "－", "＠")
_LINK_STARTS: Final = re.compile(r"://|@|\bwww(?=\.)", re.IGNORECASE)
_WORD_JOINER: Final = "\u2060"
"""Takes no room and breaks no line. A bare address with one in it is no link; escaping alone does not stop those."""
_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:&])")


def visible(text: str) -> str:
    r"""Return `text` with every unprintable character written out, so that it can move no cursor and hide nothing.

    Examples:
        >>> visible("a\x1b]0;title\x07")
        'a\\x1b]0;title\\x07'
    """
    return UNPRINTABLE.sub(lambda match: _written_out(match[0]), text)


def csv_text(text: str) -> str:
    r"""Return `text` as a spreadsheet must see it: one that would begin a formula gets an apostrophe in front.

    Examples:
        >>> csv_text('=HYPERLINK("http://example.org")')
        '\'=HYPERLINK("http://example.org")'
        >>> csv_text("gemm")
        'gemm'
    """
    guarded = f"'{text}" if text.lstrip(" ").startswith(_FORMULA_STARTS) else text
    return visible(guarded)


def html_text(text: str) -> str:
    """Return `text` so that HTML (and plotly, which reads a subset of it) shows it letter by letter.

    It is cut only where it is longer than any kernel's name or path.

    Examples:
        >>> html_text("Kernel<float, 4>")
        'Kernel&lt;float, 4&gt;'
    """
    # A page needs it, a terminal does not, and it brings the table of all named entities.
    import html

    return html.escape(readable_problem(text), quote=True)


def markdown_text(text: str) -> str:
    r"""Return `text` so that Markdown shows it letter by letter: no link, image, emphasis, table cell or formula.

    An address of the web or of mail gets an invisible character that keeps it from becoming a link by itself.

    Examples:
        >>> markdown_text("[a](b)")
        '\\[a\\]\\(b\\)'
        >>> markdown_text("www.a")
        'www\u2060\\.a'
    """
    unlinked = _LINK_STARTS.sub(lambda match: match[0] + _WORD_JOINER, visible(text))
    return _MARKDOWN.sub(r"\\\1", unlinked)


def shortened(text: str, *, length: int) -> str:
    """Return at most `length` characters of `text`; what is cut is shown as an ellipsis in the middle.

    Both ends of a kernel's name tell it apart: the family stands first, the tile and dtype last.

    Examples:
        >>> shortened("abcdefghij", length=7)
        'abc…hij'
    """
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"


def shortened_words(text: str, *, length: int) -> str:
    """Return at most `length` characters of `text`, as `shortened` does, with no word cut that has others on its side.

    Examples:
        >>> shortened_words("all ranks (assumed) [0-7]", length=23)
        'all ranks… [0-7]'
        >>> shortened_words("data_parallel_replicated", length=11)
        'data_…cated'
    """
    head, cut, tail = shortened(text, length=length).partition("…")
    if not cut or len(text) <= length:
        return text
    return (head.rpartition(" ")[0] or head) + cut + ("".join(tail.partition(" ")[1:]) or tail)


def capped(text: str, *, word: int = 300, whole: int = 4_000) -> str:
    """Return `text` with what is too long to be read cut from the middle, and how much that is: names have no end.

    Args:
        text: Words, names among them.
        word: The most characters between two spaces.
        whole: The most characters of all, the remarks on what was cut aside.

    Examples:
        >>> capped("the kernel abcdefghijklmnop is slow", word=8)
        'the kernel abcdef…[8 characters left out]…op is slow'
    """
    if len(text) <= word:
        return text
    return _cut(" ".join(_cut(each, word) for each in text.split(" ")), whole)


def readable(text: str, *, word: int = 300, whole: int = 4_000) -> str:
    r"""Return `text` as a terminal shows it: no character of it acts, and what is too long to be read is cut.

    `word` and `whole` are those of `capped`.

    Examples:
        >>> readable("rank 0 raised \x1b[31mabcdefghijklmnopqrstuvwxyz", word=12)
        'rank 0 raised \\x1b[31ma…[22 characters left out]…xyz'
    """
    return capped(visible(text), word=word, whole=whole)


def readable_problem(text: str) -> str:
    """Return a sentence on a file as a terminal shows it, its path whole; names longer than any path are cut."""
    return readable(text, word=5_000, whole=20_000)


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    tail = length // 4
    return f"{text[: length - tail]}…[{len(text) - length:,} characters left out]…{text[len(text) - tail :]}"


def kernel_title(name: str) -> str:
    """Return a kernel's name without what all of them share: return type, arguments and usual namespaces.

    Only for people; JSON and CSV hold the name as the trace has it.

    Examples:
        >>> kernel_title("void at::native::(anonymous namespace)::softmax<4, float>(float*, int)")
        'softmax<4, float>'
        >>> kernel_title("ncclDevKernel_AllReduce")
        'ncclDevKernel_AllReduce'
    """
    if not name.startswith("void "):
        return name
    bare = name.removeprefix("void ")
    if bare.endswith(")"):
        bare = bare[: _opening(bare)].rstrip() or bare
    for namespace in ("at::native::", "(anonymous namespace)::", "at::cuda::detail::"):
        bare = bare.replace(namespace, "")
    return bare


def _opening(text: str) -> int:
    """Return where the parenthesis opens that the last character closes; 0 when none does."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth == 0:
            return place
    return 0


def _written_out(character: str) -> str:
    code = ord(character)
    names = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}
    if character in names:
        return names[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
