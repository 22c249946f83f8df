"""A web-config whose files change while the exporter runs, and what is said of certificates that clients refuse."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from http.client import HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bcrypt
import pytest
import yaml

from exporters.web_config import WebConfig, load_web_config
from exporters.web_reload import WebConfigFollower

if TYPE_CHECKING:
    from collections.abc import Callable

    from exporters.server import ExporterServer

pytestmark = pytest.mark.system("openssl")
HASHES = {user: bcrypt.hashpw(user.encode(), bcrypt.gensalt(4)).decode() for user in ("ada", "bea")}
TLS = {"cert_file": "node.pem", "key_file": "node.key"}


class Followed:
    """A web-config on disk, what was used of it, and what was reported."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "web.yml"
        self.used: list[WebConfig] = []
        self.reported: list[tuple[str, str]] = []

    def write(self, **content: Any) -> None:
        """Replace the file."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(yaml.safe_dump(content))
        fresh.replace(self.path)

    def follow(self) -> WebConfigFollower:
        """Read the file as it is, and follow it from now on."""
        return WebConfigFollower(
            self.path,
            load_web_config(self.path),
            use=self.used.append,
            report=lambda error, where: self.reported.append((error, where)),
        )


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    """A file with one user."""
    made = Followed(tmp_path)
    made.write(basic_auth_users={"ada": HASHES["ada"]})
    return made


def test_users_are_taken_up(followed: Followed) -> None:
    """A new version is used once; a file that stays the same is not read again."""
    follower = followed.follow()
    follower.look()
    assert followed.used == []
    followed.write(basic_auth_users={"bea": HASHES["bea"]})
    follower.look()
    follower.look()
    assert [list(config.users) for config in followed.used] == [["bea"]]
    assert followed.reported == []


def test_a_version_with_mistakes_is_not_used(followed: Followed, make_certificate: Callable[..., None]) -> None:
    """It is reported once however often it is looked at; what mends it may be another file."""
    make_certificate(followed.path.parent, "node")
    followed.write(tls_server_config=TLS)
    follower = followed.follow()
    followed.write(tls_server_config={**TLS, "client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca"})
    for _ in range(3):
        follower.look()
    assert (followed.used, followed.reported) == ([], [("invalid", str(followed.path))])
    shutil.copy(followed.path.parent / "node.pem", followed.path.parent / "ca")
    follower.look()
    (config,) = followed.used
    assert config.tls is not None
    assert config.tls.verify_mode == ssl.CERT_REQUIRED
    followed.path.unlink()
    follower.look()
    assert len(followed.used) == 1
    assert len(followed.reported) == 2


def test_tls_is_not_switched_off(followed: Followed, make_certificate: Callable[..., None]) -> None:
    """A file without TLS would open to everybody what clients believe is encrypted."""
    make_certificate(followed.path.parent, "node")
    followed.write(tls_server_config=TLS)
    follower = followed.follow()
    followed.write()
    follower.look()
    assert (followed.used, len(followed.reported)) == ([], 1)


def fetch_serial(server: ExporterServer, authority: Path) -> str:
    """Return the serial number of the certificate that a server shows to a client that trusts an authority."""
    connection = HTTPSConnection(
        "127.0.0.1", server.port, timeout=10, context=ssl.create_default_context(cafile=str(authority))
    )
    connection.request("GET", "/metrics")
    assert connection.sock is not None
    certificate = connection.sock.getpeercert()
    assert certificate
    assert connection.getresponse().status == 200
    connection.close()
    return str(certificate["serialNumber"])


def test_a_certificate_that_was_replaced_is_shown(
    followed: Followed, serve: Callable[..., ExporterServer], make_certificate: Callable[..., None]
) -> None:
    """The next connection sees the new one, without a restart; no descriptor is left open."""
    folder = followed.path.parent
    make_certificate(folder, "authority")
    make_certificate(folder, "node", authority="authority")
    inline = {"cert": (folder / "node.pem").read_text(), "key_file": "node.key"}
    followed.write(tls_server_config=inline)
    server = serve(load_web_config(followed.path))
    first = fetch_serial(server, folder / "authority.pem")
    follower = followed.follow()
    make_certificate(folder, "node", authority="authority")
    followed.write(tls_server_config={**inline, "cert": (folder / "node.pem").read_text()})
    follower.look()
    assert not any("scope-pem" in str(place.resolve()) for place in Path("/proc/self/fd").iterdir())
    server.use(followed.used[-1])
    assert fetch_serial(server, folder / "authority.pem") != first


@pytest.mark.parametrize(("begin", "end", "said"), [("20", "21", "has expired"), ("45", "46", "is not valid yet")])
def test_a_certificate_that_clients_refuse(
    followed: Followed, make_certificate: Callable[..., None], begin: str, end: str, said: str
) -> None:
    """A wrong date is no mistake of the file, and said at the start; a right one is not."""
    folder = followed.path.parent
    make_certificate(folder, "authority")
    make_certificate(folder, "good", authority="authority")
    (folder / "index").write_text("")
    (folder / "serial").write_text("01\n")
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca=d\n[d]\ndatabase=index\nserial=serial\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\n"
        "[p]\ncommonName=supplied\n"
    )
    request = ["req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=node", "-keyout", "node.key"]
    sign = ["ca", "-batch", "-config", "ca.cnf", "-cert", "authority.pem", "-keyfile", "authority.key"]
    dates = ["-startdate", f"20{begin}0101000000Z", "-enddate", f"20{end}0101000000Z", "-notext"]
    for command in ([*request, "-out", "node.csr"], [*sign, *dates, "-in", "node.csr", "-out", "node.pem"]):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
    followed.write(tls_server_config=TLS)
    assert load_web_config(followed.path).warnings == (
        f"the certificate of {followed.path} {said}: clients will refuse it",
    )
    followed.write(tls_server_config={"cert_file": "good.pem", "key_file": "good.key"})
    assert load_web_config(followed.path).warnings == ()


def test_what_lets_strangers_read_is_named(followed: Followed, make_certificate: Callable[..., None]) -> None:
    """TLS, or who may read, or both; a certificate that clients must have is as good as a password."""
    assert WebConfig(None, {}, {}).lacks == "TLS and users"
    assert load_web_config(followed.path).lacks == "TLS"
    make_certificate(followed.path.parent, "node")
    followed.write(tls_server_config=TLS)
    assert load_web_config(followed.path).lacks == "users"
    both = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "node.pem"}
    followed.write(tls_server_config={**TLS, **both})
    assert load_web_config(followed.path).lacks is None
