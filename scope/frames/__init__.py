"""A run directory as polars frames."""
