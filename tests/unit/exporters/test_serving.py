"""Options, discovery, web-config and the HTTP server."""

from __future__ import annotations

import base64
import concurrent.futures
import errno
import gzip
import http.client
import os
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING

import bcrypt
import pytest

from exporters.app import write_targets
from exporters.discovery import expand_hosts, render_targets
from exporters.options import ALL_COLLECTORS, DEFAULT_PORT, parse_options
from exporters.web_config import Authenticator, WebConfig, load_web_config
from scope.errors import ConfigError, InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from exporters.server import ExporterServer

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
BODY = "# HELP a b.\n" + "a 1\n" * 1000


def test_the_default_is_this_machine_alone() -> None:
    """Without options nobody else can reach the exporter, and every collector is on."""
    options = parse_options([])
    assert (options.host, options.port, options.is_loopback) == ("127.0.0.1", DEFAULT_PORT, True)
    assert options.collectors == frozenset(ALL_COLLECTORS)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--listen", "0.0.0.0:1"], ("0.0.0.0", 1, False)),
        (["--listen", "[::1]:2"], ("::1", 2, True)),
        (["--listen", ":3"], ("0.0.0.0", 3, False)),
        (["--listen", "localhost:4"], ("localhost", 4, True)),
        (["--port", "5"], ("127.0.0.1", 5, True)),
    ],
)
def test_addresses(arguments: list[str], expected: tuple[str, int, bool]) -> None:
    """HOST:PORT in its forms."""
    options = parse_options(arguments)
    assert (options.host, options.port, options.is_loopback) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["--listen", "nowhere"],
        ["--listen", "h:99999"],
        ["--listen", "h:1", "--port", "2"],
        ["--collectors", "gpu,nope"],
        ["--disable", "nope"],
        ["--interval", "5"],
        ["--interval", "1ms"],
        ["--deadline", "0s"],
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    """Each is an error that says what is meant."""
    with pytest.raises(UsageError):
        parse_options(arguments)


def test_collectors_can_be_switched() -> None:
    """Only some, or all but some."""
    assert parse_options(["--collectors", "gpu,net"]).collectors == {"gpu", "net"}
    assert "nfs" not in parse_options(["--disable", "nfs,host"]).collectors


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[001-002,7],x", ["n001", "n002", "n7", "x"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("r[1]n[08-09,3]x", ["r1n08x", "r1n09x", "r1n3x"]),
    ],
)
def test_host_lists(text: str, hosts: list[str]) -> None:
    """Slurm's form of lists, with leading zeros kept."""
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        *("n[1-", "n]1[", "n[3-1]", "n[a]", "n[1-999999]", "a;b", "n[1]/etc", "n[[1]]", "n[]", "n" * 254, "n[1]" * 33),
        *("n1:99999", "n1:0", "n1:", "n1:-5", "n1:x", "n1:1:2", "n[1-2]:70000", "n[\N{ARABIC-INDIC DIGIT ONE}]"),
    ],
)
def test_bad_host_lists_are_refused(text: str) -> None:
    """A list that cannot be understood is an error, never a partial list."""
    with pytest.raises(UsageError):
        expand_hosts(text)


@pytest.mark.parametrize("text", ["n[1-100000][1-100000]", "n[1-10]" * 20, "n[0-999999999999999999]" * 30])
def test_the_hosts_of_a_list_are_counted_before_they_are_made(text: str) -> None:
    """Brackets multiply: what would take all memory is refused at once, and the message says how to raise the limit."""
    with pytest.raises(UsageError, match=r"makes more than 100000 hosts; --max-hosts N allows N"):
        expand_hosts(text)
    with pytest.raises(UsageError, match="more than 3 hosts"):
        expand_hosts("a,b,n[1-2]", max_hosts=3)
    assert len(expand_hosts("n[1-1000][1-200]", max_hosts=200_000)) == 200_000


