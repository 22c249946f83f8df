"""The guard around hooks: what one raises never reaches training; it is switched off, counted and told once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class HookGuard:
    """Keeps which hooks still work.

    Attributes:
        num_failures: Exceptions caught so far.
        reasons: Name of each hook that was switched off to the reason.
    """

    def __init__(self, report: Callable[[str, str], None] | None = None) -> None:
        """Start with every hook on.

        Args:
            report: Told the hook's name and the reason when a hook is switched off; once a hook.
        """
        self.num_failures = 0
        self.reasons: dict[str, str] = {}
        self._report = report
        self._lock = threading.Lock()

    def call(self, hook: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a part of a hook; `None` when it is switched off, or raises and is switched off for that."""
        if hook in self.reasons:
            return None
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - the one guard around hooks
            self.disable(hook, error)
            return None

    def disable(self, hook: str, error: BaseException) -> None:
        """Switch a hook off because it raised."""
        with self._lock:
            self.num_failures += 1
            if hook in self.reasons:
                return
            self.reasons[hook] = f"{type(error).__name__}: {error}"
        if self._report is None:
            return
        try:
            self._report(hook, self.reasons[hook])
        except Exception:  # noqa: BLE001 - the one guard: telling of a failure must not become one
            self._report = None
