"""Opens the session under `scope run`, and closes it when the program ends."""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

RECORDING_PID = "SCOPE_RECORDING_PID"


class _Ending:
    """Learns how the program ends: the excepthook is called before atexit."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._reason = "finished"
        self._hook = sys.excepthook
        sys.excepthook = self.on_exception
        atexit.register(self.on_exit)

    def on_exception(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        """Note the exception and let the program's own hook tell it."""
        try:
            self._reason = "interrupted" if issubclass(kind, KeyboardInterrupt) else "exception"
            self._session.note_exception(error)
        finally:
            self._hook(kind, error, traceback)

    def on_exit(self) -> None:
        """Close the recording in the process that opened it."""
        if os.environ.get(RECORDING_PID) == str(os.getpid()):
            self._session.close(self._reason)


def start() -> None:
    """Open the session of this process; whatever goes wrong is said in one line, and the program runs on."""
    try:
        from scope.record import session, start
        from scope.record.settings import read_settings

        if session.current is not None:
            return
        folder, info = start.prepare(os.environ)
        opened = session.open_session(read_settings(os.environ, folder), info)
        os.environ[RECORDING_PID] = str(os.getpid())
        _Ending(opened)
    except Exception as error:  # noqa: BLE001 - the guard: training must start whatever happens here
        sys.stderr.write(f"scope: the run goes on unrecorded: {type(error).__name__}: {error}\n")
