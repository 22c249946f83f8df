"""Attributes of other modules that were replaced, and how they come back exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class PatchTable:
    """Replaces attributes and restores them; restores only what is still ours.

    Attributes:
        left: Names that somebody else replaced after us, found at `restore`; they stand as that somebody left them,
            and our function below theirs only passes through.
    """

    def __init__(self) -> None:
        self.left: list[str] = []
        self._undo: list[tuple[object, str, object, object, bool]] = []

    def replace(self, owner: object, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `make(original)`.

        Args:
            owner: Module or class.
            name: Name of the attribute; nothing happens when the owner has none.
            make: Makes the replacement from the original.
        """
        if not hasattr(owner, name):
            return
        own = name in vars(owner)
        original = vars(owner)[name] if own else getattr(owner, name)
        replacement = make(original)
        setattr(owner, name, replacement)
        self._undo.append((owner, name, original, replacement, own))

    def holds(self, owner: object, name: str) -> bool:
        """Whether this table has replaced `owner.name`."""
        return any(known is owner and at == name for known, at, *_ in self._undo)

    def restore(self) -> None:
        """Put everything back, the latest first; a second call does nothing."""
        while self._undo:
            owner, name, original, replacement, own = self._undo.pop()
            if vars(owner).get(name) is not replacement:
                self.left.append(f"{getattr(owner, '__name__', owner)}.{name}")
            elif own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
