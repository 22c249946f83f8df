"""Clients that are slow, many, wrong or rude: each gets a clear answer and none keeps others waiting."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING

import pytest

import exporters.server
from exporters.gate import MAX_WAITING
from exporters.options import parse_options
from exporters.render import OPENMETRICS, TEXT, choose_format
from exporters.server import RateLimiter, accepts_gzip, is_allowed
from exporters.web_config import Authenticator, WebConfig, load_web_config
from scope.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from exporters.server import ExporterServer

    Serve = Callable[..., ExporterServer]


def ask(server: ExporterServer, data: bytes) -> bytes:
    """Send bytes and return all that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(data)
        answer = b""
        try:
            while piece := connection.recv(65_536):
                answer += piece
        except ConnectionResetError:
            # The server closes while it has not read all that was sent.
            pass
        return answer


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /metrics HTTP/1.0\r\n\r\n", "200"),
        ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200"),
        ("HEAD /metrics HTTP/1.0\r\n\r\n", "200"),
        ("POST /metrics HTTP/1.0\r\n\r\n", "405"),
        ("DELETE / HTTP/1.0\r\n\r\n", "405"),
        ("BREW /coffee HTTP/1.0\r\n\r\n", "501"),
        ("GET /../../etc/passwd HTTP/1.0\r\n\r\n", "404"),
        ("GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.0\r\n\r\n", "404"),
        ("GET //metrics HTTP/1.0\r\n\r\n", "200"),
        ("GET /metrics/ HTTP/1.0\r\n\r\n", "404"),
        ("GET http://elsewhere/ HTTP/1.0\r\n\r\n", "404"),
        ("GET /metrics HTTP/9.9\r\n\r\n", "505"),
        ("nonsense\r\n\r\n", "400"),
        ("GET /" + "x" * 70_000 + " HTTP/1.0\r\n\r\n", "414"),
        ("GET / HTTP/1.0\r\nA: " + "x" * 70_000 + "\r\n\r\n", "431"),
        ("GET / HTTP/1.0\r\n" + "A: b\r\n" * 200 + "\r\n", "431"),
    ],
    ids=lambda text: text[:24].strip(),
)
def test_every_request_gets_its_status(serve: Serve, request_text: str, status: str) -> None:
    """Old and new HTTP, wrong methods, paths that climb, headers without end."""
    answer = ask(serve(), request_text.encode())
    first = answer.split(b"\r\n", 1)[0].decode()
    assert status in first, answer[:200]
    assert b"root:" not in answer
    if request_text.startswith("HEAD"):
        assert answer.endswith(b"\r\n\r\n")
        assert b"Content-Length: 4012" in answer


