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
        lines += [f"## {title}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
        for metric in find_metrics(vars(module)):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(render_reference())
