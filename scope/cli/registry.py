"""Which commands there are; only the one that is called is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

POST_MORTEM: Final[dict[str, str]] = {
    "analyze": "Say where the time went, and what to do.",
    "compare": "What changed between two runs.",
    "findings": "What costs time, and what to do about it.",
    "breakdown": "Where each rank's time went.",
    "steps": "Where each step's time went.",
    "idle": "Why devices stood idle.",
    "queue": "How well the host fed its devices.",
    "kernels": "Which kernels took the time.",
    "roofline": "How close kernels come to their limits.",
    "collectives": "Collectives: transfer, wait, bandwidth.",
    "stragglers": "Ranks that make others wait, and why.",
    "launches": "Launching calls and their delay.",
    "syncs": "Calls that block the host.",
    "copies": "Copies and sets by direction.",
    "memory": "Peak memory, and who held it.",
    "critical-path": "What decided how long a step took.",
    "quality": "How far to trust the figures.",
}
"""The commands that read profiler traces, in the order of the help."""
GLOSSARY: Final = "Words and figures: https://github.com/stepscope/stepscope/blob/main/docs/glossary.md"
"""The last line of the help of all and of each command that prints tables."""

COMMANDS: Final[dict[str, str]] = {
    **POST_MORTEM,
    "run": "Run a training command and record every rank of it, with no change to the script.",
    "show": "Say how a recorded run is doing: step, rate, phases, collectives, memory, MFU, slowest ranks.",
    "watch": "Follow a run: say who hangs, died or makes the others wait, and tell alerts and dashboard of it.",
    "doctor": "Say what is wrong with this node, or what differs between the ranks of a run, and what to do.",
    "demo": "Train a small transformer on this machine, record it, and open the dashboard on it.",
    "exporter": "Serve this node's GPUs, links, NICs, storage and training runs to Prometheus, on 127.0.0.1:9469.",
    "dashboard": "Show runs, traces and Prometheus servers in the browser.",
    "runs": "List, label and delete recorded runs.",
}
"""What each command does: the first paragraph of its own help. Command `a-b` is the object `a_b` of `scope.cli.a_b`."""


class LazyGroup(click.Group):
    """The `scope` command: its help needs no module of a command, and a command none of another."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; None when there is none of that name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"scope.cli.{name}"), name)
        if cmd_name in POST_MORTEM:
            command.epilog = GLOSSARY
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called; of a name that is none, say which one was meant."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            if close:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