def test_bytes_that_are_no_text(serve: Serve) -> None:
    """A TLS hello, or noise, on the plain port breaks nothing."""
    server = serve()
    ask(server, bytes(range(256)) * 20 + b"\r\n\r\n")
    ask(server, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
    assert b"200" in ask(server, b"GET /metrics HTTP/1.0\r\n\r\n")[:15]


def test_a_slow_client_keeps_no_place(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends a byte now and then is cut off after the limit, and the place is free again."""
    monkeypatch.setattr("exporters.server.CONNECTION_LIMIT_S", 0.3)
    server = serve(max_connections=2)
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
    began = time.monotonic()
    closed = 0
    while closed < 2 and time.monotonic() - began < 5:
        closed = 0
        for connection in slow:
            try:
                connection.sendall(b"G")
            except OSError:
                closed += 1
        time.sleep(0.05)
    assert closed == 2
    for connection in slow:
        connection.close()
    while b"200" not in ask(server, b"GET /metrics HTTP/1.0\r\n\r\n")[:15]:
        assert time.monotonic() - began < 8
        time.sleep(0.01)


def test_connections_that_say_nothing(serve: Serve) -> None:
    """They take no thread and keep nobody waiting; beyond a number the oldest is closed."""
    server = serve(max_connections=2)
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MAX_WAITING + 20)]
    assert b"200" in ask(server, b"GET /metrics HTTP/1.0\r\n\r\n")[:15]
    closed = [connection for connection in idle if not is_open(connection)]
    assert len(closed) in {20, 21}
    assert set(closed) <= set(idle[:21])
    for connection in idle:
        connection.close()


def test_a_request_in_pieces(serve: Serve) -> None:
    """It is answered once it is whole, and a client that closes before that leaves nothing behind."""
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        for piece in (b"GET /met", b"rics HTTP/1.0\r\nA: b\r", b"\n\r", b"\n"):
            connection.sendall(piece)
            time.sleep(0.02)
        assert connection.recv(64).startswith(b"HTTP/1.0 200")
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(b"GET /met")
    assert b"200" in ask(server, b"GET /metrics HTTP/1.0\r\n\r\n")[:15]
    deadline = time.monotonic() + 10
    while server._gate._guests:  # pyright: ignore[reportPrivateUsage]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_thread_is_left(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that needs one is dropped; the server lives, loses no place by it, and answers the next."""
    server = serve(max_connections=1)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")  # noqa: EM101 - what Python says

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            assert ask(server, b"GET /metrics HTTP/1.0\r\n\r\n") == b""
    assert b"200" in ask(server, b"GET /metrics HTTP/1.0\r\n\r\n")[:15]


def test_a_thousand_slow_clients_at_once(serve: Serve) -> None:
    """However many hold connections open, and come back when they are cut, a scrape gets its answer within seconds."""
    server = serve(max_connections=64)
    stopping = threading.Event()

    def come_back(number: int) -> None:
        """Hold fifty connections, each with half a request, and replace those that are closed."""
        held: list[socket.socket] = []
        while not stopping.is_set():
            held = [connection for connection in held if is_open(connection)]
            while len(held) < 50 and not stopping.is_set():
                connection = socket.create_connection(("127.0.0.1", server.port), timeout=5)
                connection.sendall(b"GET /metrics HTTP/1.1\r\nX: " + str(number).encode())
                held.append(connection)
            stopping.wait(0.2)
        for connection in held:
            connection.close()

    attackers = [threading.Thread(target=come_back, args=(number,)) for number in range(20)]
    for attacker in attackers:
        attacker.start()
    try:
        time.sleep(1.5)
        answered = 0
        deadline = time.monotonic() + 15
        while answered < 5 and time.monotonic() < deadline:
            answered += b"200" in ask(server, b"GET /metrics HTTP/1.0\r\n\r\n")[:15]
            time.sleep(0.1)
    finally:
        stopping.set()
        for attacker in attackers:
            attacker.join()
    assert answered == 5


def is_open(connection: socket.socket) -> bool:
    """Return whether the server has neither answered nor closed; close it here otherwise."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        pass
    connection.close()
    return False


def test_a_client_that_never_reads(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread waits for room no longer than any other connection may last, and the next client is served."""
    monkeypatch.setattr("exporters.server.CONNECTION_LIMIT_S", 0.3)
    server = serve(max_connections=1, body="a 1\n" * 4_000_000)
    with socket.create_connection(("127.0.0.1", server.port)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        deaf.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        deadline = time.monotonic() + 10
        while b"200" not in ask(server, b"GET /healthz HTTP/1.0\r\n\r\n")[:15]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("gzip", True), ("GZIP", True), ("deflate, gzip;q=1.0", True), ("gzip;q=0", False), ("gzip; q=0.000", False),
        ("*", True), ("*;q=0", False), ("identity", False), ("", False), ("gzip;q=0, *", False), ("xgzip", False),
    ],
)  # fmt: skip
def test_accept_encoding(header: str, expected: bool) -> None:
    """Only who takes gzip gets it."""
    assert accepts_gzip(header) is expected


@pytest.mark.parametrize(
    ("header", "content_type"),
    [
        # What Prometheus 2 and 3 send.
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            OPENMETRICS,
        ),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            OPENMETRICS,
        ),
        ("application/openmetrics-text;q=0", TEXT),
        ("text/plain, application/openmetrics-text;q=0.9", TEXT),
        ("*/*", TEXT),
        ("", TEXT),
    ],
)
def test_the_format_is_the_one_that_is_wanted(header: str, content_type: str) -> None:
    """OpenMetrics for who wants it as much as plain text or more."""
    assert choose_format(header) == content_type


def test_the_rate_limit_is_a_bucket() -> None:
    """Three at once, then one a second; an hour of rest fills it to three and no more."""
    now = [0.0]
    limiter = RateLimiter(1, 3, clock_s=lambda: now[0])
    assert [limiter.allows() for _ in range(4)] == [True, True, True, False]
    now[0] = 1.0
    assert [limiter.allows() for _ in range(2)] == [True, False]
    now[0] = 3_600.0
    assert [limiter.allows() for _ in range(4)] == [True, True, True, False]


