"""Takes up a web-config and its certificates again when their files change, as exporter-toolkit does.

Certificates that live for days are replaced under a server that runs for months. A new version with mistakes is
reported, and what was read before stays until the mistakes are gone.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from exporters.web_config import WebConfig, load_web_config
from scope.errors import ConfigError, ScopeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger("scope.exporter")

_LOOK_S: Final = 2.0

Signature = tuple[tuple[int, int, int] | None, ...]


def read_signature(files: tuple[Path, ...]) -> Signature:
    """Return what changes when one of the files does: inode, size and time of change; None for one that is missing."""
    found: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


class WebConfigFollower:
    """Looks at the files of a web-config every two seconds.

    Args:
        path: The web-config.
        config: What was read from it.
        use: Called with each new version.
        report: Called with (error, where) for each version that has mistakes.
    """

    def __init__(
        self, path: Path, config: WebConfig, *, use: Callable[[WebConfig], None], report: Callable[[str, str], None]
    ) -> None:
        self._path = path
        self._files = config.files
        self._has_tls = config.tls is not None
        self._use = use
        self._report = report
        self._signature = read_signature(self._files)
        self._mistake: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="web-config", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; a file system that hangs is left behind."""
        self._stopping.set()
        self._thread.join(1)

    def look(self) -> None:
        """Look once, and take up what is new."""
        signature = read_signature(self._files)
        # While there are mistakes, what mends them may be a file that no good version has named.
        if signature == self._signature and self._mistake is None:
            return
        self._signature = signature
        try:
            config = load_web_config(self._path)
            if (config.tls is not None) != self._has_tls:
                message = "TLS cannot be switched on or off while the exporter runs; restart it"
                raise ConfigError(message)
            self._use(config)
        except ScopeError as error:
            if str(error) != self._mistake:
                log.error("the web-config as it was read before stays in use: %s", error)  # noqa: TRY400 - a line
                self._report("invalid", str(self._path))
            self._mistake = str(error)
            return
        self._mistake = None
        # The new version may name other files; those that were replaced meanwhile are seen at the next look.
        if config.files != self._files:
            self._files, self._signature = config.files, read_signature(config.files)
        log.info("the web-config %s was read again", self._path)
        for warning in config.warnings:
            log.warning("%s", warning)

    def _follow(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            self.look()
