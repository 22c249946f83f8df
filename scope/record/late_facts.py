"""What of a rank is known only once it trains: its ranks and device, and then its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from scope.record import facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.session import Session
    from scope.run.schema import DeviceInfo


class LateFacts:
    """Notes each in `rank.json` when it can be known.

    Attributes:
        are_known: Whether all have been noted.
    """

    def __init__(self, session: Session, *, on_device: Callable[[DeviceInfo], None]) -> None:
        """Start with nothing known.

        Args:
            session: The recording.
            on_device: Told the device when it is known.
        """
        self._session = session
        self._on_device = on_device
        self._is_world_known = self._is_model_known = False
        self.are_known = False

    def learn(self) -> None:
        """Note what is known after `init_process_group`, the first use of the device and the first calls."""
        if self._session.clock.num_steps > 1:
            self.learn_model()
        if self._is_world_known:
            return
        self._is_world_known = True
        self.are_known = self._is_model_known
        writer = self._session.writer
        absent = {name: why for name, why in writer.info.absent.items() if name != "device"}
        changes: dict[str, Any] = {"absent": absent}
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            changes["world_size"] = torch.distributed.get_world_size()
        device = facts.read_device()
        changes["device"] = device
        writer.update_info(**changes)
        self._on_device(device)

    def learn_model(self) -> None:
        """Note what is trained, once; by the third step every model has been called."""
        if self._is_model_known:
            return
        self._is_model_known = True
        self.are_known = self._is_world_known
        # A model may be of any kind.
        self._session.guard.call("model", self._note_model)

    def _note_model(self) -> None:
        self._session.writer.update_info(model=facts.describe_model(self._session.hooks.models()))
