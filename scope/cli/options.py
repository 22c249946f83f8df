"""Options that every command on traces takes, declared once.

`takes_job` gives a command the parameters of `JobOptions` beside its own, and hands them over as one value.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOptions:
    """Which traces, and what the user says about the job that they come from."""

    paths: Annotated[
        list[str],
        typer.Argument(help="Traces (.json, .json.gz, .json.zst), folders of traces, or globs.", metavar="PATH..."),
    ]
    rank: Annotated[
        list[str], typer.Option(metavar="FILE=N", help="The rank of a file that does not say it, or says it wrongly.")
    ] = field(default_factory=list[str])
    memory_as_compute: Annotated[
        bool, typer.Option("--memory-as-compute", help="Copies and sets count as compute.")
    ] = False
    sets_as_compute: Annotated[
        bool, typer.Option("--sets-as-compute", help="Sets (memset), but not copies, count as compute.")
    ] = False
    linked_only: Annotated[
        bool, typer.Option("--linked-only", help="Only device events whose launch is in the trace count.")
    ] = False
    gpu: Annotated[
        str | None, typer.Option(metavar="ID", help="What the GPUs are, where traces do not say: h100-sxm, say.")
    ] = None
    gpu_file: Annotated[
        list[Path], typer.Option(metavar="TOML", help="Further GPUs, or measured peaks, in the catalogue's form.")
    ] = field(default_factory=list[Path])
    classes: Annotated[
        Path | None, typer.Option(metavar="TOML", help="Your own patterns for classes of kernels, tried first.")
    ] = None
    ranks_per_node: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Ranks 0 to N-1 share the first node, and so on.")
    ] = None
    topology: Annotated[
        Path | None, typer.Option(metavar="TOML", help="Which ranks share a node, and the rates of links.")
    ] = None
    modules: Annotated[bool, typer.Option("--modules", help="Read Python stacks too, for time by module; slower.")] = (
        False
    )
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Files read at the same time; as many as processors.")
    ] = None
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither use nor keep parsed tables.")] = False
    redact: Annotated[
        bool, typer.Option("--redact", help="Replace hosts, users, paths, addresses and ids, consistently.")
    ] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputOptions:
    """How a table is printed."""

    json: Annotated[bool, typer.Option("--json", help="Print JSON records.")] = False
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Rows to print; 0 for all. 20 in a terminal, else all.")
    ] = None


_GROUPS: Final = (JobOptions, OutputOptions)


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the fields of its `JobOptions` and `OutputOptions` as parameters of their own."""
    hints = get_type_hints(command, include_extras=True)
    grouped = {name: hint for name, hint in hints.items() if hint in _GROUPS}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in grouped:
            parameters += _parameters(grouped[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
    members = {name: [each.name for each in fields(group)] for name, group in grouped.items()}

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        built = {name: group(**{each: values.pop(each) for each in members[name]}) for name, group in grouped.items()}
        command(**built, **values)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapper.__wrapped__
    return wrapper


@functools.cache
def _parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name], default=_default(each)
        )
        for each in fields(group)
    ]


def _default(each: Any) -> Any:
    if each.default is not MISSING:
        return each.default
    return inspect.Parameter.empty if each.default_factory is MISSING else each.default_factory()
