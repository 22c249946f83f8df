"""What the hooks need of whoever keeps the calls; `scope.run.calls.CallLog` is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from scope.run.calls import Call, CallShape


class CallSink(Protocol):
    """Takes calls while they happen. All methods may be called from several threads.

    Instants are nanoseconds of the monotonic clock.

    Attributes:
        training_thread: Identity of the thread that trains.
        threads_apart: Identities of threads that do not; the tracker adds them.
    """

    training_thread: int
    threads_apart: set[int]

    def is_apart(self) -> bool:
        """Return whether the calling thread does not train."""
        ...

    def issue(self, shape: CallShape, flags: int, issued_ns: int) -> Call:
        """Take a call just before it is handed to torch.

        Args:
            shape: What its arguments say.
            flags: `scope.run.layout.FLAG_...`, or-ed.
            issued_ns: When it is issued.

        Returns:
            The object by which it is known from here on.
        """
        ...

    def complete(self, call: Call, completed_ns: int) -> None:
        """Take the completion of a call; a second one for the same call does nothing."""
        ...

    def end_wait(self, call: Call, start_ns: int, end_ns: int) -> None:
        """Take that a thread was blocked in `[start_ns, end_ns)`, at the end of which the call had completed."""
        ...

    def add_wait(self, call: Call, blocked_ns: int, *, apart: bool | None = None) -> None:
        """Take host time that a thread was blocked until the call had completed; several add up.

        Args:
            call: The call.
            blocked_ns: How long.
            apart: Whether that thread does not train; it is the caller where absent.
        """
        ...
