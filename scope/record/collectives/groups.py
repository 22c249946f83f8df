"""Process groups: the number, ranks, backend and mesh axis of each that was used.

A group whose calls tell of their completion by a callback in Python must not go while one is under way: gloo's
destructor joins the thread that runs callbacks, and C++ owners such as DDP's reducer destroy it while they hold the
interpreter lock for which that thread waits. So groups of the host are kept until torch has forgotten them, or nobody
else holds one that torch never knew, and their last callback is gone.
"""

from __future__ import annotations

import ctypes
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from scope.definitions import find_mesh_axis
from scope.run.schema import GroupInfo

if TYPE_CHECKING:
    from collections.abc import Callable

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false

_LAST_CALLBACKS_S: Final = 0.2
_UNLEASED: Final = 2
"""References to a lease that no callback holds: that of the list, and that of the question."""
_UNHELD: Final = 3
"""References to a process group that only we hold: that of its `Group`, and two of the question."""


class Lease:
    """Held by every callback of a group's calls that is under way; its reference count says whether any is."""

    __slots__ = ()


class Group:
    """A process group as the hooks know it.

    Attributes:
        number: Number within this rank, in order of appearance.
        rank: This process's rank in the group.
        name: torch's name of it.
        ranks: Global ranks, in the order of the group's own ranks.
        reference: Weak: a group that is destroyed must be free to go.
        kept: The process group itself until it may go (see the module); None for one of a device.
        on_device: Whether its calls run on a device's streams; None where that depends on their tensors.
        registered: Whether torch.distributed has known it; one that a program made by itself has no name.
    """

    __slots__ = (
        "backend",
        "description",
        "destroyed_ns",
        "kept",
        "mesh_axis",
        "name",
        "number",
        "on_device",
        "rank",
        "ranks",
        "reference",
        "registered",
    )

    def __init__(self, number: int, process_group: Any) -> None:
        self.number = number
        self.reference = weakref.ref(process_group)
        self.name = _name_of(process_group)
        self.rank: int = process_group.rank()
        self.ranks = _global_ranks(process_group)
        self.backend = _backend(process_group)
        self.on_device = _runs_on_device(process_group)
        self.description: str | None = getattr(process_group, "group_desc", None) or None
        self.mesh_axis = find_mesh_axis(self.description)
        self.destroyed_ns: int | None = None
        self.registered = process_group in (_registered_groups() or ())
        self.kept: Any = None if self.on_device else process_group

    def info(self) -> GroupInfo:
        """Return the record of the run directory."""
        return GroupInfo(
            group=self.number,
            name=self.name,
            ranks=self.ranks,
            backend=self.backend,
            mesh_axis=self.mesh_axis,
            description=self.description,
            destroyed_ns=self.destroyed_ns,
        )


class GroupTable:
    """Finds the group of a call in a fraction of a microsecond and tells of new ones.

    Attributes:
        by_id: Groups by the id of torch's object.
        leases: What callbacks of a group's calls have to hold, by the group's number.
    """

    def __init__(self, added: Callable[[GroupInfo], None] | None = None, *, wall_offset_ns: int = 0) -> None:
        """Start empty.

        Args:
            added: Told every group when it is first used.
            wall_offset_ns: Added to the monotonic clock it gives nanoseconds since the epoch.
        """
        self._added = added
        self._wall_offset_ns = wall_offset_ns
        self.by_id: dict[int, Group] = {}
        self.leases: list[Lease] = []
        self._groups: list[Group] = []

    def of(self, process_group: Any) -> Group:
        """Return the group of a process group; it is added when it is new."""
        group = self.by_id.get(id(process_group))
        # An id may come back after its group was destroyed.
        if group is not None and group.reference() is process_group:
            return group
        return self._add(process_group)

    def infos(self) -> tuple[GroupInfo, ...]:
        """Return the record of every group used so far, with the mesh axes known by now."""
        self.mark_destroyed()
        name_axes(self._groups)
        return tuple(group.info() for group in self._groups)

    def names(self) -> list[tuple[int, str]]:
        """Return number and name of every group used so far."""
        return [(group.number, group.name) for group in self._groups]

    def mark_destroyed(self) -> None:
        """Note which groups are gone; call it about once a second."""
        registered = _registered_groups()
        for group in self._groups:
            if group.destroyed_ns is None and _is_gone(group, registered or {}):
                group.destroyed_ns = time.monotonic_ns() + self._wall_offset_ns
            if group.destroyed_ns is not None and not self._has_callbacks(group):
                group.kept = None

    def close(self) -> None:
        """Let every group go. One that still has callbacks after 0.2 s stays until the process ends."""
        deadline = time.monotonic() + _LAST_CALLBACKS_S
        for group in self._groups:
            while group.kept is not None and self._has_callbacks(group) and time.monotonic() < deadline:
                time.sleep(0.001)
            if group.kept is not None and self._has_callbacks(group):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group.kept))
            group.kept = None

    def _has_callbacks(self, group: Group) -> bool:
        return sys.getrefcount(self.leases[group.number]) > _UNLEASED

    def _add(self, process_group: Any) -> Group:
        for known in self._groups:
            # The Python object of a group that torch made in C++ alone is a new one each time.
            is_open = known.reference() is None and known.destroyed_ns is None
            if is_open and known.name and known.name == _name_of(process_group):
                known.reference = weakref.ref(process_group)
                self.by_id[id(process_group)] = known
                return known
        group = Group(len(self._groups), process_group)
        self.leases.append(Lease())
        self._groups.append(group)
        self.by_id[id(process_group)] = group
        if self._added is not None:
            name_axes([group])
            self._added(group.info())
        return group


