"""Answers a scrape: the last sample as text, rendered once a sample however many ask."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Protocol

from exporters import metrics as m
from exporters.render import OPENMETRICS, TEXT, Renderer
from exporters.series import SeriesSet

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


class Source(Protocol):
    """Something that has series to show."""

    def version(self) -> Hashable:
        """Return what changes whenever the series do."""
        ...

    def series(self) -> SeriesSet:
        """Return the series as they are now."""
        ...


class _Cached:
    """One source's series and their text, made anew only when the source has something new.

    Args:
        source: What is shown; no two sources share a metric family.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._version: Hashable = None
        self._texts: dict[str, str] = {}
        self.series = SeriesSet()

    def text(self, renderer: Renderer, content_type: str) -> str:
        """Return the source's lines in one of the formats."""
        version = self._source.version()
        if version != self._version:
            self.series = self._source.series()
            self._texts.clear()
            self._version = version
        text = self._texts.get(content_type)
        if text is None:
            text = self._texts[content_type] = renderer.render(self.series)
        return text


class Scraper:
    """Renders the sources' series, with those of the exporter itself made anew for each answer.

    Args:
        sources: What is shown, in this order.
        add_own: Adds the exporter's own series to a set.
    """

    _FORMATS: Final = (TEXT, OPENMETRICS)

    def __init__(self, sources: Sequence[Source], add_own: Callable[[SeriesSet], None]) -> None:
        self._cached = [_Cached(source) for source in sources]
        self._add_own = add_own
        self._lock = threading.Lock()
        self._renderers = {content_type: Renderer(content_type) for content_type in self._FORMATS}

    def text(self, content_type: str) -> str:
        """Return the whole answer in one of the two formats."""
        renderer = self._renderers[content_type]
        own = SeriesSet()
        # One thread makes what is new, and all that wait for it take it from there.
        with self._lock:
            texts = [cached.text(renderer, content_type) for cached in self._cached]
            own.add(m.SERIES, (), sum(len(cached.series) for cached in self._cached))
            duplicates = sum(cached.series.num_duplicates for cached in self._cached)
            self._add_own(own)
            if duplicates:
                own.add(m.SAMPLE_ERRORS, ("exporter", "duplicate_series"), duplicates)
            refused = sum(cached.series.num_refused for cached in self._cached)
            if refused:
                own.add(m.SAMPLE_ERRORS, ("exporter", "negative_counter"), refused)
            return "".join([*texts, renderer.render(own), renderer.end])
