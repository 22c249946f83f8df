"""Series in promtool's notation, and what one alert is tested with."""

from __future__ import annotations

from dataclasses import dataclass, field

STEP_S = 15
LENGTH = 800
"""Samples a series: 800 of 15 s are 200 minutes."""

N = 'instance="n1"'
GPU = f'{N},gpu="0",uuid="G"'
GPU1 = f'{N},gpu="1",uuid="H"'
PORT = f'{N},device="mlx5_0",port="1"'
RANK = f'{N},run="r",rank="0"'
RANK1 = f'{N},run="r",rank="1"'
RANK2 = f'{N},run="r",rank="2"'


def hold(value: float, samples: int = LENGTH) -> str:
    """A gauge that stays."""
    return f"{value:g}x{samples}"


def grow(per_second: float, samples: int = LENGTH, start: float = 0) -> str:
    """A counter that grows."""
    return f"{start:g}+{per_second * STEP_S:g}x{samples}"


def clock(lag_s: float = 0) -> str:
    """A timestamp that follows the clock, so many seconds behind."""
    return f"{-lag_s:g}+{STEP_S}x{LENGTH}"


def restarted_clock(lag_s: float) -> str:
    """A timestamp that follows the clock, with twenty samples missing."""
    return f"{-lag_s:g}+{STEP_S}x100 _x20 {121 * STEP_S - lag_s:g}+{STEP_S}x{LENGTH}"


def change(first: float, second: float, *, after: int) -> str:
    """A value that changes after so many samples."""
    return f"{first:g}x{after - 1} {second:g}x{LENGTH}"


def jump(size: float, *, after: int) -> str:
    """A counter that jumps once."""
    return f"0x{after - 1} {size:g}x{LENGTH}"


Series = dict[str, str]


def link_speeds(version: str, *speeds: float) -> Series:
    """Links of one GPU with their version and speeds."""
    return {
        **{f'scope_nvlink_speed_bytes_per_second{{{GPU},link="{k}"}}': hold(speed) for k, speed in enumerate(speeds)},
        **{f'scope_nvlink_info{{{GPU},link="{k}",version="{version}"}}': hold(1) for k in range(len(speeds))},
    }


@dataclass(frozen=True)
class Case:
    """What one alert is tested with.

    Attributes:
        alert: Its name.
        fires: Series by name and labels on which it must fire.
        at_minute: When it must be firing.
        quiet: Sets of series on which it must not.
        reset: Series with counters that fall to 0; None uses the first quiet set with a gap in it.
        count: How many instances fire.
        count_when_dead: How many fire once every series is gone.
    """

    alert: str
    fires: Series
    at_minute: int
    quiet: list[Series] = field(default_factory=list)
    reset: Series | None = None
    count: int = 1
    count_when_dead: int = 0


def counter_reset(name: str) -> Series:
    """A counter that grew long ago and begins again at 0."""
    return {name: f"1000x{LENGTH // 4} 0x{LENGTH}"}
