"""Connections that wait without a thread: whole requests pass, the rest makes room."""

from __future__ import annotations

import contextlib
import socket
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from exporters import gate
from exporters.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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

    def connect_over_tcp(self, address: str) -> socket.socket:
        """Let a connection of TCP wait; return the client's end."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            server, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.clients.append(client)
        self.gate.admit(server, address)
        return client

    def look(self, *, wait_s: float = 0) -> None:
        """Look at every connection that has something to say."""
        for key, _ in self.gate.selector.select(wait_s):
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


HELLO = b"\x16\x03\x01\x00\x04" + b"four"


@pytest.fixture
def encrypted() -> Iterator[World]:
    """A gate for TLS, with connections of TCP: the kernel waits for whole messages on these alone."""
    made = World(is_encrypted=True)
    yield made
    made.close()


@pytest.mark.parametrize("cuts", [(8,), (3, 8), range(1, 9)])
def test_a_whole_hello_lets_through(encrypted: World, cuts: Sequence[int]) -> None:
    """Before that no piece of it does, nor wakes the server again and again; nothing of it is taken away."""
    client = encrypted.connect_over_tcp("a")
    for begin, end in pairwise((0, *cuts)):
        client.sendall(HELLO[begin:end])
        # The length of the message is learnt from its head; then the kernel waits for the rest.
        encrypted.look(wait_s=0.05)
        encrypted.look()
        assert encrypted.gate.selector.select(0) == []
    assert encrypted.passed == []
    client.sendall(HELLO[-1:])
    encrypted.look(wait_s=10)
    assert [received for _, received in encrypted.passed] == [b""]
    assert encrypted.let_in[0].recv(100) == HELLO


@pytest.mark.parametrize("said", [b"G", b"\x16\x03\x01\xff\xff"])
def test_what_is_no_hello_is_let_through_to_fail(encrypted: World, said: bytes) -> None:
    """A request without TLS, or a message longer than any is: the handshake says what is wrong."""
    client = encrypted.connect_over_tcp("a")
    client.sendall(said + b" /metrics HTTP/1.0\r\n")
    encrypted.look(wait_s=10)
    assert len(encrypted.passed) == 1


@pytest.mark.parametrize("said", [b"", HELLO[:3], HELLO[:7]])
def test_a_client_that_goes_within_its_hello(encrypted: World, said: bytes) -> None:
    """It is let through, to be closed; nobody waits for what never comes."""
    client = encrypted.connect_over_tcp("a")
    client.sendall(said)
    client.shutdown(socket.SHUT_WR)
    for _ in range(3):
        encrypted.look(wait_s=0.2)
    assert len(encrypted.passed) == 1
