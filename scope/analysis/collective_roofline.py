"""Message size against bus bandwidth, and what the links would allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scope.analysis.result import Result

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkRates:
    """What is known of the links of a job, all one way, in decimal bytes a second."""

    node_bytes_per_s: float | None = None
    """Inside a node: NVLink (or Infinity Fabric, else PCIe) of one GPU."""
    nic_bytes_per_s: float | None = None
    """Network: the rate of the NICs that one rank uses."""
    source: str = "given"


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveRoofline(Result):
    """All measured collectives by size; `points` is the table `CollectiveRooflineRows`."""

    points: pl.DataFrame
    links: LinkRates
    num_collectives: int
    """Collectives with a bus bandwidth, which the points hold."""
    num_without_bandwidth: int
    """Collectives left out: incomplete, cut, of unknown size or no transfer."""
