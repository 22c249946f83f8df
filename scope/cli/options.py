"""Options that every command on traces takes, declared once.

`takes_job` and `takes_output` give a command these options beside its own, and hand them over as one value.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE: Final = click.Path(path_type=Path)
"""The type of options and arguments that are paths."""


class _UnaskedPath(click.ParamType[Path]):
    """A path as it was written."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        del param, ctx
        return Path(value)


UNASKED_PATH: Final = _UnaskedPath()
"""The type of paths that may lie on a file system that hangs: nothing is asked of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOptions:
    """Which traces, and what the user says about the job that they come from."""

    paths: Sequence[str]
    rank: Sequence[str] = ()
    window: int | None = None
    memory_as_compute: bool = False
    sets_as_compute: bool = False
    linked_only: bool = False
    gpu: str | None = None
    gpu_file: Sequence[Path] = ()
    classes: Path | None = None
    ranks_per_node: int | None = None
    topology: Path | None = None
    modules: bool = False
    processes: int | None = None
    no_cache: bool = False
    redact: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputOptions:
    """How a table is printed."""

    json: bool = False
    csv: bool = False
    limit: int | None = None


_POSITIVE: Final = click.IntRange(min=1)
RANK: Final[Decorator] = click.option(
    "--rank", multiple=True, metavar="FILE=N", help="The rank of a file that does not say it, or says it wrongly."
)
PROCESSES: Final[Decorator] = click.option(
    "--processes", type=_POSITIVE, metavar="N", help="Files read at the same time; as many as processors."
)
NO_CACHE: Final[Decorator] = click.option("--no-cache", is_flag=True, help="Neither use nor keep parsed tables.")
REDACT: Final[Decorator] = click.option(
    "--redact", is_flag=True, help="Replace hosts, users, paths, addresses and ids, consistently."
)
_JOB: Final[tuple[Decorator, ...]] = (
    click.argument(
        "paths",
        nargs=-1,
        required=True,
        metavar="PATH...",
        help="Traces (.json, .json.gz, .json.zst), folders of traces, globs, or run directories.",
    ),
    RANK,
    click.option(
        "--window",
        type=click.IntRange(min=0),
        metavar="STEP",
        help="The profiler window that begins at this step, of a run directory or of traces of several windows; by "
        "default the newest that most ranks share.",
    ),
    click.option("--memory-as-compute", is_flag=True, help="Copies and sets count as compute."),
    click.option("--sets-as-compute", is_flag=True, help="Sets (memset), but not copies, count as compute."),
    click.option("--linked-only", is_flag=True, help="Only device events whose launch is in the trace count."),
    click.option("--gpu", metavar="ID", help="What the GPUs are, where traces do not say: h100-sxm, say."),
    click.option(
        "--gpu-file",
        multiple=True,
        type=FILE,
        metavar="TOML",
        help="Further GPUs, or measured peaks, in the catalogue's form.",
    ),
    click.option("--classes", type=FILE, metavar="TOML", help="Your own patterns for classes of kernels, tried first."),
    click.option(
        "--ranks-per-node", type=_POSITIVE, metavar="N", help="Ranks 0 to N-1 share the first node, and so on."
    ),
    click.option("--topology", type=FILE, metavar="TOML", help="Which ranks share a node, and the rates of links."),
    click.option("--modules", is_flag=True, help="Read Python stacks too, for time by module; slower."),
    PROCESSES,
    NO_CACHE,
    REDACT,
)
_OUTPUT: Final[tuple[Decorator, ...]] = (
    click.option("--json", is_flag=True, help="Print JSON records."),
    click.option("--csv", is_flag=True, help="Print CSV."),
    click.option(
        "--limit",
        type=click.IntRange(min=0),
        metavar="N",
        help="Rows to print; 0 for all. By default text has 20 of each table, JSON and CSV have all.",
    ),
)


takes_step: Final[Decorator] = click.option(
    "--step", type=int, metavar="N", help="Of this step alone, not of the whole window."
)
"""Of commands whose table `scope.analysis.tables.narrow_tables` makes of one step too."""


def takes_job(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of `JobOptions`, which it gets as its argument `job`."""

    @wraps(command)
    def uncollected(**values: Any) -> None:
        # One report makes no garbage worth collecting, while to look for it, above all among what the command imports
        # now, takes a twentieth of the time.
        gc.disable()
        command(**values)

    return _gather(uncollected, "job", JobOptions, _JOB)


def takes_output(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of `OutputOptions`, which it gets as its argument `output`."""
    return _gather(command, "output", OutputOptions, _OUTPUT)


def _gather(
    command: Callable[..., None], name: str, group: type[Any], options: Sequence[Decorator]
) -> Callable[..., None]:
    names = [each.name for each in fields(group)]

    @wraps(command)
    def wrapper(**values: Any) -> None:
        command(**{name: group(**{each: values.pop(each) for each in names})}, **values)

    taken: Callable[..., None] = wrapper
    for option in reversed(options):
        taken = option(taken)
    return taken
