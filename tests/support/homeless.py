"""A process whose user has no home folder."""

from __future__ import annotations

import pwd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def _find_nobody(number: int) -> None:
    message = f"getpwuid(): uid not found: {number}"
    raise KeyError(message)


def forget_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process be that of a user that the system does not know, in an environment that names no folder."""
    for name in ("HOME", "XDG_CACHE_HOME", "SCOPE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", _find_nobody)
