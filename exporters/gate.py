"""Connections that have not asked for anything yet: they wait here, without a thread, until their request is whole.

Whoever opens connections and says nothing, or says it a byte at a time, holds a descriptor among many and keeps nobody
from being answered; when there are too many, the one that has waited longest goes first.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_WAITING: Final = 512
MAX_REQUEST_BYTES: Final = 66_000
"""Longer than any request that the server would answer; the handler then says what is wrong with it."""
_READ_BYTES: Final = 65_536
_ENDS: Final = (b"\r\n\r\n", b"\n\n")
_HANDSHAKE: Final = b"\x16"
_RECORD_HEAD_BYTES: Final = 5
"""Of a TLS record: its type, two bytes of version, and two of its length."""
_MAX_HELLO_BYTES: Final = 16_384


class Guest(NamedTuple):
    """A connection that waits.

    Attributes:
        address: Where it is from.
        began_s: When it was accepted, on a monotonic clock.
        received: What it has sent so far.
    """

    address: Any
    began_s: float
    received: bytearray


class Gate:
    """Gathers requests of many connections on one thread.

    Args:
        is_encrypted: Requests cannot be read before a handshake, so its first message lets a connection through, once
            it is whole.
        let_in: Called with (connection, address, bytes read) for each whole request.
        clock_s: A monotonic clock.
    """

    def __init__(
        self,
        *,
        is_encrypted: bool,
        let_in: Callable[[Any, Any, bytes], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_encrypted = is_encrypted
        self._let_in = let_in
        self._clock_s = clock_s
        self._guests: dict[Any, Guest] = {}
        self.selector = selectors.DefaultSelector()

    def admit(self, connection: Any, address: Any) -> None:
        """Let a new connection wait; the one that has waited longest makes room for it."""
        if len(self._guests) >= MAX_WAITING:
            self._drop(next(iter(self._guests)))
        connection.setblocking(False)
        if self._is_encrypted:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _RECORD_HEAD_BYTES)
        self._guests[connection] = Guest(address, self._clock_s(), bytearray())
        self.selector.register(connection, selectors.EVENT_READ)
        if not self._is_encrypted:
            # Most have sent their request by now, and need not wait for the next round.
            self.look(connection)

    def look(self, connection: Any) -> None:
        """Take in what a connection has sent, and let it through once that is a request."""
        guest = self._guests.get(connection)
        if guest is None:
            return  # it made room for another one just now
        if not self._is_encrypted:
            try:
                data = connection.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._drop(connection)
                return
            guest.received.extend(data)
            if len(guest.received) < MAX_REQUEST_BYTES and not any(end in guest.received for end in _ENDS):
                return
        elif not self._has_hello(connection):
            return
        self._forget(connection)
        self._let_in(connection, guest.address, bytes(guest.received))

    def _has_hello(self, connection: Any) -> bool:
        """Return whether a client's first message is whole; it stays where it is, for the handshake.

        What is not yet there is waited for in the kernel (SO_RCVLOWAT), which wakes nobody for a byte of it. A
        connection that says something else, or nothing more, is let through, to fail there.
        """
        try:
            head = connection.recv(_RECORD_HEAD_BYTES + _MAX_HELLO_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            head = b""
        wanted = _count_hello(head)
        if len(head) < wanted:
            if wanted != connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
                return False
            if not _is_at_end(connection):
                return False
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return True

    def close_old(self, limit_s: float) -> None:
        """Close connections that have waited too long; they stand in the order of their arrival."""
        oldest_s = self._clock_s() - limit_s
        for connection, guest in list(self._guests.items()):
            if guest.began_s >= oldest_s:
                return
            self._drop(connection)

    def close(self) -> None:
        """Close all that wait."""
        for connection in list(self._guests):
            self._drop(connection)
        self.selector.close()

    def _drop(self, connection: Any) -> None:
        self._forget(connection)
        with contextlib.suppress(OSError):  # it was gone already
            connection.shutdown(socket.SHUT_WR)
        connection.close()

    def _forget(self, connection: Any) -> None:
        del self._guests[connection]
        self.selector.unregister(connection)


def _count_hello(head: bytes) -> int:
    """Return how many bytes a client's first message has, as far as its beginning tells; 0 when it is none of TLS."""
    if head[:1] != _HANDSHAKE:
        return 0
    if len(head) < _RECORD_HEAD_BYTES:
        return _RECORD_HEAD_BYTES
    length = _RECORD_HEAD_BYTES + int.from_bytes(head[3:5], "big")
    return length if length <= _RECORD_HEAD_BYTES + _MAX_HELLO_BYTES else 0


def _is_at_end(connection: Any) -> bool:
    """Return whether the client says nothing more, although what it said waits to be read."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))
