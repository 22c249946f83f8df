"""Links: how much NVLink, PCIe and network carry against what they can, and which have errors."""

from __future__ import annotations

import time
from dataclasses import dataclass

import polars as pl
import streamlit as st

from dashboards.shell import open_page, settings, show_figure
from dashboards.sources.prometheus import Prometheus, to_samples
from scope.errors import ScopeError
from scope.report.figures import Samples, link_use_over_time
from scope.report.inert import visible
from scope.units import NS_PER_S

WINDOWS_S = {"5 min": 300, "30 min": 1_800, "3 h": 10_800, "24 h": 86_400}
POINTS = 200
MAX_LINES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkKind:
    """A kind of link: the counters that it has, and the labels that name one of them."""

    title: str
    sent: str
    received: str
    labels: tuple[str, ...]
    capacity: str | None = None


KINDS = (
    LinkKind(
        title="NVLink (payload, all links of a GPU)",
        sent='sum by (instance, gpu) (rate(scope_nvlink_transmit_bytes_total{layer="data"}[$window]))',
        received='sum by (instance, gpu) (rate(scope_nvlink_receive_bytes_total{layer="data"}[$window]))',
        labels=("instance", "gpu"),
    ),
    LinkKind(
        title="PCIe",
        sent="rate(scope_pcie_transmit_bytes_total[$window])",
        received="rate(scope_pcie_receive_bytes_total[$window])",
        labels=("instance", "gpu"),
    ),
    LinkKind(
        title="InfiniBand and RoCE",
        sent="rate(scope_rdma_transmit_bytes_total[$window])",
        received="rate(scope_rdma_receive_bytes_total[$window])",
        labels=("instance", "device", "port"),
        capacity="max(scope_rdma_port_rate_bytes_per_second)",
    ),
    LinkKind(
        title="Ethernet",
        sent="rate(scope_net_transmit_bytes_total[$window])",
        received="rate(scope_net_receive_bytes_total[$window])",
        labels=("instance", "device"),
    ),
)


def busiest(samples: pl.DataFrame, *, count: int = MAX_LINES) -> pl.DataFrame:
    """Return the samples of the lines that carried most."""
    totals = samples.group_by(Samples.name).agg(pl.col(Samples.value).sum()).sort(Samples.value, descending=True)
    return samples.filter(pl.col(Samples.name).is_in(totals[Samples.name].head(count).implode()))


def samples_of(server: Prometheus, kind: LinkKind, window_s: int) -> pl.DataFrame:
    """Return what the links of a kind carried one way, a line a link and direction."""
    end_ns = time.time_ns()
    step_s = max(1, window_s // POINTS)
    span = {"start_ns": end_ns - window_s * NS_PER_S, "end_ns": end_ns, "step_s": step_s}
    rate_window = f"{max(4 * step_s, 15)}s"
    both: list[pl.DataFrame] = []
    for expression, word in ((kind.sent, "sent"), (kind.received, "received")):
        series = server.query_range(expression.replace("$window", rate_window), **span)
        named = to_samples(series, *kind.labels)
        both.append(named.with_columns(pl.format("{} {}", Samples.name, pl.lit(word)).alias(Samples.name)))
    return pl.concat(both)


def draw(server: Prometheus, window_s: int) -> None:
    """Draw every kind of link that the server has series of."""
    num_shown = 0
    for kind in KINDS:
        samples = samples_of(server, kind, window_s)
        if samples.is_empty():
            continue
        num_shown += 1
        st.subheader(kind.title)
        fastest = [point[1] for each in server.query(kind.capacity) for point in each.points] if kind.capacity else []
        capacities = {"fastest port": max(fastest)} if fastest else {}
        shown = busiest(samples)
        show_figure(link_use_over_time(shown, capacities=capacities), shown, key=kind.title)
        hidden = samples[Samples.name].n_unique() - shown[Samples.name].n_unique()
        if hidden:
            st.caption(f"The {MAX_LINES} that carried most; {hidden} more carried less.")
    if not num_shown:
        st.info(
            "This server has no series of links. Start `scope exporter` on each node and add it to the scrape "
            "configuration; NVLink needs an NVIDIA driver on the node.",
            icon=":material/cable:",
        )


def main() -> None:
    """Draw the page."""
    question = "How much do the links carry against what they can, and which have errors?"
    source, _ = open_page("Links", question, ("prometheus",))
    window_s = WINDOWS_S[st.segmented_control("Time", list(WINDOWS_S), default="5 min") or "5 min"]
    server = Prometheus(address=source.place)

    def draw_or_say() -> None:
        try:
            draw(server, window_s)
        except ScopeError as error:
            st.error(visible(str(error)).replace("`", "'"), icon=":material/cloud_off:")

    st.fragment(draw_or_say, run_every=max(5.0, settings().refresh_s))()


main()