@pytest.mark.parametrize(
    "arguments", [["n[1-3]", "--max-hosts", "2"], ["n1", "--port", "-5"], ["n1", "--port", "99999"]]
)
def test_targets_that_nobody_could_reach_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No line is written for a port that does not exist, nor for more hosts than allowed."""
    with pytest.raises(UsageError, match=r"ports are 1 to 65535|--max-hosts"):
        write_targets(arguments)
    assert capsys.readouterr().out == ""


def test_addresses_of_both_kinds() -> None:
    """An IPv6 address stands in brackets before its port; a host that names a port keeps it."""
    text = render_targets(expand_hosts("2001:db8::7,10.0.0.1,n1:99,fe80::1"), 9469)
    assert '["[2001:db8::7]:9469","10.0.0.1:9469","n1:99","[fe80::1]:9469"]' in text


def test_hosts_from_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device without end, a pipe, a folder and a file larger than any cluster are refused at once."""
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe"), str(tmp_path)):
        with pytest.raises(InputError, match="no regular file"):
            expand_hosts(f"@{path}")
    (tmp_path / "large").write_bytes(b"n1\n" * 10)
    (tmp_path / "self").write_text(f"@{tmp_path}/self\n")
    with pytest.raises(UsageError, match="no host name"):
        expand_hosts(f"@{tmp_path}/self")
    assert expand_hosts(f"@{tmp_path}/large") == ["n1"] * 10
    monkeypatch.setattr("exporters.discovery._MAX_FILE_BYTES", 29)
    with pytest.raises(InputError, match="larger than"):
        expand_hosts(f"@{tmp_path}/large")


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["plain", "force"])
def test_targets_are_never_written_through_a_link(tmp_path: Path, force: list[str]) -> None:
    """A link that leads nowhere counts as a file that is there."""
    (tmp_path / "targets.json").symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError):
        write_targets(["n1", "--output", str(tmp_path / "targets.json"), *force])
    assert [entry.name for entry in tmp_path.iterdir()] == ["targets.json"]


def test_hosts_from_a_file(tmp_path: Path) -> None:
    """One host or list a line, comments apart; a missing file is an error."""
    path = tmp_path / "hosts"
    path.write_text("# nodes\nn[1-2]\n\nx:99 # with port\n")
    assert render_targets(expand_hosts(f"@{path}"), 9469) == (
        '[{"targets":["n1:9469","n2:9469","x:99"],"labels":{"job":"scope"}}]\n'
    )
    with pytest.raises(InputError):
        expand_hosts(f"@{tmp_path}/none")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES], ids=errno.errorcode.get)
def test_targets_on_a_disk_that_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The old file stands, nothing half is left beside it, and the message says what is wrong."""
    path = tmp_path / "targets.json"
    path.write_text("old")

    def fail(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match=os.strerror(number)):
        write_targets(["n[1-2]", "--output", str(path), "--force"])
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("targets.json", b"old")]


def test_all_mistakes_of_a_web_config_are_reported(tmp_path: Path) -> None:
    """Five mistakes give five lines."""
    path = tmp_path / "web.yml"
    path.write_text(
        "tls_server_config: {cert_file: none.pem, min_version: TLS10, client_auth_type: Maybe}\n"
        "basic_auth_users: {ada: plaintext}\nunknown: 1\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_web_config(path)
    for part in ("$.unknown", "ada", "TLS10", "Maybe", "none.pem", "key_file"):
        assert part in str(caught.value)


@pytest.mark.parametrize("content", ["[", "- 1\n", "basic_auth_users: 3\n"])
def test_a_web_config_that_is_none(tmp_path: Path, content: str) -> None:
    """Broken YAML and other shapes are clear errors."""
    path = tmp_path / "web.yml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=str(path)):
        load_web_config(path)
    with pytest.raises(ConfigError, match="cannot read"):
        load_web_config(tmp_path / "none.yml")


def basic(user: str, password: str) -> str:
    """Return an Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_basic_authentication() -> None:
    """The right password of a known user passes, all else does not, also the second time."""
    authenticator = Authenticator({"ada": HASH.encode()})
    for _ in range(2):
        assert authenticator.allows(basic("ada", "secret"))
        assert not authenticator.allows(basic("ada", "wrong"))
        assert not authenticator.allows(basic("bob", "secret"))
    for header in (None, "", "Basic", "Basic ???", "Bearer x", "Basic " + base64.b64encode(b"nocolon").decode()):
        assert not authenticator.allows(header)


