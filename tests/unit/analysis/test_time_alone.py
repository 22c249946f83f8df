"""How long a kernel computes alone on its device, against counting nanoseconds one by one."""

from __future__ import annotations

import random

import polars as pl
import pytest

from scope.analysis.kernel_work import KernelWork
from scope.analysis.roofline import _ALONE, _with_time_alone  # pyright: ignore[reportPrivateUsage]

KEYS = (KernelWork.device, KernelWork.stream, KernelWork.start_ns, KernelWork.end_ns)


@pytest.mark.parametrize("seed", range(5))
def test_time_alone_is_what_counting_gives(seed: int) -> None:
    """On several streams of two devices, with overlaps on one stream and empty kernels, each nanosecond counts once."""
    source = random.Random(seed)
    rows = [
        (source.randrange(2), source.randrange(4), start, start + source.choice([0, 1, 5, 50]))
        for start in (source.randrange(800) for _ in range(80))
    ]
    work = pl.DataFrame(rows, schema=dict.fromkeys(map(str, KEYS), pl.Int64), orient="row")
    for device, stream, start, end, alone in _with_time_alone(work).select(*KEYS, _ALONE).iter_rows():
        others = [row for row in rows if row[0] == device and row[1] != stream]
        assert alone == sum(not any(row[2] <= instant < row[3] for row in others) for instant in range(start, end))
