"""Callbacks for trainers that own the loop. Each library is imported only when its callback is asked for.

Under `scope run` none of them is needed: phases and steps are found without a change to the script.
"""

# These libraries are no dependency of Scope, so nothing is known of their types.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

from typing import Any

from scope.record.recorder import Recorder


def hugging_face_callback(**options: Any) -> Any:
    """Return a callback for `transformers.Trainer` that records from the first step to the end of training.

    Args:
        **options: Arguments of `Recorder`.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import TrainerCallback

    class ScopeCallback(TrainerCallback):
        """Opens a recording at the begin of training and closes it at its end."""

        def __init__(self) -> None:
            self.recorder = Recorder(**options)

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Open the recording, at the step that a checkpoint is resumed from."""
            del args, control, kwargs
            self.recorder.__enter__()
            self.recorder.start_at(state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Close the recording; another training opens one anew."""
            del args, state, control, kwargs
            self.recorder.__exit__(None, None, None)

    return ScopeCallback()


def lightning_callback(**options: Any) -> Any:
    """Return a callback for `lightning.Trainer` that records from the begin of training to its end or exception.

    Args:
        **options: Arguments of `Recorder`.

    Raises:
        ImportError: lightning is not installed.
    """
    from lightning.pytorch import Callback

    class ScopeCallback(Callback):
        """Opens a recording when training begins and closes it when it ends."""

        def __init__(self) -> None:
            self.recorder = Recorder(**options)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Open the recording, at the step that a checkpoint is resumed from."""
            del pl_module
            self.recorder.__enter__()
            self.recorder.start_at(_updates_of(trainer))

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            """Close the recording; another training opens one anew."""
            del trainer, pl_module
            self.recorder.__exit__(None, None, None)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            """Close the recording because training raised."""
            del trainer, pl_module
            self.recorder.close("interrupted" if isinstance(exception, KeyboardInterrupt) else "exception")

    return ScopeCallback()


def _updates_of(trainer: Any) -> int:
    """Return the updates that a Lightning trainer has made.

    Its `global_step` counts each optimizer of a batch apart, which Scope doesn't; the number that its own loggers write
    is that of batches after which any has stepped.
    """
    loop = getattr(trainer.fit_loop, "epoch_loop", None)
    number = getattr(loop, "_batches_that_stepped", None)
    return trainer.global_step if number is None else number
