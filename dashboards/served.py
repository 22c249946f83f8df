"""What Streamlit's server serves of itself: the pages and what they need; all else of its own is not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from streamlit.starlette import App

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

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


app = App(Path(__file__).parent / "app.py", middleware=[Middleware(OpenAlone)])