def get(server: ExporterServer, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Return status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def test_paths_of_the_server(serve: Callable[..., ExporterServer]) -> None:
    """Metrics, health, targets and landing page; every other path is not found."""
    server = serve()
    status, headers, body = get(server, "/metrics?x=1")
    assert (status, body.decode()) == (200, BODY)
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert get(server, "/healthz")[2] == b"ok\n"
    assert get(server, "/sd")[1]["Content-Type"].startswith("application/json")
    assert b"&lt;b&gt;T" in get(server, "/")[2]
    assert get(server, "/debug")[0] == 404


def test_gzip_and_openmetrics_on_request(serve: Callable[..., ExporterServer]) -> None:
    """Both are given to whoever asks."""
    server = serve()
    _, headers, body = get(server, "/metrics", **{"Accept-Encoding": "gzip", "Accept": "application/openmetrics-text"})
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body).decode() == BODY
    assert headers["Content-Type"].startswith("application/openmetrics-text")


def test_no_password_no_metrics(serve: Callable[..., ExporterServer]) -> None:
    """With users, every path asks for a password."""
    server = serve(WebConfig(None, {"ada": HASH.encode()}, {"X-Frame-Options": "deny"}))
    for path in ("/metrics", "/healthz", "/"):
        status, headers, _ = get(server, path)
        assert status == 401
        assert headers["WWW-Authenticate"].startswith("Basic")
    status, headers, _ = get(server, "/metrics", Authorization=basic("ada", "secret"))
    assert (status, headers["X-Frame-Options"]) == (200, "deny")


def test_too_many_requests_at_once_are_refused(serve: Callable[..., ExporterServer]) -> None:
    """While all threads are busy the answer is 503, and the server recovers."""
    server = serve(max_connections=2)
    begun, release = threading.Semaphore(0), threading.Event()

    def answer_late(_content_type: str) -> str:
        begun.release()
        assert release.wait(10)
        return BODY

    server.content = server.content._replace(metrics=answer_late)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(get, server, "/metrics") for _ in range(2)]
        assert begun.acquire(timeout=5)
        assert begun.acquire(timeout=5)
        assert get(server, "/healthz")[0] == 503
        release.set()
        assert [future.result()[0] for future in busy] == [200, 200]
    assert get(server, "/healthz")[0] == 200


@pytest.mark.system("openssl", "promtool")
def test_mutual_tls(
    serve: Callable[..., ExporterServer], tmp_path: Path, make_certificate: Callable[..., None]
) -> None:
    """Only a client with a certificate of the authority is served; promtool accepts the same file."""
    make_certificate(tmp_path, "ca")
    make_certificate(tmp_path, "server", authority="ca")
    make_certificate(tmp_path, "client", authority="ca")
    config = tmp_path / "web.yml"
    config.write_text(
        "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n  client_ca_file: ca.pem\n"
        f"  client_auth_type: RequireAndVerifyClientCert\nbasic_auth_users:\n  ada: {HASH}\n"
    )
    done = subprocess.run(["promtool", "check", "web-config", str(config)], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    server = serve(load_web_config(config))
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        fetch_tls(server, context)
    context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
    assert fetch_tls(server, context) == 200
    for names, welcome in (("[127.0.0.1]", True), ("[other.example, 192.0.2.1]", False)):
        config.write_text(
            "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n  client_ca_file: ca.pem\n"
            f"  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: {names}\n"
        )
        server = serve(load_web_config(config))
        if welcome:
            assert fetch_tls(server, context) == 200
        else:
            with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
                fetch_tls(server, context)


def fetch_tls(server: ExporterServer, context: ssl.SSLContext) -> int:
    """Return the status of /metrics over TLS."""
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=10)
    try:
        connection.request("GET", "/metrics", headers={"Authorization": basic("ada", "secret")})
        return connection.getresponse().status
    finally:
        connection.close()


