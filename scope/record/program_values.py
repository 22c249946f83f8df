"""What the program hands over, which may be anything: numbers, names and exceptions, taken or told of once."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_NAME: Final = 200
"""Characters of the name of a user's phase."""
_MAX_START: Final = 2**31 - 2**24
"""The black box has 31 bits for the number of a step, of which these leave room to count on."""


class ProgramValues:
    """Takes what is what it should be; of the rest it tells once, by an event."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        """Start with nothing told.

        Args:
            warn: Writes the event of a message.
        """
        self._warn = warn
        self._warned: set[str] = set()

    def as_tokens(self, tokens: Any) -> int | None:
        """Return a number of tokens; `None`, said once, for what is none or would have to be waited for on a device."""
        try:
            if isinstance(tokens, torch.Tensor) and tokens.device.type != "cpu":
                self.warn_once("tokens are a tensor on a device, which is not waited for: give add_tokens an int")
                return None
            number = int(tokens)
        except Exception as error:  # noqa: BLE001 - of any type
            self.warn_once(f"tokens are no whole number and were left out: {type(error).__name__}")
            return None
        if not 0 <= number < 2**62:
            self.warn_once("tokens are negative or beyond any step, and were left out")
            return None
        return number

    def as_step(self, step: Any) -> int | None:
        """Return the number of a step; `None`, said once, for what is none."""
        if isinstance(step, torch.Tensor) and step.device.type != "cpu":
            self.warn_once("the start is a tensor on a device, which is not waited for: give an int")
            return None
        try:
            number = operator.index(step)
        except Exception as error:  # noqa: BLE001 - of any type
            self.warn_once(f"the start is no whole number, and steps are counted from 0: {type(error).__name__}")
            return None
        if not 0 <= number <= _MAX_START:
            self.warn_once(f"the start is not between 0 and {_MAX_START:,}, and steps are counted from 0")
            return None
        return number

    def as_name(self, name: Any) -> str:
        """Return a phase's name as text of at most 200 characters that can be written; a change is said once."""
        try:
            text = str(name)[:MAX_NAME].encode("utf-8", "replace").decode() or "(empty)"
        except Exception:  # noqa: BLE001 - of any type
            text = "(unnamed)"
        if text != name:
            self.warn_once(f"a phase's name is no text of 1 to {MAX_NAME} characters, and was recorded as {text!r}")
        return text

    def warn_once(self, message: str) -> None:
        """Tell of values that the program gave; one of a kind is enough."""
        kind = message[:20]
        if kind not in self._warned:
            self._warned.add(kind)
            self._warn(message)


def describe_exception(error: BaseException) -> str:
    """Return kind and words of an exception, which may have a `__str__` that raises or what cannot be encoded."""
    try:
        words = str(error)[:2000].encode("utf-8", "replace").decode()
    except Exception as problem:  # noqa: BLE001 - the program's own code
        words = f"(its words cannot be had: {type(problem).__name__})"
    return f"{type(error).__name__}: {words}"[:2000]
