"""What a rank says of its own recording as a whole, by events and reasons: when training began, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scope.run.goodbyes import OTHER_THREAD

if TYPE_CHECKING:
    from scope.record.session import Session


class Notices:
    """Tells of a session; of most things once.

    Attributes:
        told_no_boundary: It was said that where steps end cannot be told.
        told_gone: It was said that steps end without optimizers that others had.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.told_no_boundary = self.told_gone = False
        self._told_other_thread = False

    def tell_start(self, *, recorder_ns: int) -> None:
        """Tell how long start-up took: startup until torch was imported, init until the first step."""
        session = self._session
        spent = session.clock.spent_so_far()
        session.writer.add_event(
            "attempt_start",
            "training began" if session.clock.step < 0 else "recording began",
            startup_ns=spent.get("startup", 0),
            init_ns=sum(spent.values()) - spent.get("startup", 0),
            recorder_ns=recorder_ns,
        )

    def tell_no_boundary(self) -> None:
        """Say, once, that where steps end cannot be told: the program's optimizer is none that torch knows of."""
        session = self._session
        if session.boundary.ever_updated or session.clock.num_steps or self.told_no_boundary:
            return
        self.told_no_boundary = True
        reason = (
            f"{session.boundary.num_microbatches} backward passes and no step of a torch.optim.Optimizer: where steps "
            "end cannot be told; call recorder.end_step() of a scope.Recorder() at the end of each, under scope run too"
        )
        session.writer.add_event("warning", reason, step=session.step)
        session.writer.update_info(absent={**session.writer.info.absent, "steps": reason})

    def take_back_no_boundary(self) -> None:
        """Steps end after all."""
        self.told_no_boundary = False
        writer = self._session.writer
        writer.update_info(absent={name: why for name, why in writer.info.absent.items() if name != "steps"})

    def look_at_other_threads(self) -> None:
        """Say, once, that a thread has trained which nothing is measured of, where the measured one has trained too."""
        session = self._session
        if session.clock.step < 0 or not session.clock.saw_other_thread or self._told_other_thread:
            return
        self._told_other_thread = True
        message = (
            "an optimizer stepped in another thread than the one that imported torch, which alone is recorded: those "
            "updates are in no step and no figure; train in that thread"
        )
        detail: dict[str, Any] = {OTHER_THREAD: True}
        session.writer.add_event("warning", message, step=session.step, **detail)

    def tell_other_thread(self) -> None:
        """Say that a thread has trained which nothing is measured of, and no other has."""
        session = self._session
        reason = (
            "training ran in another thread than the one that imported torch, which alone is recorded: train in that "
            "one, or import torch first in the thread that trains"
        )
        session.writer.add_event("warning", reason)
        session.writer.update_info(absent={**session.writer.info.absent, "steps": reason})

    def tell_gone(self, num_gone: int) -> None:
        """Say, the first time, that a step has ended without optimizers which had made those before."""
        session = self._session
        self.told_gone = True
        whose = "an optimizer that steps had" if num_gone == 1 else f"{num_gone} optimizers that steps had"
        message = (
            f"step {session.clock.step - 1} ended without {whose} before, since others have gone on without; it may "
            "hold several updates, and is marked where it does; steps do not "
            "wait for what is taken for gone (replaced, or done): if it merely steps seldom, say where steps end with "
            "recorder.end_step() of a scope.Recorder()"
        )
        session.writer.add_event("warning", message, step=session.step, num_optimizers=num_gone)

    def tell_coverage(self) -> None:
        """Say which share of the calls that torch's Flight Recorder counted was seen, and what the route cannot see."""
        session = self._session
        if session.collectives.flight_recorder is None:
            return
        for part in session.collectives.blind_to:
            session.writer.add_event("coverage", f"not seen by the hooks: {part}", part=part)
        for item in session.collectives.flight_recorder.coverage(session.writer.calls):
            if item.ratio is None:
                message = f"group {item.group}, {item.kind}: {item.seen} calls seen, coverage unknown: {item.reason}"
                session.writer.add_event(
                    "coverage", message, group=item.group, operation=item.kind, seen=item.seen, reason=item.reason
                )
                continue
            least = "at least " if item.at_least else ""
            message = (
                f"group {item.group}, {item.kind}: {item.seen} calls seen, the Flight Recorder counted "
                f"{item.flight_recorder} ({least}{item.ratio:.1%})"
            )
            session.writer.add_event(
                "coverage",
                message,
                group=item.group,
                operation=item.kind,
                seen=item.seen,
                flight_recorder=item.flight_recorder,
                at_least=item.at_least,
            )
