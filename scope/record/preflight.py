"""NCCL's variables compared between all ranks before the first process group exists (`scope run --preflight`).

Ranks whose variables differ hang in their first collective, or in one of thousands. The launcher's store is there
before any group: each rank puts its variables into it, rank 0 compares them byte for byte, and every rank reads the
verdict. This is the one thing of the recorder that may end a job, so it runs only when it was asked for.
"""

from __future__ import annotations

import datetime
import functools
import json
from typing import TYPE_CHECKING, Any, Final, Protocol

from scope.errors import UsageError
from scope.run.environment import compare_variables
from scope.run.identity import PREFLIGHT
from scope.units import parse_switch, parse_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scope.record.patches import PatchTable

TIMEOUT_S: Final = 120
_PREFIX: Final = "NCCL_"
_MASTER: Final = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")


class Store(Protocol):
    """What is needed of the launcher's store."""

    def set(self, key: str, value: str, /) -> None:
        """Put a value."""

    def get(self, key: str, /) -> bytes:
        """Wait for a value and return it."""
        ...


def attach_preflight(patches: PatchTable, environment: Mapping[str, str]) -> None:
    """Compare before the first `init_process_group`, when it was asked for and the launcher has a store.

    Args:
        patches: Takes the wrapper, and away again at the end.
        environment: Variables of this process.
    """
    is_wanted = parse_variable(PREFLIGHT, environment.get(PREFLIGHT) or "off", parse_switch)
    if not is_wanted or environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    if any(name not in environment for name in _MASTER):
        return
    import torch.distributed

    patches.replace(torch.distributed, "init_process_group", lambda original: _compare_first(original, environment))


def _compare_first(original: Callable[..., Any], environment: Mapping[str, str]) -> Callable[..., Any]:
    is_done = False

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        nonlocal is_done
        if not is_done:
            is_done = True
            compare_through(_open_store(environment), environment)
        return original(*arguments, **options)

    return init_process_group


def _open_store(environment: Mapping[str, str]) -> Store:
    import torch.distributed

    # torch's own stubs do not export the store.
    distributed: Any = torch.distributed

    wait = datetime.timedelta(seconds=TIMEOUT_S)
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    return distributed.TCPStore(address, port, is_master=False, timeout=wait, wait_for_workers=False)


def compare_through(store: Store, environment: Mapping[str, str]) -> None:
    """Compare this rank's variables with those of all others.

    Args:
        store: The launcher's store, which all ranks reach.
        environment: Variables of this process.

    Raises:
        UsageError: Ranks differ; every rank raises it, with the same message.
    """
    rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    base = f"scope/preflight/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    own = {name: value for name, value in environment.items() if name.startswith(_PREFIX)}
    store.set(f"{base}/{rank}", json.dumps(own))
    if rank == 0:
        variables: dict[int, dict[str, str]] = {
            other: json.loads(store.get(f"{base}/{other}")) for other in range(world_size)
        }
        store.set(f"{base}/verdict", json.dumps(compare_variables(variables)))
    differences: list[str] = json.loads(store.get(f"{base}/verdict"))
    if differences:
        message = "NCCL variables differ between ranks: " + "; ".join(differences)
        raise UsageError(message)
