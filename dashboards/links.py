"""What links carry and what they can: questions to Prometheus, and capacities from the tables of `scope.hardware`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from dashboards.sources.prometheus import to_samples
from scope.hardware.links import NVLINK, pcie_payload_bytes_per_s
from scope.report.figures import HeatAxes, HeatCells, Samples
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dashboards.sources.prometheus import Prometheus, Series

POINTS: Final = 200
# Clusters may have nodes of one name; a node that two jobs scrape is one node.
_GPU: Final = ("cluster", "instance", "gpu")
_PORT: Final = ("cluster", "instance", "device", "port")
_DEVICE: Final = ("cluster", "instance", "device")
_NVLINKS: Final = "max by (cluster, instance, gpu, link, version) (scope_nvlink_info)"
_DATA: Final = '{layer="data"}'


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkKind:
    """A kind of link: the counters that it has, the labels that name one of them, and what it can carry.

    Attributes:
        title: What it is called.
        sent: Rate of bytes sent, with `$window` for the window of the rate.
        received: Rate of bytes received.
        labels: Labels that name one link.
        capacities: Asks the server for the capacity one way, in bytes a second, by the names of the links.
    """

    title: str
    sent: str
    received: str
    labels: tuple[str, ...]
    capacities: Callable[[Prometheus], dict[str, float]]


def name_of(series: Series, labels: Sequence[str]) -> str:
    """Return the name of a link; where there are no clusters, it begins with the node."""
    return " ".join(series.labels.get(label, "") for label in labels).lstrip()


def nvlink_capacities(server: Prometheus) -> dict[str, float]:
    """Return the payload capacity of all NVLinks of each GPU, from their number and version; NVML's speed is raw."""
    return {
        gpu: sum(_nvlink_of(version) * count for version, count in versions.items())
        for gpu, versions in _nvlink_versions(server).items()
        if all(_nvlink_of(version) for version in versions)
    }


def _nvlink_versions(server: Prometheus) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for each in server.query(_NVLINKS):
        found.setdefault(name_of(each, _GPU), Counter())[each.labels.get("version", "")] += 1
    return found


def _nvlink_of(version: str) -> int:
    """Return the payload capacity of one link of an NVLink version, one way; 0 when it is not known."""
    major = version.partition(".")[0]
    generation = NVLINK.get(int(major)) if major.isdecimal() and major.isascii() else None
    return (generation.bytes_per_s_per_link or 0) if generation else 0


def pcie_capacities(server: Prometheus) -> dict[str, float]:
    """Return the payload capacity of each GPU's PCIe link at its largest generation and width."""
    lanes = _rates("scope_pcie_link_width_max", _GPU)(server)
    found: dict[str, float] = {}
    for name, generation in _rates("scope_pcie_link_generation_max", _GPU)(server).items():
        rate = pcie_payload_bytes_per_s(int(generation), num_lanes=int(lanes.get(name, 0)))
        if rate:
            found[name] = float(rate)
    return found


def _rates(expression: str, labels: Sequence[str]) -> Callable[[Prometheus], dict[str, float]]:
    def ask(server: Prometheus) -> dict[str, float]:
        return {name_of(each, labels): each.points[-1][1] for each in server.query(expression) if each.points}

    return ask


def _once(counter: str, *labels: str) -> str:
    """Return the rate of a counter, with these labels alone, once from however many jobs."""
    return f"max by ({', '.join(labels)}) (rate({counter}[$window]))"


def _of_gpu(counter: str) -> str:
    """Return the rate of all NVLinks of a GPU together."""
    return f"sum by ({', '.join(_GPU)}) ({_once(counter, *_GPU, 'link')})"


