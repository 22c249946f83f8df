"""Alerts on training runs."""

from __future__ import annotations

from alert_cases.series import (
    GPU,
    LENGTH,
    RANK,
    RANK1,
    RANK2,
    STEP_S,
    Case,
    N,
    Series,
    change,
    clock,
    counter_reset,
    grow,
    hold,
    restarted_clock,
)


def ranks(name: str, *values: str) -> Series:
    """One series a rank."""
    return {f"{name}{{{labels}}}": value for labels, value in zip((RANK, RANK1, RANK2), values, strict=False)}


def peers(*places: str) -> Series:
    """What each rank is, with its place on the axes that are not data parallel."""
    return {
        f'scope_train_info{{{labels},attempt="0",peers="{place}"}}': hold(1)
        for labels, place in zip((RANK, RANK1, RANK2), places, strict=False)
    }


def inputs(*ranks_of: tuple[float, float]) -> Series:
    """What each rank waits for data, and works, in a second, its input included; all are peers at a place."""
    given = [grow(own) for own, _ in ranks_of]
    waits = [grow(1 - work) for _, work in ranks_of]
    names = [f'{labels},phase="input"' for labels in (RANK, RANK1, RANK2)]
    return {
        **{f"scope_train_phase_seconds_total{{{name}}}": value for name, value in zip(names, given, strict=False)},
        **ranks("scope_train_step_seconds_total", *[grow(1)] * len(ranks_of)),
        **ranks("scope_train_communication_wait_seconds_total", *waits),
        **peers(*[""] * len(ranks_of)),
    }


def attempts(*numbers: str) -> Series:
    """What each rank is, with its attempt."""
    return {
        f'scope_train_info{{{labels},attempt="{number}",peers=""}}': hold(1)
        for labels, number in zip((RANK, RANK1, RANK2), numbers, strict=False)
    }


def first_step(age: str, *, steps: str = "", active: int = 1) -> Series:
    """A rank with the age of its main thread's heartbeat; the recorder's own is fresh."""
    return {
        f'scope_train_heartbeat_age_seconds{{{RANK},thread="training"}}': age,
        f'scope_train_heartbeat_age_seconds{{{RANK},thread="recorder"}}': hold(1),
        f"scope_train_steps_total{{{RANK}}}": steps or hold(0),
        f"scope_train_active{{{RANK}}}": hold(active),
    }


_HANG = 66
"""Samples before a hang."""


def until_a_hang(per_second: float) -> str:
    """What grows until no step ends any more."""
    return f"0+{per_second * STEP_S:g}x{_HANG} {per_second * STEP_S * _HANG:g}x{LENGTH}"


def around_a_hang(per_second: float, *, jump: float) -> str:
    """What grows, stands for three minutes, jumps by what the step of the hang brings, and grows on."""
    before = per_second * STEP_S * (_HANG - 12)
    return f"0+{per_second * STEP_S:g}x{_HANG - 12} {before:g}x11 {before + jump:g}+{per_second * STEP_S:g}x{LENGTH}"


