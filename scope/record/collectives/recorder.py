"""`CollectiveRecorder`: attaches the best route that this torch offers, and takes all of it away again."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from scope.record.collectives import dispatcher, methods, native
from scope.record.collectives.coverage import FlightRecorderPoll, find_dump
from scope.record.collectives.groups import GroupTable, watch_meshes
from scope.record.collectives.guard import HookGuard
from scope.record.collectives.tracker import CallTracker
from scope.record.collectives.waits import WorkWaits

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.collectives.device_times import DeviceTimes
    from scope.record.collectives.sink import CallSink
    from scope.run.schema import GroupInfo


class CollectiveRecorder:
    """Sees every collective between `attach` and `close`, and hands it to a sink.

    Attributes:
        guard: Which hooks were switched off, and why.
        tracker: Follows the calls.
        groups: The process groups that were used.
        route: `hooks`, `dispatcher`, `methods`, or None when nothing is attached.
        flight_recorder: What the Flight Recorder counted, from `attach` on.
        blind_to: What the route cannot see, in words; empty if it sees everything.
        cost_factor: See `scope.run.calls.CallLog`; that of the route attached last.
    """

    def __init__(
        self,
        sink: CallSink,
        *,
        group_added: Callable[[GroupInfo], None] | None = None,
        hook_disabled: Callable[[str, str], None] | None = None,
        wall_offset_ns: int = 0,
        route: str | None = None,
        device: DeviceTimes | None = None,
    ) -> None:
        """Prepare; nothing is hooked before `attach`.

        Args:
            sink: Takes the calls.
            group_added: Told every process group when it is first used.
            hook_disabled: Told the name of a hook that raised, and what.
            wall_offset_ns: Added to the monotonic clock it gives nanoseconds since the epoch.
            route: Take this one instead of the best.
            device: Times calls on a device's streams; by torch's events unless told otherwise.
        """
        self._wanted = route
        self.guard = HookGuard(hook_disabled)
        self.groups = GroupTable(group_added, wall_offset_ns=wall_offset_ns)
        self.tracker = CallTracker(sink, self.groups, self.guard, device=device)
        self.flight_recorder: FlightRecorderPoll | None = None
        self.route: str | None = None
        self.blind_to: tuple[str, ...] = ()
        self.cost_factor = 1.0
        self._undo: list[Callable[[], None]] = []

    def attach(self) -> None:
        """Hook into torch; a second call does nothing."""
        if self.route is not None:
            return
        self.flight_recorder = FlightRecorderPoll(self.groups, find_dump())
        route = self._choose_route()
        route.attach()
        self._undo.append(route.detach)
        waits = WorkWaits(self.tracker, self.guard)
        waits.attach()
        self._undo.append(waits.detach)
        restore_meshes = watch_meshes()
        if restore_meshes is not None:
            self._undo.append(restore_meshes)
        self.route = route.name
        self.blind_to = tuple(route.blind_to)
        self.cost_factor = route.cost_factor
        _stop_in_children(self.tracker)

    def close(self) -> None:
        """Take every hook away; a second call does nothing."""
        self.tracker.close()
        while self._undo:
            self._undo.pop()()
        self.groups.close()
        self.route = None

    def _choose_route(self) -> Any:
        """Return the best route that this torch has all parts of."""
        wanted = self._wanted
        if wanted in (None, "hooks") and not native.missing_parts():
            return native.NativeRoute(self.tracker, self.groups, self.guard)
        if wanted != "methods" and not dispatcher.missing_parts():
            return dispatcher.DispatcherRoute(self.tracker, self.guard)
        return methods.MethodsRoute(self.tracker, self.groups, self.guard)


def _stop_in_children(tracker: CallTracker) -> None:
    """Make a forked child (a loader's worker) pass everything through: its parent's files are not its own."""
    reference = weakref.ref(tracker)

    def stop() -> None:
        alive = reference()
        if alive is not None:
            alive.active = False

    os.register_at_fork(after_in_child=stop)