def test_help_states_how_many_series_a_node_makes() -> None:
    """The number in --help is the one that a node of that size really makes, within a tenth."""
    import re

    from exporters.counters import Unwrapper, XidCounts
    from exporters.gpu_series import GpuSeries
    from exporters.node_series import add_affinities, add_nets, add_rdma
    from exporters.options import _EPILOG  # pyright: ignore[reportPrivateUsage]
    from exporters.series import SeriesSet
    from scope.probe.nvml.tables import GPM_ACTIVITIES
    from scope.probe.records import (
        Affinity,
        EccCount,
        FabricReading,
        GpuIdentity,
        GpuReading,
        NetDevice,
        NvlinkReading,
        RdmaPort,
    )

    series = SeriesSet()
    gpus = [
        GpuReading(
            GpuIdentity(index, f"GPU-{index}", pci_bus_id=f"0000:1{index}:00.0"),
            utilization_ratio=1, memory_total_bytes=4, memory_used_bytes=1, memory_reserved_bytes=1,
            memory_free_bytes=2,
            power_mw=1, power_limit_mw=1, energy_mj=1, sm_clock_hz=1, memory_clock_hz=1,
            temperature_celsius={"core": 1, "memory": 1, "margin": 1}, throttle_mask=0,
            throttle_ns=dict.fromkeys(("a", "b", "c", "d", "e"), 1),
            ecc=[EccCount(kind, scope, place, 0) for kind in "ab" for scope in "cd" for place in "efg"],
            remapped_rows={"corrected": 0, "uncorrected": 0}, row_remap_pending=0, row_remap_failure=0,
            recovery_action=0,
            pcie_transmit_bytes=1, pcie_receive_bytes=1, pcie_replays=0, pcie_generation=5, pcie_generation_max=5,
            pcie_width=16, pcie_width_max=16, mig_enabled=False,
            fabric=FabricReading(3, "c", 1, dict.fromkeys("abcdef", 0)),
            activity_ratio=dict.fromkeys(GPM_ACTIVITIES.values(), 0.5),
            nvlinks=[
                NvlinkReading(
                    link, state=1, speed_bytes_per_s=1, version="4.0", data_transmit_bytes=1, data_receive_bytes=1,
                    raw_transmit_bytes=1, raw_receive_bytes=1, errors={"replay": 0, "recovery": 0, "crc_flit": 0},
                )
                for link in range(18)
            ],
        )
        for index in range(8)
    ]  # fmt: skip
    gpu_series = GpuSeries(Unwrapper(), XidCounts())
    gpu_series.observe(gpus)
    gpu_series.add(series, gpus)
    counters = dict.fromkeys([f"c{number}" for number in range(17)], 1)
    hardware = dict.fromkeys([f"h{number}" for number in range(19)], 1)
    ports = [RdmaPort(f"m{n}", 1, 4, 5, 1, "Ethernet", counters=counters, hw_counters=hardware) for n in range(8)]
    add_rdma(series, ports)
    statistics = dict.fromkeys([f"s{number}" for number in range(8)], 1)
    add_nets(
        series,
        [NetDevice(f"e{n}", up=True, speed_bytes_per_s=1, carrier_downs=0, statistics=statistics) for n in range(8)],
    )
    add_affinities(series, [Affinity(f"GPU-{g}", f"m{n}", "PIX") for g in range(8) for n in range(8)])
    host, ranks = 40, 8 * (30 + 4 * 12)
    stated = re.search(r"makes about ([\d,]+) series", _EPILOG)
    assert stated is not None
    assert len(series) + host + ranks == pytest.approx(int(stated[1].replace(",", "")), rel=0.1)
