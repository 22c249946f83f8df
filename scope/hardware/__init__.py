"""GPUs, links and memories as data with their sources; what a device is; how fast its links can be."""

from scope.hardware.catalogue import builtin_catalogue, choose_gpu, load_catalogue, parse_catalogue
from scope.hardware.links import (
    NETWORK_BITS_PER_S,
    NVLINK,
    NvlinkGeneration,
    network_bytes_per_s,
    pcie_bytes_per_s,
    pcie_payload_bytes_per_s,
)
from scope.hardware.match import DeviceFacts, GpuMatch, agreed, match_gpu
from scope.hardware.model import Figure, Gpu
from scope.hardware.topology import Ceiling, inter_node_ceiling, intra_node_ceiling

__all__ = [
    "NETWORK_BITS_PER_S",
    "NVLINK",
    "Ceiling",
    "DeviceFacts",
    "Figure",
    "Gpu",
    "GpuMatch",
    "NvlinkGeneration",
    "agreed",
    "builtin_catalogue",
    "choose_gpu",
    "inter_node_ceiling",
    "intra_node_ceiling",
    "load_catalogue",
    "match_gpu",
    "network_bytes_per_s",
    "parse_catalogue",
    "pcie_bytes_per_s",
    "pcie_payload_bytes_per_s",
]
