"""Compile the fake library and write the script that it answers from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from scope.errors import InputError

SOURCE: Final = Path(__file__).parent / "fake_nvml.c"
SCRIPT_VARIABLE: Final = "SCOPE_FAKE_NVML"
LIBRARY_NAME: Final = "libnvidia-ml.so.1"


def build_library(folder: Path) -> Path:
    """Compile the library into a folder with gcc and return its path.

    Raises:
        InputError: gcc is missing or fails.
    """
    library = folder / LIBRARY_NAME
    command = ["gcc", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY_NAME}", "-o", str(library), str(SOURCE)]
    try:
        done = subprocess.run([*command, "-lpthread"], capture_output=True, text=True, check=False, timeout=120)
    except FileNotFoundError as error:
        message = "building the fake NVML needs gcc"
        raise InputError(message) from error
    if done.returncode:
        message = f"gcc could not build the fake NVML: {done.stderr.strip()}"
        raise InputError(message)
    return library


class Script:
    """The answers of a fake NVML by key; `write` puts them where the library sees them, whole or not at all.

    Args:
        path: The script's file; name it in the environment variable `SCOPE_FAKE_NVML`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, str] = {}

    def set(self, key: str, *values: object, code: int | str = 0) -> None:
        """Give one answer; a space inside a text is carried as `~`.

        Args:
            key: `g0.nvmlDeviceGetPowerUsage` and the like; `fake_nvml.c` describes the form.
            *values: What the call returns.
            code: NVML's return code, or `hang`.
        """
        self.answers[key] = " ".join([str(code), *(str(value).replace(" ", "~") for value in values)])

    def field(
        self, gpu: int, number: int, value: object, *, scope: int = 0, value_type: int = 3, code: int = 0
    ) -> None:
        """Give the answer of one field value; the type is NVML's, 3 for an unsigned 64-bit integer."""
        self.set(f"g{gpu}.field.{number}.{scope}", value_type, value)

    def remove(self, key: str) -> None:
        """Make a call unsupported again."""
        self.answers.pop(key, None)

    def lose(self, gpu: int, *, code: int = 15) -> None:
        """Let every call of a GPU fail, by default because it is lost."""
        self.set(f"g{gpu}.all", code=code)

    def hang(self, gpu: int, call: str) -> None:
        """Let one call of a GPU never return."""
        self.set(f"g{gpu}.{call}", code="hang")

    def add_xid(self, gpu: int, xid: int) -> None:
        """Report one more XID event."""
        count = int(self.answers.get("event.count", "0 0").split()[1]) + 1
        self.set("event.count", count)
        self.set(f"event.{count}", f"g{gpu}", xid)

    def write(self) -> None:
        """Put the answers in place."""
        text = "".join(f"{key} {answer}\n" for key, answer in self.answers.items())
        fresh = self.path.with_name(f"{self.path.name}.new")
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, self.path)  # noqa: PTH105 - atomic, so that the library never reads half a script
