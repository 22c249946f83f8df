"""How fast a collective can be at best, from the links that its ranks have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from scope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.hardware.model import Gpu


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """An upper bound on bus bandwidth, one way, and what sets it; `bytes_per_s` is None when it is unknown.

    A bus bandwidth above it means reduction inside the network (NVLS, SHARP) or a wrong topology.
    """

    bytes_per_s: float | None
    bound_by: str
    """The link that sets it, or why it is unknown."""


def intra_node_ceiling(gpu: Gpu) -> Ceiling:
    """Return the ceiling inside a node: NVLink or Infinity Fabric one way, else PCIe one way, else unknown.

    A card that may or may not wear an NVLink bridge has no known link; PCIe is its ceiling only when the catalogue
    says that it has no NVLink at all, since a bridge would be faster.
    """
    if gpu.link_bytes_per_s is not None:
        link = "Infinity Fabric" if gpu.vendor == "AMD" else "NVLink"
        return Ceiling(bytes_per_s=gpu.link_bytes_per_s.value, bound_by=f"{link} of {gpu.title}, one way")
    reason = gpu.why_absent("link_gb_per_s")
    pcie = gpu.pcie_bytes_per_s()
    if "without NVLink" not in reason:
        return Ceiling(bytes_per_s=None, bound_by=reason)
    if pcie is None:
        return Ceiling(bytes_per_s=None, bound_by=gpu.why_absent("pcie_generation"))
    return Ceiling(bytes_per_s=pcie.value, bound_by=f"PCIe of {gpu.title}, one way")


def inter_node_ceiling(*, link_bytes_per_s: float | None, nic_bytes_per_s: Mapping[str, Sequence[float]]) -> Ceiling:
    """Return the ceiling across nodes: min(NVLink one way, sum of the NIC rates on the group's narrowest node).

    Args:
        link_bytes_per_s: NVLink or Infinity Fabric of one GPU, one way; None when a rank has none or it is unknown, in
            which case the NICs alone bound it.
        nic_bytes_per_s: For each node of the group, the one-way rates of the NICs that its ranks use.

    Raises:
        UsageError: Fewer than two nodes: such a group does not cross.
    """
    if len(nic_bytes_per_s) < 2:
        message = f"a group that crosses nodes has at least 2 of them, not {len(nic_bytes_per_s)}"
        raise UsageError(message)
    sums = {node: sum(rates) for node, rates in nic_bytes_per_s.items()}
    unknown = sorted(node for node, total in sums.items() if total <= 0)
    if unknown:
        return Ceiling(bytes_per_s=None, bound_by=f"no NIC rate is known for {', '.join(unknown)}")
    narrowest = min(sums, key=lambda node: (sums[node], node))
    if link_bytes_per_s is not None and link_bytes_per_s < sums[narrowest]:
        return Ceiling(bytes_per_s=link_bytes_per_s, bound_by="NVLink or Infinity Fabric of one GPU, one way")
    return Ceiling(bytes_per_s=sums[narrowest], bound_by=f"network ports of {narrowest}")
