"""Real interfaces: bytes that cross a pair of network namespaces equal what the probe and the exporter count."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.system("ip", "unshare")

PAYLOAD_BYTES = 5_000_000
SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as connection:
    connection.sendall(b"x" * int(sys.argv[3]))
"""
RECEIVER = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    with connection:
        got = 0
        while data := connection.recv(1 << 20):
            got += len(data)
print(got, flush=True)
"""


def run_ip(*words: str) -> None:
    """Run iproute2, or skip where it is not permitted."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode and ("permitted" in done.stderr or "denied" in done.stderr):
        pytest.skip(f"ip {' '.join(words)} is not permitted here")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two namespaces joined by a veth pair: 10.213.0.1 on va, 10.213.0.2 on vb."""
    first, second = f"scope-a{os.getpid()}", f"scope-b{os.getpid()}"
    run_ip("netns", "add", first)
    try:
        run_ip("netns", "add", second)
        run_ip("link", "add", "va", "netns", first, "type", "veth", "peer", "name", "vb", "netns", second)
        for name, device, address in ((first, "va", "10.213.0.1/24"), (second, "vb", "10.213.0.2/24")):
            run_ip("-n", name, "addr", "add", address, "dev", device)
            run_ip("-n", name, "link", "set", device, "up")
        yield first, second
    finally:
        for name in (first, second):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def enter(namespace: str, *command: str) -> list[str]:
    """Return a command that runs in a namespace, with /sys of that namespace."""
    return ["ip", "netns", "exec", namespace, *command]


def kernel_bytes(namespace: str, device: str, counter: str) -> int:
    """Return a counter of the kernel, read by a program that is not ours."""
    path = f"/sys/class/net/{device}/statistics/{counter}"
    return int(subprocess.run(enter(namespace, "cat", path), capture_output=True, text=True, check=True).stdout)


def send(namespaces: tuple[str, str]) -> None:
    """Send the payload from the first namespace to the second."""
    receiver = subprocess.Popen(
        enter(namespaces[1], sys.executable, "-c", RECEIVER, "10.213.0.2", "5600"), stdout=subprocess.PIPE, text=True
    )
    assert receiver.stdout is not None
    with receiver.stdout:
        assert receiver.stdout.readline() == "ready\n"
        command = [sys.executable, "-c", SENDER, "10.213.0.2", "5600", str(PAYLOAD_BYTES)]
        subprocess.run(enter(namespaces[0], *command), check=True, timeout=60)
        assert receiver.stdout.readline() == f"{PAYLOAD_BYTES}\n"
    receiver.wait(10)


def test_real_traffic_equals_what_is_counted(
    namespaces: tuple[str, str], free_port: Callable[[], int], tmp_path: Path
) -> None:
    """The exporter in the sending namespace counts what the kernel of both ends counts, to the byte."""
    port = free_port()
    command = [sys.executable, "-m", "exporters", "--port", str(port), "--interval", "100ms", "--collectors", "net"]
    environment = {**os.environ, "SCOPE_REGISTRY": str(tmp_path)}
    run_ip("-n", namespaces[0], "link", "set", "lo", "up")
    process = subprocess.Popen(enter(namespaces[0], *command), env=environment, stderr=subprocess.DEVNULL)
    try:
        before = wait_for_bytes(namespaces[0], port, lambda found: found is not None)
        send(namespaces)
        # The kernel itself may send a frame (neighbour discovery) at any time, also long after.
        after = wait_for_bytes(
            namespaces[0], port, lambda found: found == kernel_bytes(namespaces[0], "va", "tx_bytes")
        )
    finally:
        process.terminate()
        process.wait(10)
    received = kernel_bytes(namespaces[1], "vb", "rx_bytes")
    sent_since = kernel_bytes(namespaces[0], "va", "tx_bytes")
    assert after <= received <= sent_since
    # Every frame carries at most 1,448 bytes of payload and 66 of headers; segmentation offload may merge headers.
    assert PAYLOAD_BYTES <= after - before <= PAYLOAD_BYTES * 1.06


def wait_for_bytes(namespace: str, port: int, good: Callable[[Any], bool]) -> int:
    """Return the exporter's count of sent bytes once it is as wanted."""
    script = (
        f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/metrics', timeout=5).read().decode())"
    )
    deadline = time.monotonic() + 30
    found: int | None = None
    while time.monotonic() < deadline:
        done = subprocess.run(
            enter(namespace, sys.executable, "-c", script), capture_output=True, text=True, check=False
        )
        lines = [
            line for line in done.stdout.splitlines() if line.startswith('scope_net_transmit_bytes_total{device="va"}')
        ]
        found = int(float(lines[0].rpartition(" ")[2])) if lines else None
        if good(found):
            assert found is not None
            return found
        time.sleep(0.1)
    pytest.fail(f"the exporter shows {found}")


def test_driver_counters_by_ioctl_equal_those_of_the_kernel(namespaces: tuple[str, str]) -> None:
    """Veth's own counters of its peer queue, read by our ioctl in the namespace, are numbers by name."""
    script = (
        "from scope.probe.ethtool import Ethtool\n"
        "tool = Ethtool()\n"
        "print(sorted(tool.read('va').items())[0])\n"
        "print(tool.read('va')['peer_ifindex'])\n"
    )
    done = subprocess.run(
        enter(namespaces[0], sys.executable, "-c", script), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    index = subprocess.run(
        enter(namespaces[1], "cat", "/sys/class/net/vb/ifindex"), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == index.stdout.strip()
