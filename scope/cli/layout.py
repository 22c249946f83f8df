"""What the user says about nodes and links: `--ranks-per-node`, `--topology FILE`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from scope.errors import ConfigError, UsageError
from scope.units import BITS_PER_BYTE

if TYPE_CHECKING:
    from pathlib import Path

_GIGA: Final = 1_000_000_000
_KEYS: Final = frozenset({"nodes", "links"})
_LINK_KEYS: Final = frozenset({"node_gb_per_s", "nic_gbit_per_s"})


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes and links of a job.

    Attributes:
        nodes: Node of every rank; None when the file does not say.
        node_bytes_per_s: Link inside a node, one way; None when the file does not say.
        nic_bytes_per_s: Network rate of the NICs that one rank uses; None when the file does not say.
    """

    nodes: Mapping[int, str] | None = None
    node_bytes_per_s: float | None = None
    nic_bytes_per_s: float | None = None


def regular_nodes(world_size: int, *, ranks_per_node: int) -> dict[int, str]:
    """Return the node of every rank where each node holds as many, in order.

    Examples:
        >>> regular_nodes(3, ranks_per_node=2)
        {0: 'node 0', 1: 'node 0', 2: 'node 1'}
    """
    return {rank: f"node {rank // ranks_per_node}" for rank in range(world_size)}


def read_layout(path: Path) -> Layout:
    """Read a topology file.

    ```toml
    [nodes]
    gpu01 = [0, 1, 2, 3]
    gpu02 = [4, 5, 6, 7]
    [links]
    node_gb_per_s = 450     # inside a node, one way, decimal gigabytes a second
    nic_gbit_per_s = 400    # NICs that one rank uses, together, gigabits a second
    ```

    Raises:
        ConfigError: The file cannot be read, or has mistakes; the message lists all of them.
    """
    # Few commands are given a layout, and all of them import this module.
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror or error}"
        raise ConfigError(message) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"{path}: is not TOML: {error}"
        raise ConfigError(message) from error
    problems = [f"$.{key}: unknown; expected nodes and links" for key in document if key not in _KEYS]
    nodes = _nodes(_table(document, "nodes", problems), problems)
    links = _links(_table(document, "links", problems), problems)
    if problems:
        message = f"{path}: {len(problems)} mistakes: " + "; ".join(problems)
        raise ConfigError(message)
    node, network = links.get("node_gb_per_s"), links.get("nic_gbit_per_s")
    return Layout(
        nodes=nodes or None,
        node_bytes_per_s=None if node is None else node * _GIGA,
        nic_bytes_per_s=None if network is None else network * _GIGA / BITS_PER_BYTE,
    )


def check_layout(*, ranks_per_node: int | None, topology: Path | None) -> None:
    """Raise `UsageError` when both ways to say the nodes are used at once."""
    if ranks_per_node is not None and topology is not None:
        message = "--ranks-per-node and --topology both say which ranks share a node; give one of them"
        raise UsageError(message)


def _table(document: Mapping[str, Any], key: str, problems: list[str]) -> dict[str, Any]:
    value = document.get(key, {})
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    problems.append(f"$.{key}: expected a table, [{key}]")
    return {}


def _nodes(table: Mapping[str, Any], problems: list[str]) -> dict[int, str]:
    nodes: dict[int, str] = {}
    for name, ranks in table.items():
        if not isinstance(ranks, list):
            problems.append(f"$.nodes.{name}: expected a list of ranks")
            continue
        for rank in cast("list[Any]", ranks):
            if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
                problems.append(f"$.nodes.{name}: {rank!r} is no rank")
            elif rank in nodes:
                problems.append(f"$.nodes.{name}: rank {rank} is on {nodes[rank]} already")
            else:
                nodes[rank] = name
    return nodes


def _links(table: Mapping[str, Any], problems: list[str]) -> dict[str, float]:
    links: dict[str, float] = {}
    for key, value in table.items():
        if key not in _LINK_KEYS:
            problems.append(f"$.links.{key}: unknown; expected {' and '.join(sorted(_LINK_KEYS))}")
        elif not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            problems.append(f"$.links.{key}: expected a number above 0, not {value!r}")
        else:
            links[key] = float(value)
    return links
