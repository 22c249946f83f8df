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


class Scraper:
    """Renders the sources' series, with those of the exporter itself made anew for each answer.

    Args:
        sources: What is shown, in this order.
        add_own: Adds the exporter's own series to a set.
    """

    _FORMATS: Final = (TEXT, OPENMETRICS)

    def __init__(self, sources: Sequence[Source], add_own: Callable[[SeriesSet], None]) -> None:
        self._sources = sources
        self._add_own = add_own
        self._lock = threading.Lock()
        self._renderers = {content_type: Renderer(content_type) for content_type in self._FORMATS}
        self._rendered: dict[str, tuple[Hashable, str]] = {}
        self._built: tuple[Hashable, SeriesSet] | None = None

    def text(self, content_type: str) -> str:
        """Return the whole answer in one of the two formats."""
        own = SeriesSet()
        with self._lock:
            version = tuple(source.version() for source in self._sources)
            cached = self._rendered.get(content_type)
            series = self._series(version)
            if cached is None or cached[0] != version:
                cached = (version, self._renderers[content_type].render(series))
                self._rendered[content_type] = cached
            own.add(m.SERIES, (), len(series))
            self._add_own(own)
            if series.num_duplicates:
                own.add(m.SAMPLE_ERRORS, ("exporter", "duplicate_series"), series.num_duplicates)
            renderer = self._renderers[content_type]
            return cached[1] + renderer.render(own) + renderer.end

    def num_series(self) -> int:
        """Return how many series an answer has now, without those about the exporter."""
        with self._lock:
            return len(self._series(tuple(source.version() for source in self._sources)))

    def _series(self, version: Hashable) -> SeriesSet:
        if self._built is None or self._built[0] != version:
            series = SeriesSet()
            for source in self._sources:
                series.extend(source.series())
            self._built = (version, series)
        return self._built[1]
