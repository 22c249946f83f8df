"""Synthetic multi-rank jobs whose truth is known by construction."""
