"""What each call of a device runtime or driver does, by its name (CUDA, HIP, Level Zero, MTIA)."""

from __future__ import annotations

import re
from typing import Final

LAUNCHING_KINDS: Final = ("kernel", "memcpy", "memset", "graph")
"""Kinds of calls that put work on a device."""

_KINDS: Final = (
    ("graph", re.compile(r"GraphLaunch")),
    ("other", re.compile(r"LaunchHostFunc|GetAttribute|GetProperties|IsCapturing|PeekAtLastError|GetLastError")),
    ("kernel", re.compile(r"Launch|job_prep_and_submit_for_execution|EnqueueKernel")),
    ("sync", re.compile(r"Synchronize|urQueueFinish|urEventWait")),
    ("memset", re.compile(r"[Mm]em(?:ory)?[Ss]et(?!Access)|(?:Mem|Memory|USM|Buffer)Fill")),
    ("memcpy", re.compile(r"[Mm]em(?:ory)?[Cc](?:opy|py)|MemBuffer(?:Copy|Read|Write)")),
    (
        "allocation",
        re.compile(
            r"Malloc|Free|MemAlloc|MemCreate|MemRelease|MemMap|MemUnmap|MemSetAccess|MemAddress|HostAlloc|USM\w*Alloc|Host(?:Unr|R)egister"
        ),
    ),
    ("event", re.compile(r"Event")),
)


def launch_kind(name: str) -> str:
    """Return one of `schema.LAUNCH_KINDS`.

    Examples:
        >>> (
        ...     launch_kind("cudaLaunchKernelExC"),
        ...     launch_kind("hipMemcpyWithStream"),
        ...     launch_kind("cudaGraphLaunch_v10000"),
        ... )
        ('kernel', 'memcpy', 'graph')
    """
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")
