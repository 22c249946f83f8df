"""The commands that read profiler traces, in the order of the help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.cli.analyze import analyze
from scope.cli.breakdown import breakdown
from scope.cli.collectives import collectives
from scope.cli.compare import compare
from scope.cli.copies import copies
from scope.cli.critical_path import critical_path
from scope.cli.findings import findings
from scope.cli.idle import idle
from scope.cli.kernels import kernels
from scope.cli.launches import launches
from scope.cli.memory import memory
from scope.cli.quality import quality
from scope.cli.queue import queue
from scope.cli.roofline import roofline
from scope.cli.steps import steps
from scope.cli.stragglers import stragglers
from scope.cli.syncs import syncs

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "analyze": analyze,
    "compare": compare,
    "findings": findings,
    "breakdown": breakdown,
    "steps": steps,
    "idle": idle,
    "queue": queue,
    "kernels": kernels,
    "roofline": roofline,
    "collectives": collectives,
    "stragglers": stragglers,
    "launches": launches,
    "syncs": syncs,
    "copies": copies,
    "memory": memory,
    "critical-path": critical_path,
    "quality": quality,
}


def add_post_mortem_commands(app: typer.Typer) -> None:
    """Register the commands."""
    for name, command in COMMANDS.items():
        app.command(name)(command)
