"""Connections that have not asked for anything yet: they wait here, without a thread, until their request is whole.

Whoever opens connections and says nothing, or says it a byte at a time, holds a descriptor among many and keeps nobody
from being answered; when there are too many, the one that has waited longest goes first.
"""

from __future__ import annotations

import contextlib
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
        is_encrypted: Requests cannot be read before a handshake, so a connection's first byte lets it through.
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
        self._forget(connection)
        self._let_in(connection, guest.address, bytes(guest.received))

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