TRAINING = [
    Case(
        "ScopeStepStalled",
        {
            f"scope_train_last_step_timestamp_seconds{{{RANK}}}": hold(10),
            f"scope_train_step_median_seconds{{{RANK}}}": hold(2),
            f"scope_train_active{{{RANK}}}": hold(1),
        },
        9,
        [
            # Steps of a minute: ten of them have not passed.
            {
                f"scope_train_last_step_timestamp_seconds{{{RANK}}}": clock(400),
                f"scope_train_step_median_seconds{{{RANK}}}": hold(60),
                f"scope_train_active{{{RANK}}}": hold(1),
            },
            # The run is over.
            {
                f"scope_train_last_step_timestamp_seconds{{{RANK}}}": hold(10),
                f"scope_train_step_median_seconds{{{RANK}}}": hold(2),
                f"scope_train_active{{{RANK}}}": hold(0),
            },
        ],
        {
            f"scope_train_last_step_timestamp_seconds{{{RANK}}}": restarted_clock(2),
            f"scope_train_step_median_seconds{{{RANK}}}": hold(2),
            f"scope_train_active{{{RANK}}}": hold(1),
        },
    ),
    Case(
        "ScopeFirstStepLate",
        first_step(f"0+{STEP_S}x{LENGTH}"),
        33,
        [
            # Start-up is slow, and goes on.
            first_step("0+15x100 0+15x100 0+15x100 0+15x600"),
            # It makes steps; that the last one is long ago is another alert's business.
            first_step(f"0+{STEP_S}x{LENGTH}", steps="0x40 1x800"),
            # It has ended without a step.
            first_step(f"0+{STEP_S}x{LENGTH}", active=0),
        ],
        # The attempt is started anew.
        first_step(f"0+{STEP_S}x110 _x20 0+{STEP_S}x100 0+{STEP_S}x{LENGTH}", steps="0x110 _x20 0x50 1x800"),
    ),
    Case(
        "ScopeRankSilent",
        {
            f'scope_train_heartbeat_age_seconds{{{RANK},thread="recorder"}}': hold(90),
            f"scope_train_active{{{RANK}}}": hold(1),
        },
        3,
        [
            {
                f'scope_train_heartbeat_age_seconds{{{RANK},thread="training"}}': hold(90),
                f'scope_train_heartbeat_age_seconds{{{RANK},thread="recorder"}}': hold(1),
                f"scope_train_active{{{RANK}}}": hold(1),
            }
        ],
    ),
    Case(
        "ScopeRankLost",
        {
            **attempts("0", "0"),
            f"scope_train_active{{{RANK}}}": hold(0),
            f"scope_train_lost_seconds{{{RANK}}}": f"0+{STEP_S}x{LENGTH}",
            f"scope_train_active{{{RANK1}}}": hold(1),
        },
        4,
        [
            # It ended in order.
            {
                **attempts("0", "0"),
                f"scope_train_active{{{RANK}}}": hold(0),
                f"scope_train_active{{{RANK1}}}": hold(1),
            },
            # The run ends: all ranks go within the minute.
            {
                **attempts("0", "0"),
                f"scope_train_active{{{RANK}}}": hold(0),
                f"scope_train_lost_seconds{{{RANK}}}": f"0+{STEP_S}x{LENGTH}",
                f"scope_train_active{{{RANK1}}}": change(1, 0, after=4),
                f"scope_train_lost_seconds{{{RANK1}}}": f"_x4 0+{STEP_S}x{LENGTH}",
            },
            # A new attempt runs on another node.
            {
                **attempts("0", "1"),
                f"scope_train_active{{{RANK}}}": hold(0),
                f"scope_train_lost_seconds{{{RANK}}}": f"0+{STEP_S}x{LENGTH}",
                f"scope_train_active{{{RANK1}}}": hold(1),
            },
            # Another run goes on.
            {
                f'scope_train_info{{{RANK},attempt="0",peers=""}}': hold(1),
                f"scope_train_active{{{RANK}}}": hold(0),
                f"scope_train_lost_seconds{{{RANK}}}": f"0+{STEP_S}x{LENGTH}",
                f'scope_train_info{{{N},run="other",rank="1",attempt="0",peers=""}}': hold(1),
                f'scope_train_active{{{N},run="other",rank="1"}}': hold(1),
            },
        ],
        # The rank is started anew within the minute, over and over.
        {
            **attempts("0", "0"),
            f"scope_train_active{{{RANK}}}": "0x2 1x20 0x2 1x800",
            f"scope_train_lost_seconds{{{RANK}}}": "0+15x2 stale _x19 0+15x2 stale _x800",
            f"scope_train_active{{{RANK1}}}": hold(1),
        },
    ),
    Case(
        "ScopeStepRegression",
        {
            f"scope_train_step_median_seconds{{{RANK}}}": change(1, 1.24, after=240),
            # Two nodes of another run: their ranks share the steps.
            'scope_train_step_median_seconds{instance="n1",run="s",rank="0"}': change(1, 2, after=240),
            'scope_train_step_median_seconds{instance="n2",run="s",rank="8"}': change(1, 2, after=240),
        },
        80,
        [
            {f"scope_train_step_median_seconds{{{RANK}}}": change(1, 1.1, after=240)},
            # It was slow and is fast.
            {f"scope_train_step_median_seconds{{{RANK}}}": change(2, 1, after=240)},
            # Its first minutes do not count.
            {f"scope_train_step_median_seconds{{{RANK}}}": change(1, 1.24, after=20)},
        ],
        count=2,
    ),
    Case(
        "ScopeStragglerRank",
        {
            **ranks("scope_train_step_seconds_total", grow(1), grow(1), grow(1)),
            **ranks("scope_train_communication_wait_seconds_total", grow(0.5), grow(0.5), grow(0.1)),
            **peers("", "", ""),
        },
        20,
        [
            {
                **ranks("scope_train_step_seconds_total", grow(1), grow(1), grow(1)),
                **ranks("scope_train_communication_wait_seconds_total", grow(0.5), grow(0.48), grow(0.46)),
                **peers("", "", ""),
            },
            # The last stage of a pipeline works longer than the first; that is its model, not its fault.
            {
                **ranks("scope_train_step_seconds_total", grow(1), grow(1), grow(1)),
                **ranks("scope_train_communication_wait_seconds_total", grow(0.5), grow(0.5), grow(0.1)),
                **peers("pp0", "pp0", "pp1"),
            },
            # Rank 2 was slow until the run hung, three and a half minutes before it is looked at.
            {
                **ranks("scope_train_step_seconds_total", *[until_a_hang(1)] * 3),
                **ranks(
                    "scope_train_communication_wait_seconds_total",
                    until_a_hang(0.5),
                    until_a_hang(0.5),
                    until_a_hang(0.1),
                ),
                **ranks("scope_train_last_step_timestamp_seconds", *[until_a_hang(1)] * 3),
                **ranks("scope_train_step_median_seconds", *[hold(2)] * 3),
                **ranks("scope_train_active", *[hold(1)] * 3),
                **peers("", "", ""),
            },
            # A hang of three minutes has ended: one step holds it, in which rank 2 alone did not wait.
            {
                **ranks("scope_train_step_seconds_total", *[around_a_hang(1, jump=180)] * 3),
                **ranks(
                    "scope_train_communication_wait_seconds_total",
                    around_a_hang(0.5, jump=180),
                    around_a_hang(0.5, jump=180),
                    around_a_hang(0.5, jump=0),
                ),
                **peers("", "", ""),
            },
        ],
        {
            **ranks("scope_train_step_seconds_total", *[f"0+15x200 0+15x{LENGTH}"] * 3),
            **ranks("scope_train_communication_wait_seconds_total", *[f"0+7.5x200 0+7.5x{LENGTH}"] * 3),
            **peers("", "", ""),
        },
    ),
    Case(
        "ScopeImposedWait",
        {
            f"scope_train_imposed_wait_ratio{{{RANK}}}": hold(0.2),
            'scope_train_imposed_wait_ratio{instance="n2",run="r",rank="0"}': hold(0.2),
        },
        15,
        [{f"scope_train_imposed_wait_ratio{{{RANK}}}": hold(0.02)}],
    ),
    Case(
        "ScopeVerdict",
        # Two nodes tell of one finding.
        {
            f'scope_train_verdict{{{N},run="r",rank="3",kind="hang",severity="critical"}}': hold(1),
            'scope_train_verdict{instance="n2",run="r",rank="3",kind="hang",severity="critical"}': hold(1),
        },
        2,
        [{f'scope_train_verdict{{{N},run="r",rank="3",kind="straggler",severity="warning"}}': hold(1)}],
    ),
    Case(
        "ScopeCommunicationBusyWait",
        {
            f"scope_gpu_utilization_ratio{{{GPU}}}": hold(1),
            f"scope_gpu_power_watts{{{GPU}}}": hold(150),
            f"scope_gpu_power_limit_watts{{{GPU}}}": hold(700),
        },
        8,
        [
            {
                f"scope_gpu_utilization_ratio{{{GPU}}}": hold(1),
                f"scope_gpu_power_watts{{{GPU}}}": hold(650),
                f"scope_gpu_power_limit_watts{{{GPU}}}": hold(700),
            },
            {
                f"scope_gpu_utilization_ratio{{{GPU}}}": hold(0),
                f"scope_gpu_power_watts{{{GPU}}}": hold(90),
                f"scope_gpu_power_limit_watts{{{GPU}}}": hold(700),
            },
        ],
    ),
    Case(
        "ScopeIdleAllocated",
        {
            f'scope_gpu_sm_active_ratio{{{GPU},mig=""}}': hold(0.01),
            f'scope_gpu_job_info{{{GPU},job_id="7"}}': hold(1),
        },
        40,
        [
            {f'scope_gpu_sm_active_ratio{{{GPU},mig=""}}': hold(0.01)},
            {
                f'scope_gpu_sm_active_ratio{{{GPU},mig=""}}': hold(0.4),
                f'scope_gpu_job_info{{{GPU},job_id="7"}}': hold(1),
            },
        ],
    ),
    Case(
        "ScopeDataloaderBound",
        # Without its input rank 2, which all wait for, would work no longer than the others.
        inputs((0, 0.5), (0, 0.5), (0.4, 0.9)),
        25,
        [
            inputs((0.05, 0.9), (0.05, 0.9), (0.05, 0.9)),
            # Nobody waits for the data of ranks 0 and 1: rank 2 computes longer.
            inputs((0.4, 0.5), (0.4, 0.5), (0, 0.95)),
        ],
        {
            **inputs((0.4, 0.9)),
            **counter_reset(f'scope_train_phase_seconds_total{{{RANK},phase="input"}}'),
        },
    ),
    Case(
        "ScopeGoodputLow",
        {f"scope_train_goodput_ratio{{{RANK}}}": hold(0.7), f"scope_train_active{{{RANK}}}": hold(1)},
        70,
        [
            {f"scope_train_goodput_ratio{{{RANK}}}": hold(0.95), f"scope_train_active{{{RANK}}}": hold(1)},
            {f"scope_train_goodput_ratio{{{RANK}}}": hold(0.7), f"scope_train_active{{{RANK}}}": hold(0)},
        ],
    ),
]
