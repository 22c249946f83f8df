"""The one way for words to reach a page: whatever is passed in here is shown letter by letter.

Streamlit takes almost every text for Markdown, so that a name in it could be a link, an image or a formula. No other
module calls what draws texts (a test sees to it). Each function here is Streamlit's own of that name, except that every
plain text that it is given is made inert; where Markdown is meant, `words` fills a fixed sentence with inert parts.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeVar, cast

import streamlit as st

from scope.report.inert import capped, markdown_text, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_Call = TypeVar("_Call", bound="Callable[..., Any]")
_MARKDOWN: Final = frozenset({"body", "title", "label", "help", "text", "tabs", "captions"})
"""Parameters of Streamlit that are Markdown."""
_METRIC: Final = _MARKDOWN | {"value", "delta", "delta_description"}
_PLAIN: Final = frozenset({"placeholder"})
"""Parameters that are shown as they are."""
_LONGEST_WORD: Final = 1_000
"""What has more characters between two spaces is no name or path that anybody reads."""
_HARMLESS: Final = re.compile(
    r"(?!.*www\.)(?!\s|[-+](?:\s|$)|--|\d+[.)](?:\s|$))(?:[A-Za-z0-9 ,;%()/.+·–…×'-]|:(?=\s|$))*", re.IGNORECASE
)
"""What Markdown shows letter by letter of itself."""


class Words(str):
    """Markdown in which every part that is not fixed is inert; only `words` and `inert` make it."""

    __slots__ = ()


def inert(text: str) -> Words:
    """Return a text so that Markdown shows it letter by letter, cut where it has no end; `Words` are so already."""
    if isinstance(text, Words):
        return text
    text = capped(text, word=_LONGEST_WORD, whole=20_000)
    # Four spaces in front would make it a block of code, in which a backslash is one.
    shown = f" {text.lstrip()}" if text.startswith(" ") else text
    return Words(shown if _HARMLESS.fullmatch(shown.lstrip()) else markdown_text(shown))


def words(sentence: LiteralString, *parts: object) -> Words:
    """Return a fixed sentence, in Markdown, with each `{}` replaced by a part that is made inert.

    Args:
        sentence: Written in the code, never made of names.
        parts: What is filled in.
    """
    return Words(sentence.format(*(inert(part if isinstance(part, str) else str(part)) for part in parts)))


def lines(items: Iterable[str]) -> Words:
    """Return a list, one item a line; each item is made inert."""
    return Words("\n".join(f"- {inert(item)}" for item in items))


def _clean(value: Any, clean: Callable[[str], str]) -> Any:
    """Return a value with the texts in it cleaned; what is no text stays."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list | tuple):
        return [_clean(each, clean) for each in cast("list[Any]", value)]
    return value


def _cleaned(form: Callable[[Any], Any], clean: Callable[[str], str]) -> Callable[[Any], str]:
    """Return what names an option, cleaned."""
    return lambda option: clean(str(form(option)))


def _guarded(
    call: _Call,
    *,
    markdown: frozenset[str] = _MARKDOWN,
    plain: frozenset[str] = _PLAIN,
    options: Callable[[str], str] | None = None,
) -> _Call:
    """Return a function of Streamlit that makes the texts inert that it is given.

    Args:
        call: The function.
        markdown: Its parameters that are Markdown.
        plain: Its parameters that are shown as they are.
        options: Makes the names of options inert; None for a function without.
    """
    names = list(inspect.signature(call).parameters)

    @functools.wraps(call)
    def guarded(*arguments: Any, **named: Any) -> Any:
        given = {**dict(zip(names, arguments, strict=False)), **named}
        for name in markdown & given.keys():
            given[name] = _clean(given[name], inert)
        for name in plain & given.keys():
            given[name] = _clean(given[name], visible)
        if options is not None:
            given["format_func"] = _cleaned(given.get("format_func", str), options)
        return call(**given)

    return cast("_Call", guarded)


_NONE: Final = frozenset[str]()

title = _guarded(st.title)
subheader = _guarded(st.subheader)
markdown = _guarded(st.markdown)
caption = _guarded(st.caption)
code = _guarded(st.code, markdown=_NONE, plain=frozenset({"body"}))
error = _guarded(st.error)
warning = _guarded(st.warning)
info = _guarded(st.info)
success = _guarded(st.success)
progress = _guarded(st.progress)
metric = _guarded(st.metric, markdown=_METRIC)
expander = _guarded(st.expander)
tabs = _guarded(st.tabs)
text_input = _guarded(st.text_input)
number_input = _guarded(st.number_input)
slider = _guarded(st.slider)
button = _guarded(st.button)
form_submit_button = _guarded(st.form_submit_button)
download_button = _guarded(st.download_button)
link_button = _guarded(st.link_button)
page_link = _guarded(st.page_link)
radio = _guarded(st.radio, options=inert)
segmented_control = _guarded(st.segmented_control, options=inert)
# The options of these two are no Markdown.
selectbox = _guarded(st.selectbox, options=visible)
multiselect = _guarded(st.multiselect, options=visible)
_HELP, _LABEL = frozenset({"help"}), frozenset({"label"})
column = _guarded(st.column_config.Column, markdown=_HELP, plain=_LABEL)
text_column = _guarded(st.column_config.TextColumn, markdown=_HELP, plain=_LABEL)
number_column = _guarded(st.column_config.NumberColumn, markdown=_HELP, plain=_LABEL)
