"""`scope exporter`: serve this node's hardware and training runs to Prometheus."""

from __future__ import annotations

import importlib.util
import os
import sys

import click

from scope.errors import MissingExtraError

_NEEDED = ("pynvml", "bcrypt", "yaml")


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def exporter(arguments: tuple[str, ...]) -> None:
    """Serve this node's GPUs, links, NICs, storage and training runs to Prometheus, on 127.0.0.1:9469.

    `scope exporter targets HOSTS` writes a target file for file_sd_configs.

    Example: scope exporter --port 9469 --runs '/var/spool/scope/*'
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        message = f"the exporter needs {', '.join(missing)}: pip install 'stepscope[exporter]'"
        raise MissingExtraError(message)
    command = [sys.executable, "-P", "-m", "exporters", *arguments]
    sys.stdout.flush()
    # Becoming the exporter costs one process less, and the signals of a service manager reach it directly.
    os.execv(sys.executable, command)
