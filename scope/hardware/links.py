"""Rates of links and ports as data, one way, in decimal bytes a second.

Vendors quote NVLink and PCIe as both directions together and networks in bits; a transfer uses the one-way figure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from scope.units import BITS_PER_BYTE

_GIGA: Final = 1_000_000_000


class NvlinkGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of NVLink at its full number of links on a GPU."""

    generation: int
    num_links: int | None
    """Links of a full GPU; None where the vendor states the total alone."""
    bytes_per_s: int
    """Payload capacity of all links together, one way."""

    @property
    def bytes_per_s_per_link(self) -> int | None:
        """Payload capacity of one link, one way; None where the number of links is unknown."""
        return None if self.num_links is None else self.bytes_per_s // self.num_links


# NVIDIA, NVLink and NVLink Switch product pages, which state both directions together: 160, 300, 600, 900, 1,800 and
# 3,600 GB/s for 4, 6, 12, 18, 18 and an unstated number of links.
NVLINK: Final = {
    each.generation: each
    for each in (
        NvlinkGeneration(generation=1, num_links=4, bytes_per_s=80 * _GIGA),
        NvlinkGeneration(generation=2, num_links=6, bytes_per_s=150 * _GIGA),
        NvlinkGeneration(generation=3, num_links=12, bytes_per_s=300 * _GIGA),
        NvlinkGeneration(generation=4, num_links=18, bytes_per_s=450 * _GIGA),
        NvlinkGeneration(generation=5, num_links=18, bytes_per_s=900 * _GIGA),
        NvlinkGeneration(generation=6, num_links=None, bytes_per_s=1_800 * _GIGA),
    )
}

# PCI-SIG base specifications: transfers a second on each lane, one bit a transfer. Generations 1 and 2 code 8 bits in
# 10, 3 to 5 code 128 in 130, 6 sends 242 bytes of every 256 as payload.
_PCIE_TRANSFERS_PER_S: Final = {
    1: 2_500_000_000,
    2: 5 * _GIGA,
    3: 8 * _GIGA,
    4: 16 * _GIGA,
    5: 32 * _GIGA,
    6: 64 * _GIGA,
}
_PCIE_CODING: Final = {1: (8, 10), 2: (8, 10), 3: (128, 130), 4: (128, 130), 5: (128, 130), 6: (242, 256)}

NETWORK_BITS_PER_S: Final = {
    "EDR": 100 * _GIGA,
    "HDR": 200 * _GIGA,
    "NDR": 400 * _GIGA,
    "XDR": 800 * _GIGA,
    "10GbE": 10 * _GIGA,
    "25GbE": 25 * _GIGA,
    "40GbE": 40 * _GIGA,
    "50GbE": 50 * _GIGA,
    "100GbE": 100 * _GIGA,
    "200GbE": 200 * _GIGA,
    "400GbE": 400 * _GIGA,
    "800GbE": 800 * _GIGA,
}
"""Rate of a port of four lanes by the name of its standard (InfiniBand Trade Association; IEEE 802.3), one way."""


def pcie_bytes_per_s(generation: int, *, num_lanes: int = 16) -> int | None:
    """Return the nominal one-way rate of a PCIe link, bits on the wire / 8: 32 GB/s for 4.0 x16.

    This is the figure that vendors halve their totals to; `pcie_payload_bytes_per_s` takes the line code off.

    Returns:
        Bytes a second, or None for a generation that is not in the table.
    """
    rate = _PCIE_TRANSFERS_PER_S.get(generation)
    return None if rate is None else rate * num_lanes // BITS_PER_BYTE


def pcie_payload_bytes_per_s(generation: int, *, num_lanes: int = 16) -> int | None:
    """Return the one-way rate of a PCIe link after its line code: 31.5 GB/s for 4.0 x16; None when unknown."""
    nominal = pcie_bytes_per_s(generation, num_lanes=num_lanes)
    if nominal is None:
        return None
    payload, coded = _PCIE_CODING[generation]
    return nominal * payload // coded


def network_bytes_per_s(bits_per_s: int) -> int:
    """Return the one-way rate of a port in bytes: 400 Gb/s is 50 GB/s."""
    return bits_per_s // BITS_PER_BYTE
