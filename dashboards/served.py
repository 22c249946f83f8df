"""What Streamlit's server serves of itself: the pages and what they need; all else of its own is not there.

Every answer forbids the browser to ask anybody else, so that a name from a trace could not make it even if a page drew
it unescaped.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import streamlit
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from streamlit.starlette import App

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

INTERNAL: Final = "_stcore/"
OPEN: Final = frozenset({"_stcore/health", "_stcore/host-config", "_stcore/stream"})
"""Of Streamlit's own addresses, what a page cannot do without. Its metrics and uploads would lie beside the sign-in."""


class OpenAlone:
    """Answers `Not Found` for every address of Streamlit's own that pages do not need."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        path = str(scope.get("path", "")).strip("/")
        if scope["type"] == "http" and INTERNAL in path and path not in OPEN:
            await PlainTextResponse("Not Found", status_code=404)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def content_policy(page: str) -> str:
    """Return the Content-Security-Policy under which a browser asks nobody but this server.

    Args:
        page: The HTML that loads the app; what stands in it as a script may run, and no other inline script.
    """
    inline = [_sha256(script) for script in re.findall(r"<script>(.*?)</script>", page, re.DOTALL)]
    return "; ".join(
        (
            "default-src 'self'",
            " ".join(["script-src 'self'", *inline]),
            # Streamlit and plotly style what they draw as they draw it.
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "worker-src 'self' blob:",
            "media-src 'none'",
            "object-src 'none'",
            "frame-src 'none'",
            "frame-ancestors 'self'",
            "base-uri 'self'",
            "form-action 'self'",
        )
    )


def _sha256(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


class AsksNobodyElse:
    """Adds the headers that keep the browser with this server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        page = Path(streamlit.__file__).parent / "static" / "index.html"
        self._headers = {
            "Content-Security-Policy": content_policy(page.read_text(encoding="utf-8")),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-DNS-Prefetch-Control": "off",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back with the headers."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, send_guarded)


app = App(Path(__file__).parent / "app.py", middleware=[Middleware(AsksNobodyElse), Middleware(OpenAlone)])