def name_axes(groups: list[Group]) -> None:
    """Give groups the names of the device mesh axes that they span, as far as a mesh is alive that says so."""
    unnamed = {group.name: group for group in groups if group.mesh_axis is None}
    if not unnamed:
        return
    for mesh in _live_meshes():
        names = getattr(mesh, "mesh_dim_names", None) or ()
        for axis, name in enumerate(names):
            found = unnamed.get(_axis_group_name(mesh, axis) or "")
            if found is not None and found.mesh_axis is None:
                found.mesh_axis = name


_meshes: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def watch_meshes() -> Callable[[], None] | None:
    """Remember every device mesh from now on; a one-dimensional mesh takes the default group, which bears no axis.

    Returns:
        A function that undoes it, or None where this torch has no device meshes.
    """
    try:
        from torch.distributed.device_mesh import DeviceMesh
    except ImportError:
        return None
    original = DeviceMesh.__init__

    def remembering(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _meshes[id(self)] = self

    remembering.__wrapped__ = original  # type: ignore[attr-defined]
    DeviceMesh.__init__ = remembering

    def restore() -> None:
        if DeviceMesh.__init__ is remembering:
            DeviceMesh.__init__ = original

    return restore


def _live_meshes() -> list[Any]:
    return list(_meshes.values())


def _axis_group_name(mesh: Any, axis: int) -> str | None:
    try:
        return mesh.get_group(axis).group_name
    except (RuntimeError, ValueError, KeyError, AttributeError, AssertionError, IndexError):
        # A mesh made without groups, or whose group this rank is not in.
        return None


def _global_ranks(process_group: Any) -> tuple[int, ...]:
    try:
        return tuple(dist.get_process_group_ranks(process_group))
    except (KeyError, ValueError, RuntimeError):
        # Not registered with torch.distributed: the group's own numbering is all there is.
        return tuple(range(process_group.size()))


def _backend(process_group: Any) -> str | None:
    try:
        return str(dist.get_backend(process_group))
    except (KeyError, ValueError, RuntimeError, AssertionError, TypeError):
        pass  # not registered with torch.distributed, which each version says in its own way
    try:
        return str(process_group.name())
    except (AttributeError, RuntimeError):
        return None


def _runs_on_device(process_group: Any) -> bool | None:
    """Return whether all tensors of a group are on a device (True), on the host (False), or may be either (None)."""
    if _knows_no_device():
        return False
    try:
        kinds = {device.type for device in process_group._device_types}
    except (AttributeError, RuntimeError):
        return None
    return None if "cpu" in kinds or not kinds else True


def _knows_no_device() -> bool:
    """Return whether this torch was built for the host alone; asking for devices themselves would start a driver."""
    built_for = (getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu"))
    return not any(built_for) and torch._C._get_privateuse1_backend_name() == "privateuseone"


def _name_of(process_group: Any) -> str:
    try:
        return process_group.group_name
    except RuntimeError:
        return ""  # made by hand, and not named


def _is_gone(group: Group, registered: dict[Any, Any]) -> bool:
    """Return whether nobody can use a group any more, as far as can be told."""
    process_group = group.reference()
    if process_group is None:
        return True
    if process_group in registered:
        group.registered = True
        return False
    return group.registered or (group.kept is not None and sys.getrefcount(process_group) <= _UNHELD)


def _registered_groups() -> dict[Any, Any] | None:
    world = getattr(dist.distributed_c10d, "_world", None)
    return getattr(world, "pg_map", None)
