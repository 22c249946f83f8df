"""A port that another process listens at: one sentence that says the way on."""

from __future__ import annotations

import socket
import subprocess
import sys


def test_a_taken_port_says_what_to_do() -> None:
    """The line names the port, another --port, and 0 for a free one; the exit code is that of wrong input."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "exporters", "--port", str(port)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 3
    assert line.startswith(f"scope: cannot listen at 127.0.0.1:{port}: ")
    assert line.endswith("; choose another --port (0 takes a free one), or stop what listens there")
