"""The reference of all metrics, made from the tables: `python -m exporters.reference > exporters/METRICS.md`."""

from __future__ import annotations

import sys
from typing import Final, cast

from exporters import metrics, training_series
from exporters.series import Metric

_INTRODUCTION: Final = """# Metrics

Every metric of `scope exporter`, made from its tables by `python -m exporters.reference`. A figure that the hardware
does not have is absent, never 0. Units are base units: seconds, bytes, joules, celsius, watts, hertz, ratios of 0 to 1.
"""

_TRAINING: Final = """`run` is a label of eight characters, made of the run's id and directory: the same on
all nodes and in all attempts. `scope runs list FOLDER` shows it beside the directory of each run; `scope_train_info`
has the `run_id`.

Series of a run leave 15 minutes after its end. Of ended runs the 64 that ended last are shown, as of the others the 64
newest: what is left out is counted in `scope_exporter_sample_errors_total{collector="training"}`.
"""

_OPEN_QUESTIONS: Final = """## What no GPU has confirmed yet

The figures of GPUs are tested against a library that speaks NVML's interface and answers from scripts, by NVIDIA's
headers and documentation. No run on hardware stands behind them so far. Open until one does:

- whether fields 138 to 141 (NVLink, KiB) of all links add up to what the GPU gives for all links at once;
- which GPUs have fields 197 and 198 (PCIe bytes), at how many bits they wrap, and which have 161 to 163 (link errors);
- what a GPM sample costs, and how short its window may be;
- whether fields 202 and 204 (NVLink 5, bytes) are refused on Hopper, as this exporter expects;
- whether XID events come whole under load, beside the kernel's log;
- whether anything changes while a profiler (CUPTI, Nsight) is active;
- Blackwell and Grace as a whole: the histogram of error correction (235 to 250) and what its bins stand for, the C2C
  counters (231 to 234) and that the link is their scope, the fabric's health mask.

Counters of EFA and of drivers other than mlx5 keep the driver's names.
"""


def find_metrics(values: dict[str, object]) -> list[Metric]:
    """Return the metrics among a module's values, in their order."""
    found: list[Metric] = []
    for value in values.values():
        items = cast("dict[object, object]", value).values() if isinstance(value, dict) else (value,)
        found += [item for item in items if isinstance(item, Metric) and item not in found]
    return found


def render_reference() -> str:
    """Return the reference as Markdown."""
    lines = [_INTRODUCTION]
    for title, module in (("Node", metrics), ("Training", training_series)):
        lines += [
            f"## {title}",
            "",
            *([_TRAINING] if module is training_series else []),
            "| metric | kind | labels | meaning |",
            "|---|---|---|---|",
        ]
        for metric in find_metrics(vars(module)):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
        lines.append("")
    return "\n".join([*lines, _OPEN_QUESTIONS])


if __name__ == "__main__":
    sys.stdout.write(render_reference())
