"""A profiler trace on disk becomes typed tables."""
