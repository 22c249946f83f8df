"""`python -m dashboards.alerts`: write the rules with a site's thresholds."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Final

from dashboards.alerts.generate import render_manifest, render_rules, render_runbook
from dashboards.alerts.grafana import render_dashboard
from dashboards.alerts.model import choose_values
from dashboards.alerts.settings import SETTINGS
from scope.errors import InputError, ScopeError, UsageError
from scope.run.files import replace_text

FOLDER: Final = Path(__file__).parent
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def main(arguments: list[str]) -> int:
    """Write the files; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dashboards.alerts",
        description="Write rules, PrometheusRule manifest, Alertmanager example, runbook and Grafana dashboard.",
        epilog="example: python -m dashboards.alerts --output /etc/prometheus/rules --set nic_bytes_per_second=2.5e10",
    )
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder to write to (default: beside the table)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change a threshold")
    parser.add_argument("--scale", type=float, default=1, help="divide all lengths of time by this (for tests)")
    parser.add_argument("--namespace", default="monitoring", help="namespace of the manifest")
    parser.add_argument("--force", action="store_true", help="overwrite files in another folder")
    options = parser.parse_args(arguments)
    try:
        _write(options)
    except ScopeError as error:
        sys.stderr.write(f"scope: {error}\n")
        return error.exit_code
    return 0


def _write(options: argparse.Namespace) -> None:
    values = choose_values(SETTINGS, options.set, scale=options.scale)
    if not _NAMESPACE.fullmatch(options.namespace):
        message = f"--namespace {options.namespace!r} is none: up to 63 of a-z, 0-9 and -, no - at its ends"
        raise UsageError(message)
    files = {
        "scope.rules.yml": render_rules(values),
        "scope.prometheusrule.yaml": render_manifest(values, namespace=options.namespace),
        "RUNBOOK.md": render_runbook(),
        "scope.grafana.json": render_dashboard(),
    }
    folder: Path = options.output
    is_own = folder.resolve() == FOLDER.resolve()
    if not is_own:
        files["alertmanager.example.yml"] = (FOLDER / "alertmanager.example.yml").read_text(encoding="utf-8")
    # A link counts as being there wherever it leads, and nothing is written through it.
    existing = [name for name in files if os.path.lexists(folder / name)]
    if existing and not is_own and not options.force:
        message = f"{folder} has {', '.join(existing)} already; --force overwrites"
        raise UsageError(message)
    foreign = [name for name in existing if (folder / name).is_symlink() or not (folder / name).is_file()]
    if foreign:
        message = f"{', '.join(foreign)} in {folder}: no regular file, which is not overwritten; move it away"
        raise UsageError(message)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            replace_text(folder / name, text)
    except OSError as error:
        message = f"cannot write to {folder}: {error.strerror}; name another folder with --output"
        raise InputError(message) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
