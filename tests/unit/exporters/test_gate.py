"""Connections that wait without a thread: whole requests pass, the rest makes room."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from exporters import gate
from exporters.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator


class World:
    """A gate with a clock, and pairs of connected sockets."""

    def __init__(self, *, is_encrypted: bool = False) -> None:
        self.now_s = 100.0
        self.passed: list[tuple[str, bytes]] = []
        self.clients: list[socket.socket] = []
        self.let_in: list[socket.socket] = []
        self.gate = Gate(is_encrypted=is_encrypted, let_in=self.take, clock_s=lambda: self.now_s)

    def take(self, connection: socket.socket, address: str, received: bytes) -> None:
        """Note what was let in."""
        self.passed.append((address, received))
        self.let_in.append(connection)

    def connect(self, address: str) -> socket.socket:
        """Let a connection wait; return the client's end."""
        client, server = socket.socketpair()
        self.clients.append(client)
        self.gate.admit(server, address)
        return client

    def look(self) -> None:
        """Look at every connection that has something to say."""
        for key, _ in self.gate.selector.select(0):
            self.gate.look(key.fileobj)

    def close(self) -> None:
        """Close all."""
        self.gate.close()
        for connection in (*self.clients, *self.let_in):
            connection.close()


@pytest.fixture
def world() -> Iterator[World]:
    """A gate for plain connections."""
    made = World()
    yield made
    made.close()


def is_closed(client: socket.socket) -> bool:
    """Return whether the server has closed its end."""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n"])
def test_a_request_passes_once_it_is_whole(world: World, end: bytes) -> None:
    """Byte by byte, with all that came, and only once."""
    client = world.connect("a")
    for byte in b"GET / HTTP/1.0" + end:
        assert world.passed == []
        client.sendall(bytes([byte]))
        world.look()
    assert world.passed == [("a", b"GET / HTTP/1.0" + end)]
    world.look()
    assert len(world.passed) == 1


def test_a_request_without_end_passes_at_a_length(world: World) -> None:
    """The handler then says what is wrong with it; nothing grows without bound."""
    client = world.connect("a")
    client.setblocking(False)
    sent = 0
    while not world.passed:
        with contextlib.suppress(BlockingIOError):
            sent += client.send(b"x" * 10_000)
        world.look()
        assert sent < 500_000
    assert gate.MAX_REQUEST_BYTES <= len(world.passed[0][1]) < gate.MAX_REQUEST_BYTES + 70_000


def test_who_closes_or_breaks_is_forgotten(world: World) -> None:
    """Before, within and after a request."""
    world.connect("a").close()
    client = world.connect("b")
    client.sendall(b"GET")
    world.look()
    client.close()
    world.look()
    assert world.passed == []
    assert len(world.gate.selector.get_map()) == 0


def test_the_oldest_makes_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it has something to say in the very round in which it goes."""
    monkeypatch.setattr(gate, "MAX_WAITING", 2)
    first, second = world.connect("a"), world.connect("b")
    first.sendall(b"GET / HTTP/1.0\r\n\r\n")
    ready = [key.fileobj for key, _ in world.gate.selector.select(0)]
    third = world.connect("c")
    for connection in ready:
        world.gate.look(connection)
    assert (world.passed, is_closed(first)) == ([], True)
    assert not is_closed(second)
    assert not is_closed(third)


def test_who_waits_too_long_is_closed(world: World) -> None:
    """Ten seconds after it came, whatever it has said since."""
    old = world.connect("a")
    world.now_s += 6
    young = world.connect("b")
    old.sendall(b"G")
    world.look()
    world.now_s += 5
    world.gate.close_old(10)
    assert is_closed(old)
    assert not is_closed(young)


def test_inside_tls_the_first_byte_lets_through() -> None:
    """Nothing of the handshake is taken away."""
    world = World(is_encrypted=True)
    client = world.connect("a")
    world.look()
    assert world.passed == []
    client.sendall(b"\x16\x03")
    world.look()
    assert world.passed == [("a", b"")]
    assert world.let_in[0].recv(2) == b"\x16\x03"
    world.close()
