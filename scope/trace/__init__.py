"""A profiler trace on disk becomes typed tables."""

from scope.trace.classes import Pattern, read_patterns
from scope.trace.loading import ReadOptions, load, load_rank
from scope.trace.model import Job, RankTrace, TraceQuality
from scope.trace.sources import Limits

__all__ = ["Job", "Limits", "Pattern", "RankTrace", "ReadOptions", "TraceQuality", "load", "load_rank", "read_patterns"]
