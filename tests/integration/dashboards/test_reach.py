"""Who reaches the dashboard: the keyboard reaches every control, another site's page reaches nothing."""

from __future__ import annotations

import socket
from http.client import HTTPConnection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from dashboards.sources.catalogue import find_sources

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Visitor

pytestmark = pytest.mark.system("chromium")

MOST_TABS = 80


def test_the_keyboard_unfolds_the_table(visitor: Visitor, address: str, places: list[Path]) -> None:
    """Tab reaches the links of all pages, the source and the fold; Enter opens it, and the table is drawn."""
    source = find_sources([str(places[0])])[0]
    visitor.open(f"{address}/steps?source={source.source_id}", "Steps")
    reached: list[str] = []
    for _ in range(MOST_TABS):
        visitor.page.keyboard.press("Tab")
        found = visitor.page.evaluate(
            "() => document.activeElement.innerText || document.activeElement.ariaLabel || ''"
        )
        reached.append(found.strip().splitlines()[-1] if found.strip() else "")
        if reached[-1] == "Table":
            break
    assert {"Overview", "Ranks", "Kernels", "Timeline", "Table"} <= set(reached)
    assert not visitor.page.locator("[data-testid=stDataFrame]").count()
    visitor.page.keyboard.press("Enter")
    visitor.page.wait_for_selector("[data-testid=stDataFrame]")
    visitor.page.wait_for_selector("text=Download CSV")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("_stcore/health", 200),
        ("_stcore/host-config", 200),
        ("_stcore/metrics", 404),
        ("_stcore/metrics/", 404),
        ("/_stcore/metrics", 404),
        ("%5Fstcore/metrics", 404),
        ("steps/_stcore/metrics", 404),
        ("_stcore/upload_file/a/b", 404),
        ("_stcore/agent", 404),
    ],
)
def test_streamlit_serves_nothing_beside_the_pages(address: str, path: str, status: int) -> None:
    """What the server tells of itself would lie beside the sign-in, so it is not there, however it is spelled."""
    place = urlsplit(address)
    connection = HTTPConnection(place.netloc, timeout=10)
    connection.request("GET", f"/{path}")
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == status
    assert b"cache_memory_bytes" not in body


@pytest.mark.parametrize(("origin", "is_welcome"), [("http://evil.example", False), (None, True)])
def test_a_page_of_another_site_gets_no_connection(address: str, origin: str | None, is_welcome: bool) -> None:
    """The stream of data opens for the dashboard's own pages alone."""
    place = urlsplit(address)
    assert place.hostname is not None
    assert place.port is not None
    request = (
        f"GET /_stcore/stream HTTP/1.1\r\nHost: {place.netloc}\r\nOrigin: {origin or address}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: streamlit\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection((place.hostname, place.port), timeout=10) as connection:
        connection.sendall(request.encode())
        status = connection.recv(64).split()[1]
    assert (status == b"101") == is_welcome
