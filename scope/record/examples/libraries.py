"""What an example needs beside torch, asked for in one line where it is missing."""

from __future__ import annotations

import importlib.util


def require(*libraries: str) -> None:
    """End an example whose libraries are not installed with one line that says what to install, and exit code 1.

    Args:
        libraries: Names by which they are imported and installed.

    Raises:
        SystemExit: One of them is missing.
    """
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        message = f"this example needs {' and '.join(missing)}: pip install {' '.join(missing)}"
        raise SystemExit(message)
