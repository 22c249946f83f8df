"""Run the benchmarks and write their figures into bench/RESULTS.md.

A benchmark is a file `bench_NAME.py` that, run with `--json`, prints one JSON list of rows: `figure`, `value`, `unit`,
`limit` (text, may be empty) and `ok` (true, false, or null when there is no limit). Each runs in a process of its own,
one after the other, so that they do not disturb each other.

    python bench/run.py              all of them
    python bench/run.py exporter     one
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "RESULTS.md"
TIMEOUT_S = 3_600


def run_one(name: str) -> list[dict[str, Any]]:
    """Return the rows of one benchmark.

    Raises:
        SystemExit: It failed; its own message was printed.
    """
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FOLDER / f"bench_{name}.py"), "--json"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        message = f"bench_{name} ended with status {done.returncode}"
        raise SystemExit(message)
    return json.loads(done.stdout.strip().splitlines()[-1])


def render(name: str, rows: list[dict[str, Any]]) -> str:
    """Return one benchmark's section."""
    when = datetime.datetime.now(datetime.UTC).date().isoformat()
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    lines = [f"## {name}", "", f"{when}; {machine}.", "", "| figure | value | limit | |", "|---|---|---|---|"]
    for row in rows:
        mark = {True: "ok", False: "**missed**", None: ""}[row["ok"]]
        lines.append(f"| {row['figure']} | {row['value']} {row['unit']} | {row['limit']} | {mark} |")
    return "\n".join(lines) + "\n"


def store(name: str, section: str) -> None:
    """Replace one benchmark's section in the results, or add it."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else "# Results of `make bench`\n"
    pattern = re.compile(rf"^## {re.escape(name)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    found = pattern.search(text)
    text = pattern.sub(lambda _: section + "\n", text) if found else f"{text.rstrip()}\n\n{section}"
    RESULTS.write_text(text.rstrip() + "\n", encoding="utf-8")


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; return 1 when a limit was missed."""
    known = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))
    unknown = set(names) - set(known)
    if unknown:
        message = f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        raise SystemExit(message)
    missed = False
    for name in names or known:
        rows = run_one(name)
        section = render(name, rows)
        store(name, section)
        print(section, flush=True)
        missed = missed or any(row["ok"] is False for row in rows)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
