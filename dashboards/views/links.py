"""Links: how much NVLink, PCIe and network carry against what they can, which have errors, and what loads them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import polars as pl

from dashboards import say
from dashboards.links import ERRORS, KINDS, ask_each_nvlink, ask_use, peak_use
from dashboards.plots import show_figure
from dashboards.shell import load_run, on_each_answer, on_each_refresh, open_page, say_age
from dashboards.sources.prometheus import Prometheus, labels_table
from dashboards.tables import show_table
from dashboards.words import say_dead_exporters
from scope.analysis.recorded import AxisTraffic
from scope.report.figures import Samples, heat_map, link_use_over_time, parts_by_bytes
from scope.units import format_bandwidth, format_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dashboards.links import LinkKind
    from dashboards.sources.runs import LiveRun
    from scope.report.figures import HeatAxes

WINDOWS_S: Final = {"5 min": 300, "30 min": 1_800, "3 h": 10_800, "24 h": 86_400}
MAX_LINES: Final = 16
BUSY: Final = 0.8


def busiest(samples: pl.DataFrame, *, count: int = MAX_LINES) -> pl.DataFrame:
    """Return the samples of the lines that carried most."""
    totals = samples.group_by(Samples.name).agg(pl.col(Samples.value).sum()).sort(Samples.value, descending=True)
    return samples.filter(pl.col(Samples.name).is_in(totals[Samples.name].head(count).implode()))


def draw_server(server: Prometheus, window_s: int) -> None:
    """Draw every kind of link that the server has series of."""
    say_dead_exporters(server)
    now_ns = time.time_ns()
    uses = {kind: ask_use(server, kind, end_ns=now_ns, window_s=window_s) for kind in KINDS}
    present = [kind for kind, samples in uses.items() if not samples.is_empty()]
    if not present:
        say.info(
            say.words(
                "This server has no series of links. Start `scope exporter` on each node and add it to the scrape "
                "configuration; NVLink needs an NVIDIA driver on the node."
            ),
            icon=":material/cable:",
        )
        return
    say.caption(say.words(":material/sensors: from Prometheus, samples of now. GB/s are 1e9 bytes a second, one way."))
    draw_errors(server, window_s)
    capacities = {kind: kind.capacities(server) for kind in present}
    for kind in present:
        say_use(kind, uses[kind], capacities[kind])
    each_nvlink = ask_each_nvlink(server)
    if each_nvlink is not None:
        cells, axes = each_nvlink
        show_figure(heat_map(cells, axes), table_of_cells(cells, axes), key="each NVLink")
    for kind in present:
        draw_kind(kind, uses[kind], capacities[kind])


def table_of_cells(cells: pl.DataFrame, axes: HeatAxes) -> pl.DataFrame:
    """Return the cells of a heat map with the names of its rows and columns."""
    rows = [(axes.y_labels[y], axes.x_labels[x], value) for x, y, value in cells.iter_rows()]
    names = (axes.y_title, axes.x_title, axes.value_title)
    return pl.DataFrame(rows, schema=dict(zip(names, (pl.String, pl.String, pl.Float64), strict=True)), orient="row")


def say_use(kind: LinkKind, samples: pl.DataFrame, capacities: Mapping[str, float]) -> None:
    """Say how near the busiest link of a kind came to its capacity."""
    peak = peak_use(samples, capacities)
    name = kind.title
    if peak is None:
        say.caption(f"{name}: use against capacity is unknown, the server knows no capacity of these links.")
        return
    link, rate, share = peak
    text = f"{name}: at most {format_ratio(share)} of capacity ({format_bandwidth(rate)}, {link})"
    if share >= BUSY:
        say.warning(f"{text}: this link may bound the job.", icon=":material/traffic:")
    else:
        say.success(f"{text}.", icon=":material/check_circle:")


def draw_kind(kind: LinkKind, samples: pl.DataFrame, capacities: Mapping[str, float]) -> None:
    """Draw the links of a kind over time, under their capacity."""
    shown = busiest(samples)
    limits = {f"capacity {format_bandwidth(rate)}": rate for rate in sorted(set(capacities.values()))[-3:]}
    table = shown.rename({Samples.name: "link", Samples.value: "rate_bytes_per_s"})
    show_figure(link_use_over_time(shown, capacities=limits, title=kind.title), table, key=kind.title)
    hidden = samples[Samples.name].n_unique() - shown[Samples.name].n_unique()
    if hidden:
        say.caption(f"The {MAX_LINES} that carried most; {hidden} more carried less.")


def draw_errors(server: Prometheus, window_s: int) -> None:
    """Draw which links are down or had errors in the window."""
    found = False
    for title, question in ERRORS.items():
        series = server.query(question.replace("$window", f"{window_s}s"))
        if series:
            found = True
            say.error(f"{title}: {len(series)} with errors", icon=":material/link_off:")
            show_table(labels_table(series), key=f"errors of {title}")
    if not found:
        say.success("No link is down or had errors in this time.", icon=":material/check_circle:")


def draw_run(run: LiveRun) -> None:
    """Draw what each parallel axis loads the links with, and over which tier."""
    say_age(run)
    traffic = run.traffic()
    if traffic.is_empty():
        say.info("No collective was recorded, so nothing is known of what loads the links.", icon=":material/inbox:")
        return
    say.subheader("What each parallel axis gives to collectives")
    parts: dict[str, int] = {}
    for row in traffic.iter_rows(named=True):
        name = f"{row[AxisTraffic.mesh_axis] or 'no axis'} over {row[AxisTraffic.tier] or 'unknown tier'}"
        parts[name] = parts.get(name, 0) + row[AxisTraffic.in_bytes]
    show_figure(parts_by_bytes(parts, title="Bytes by axis and tier, all ranks"), traffic, key="traffic by axis")
    say.caption(
        say.words(
            "node: all ranks of a group are on one host; network: on several. Bytes are what the ranks handed over; "
            "the counters of the links themselves come from `scope exporter` and Prometheus."
        )
    )


def main() -> None:
    """Draw the page."""
    question = "How much do the links carry against what they can, and which have errors?"
    source, _ = open_page("Links", question, ("prometheus", "run"))
    if source.kind == "run":
        run = load_run(source)
        on_each_refresh(run, lambda: draw_run(run))
        return
    window_s = WINDOWS_S[say.segmented_control("Time", list(WINDOWS_S), default="5 min") or "5 min"]
    server = Prometheus(address=source.place)
    on_each_answer(source, lambda: draw_server(server, window_s))


main()
