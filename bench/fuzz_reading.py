"""Read mutated traces from the seed on where the last run ended, and note in bench/RESULTS.md how far it came.

    python bench/fuzz_reading.py 100000

Seeds are taken in batches; a batch is noted once all of it was read or refused as it should be, so that a run that is
stopped loses no more than one. A failure names its test, and nothing of its batch is noted.
"""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "RESULTS.md"
TEST = FOLDER.parent / "tests" / "unit" / "trace" / "test_fuzz_reading.py"
GOAL = 1_000_000
BATCH = 10_000
MADE_BY_REAL = 8
"""As in the test."""
DONE = re.compile(r"^\| seeds done, from 0 on without a gap \| (\d+) \|", re.MULTILINE)
SECTION = re.compile(r"^## fuzz of reading\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def seeds_done(text: str) -> int:
    """Return how many seeds earlier runs have done."""
    found = DONE.search(text)
    return int(found[1]) if found else 0


def noted(text: str, done: int, seconds: float) -> str:
    """Return the results with the section of fuzzing replaced."""
    when = datetime.datetime.now(datetime.UTC).date().isoformat()
    section = f"""## fuzz of reading

{when}; mutations as in `tests/unit/trace/test_fuzz_reading.py`, by `make fuzz`, which goes on at the next seed.

| figure | value | limit | |
|---|---|---|---|
| seeds done, from 0 on without a gap | {done} | >= {GOAL} | {"ok" if done >= GOAL else "not yet"} |
| mutations of the made trace | {done} |  | every one read, or refused with an error of Scope that names the file |
| mutations of real traces, cut small | {done // MADE_BY_REAL} |  | likewise |
| wall time of a seed, last batch | {seconds * 1000:.1f} ms |  |  |
"""
    if SECTION.search(text) is None:
        return f"{text.rstrip()}\n\n{section}"
    return SECTION.sub(lambda _: section + "\n", text).rstrip() + "\n"


def main(wanted: int) -> int:
    """Do so many seeds more; return pytest's status."""
    while wanted > 0:
        first = seeds_done(RESULTS.read_text(encoding="utf-8"))
        size = min(BATCH, wanted)
        settings = {"SCOPE_FUZZ_FIRST_SEED": str(first), "SCOPE_FUZZ_MUTATIONS": str(size)}
        # Each of the processes has a core; threads of their own would only hand the small tables to and fro.
        threads = {"POLARS_MAX_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", str(TEST), "-q", "-n", "auto", "--timeout=0", "-k", "mutations"]
        began = time.perf_counter()
        status = subprocess.run(command, env={**os.environ, **settings, **threads}, check=False).returncode
        if status:
            print(f"failed between seeds {first} and {first + size}; run again with {settings}", file=sys.stderr)
            return status
        seconds = (time.perf_counter() - began) / size
        RESULTS.write_text(noted(RESULTS.read_text(encoding="utf-8"), first + size, seconds), encoding="utf-8")
        print(f"seeds {first} to {first + size - 1} done", flush=True)
        wanted -= size
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