def test_beyond_the_rate_is_429(serve: Serve) -> None:
    """The server says so, and does not close."""
    server = serve(WebConfig(None, {}, {}, rate_limit=(3_600, 2)))
    statuses = [ask(server, b"GET /metrics HTTP/1.0\r\n\r\n").split()[1] for _ in range(3)]
    assert statuses == [b"200", b"200", b"429"]


def test_a_known_password_waits_for_no_guess() -> None:
    """While somebody's guess is being checked, who passed before passes at once."""
    from base64 import b64encode

    import bcrypt

    authenticator = Authenticator({"ada": bcrypt.hashpw(b"secret", bcrypt.gensalt(4))})
    header = "Basic " + b64encode(b"ada:secret").decode()
    assert authenticator.allows(header)
    answers: list[bool] = []
    with authenticator._lock:  # pyright: ignore[reportPrivateUsage] - what a check of a guess holds
        thread = threading.Thread(target=lambda: answers.append(authenticator.allows(header)))
        thread.start()
        thread.join(5)
    assert answers == [True]


def test_names_of_a_certificate() -> None:
    """One allowed name of any kind is enough; none is not; no list lets all in."""
    certificate = {"subjectAltName": (("DNS", "prometheus.example"), ("IP Address", "192.0.2.7"))}
    assert is_allowed(certificate, frozenset())
    assert is_allowed(certificate, frozenset({"192.0.2.7"}))
    assert not is_allowed(certificate, frozenset({"example"}))
    assert not is_allowed({"subject": ()}, frozenset({"example"}))


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("rate_limit: {interval: fast, burst: 1}", "$.rate_limit.interval"),
        ("rate_limit: {interval: 1s, burst: 0}", "$.rate_limit.burst"),
        ("rate_limit: {interval: 1s, burst: true}", "$.rate_limit.burst"),
        ("rate_limit: {every: 1s}", "$.rate_limit.every"),
        ("tls_server_config: {client_allowed_sans: 5}", "client_allowed_sans: must be a list"),
        ("tls_server_config: {client_allowed_sans: [a]}", "client_allowed_sans: needs a client_auth_type"),
        ("tls_server_config: {curve_preferences: [X25519]}", "curve_preferences: not supported"),
        ("http_server_config: {headers: {Server: x}}", "$.http_server_config.headers.Server"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\r\\nSet-Cookie: b"}}', "line break"),
        ("http_server_config: {http3: true}", "$.http_server_config.http3"),
        ("tls_server_config: {cipher_suites: [TLS_NONE]}", "cipher_suites"),
    ],
)
def test_each_mistake_of_a_web_config_is_named(tmp_path: Path, content: str, part: str) -> None:
    """The place of the mistake is in the message."""
    path = tmp_path / "web.yml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_web_config(path)
    assert part in str(caught.value)


def test_rate_limit_and_http2_are_read(tmp_path: Path) -> None:
    """Both as exporter-toolkit has them; http2 makes no difference here."""
    path = tmp_path / "web.yml"
    path.write_text("rate_limit: {interval: 500ms, burst: 20}\nhttp_server_config: {http2: true}\n")
    assert load_web_config(path).rate_limit == (0.5, 20)
    path.write_text("rate_limit: {interval: 0s}\n")
    assert load_web_config(path).rate_limit is None


@pytest.mark.parametrize("number", ["0", "-1"])
def test_no_connections_make_no_sense(number: str) -> None:
    """A limit that nobody passes is refused."""
    with pytest.raises(UsageError, match="--max-connections"):
        parse_options(["--max-connections", number])


def make_hello() -> bytes:
    """Return the first message of a client of TLS."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="node")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


@pytest.mark.system("openssl")
def test_no_plain_word_is_said_on_a_port_of_tls(
    serve: Serve, make_certificate: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one client that stalls within its handshake has the only place, the next is closed without an answer."""
    make_certificate(tmp_path, "node")
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: node.pem, key_file: node.key}\n")
    # However slow this machine is, the first client does not count as one that only holds a place.
    monkeypatch.setattr(exporters.server, "IDLE_LIMIT_S", 600)
    server = serve(load_web_config(tmp_path / "web.yml"), max_connections=1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as first:
        first.sendall(make_hello())
        # The server's own part of the handshake: it has the place now.
        assert first.recv(1) == b"\x16"
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as second:
            second.sendall(make_hello())
            try:
                assert second.recv(100) == b""
            except ConnectionResetError:
                return
