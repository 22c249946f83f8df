"""Reads GPUs from TOML: the built-in catalogue, and files of the same form that users write."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from scope.errors import ConfigError, UsageError
from scope.hardware.model import GIGA, MATRIX_DTYPES, TERA, VECTOR_DTYPES, Figure, Gpu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BUILTIN: Final = Path(__file__).with_name("gpus.toml")
_TEXTS: Final = ("title", "vendor", "architecture", "form")
_BANDWIDTHS: Final = {"memory_tb_per_s": TERA, "link_gb_per_s": GIGA, "pcie_generation": 1}
_SECOND_HAND: Final = "; not the vendor's own document"
"""Follows every source that a catalogue which lists its primary ones does not list."""
_KEYS: Final = frozenset(
    {
        *_TEXTS,
        "base",
        "names",
        "not_names",
        "memory_gb",
        "num_sms",
        "compute_capability",
        "mig_instances",
        "matrix_tflops",
        "vector_tflops",
        "bandwidth",
        "absent",
    }
)


@cache
def builtin_catalogue() -> Mapping[str, Gpu]:
    """Return the GPUs that Scope knows, by id."""
    return parse_catalogue(_BUILTIN.read_text(encoding="utf-8"), origin="scope/hardware/gpus.toml")


def load_catalogue(paths: Sequence[Path] = ()) -> Mapping[str, Gpu]:
    """Return the built-in catalogue with users' files laid over it; a later id replaces an earlier one.

    A user's entry may name a `base`, whose figures it keeps where it states none: so a measured peak replaces the
    data sheet's.

    Raises:
        ConfigError: A file is missing, is not TOML, or has mistakes; the message lists all of them.
    """
    catalogue = dict(builtin_catalogue())
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            message = f"{path}: cannot be read as text: {error}"
            raise ConfigError(message) from error
        catalogue.update(parse_catalogue(text, origin=str(path), known=catalogue))
    return catalogue


def choose_gpu(gpu_id: str, catalogue: Mapping[str, Gpu] | None = None) -> Gpu:
    """Return the GPU that the user named.

    Raises:
        UsageError: No such id; the message names the nearest ones.
    """
    known = builtin_catalogue() if catalogue is None else catalogue
    wanted = gpu_id.strip().lower()
    if wanted in known:
        return known[wanted]
    import difflib

    near = difflib.get_close_matches(wanted, known, n=5, cutoff=0.4) or sorted(known)
    message = (
        f"no GPU is called {gpu_id!r}; choose one of {', '.join(near)}; all ids are the [gpu.ID] tables of "
        f"{_BUILTIN}, and --gpu-file describes others"
    )
    raise UsageError(message)


def parse_catalogue(text: str, *, origin: str, known: Mapping[str, Gpu] | None = None) -> dict[str, Gpu]:
    """Return the GPUs of one TOML text.

    Args:
        text: TOML with a `[gpu.ID]` table for each device, see `scope/hardware/gpus.toml`.
        origin: Where the text came from, for messages and as the source of figures that name none.
        known: GPUs that an entry may take as its `base`.

    Raises:
        ConfigError: It is not TOML, or has mistakes; the message lists all of them.
    """
    # Traces of CPUs need no catalogue.
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = f"{origin}: not TOML: {error}"
        raise ConfigError(message) from error
    reader = _Reader(origin, document, known or {})
    gpus = reader.read()
    if reader.problems:
        message = "\n".join((f"{origin}: {len(reader.problems)} mistakes", *(f"  {each}" for each in reader.problems)))
        raise ConfigError(message)
    return gpus


class _Reader:
    """Reads one document and gathers every mistake instead of stopping at the first."""

    def __init__(self, origin: str, document: Mapping[str, Any], known: Mapping[str, Gpu]) -> None:
        self.origin = origin
        self.document = document
        self.known = known
        self.problems: list[str] = []
        self.sources = self._table(document, "sources", "$")
        self.primary = self._texts(dict(document), "primary", "$")

    def read(self) -> dict[str, Gpu]:
        """Return all entries that have no mistake."""
        for key in self.document:
            if key not in {"primary", "sources", "gpu"}:
                self.problems.append(f"$.{key}: unknown table; expected gpu, sources and the list primary")
        for name in self.primary:
            if name not in self.sources:
                self.problems.append(f"$.primary: no source is called {name!r}")
        entries = self._table(self.document, "gpu", "$")
        if not entries and not self.problems:
            self.problems.append("$.gpu: no [gpu.ID] table")
        gpus: dict[str, Gpu] = {}
        for gpu_id, entry in entries.items():
            if not isinstance(entry, dict):
                self.problems.append(f"$.gpu.{gpu_id}: expected a table")
                continue
            gpus[gpu_id.lower()] = self._gpu(gpu_id.lower(), cast("dict[str, Any]", entry))
        return gpus

    def _gpu(self, gpu_id: str, entry: dict[str, Any]) -> Gpu:
        path = f"$.gpu.{gpu_id}"
        for key in entry:
            if key not in _KEYS:
                self.problems.append(f"{path}.{key}: unknown key; expected one of {', '.join(sorted(_KEYS))}")
        bandwidth = self._figures(entry, "bandwidth", path, units=_BANDWIDTHS)
        matrix_units: dict[str, int] = dict.fromkeys(MATRIX_DTYPES, TERA)
        vector_units: dict[str, int] = dict.fromkeys(VECTOR_DTYPES, TERA)
        memory_gb = self._number(entry, "memory_gb", path)
        gpu = msgspec.structs.replace(
            self._base(gpu_id, entry, path),
            **{key: self._text(entry, key, path) for key in _TEXTS if key in entry},
        )
        return msgspec.structs.replace(
            gpu,
            names=self._texts(entry, "names", path) or gpu.names,
            not_names=self._texts(entry, "not_names", path) or gpu.not_names,
            memory_bytes=gpu.memory_bytes if memory_gb is None else round(memory_gb * GIGA),
            num_sms=self._count(entry, "num_sms", path) or gpu.num_sms,
            compute_capability=self._capability(entry, path) or gpu.compute_capability,
            mig_instances=self._count(entry, "mig_instances", path) or gpu.mig_instances,
            matrix_flop_per_s={
                **gpu.matrix_flop_per_s,
                **self._figures(entry, "matrix_tflops", path, units=matrix_units),
            },
            vector_flop_per_s={
                **gpu.vector_flop_per_s,
                **self._figures(entry, "vector_tflops", path, units=vector_units),
            },
            memory_bytes_per_s=bandwidth.get("memory_tb_per_s", gpu.memory_bytes_per_s),
            link_bytes_per_s=bandwidth.get("link_gb_per_s", gpu.link_bytes_per_s),
            pcie_generation=bandwidth.get("pcie_generation", gpu.pcie_generation),
            absent={**gpu.absent, **self._reasons(entry, path)},
        )

    def _base(self, gpu_id: str, entry: dict[str, Any], path: str) -> Gpu:
        blank = Gpu(gpu_id=gpu_id, title=gpu_id, vendor="", architecture="", form="", names=())
        if "base" not in entry:
            return blank
        base = self._text(entry, "base", path)
        if base not in self.known:
            self.problems.append(f"{path}.base: no GPU is called {base!r}")
            return blank
        return msgspec.structs.replace(self.known[base], gpu_id=gpu_id)

    def _figures(self, entry: dict[str, Any], key: str, path: str, *, units: Mapping[str, int]) -> dict[str, Figure]:
        figures: dict[str, Figure] = {}
        for name, value in self._table(entry, key, path).items():
            where = f"{path}.{key}.{name}"
            if name not in units:
                self.problems.append(f"{where}: unknown figure; expected one of {', '.join(units)}")
                continue
            figure = self._figure(value, where)
            if figure is not None:
                figures[name] = Figure(value=round(figure.value * units[name]), source=figure.source)
        return figures

    def _figure(self, value: object, where: str) -> Figure | None:
        number, source = value, self.origin
        if isinstance(value, list):
            pair = cast("list[object]", value)
            if len(pair) != 2 or not isinstance(pair[1], str):
                self.problems.append(f"{where}: expected a number, or [number, source]")
                return None
            number, source = pair[0], str(self.sources.get(pair[1], pair[1]))
            if self.primary and pair[1] not in self.primary:
                source += _SECOND_HAND
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < float("inf"):
            self.problems.append(f"{where}: expected a number above 0, not {number!r}")
            return None
        return Figure(value=number, source=source)

    def _reasons(self, entry: dict[str, Any], path: str) -> dict[str, str]:
        reasons = self._table(entry, "absent", path)
        for name, reason in reasons.items():
            if not isinstance(reason, str):
                self.problems.append(f"{path}.absent.{name}: expected a sentence")
        return {name: str(reason) for name, reason in reasons.items()}

    def _capability(self, entry: dict[str, Any], path: str) -> tuple[int, int] | None:
        value = entry.get("compute_capability")
        if value is None:
            return None
        if isinstance(value, list):
            parts = cast("list[object]", value)
            if len(parts) == 2 and isinstance(parts[0], int) and isinstance(parts[1], int):
                return parts[0], parts[1]
        self.problems.append(f"{path}.compute_capability: expected [major, minor], not {value!r}")
        return None

    def _count(self, entry: dict[str, Any], key: str, path: str) -> int | None:
        number = self._number(entry, key, path)
        if number is not None and number != int(number):
            self.problems.append(f"{path}.{key}: expected a whole number, not {number!r}")
        return None if number is None else int(number)

    def _number(self, entry: dict[str, Any], key: str, path: str) -> float | None:
        if key not in entry:
            return None
        figure = self._figure(entry[key], f"{path}.{key}")
        return None if figure is None else figure.value

    def _text(self, entry: dict[str, Any], key: str, path: str) -> str:
        value = entry[key]
        if not isinstance(value, str) or not value:
            self.problems.append(f"{path}.{key}: expected text, not {value!r}")
            return ""
        return value

    def _texts(self, entry: dict[str, Any], key: str, path: str) -> tuple[str, ...]:
        value = entry.get(key, [])
        texts = cast("list[object]", value) if isinstance(value, list) else [value]
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in texts):
            self.problems.append(f"{path}.{key}: expected a list of texts")
            return ()
        return tuple(str(each) for each in texts)

    def _table(self, entry: Mapping[str, Any], key: str, path: str) -> dict[str, Any]:
        value = entry.get(key, {})
        if not isinstance(value, dict):
            self.problems.append(f"{path}.{key}: expected a table")
            return {}
        return cast("dict[str, Any]", value)
