"""One connection to NVML: every call is announced before it is made and every failure is told apart.

NVML is not thread-safe and a call may never return. So one process owns one `NvmlLibrary`, and before each call it says
which GPU and which call comes next: whoever watches can tell what hung.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scope.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from scope.probe.tree import Tree

Announce = Callable[[str, str], None]
"""Called with (GPU or "", call) before each call of NVML."""

UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
GPU_NOT_FOUND: Final = 28
INVALID_ANSWER: Final = -1
"""No code of NVML's: the bindings could make nothing of what it answered."""
_ABSENT: Final = frozenset({2, 3, 6, 13, 25, 26})
_LOST: Final = frozenset({15, 28})
_DRIVER_GONE: Final = frozenset({1, 9, 18})

_NVIDIA_VENDOR: Final = "0x10de"
_DISPLAY: Final = "0x03"
"""How the PCI class of a display or 3D controller begins."""

ERROR_NAMES: Final = {
    INVALID_ANSWER: "invalid_answer",
    1: "uninitialized",
    2: "invalid_argument",
    3: "not_supported",
    4: "no_permission",
    6: "not_found",
    7: "insufficient_size",
    9: "driver_not_loaded",
    10: "timeout",
    11: "irq_issue",
    12: "library_not_found",
    13: "function_not_found",
    14: "corrupted_inforom",
    15: "gpu_is_lost",
    16: "reset_required",
    17: "operating_system",
    18: "lib_rm_version_mismatch",
    19: "in_use",
    20: "memory",
    21: "no_data",
    22: "ecc_not_supported",
    23: "insufficient_resources",
    25: "argument_version_mismatch",
    26: "deprecated",
    27: "not_ready",
    28: "gpu_not_found",
    29: "invalid_state",
    999: "unknown",
}
"""Short names of NVML's return codes, and of answers that are nonsense; they become labels."""


class NvmlFailure(Exception):
    """NVML answered a call with an error.

    Attributes:
        code: NVML's return code.
        name: Its short name.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code} ({error_name(code)})")
        self.code = code
        self.name = error_name(code)

    @property
    def absent(self) -> bool:
        """The GPU or driver does not have this at all, so that the figure is absent, not broken."""
        return self.code in _ABSENT

    @property
    def lost(self) -> bool:
        """The GPU no longer answers."""
        return self.code in _LOST

    @property
    def driver_gone(self) -> bool:
        """The driver was unloaded or replaced: the library must be opened anew."""
        return self.code in _DRIVER_GONE


def error_name(code: int) -> str:
    """Return the short name of a return code, `other` for one that NVML has added since."""
    return ERROR_NAMES.get(code, "other")


def _silent(_gpu: str, _call: str) -> None:
    """Announce to nobody."""


class GpuHandle(NamedTuple):
    """A GPU that can be asked: what every reader of a part of it needs.

    Attributes:
        library: The opened NVML.
        gpu: What its calls are announced under.
        handle: NVML's handle of it.
    """

    library: NvmlLibrary
    gpu: str
    handle: Any

    def ask(self, name: str, *arguments: Any) -> Any:
        """Announce and make one call on this GPU.

        Raises:
            NvmlFailure: As `NvmlLibrary.call`.
        """
        return self.library.call(self.gpu, name, self.handle, *arguments)

    def call(self, name: str, *arguments: Any) -> Any:
        """Announce under this GPU, and make, one call on something else: a sample, an instance, a request.

        Raises:
            NvmlFailure: As `NvmlLibrary.call`.
        """
        return self.library.call(self.gpu, name, *arguments)


class NvmlLibrary:
    """An opened NVML.

    Args:
        announce: Told of every call before it is made.
        library_path: A file to load instead of `libnvidia-ml.so.1` of the system's search path.
    """

    def __init__(self, *, announce: Announce = _silent, library_path: str | None = None) -> None:
        self._announce = announce
        self._library_path = library_path
        self.bindings: Any = None

    def open(self) -> None:
        """Load the bindings and the library, and initialise it.

        Raises:
            MissingExtraError: nvidia-ml-py is not installed.
            InputError: The given library cannot be loaded.
            NvmlFailure: There is no driver, or it refuses.
        """
        try:
            import pynvml  # pyright: ignore[reportMissingTypeStubs]
        except ImportError as error:
            message = "reading GPUs needs nvidia-ml-py: pip install 'stepscope[exporter]'"
            raise MissingExtraError(message) from error
        if self._library_path is not None:
            try:
                # Loaded first and by its name, so that the bindings' own lookup of the name finds it.
                ctypes.CDLL(self._library_path, mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                message = f"cannot load the NVML library {self._library_path}: {error}"
                raise InputError(message) from error
        self.bindings = pynvml
        self.call("", "nvmlInit")

    def call(self, gpu: str, name: str, *arguments: Any) -> Any:
        """Announce and make one call.

        Args:
            gpu: UUID or index of the GPU it concerns; empty for none.
            name: Name of the function of the bindings.
            *arguments: Its arguments.

        Raises:
            NvmlFailure: NVML answered with an error or with nonsense, or does not have the function.
        """
        self._announce(gpu, name)
        function = getattr(self.bindings, name, None)
        if function is None:
            raise NvmlFailure(13)
        try:
            return function(*arguments)
        except self.bindings.NVMLError as error:
            raise NvmlFailure(int(error.value)) from None
        except (ValueError, OverflowError, MemoryError) as error:
            # A name that is no text, or a length that no memory holds.
            raise NvmlFailure(INVALID_ANSWER) from error

    def constant(self, name: str) -> int | None:
        """Return a constant of the bindings, or None when this version does not know it.

        Numbers of fields are taken by name: two of them are swapped between NVIDIA's own headers.
        """
        value = getattr(self.bindings, name, None)
        return int(value) if value is not None else None

    def close(self) -> None:
        """Shut NVML down; a failure to do so is of no consequence to a process that ends."""
        if self.bindings is not None:
            try:
                self.call("", "nvmlShutdown")
            except NvmlFailure:
                return


def has_nvidia_traces(tree: Tree) -> bool:
    """Return whether a node has, or should have, NVIDIA GPUs: a loaded driver, its device files, or a GPU on PCI.

    Where there is none of them, GPUs are absent; where there is one and NVML fails, something is broken.

    Raises:
        OSError: A folder is there and cannot be listed.
    """
    if tree.exists("/proc/driver/nvidia") or any(name.startswith("nvidia") for name in tree.list("/dev")):
        return True
    return any(_is_nvidia_gpu(tree, device) for device in tree.list("/sys/bus/pci/devices"))


def _is_nvidia_gpu(tree: Tree, device: str) -> bool:
    folder = f"/sys/bus/pci/devices/{device}"
    try:
        return tree.read(f"{folder}/vendor") == _NVIDIA_VENDOR and tree.read(f"{folder}/class").startswith(_DISPLAY)
    except OSError:
        return False


def text(value: str | bytes) -> str:
    """Return NVML's text, which older bindings give as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def sysfs_address(bus_id: str) -> str:
    """Return a PCI address as sysfs writes it.

    Examples:
        >>> sysfs_address("00000000:1A:00.0")
        '0000:1a:00.0'
    """
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else bus_id.lower()