KINDS: Final = (
    LinkKind(
        title="NVLink: payload of all links of a GPU",
        sent=_of_gpu(f"scope_nvlink_transmit_bytes_total{_DATA}"),
        received=_of_gpu(f"scope_nvlink_receive_bytes_total{_DATA}"),
        labels=_GPU,
        capacities=nvlink_capacities,
    ),
    LinkKind(
        title="PCIe",
        sent=_once("scope_pcie_transmit_bytes_total", *_GPU),
        received=_once("scope_pcie_receive_bytes_total", *_GPU),
        labels=_GPU,
        capacities=pcie_capacities,
    ),
    LinkKind(
        title="InfiniBand and RoCE",
        sent=_once("scope_rdma_transmit_bytes_total", *_PORT),
        received=_once("scope_rdma_receive_bytes_total", *_PORT),
        labels=_PORT,
        capacities=_rates("scope_rdma_port_rate_bytes_per_second", _PORT),
    ),
    LinkKind(
        title="Ethernet",
        sent=_once("scope_net_transmit_bytes_total", *_DEVICE),
        received=_once("scope_net_receive_bytes_total", *_DEVICE),
        labels=_DEVICE,
        capacities=_rates("scope_net_speed_bytes_per_second", _DEVICE),
    ),
)
_PORT_ERRORS: Final = 'counter=~"symbol_error|link_.*|.*(errors|discards|dropped)"'
"""Beside errors the kernel counts packets by their kind there."""
_NIC_ERRORS: Final = (
    'counter=~".*(err|drop|discard|timeout|retrans|overrun|nak|out_of_buffer|out_of_sequence).*",counter!~".*cqe.*"'
)
"""Beside errors a driver counts requests there; work that is flushed when a job ends is none."""
ERRORS: Final = {
    "NVLink": "sum by (cluster, job, instance, gpu, type) (increase(scope_nvlink_gpu_errors_total[$window])) > 0",
    "NVLink down": "scope_nvlink_up == 0",
    "PCIe replays": "increase(scope_pcie_replays_total[$window]) > 0",
    "PCIe": "increase(scope_pcie_errors_total[$window]) > 0",
    "Port not active": "scope_rdma_port_state < 4",
    "InfiniBand and RoCE": f"increase(scope_rdma_port_events_total{{{_PORT_ERRORS}}}[$window]) > 0",
    "InfiniBand and RoCE, by the driver": f"increase(scope_rdma_hardware_events_total{{{_NIC_ERRORS}}}[$window]) > 0",
    "Ethernet": "increase(scope_net_errors_total[$window]) > 0",
}
"""What to ask for what is wrong with links."""


def ask_use(server: Prometheus, kind: LinkKind, *, end_ns: int, window_s: int) -> pl.DataFrame:
    """Return what the links of a kind carried one way (table `Samples`), a line a link and direction."""
    step_s = max(1, window_s // POINTS)
    span = {"start_ns": end_ns - window_s * NS_PER_S, "end_ns": end_ns, "step_s": step_s}
    rate_window = f"{max(4 * step_s, 15)}s"
    both: list[pl.DataFrame] = []
    for expression, word in ((kind.sent, "sent"), (kind.received, "received")):
        series = server.query_range(expression.replace("$window", rate_window), **span)
        named = to_samples(series, *kind.labels).with_columns(pl.col(Samples.name).str.strip_chars_start())
        both.append(named.with_columns(pl.format("{} {}", Samples.name, pl.lit(word)).alias(Samples.name)))
    return pl.concat(both)


def peak_use(samples: pl.DataFrame, capacities: Mapping[str, float]) -> tuple[str, float, float] | None:
    """Return the link and direction that came nearest its capacity, its rate then, and the share; None if unknown."""
    best: tuple[str, float, float] | None = None
    peaks = samples.group_by(Samples.name).agg(pl.col(Samples.value).max())
    for name, rate in peaks.sort(Samples.name).iter_rows():
        capacity = capacities.get(name.removesuffix(" sent").removesuffix(" received"))
        if capacity and rate is not None and (best is None or rate / capacity > best[2]):
            best = name, rate, rate / capacity
    return best


def ask_each_nvlink(server: Prometheus) -> tuple[pl.DataFrame, HeatAxes] | None:
    """Return the use of every NVLink in the last minute against its capacity, or its rate where that is unknown.

    Returns:
        Cells and axes of a heat map, GPUs down and links across; None without any NVLink.
    """
    rate = f"rate(scope_nvlink_transmit_bytes_total{_DATA}[1m]) > rate(scope_nvlink_receive_bytes_total{_DATA}[1m])"
    rate = f"({rate}) or rate(scope_nvlink_receive_bytes_total{_DATA}[1m])"
    rates = {
        (name_of(each, _GPU), each.labels.get("link", "")): each.points[-1][1]
        for each in server.query(rate)
        if each.points
    }
    if not rates:
        return None
    one = {
        (name_of(each, _GPU), each.labels.get("link", "")): _nvlink_of(each.labels.get("version", ""))
        for each in server.query(_NVLINKS)
    }
    is_share = all(one.get(key) for key in rates)
    gpus = sorted({gpu for gpu, _ in rates})
    links = sorted({link for _, link in rates}, key=lambda link: (len(link), link))
    cells = [
        (links.index(link), gpus.index(gpu), 100 * value / one[gpu, link] if is_share else value / 1e9)
        for (gpu, link), value in rates.items()
    ]
    axes = HeatAxes(
        title="Each NVLink in the last minute, the busier direction",
        x_title="Link",
        y_title="GPU",
        x_labels=links,
        y_labels=gpus,
        value_title="use of payload capacity (%)" if is_share else "payload (GB/s)",
        maximum=100.0 if is_share else None,
    )
    return pl.DataFrame(cells, schema=HeatCells.schema(), orient="row"), axes
