"""TLS and basic authentication from a web-config file, in the format of Prometheus' exporter-toolkit.

`promtool check web-config` accepts the same files. Every mistake is reported, not only the first.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import ssl
import stat
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from scope.errors import ConfigError, MissingExtraError, ScopeError
from scope.units import NS_PER_S, parse_duration

if TYPE_CHECKING:
    from pathlib import Path

_TLS_KEYS: Final = frozenset(
    {"cert_file", "key_file", "cert", "key", "client_ca_file", "client_ca", "client_auth_type", "client_allowed_sans"}
    | {"min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites", "curve_preferences"}
)
# http2 is accepted and makes no difference: this server speaks HTTP/1, which every client takes.
_HTTP_KEYS: Final = frozenset({"http2", "headers"})
_RATE_KEYS: Final = frozenset({"interval", "burst"})
_HEADERS: Final = frozenset(
    {"Content-Security-Policy", "X-Frame-Options", "X-Content-Type-Options", "X-XSS-Protection"}
    | {"Strict-Transport-Security"}
)
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_OLD_VERSIONS: Final = frozenset({"TLS10", "TLS11"})
_CLIENT_AUTH: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_OPTIONAL,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAnyClientCert": ssl.CERT_REQUIRED,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_MAX_BYTES: Final = 1 << 20
_MAX_VALUES: Final = 100_000
_DATE_FAULTS: Final = {9: "is not valid yet", 10: "has expired"}
"""OpenSSL's numbers of what a client says of a certificate's dates."""
_BCRYPT: Final = re.compile(r"\$2[aby]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
# A hash of a password that nobody has, so that an unknown user costs as long as a wrong password.
_DECOY: Final = b"$2b$10$CQZpzJyTNlZ1LCOKZ3Q3ReQ6e3cRtJQ1uVgRrdoxHXqpIFOcDV5ru"


class WebConfig(NamedTuple):
    """What a web-config file says.

    Attributes:
        tls: Ready to wrap connections; None for plain HTTP.
        users: bcrypt hash by user; empty lets everybody in.
        headers: Headers to add to every answer.
        allowed_names: Names of which a client's certificate must hold one; empty allows all.
        rate_limit: Seconds for one request, and requests at once; None for no limit.
        files: The web-config and the files that it names.
        warnings: What is no mistake and yet keeps clients out.
    """

    tls: ssl.SSLContext | None
    users: dict[str, bytes]
    headers: dict[str, str]
    allowed_names: frozenset[str] = frozenset()
    rate_limit: tuple[float, int] | None = None
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def lacks(self) -> str | None:
        """What lets strangers read: no TLS, nobody who must show who he is, or both; None when neither."""
        knows_clients = bool(self.users) or (self.tls is not None and self.tls.verify_mode == ssl.CERT_REQUIRED)
        missing = [name for name, there in (("TLS", self.tls), ("users", knows_clients)) if not there]
        return " and ".join(missing) or None


def load_web_config(path: Path) -> WebConfig:
    """Read a web-config file.

    Raises:
        ConfigError: The file has mistakes; the message lists all of them.
        MissingExtraError: The libraries that it needs are not installed.
    """
    try:
        import yaml
    except ImportError as error:
        message = "a web-config needs PyYAML: pip install 'stepscope[exporter]'"
        raise MissingExtraError(message) from error
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            message = f"cannot read the web-config {path}: it is no file of at most {_MAX_BYTES >> 20} MiB"
            raise ConfigError(message)
        text = path.read_text(encoding="utf-8")
        tree = cast("Any", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
        if _count_values(tree, {}) > _MAX_VALUES:
            message = f"the web-config {path} holds more than {_MAX_VALUES:,} values, by aliases within aliases"
            raise ConfigError(message)
        content: Any = yaml.safe_load(text)
        repeated = _find_repeated(tree)
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read the web-config {path}: {error}"
        raise ConfigError(message) from error
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: what looks like a date or number and is none.
        message = f"the web-config {path} is no YAML: {' '.join(str(error).split())}"
        raise ConfigError(message) from error
    except RecursionError as error:
        message = f"the web-config {path} is nested too deep"
        raise ConfigError(message) from error
    return _Reader(path, repeated).read(content)


def _count_values(node: Any, known: dict[int, int]) -> int:
    """Return how many values a tree has with every alias written out; those of an alias within itself once."""
    if node is None or node.id == "scalar":
        return 1
    if id(node) not in known:
        known[id(node)] = 0
        children = [each for pair in node.value for each in pair] if node.id == "mapping" else node.value
        known[id(node)] = 1 + sum(_count_values(child, known) for child in children)
    return known[id(node)]


def _find_repeated(node: Any, where: str = "$", looked_at: set[int] | None = None) -> list[str]:
    """Return the keys that stand twice in a mapping, of which YAML would keep the last in silence."""
    looked_at = set() if looked_at is None else looked_at
    if node is None or node.id != "mapping" or id(node) in looked_at:
        return []
    # Aliases make one node stand in many places.
    looked_at.add(id(node))
    found: list[str] = []
    known: set[str] = set()
    for key, value in node.value:
        name = str(key.value)
        place = f"{where}.{name}"
        if name in known:
            found.append(f"{place}: stands twice")
        known.add(name)
        found += _find_repeated(value, place, looked_at)
    return found


class _Reader:
    """Checks one file and gathers its mistakes."""

    def __init__(self, path: Path, mistakes: list[str]) -> None:
        self._path = path
        self._mistakes = mistakes
        self._files = [path]
        self._warnings: list[str] = []

    def read(self, content: Any) -> WebConfig:
        top = self._mapping(content, "$")
        self._only(top, {"tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"}, "$")
        tls = self._tls(self._mapping(top.get("tls_server_config"), "$.tls_server_config"))
        headers = self._headers(self._mapping(top.get("http_server_config"), "$.http_server_config"))
        users = self._users(self._mapping(top.get("basic_auth_users"), "$.basic_auth_users"))
        names = self._allowed_names(self._mapping(top.get("tls_server_config"), "$.tls_server_config"))
        rate_limit = self._rate_limit(self._mapping(top.get("rate_limit"), "$.rate_limit"))
        if self._mistakes:
            message = f"the web-config {self._path} has mistakes:\n" + "\n".join(f"  {line}" for line in self._mistakes)
            raise ConfigError(message)
        return WebConfig(tls, users, headers, names, rate_limit, tuple(self._files), tuple(self._warnings))

    def _mapping(self, value: Any, where: str) -> dict[str, Any]:
        if value is None:
            return {}
        if isinstance(value, dict):
            return {str(key): item for key, item in cast("dict[Any, Any]", value).items()}
        self._mistakes.append(f"{where}: must be a mapping, is {type(value).__name__}")
        return {}

    def _only(self, mapping: dict[str, Any], known: set[str] | frozenset[str], where: str) -> None:
        for key in sorted(mapping.keys() - known):
            self._mistakes.append(f"{where}.{key}: unknown key; known are {', '.join(sorted(known))}")

    def _users(self, mapping: dict[str, Any]) -> dict[str, bytes]:
        users: dict[str, bytes] = {}
        for user, hashed in mapping.items():
            text = str(hashed)
            if ":" in user:
                self._mistakes.append(f"$.basic_auth_users.{user}: a user's name can hold no colon")
            elif _BCRYPT.fullmatch(text) is None:
                self._mistakes.append(f"$.basic_auth_users.{user}: is no bcrypt hash (htpasswd -nBC 10 USER makes one)")
            else:
                users[user] = text.encode()
        return users

    def _rate_limit(self, mapping: dict[str, Any]) -> tuple[float, int] | None:
        """Read `interval` and `burst`, a bucket of tokens as in exporter-toolkit; an interval of 0 is no limit."""
        where = "$.rate_limit"
        self._only(mapping, _RATE_KEYS, where)
        try:
            interval_ns = parse_duration(self._text(mapping, "interval", where) or "0s")
        except ScopeError as error:
            self._mistakes.append(f"{where}.interval: {error}")
            return None
        burst = mapping.get("burst", 0)
        if not interval_ns:
            return None
        if type(burst) is not int or burst < 1:
            self._mistakes.append(f"{where}.burst: must be a whole number from 1, is {burst!r}")
            return None
        return interval_ns / NS_PER_S, burst

    def _allowed_names(self, mapping: dict[str, Any]) -> frozenset[str]:
        where = "$.tls_server_config.client_allowed_sans"
        names = self._names(mapping, "client_allowed_sans", "$.tls_server_config")
        if not names:
            return frozenset()
        if _CLIENT_AUTH.get(str(mapping.get("client_auth_type")), ssl.CERT_NONE) == ssl.CERT_NONE:
            self._mistakes.append(f"{where}: needs a client_auth_type that asks for certificates")
        return frozenset(names)

    def _headers(self, mapping: dict[str, Any]) -> dict[str, str]:
        where = "$.http_server_config"
        self._only(mapping, _HTTP_KEYS, where)
        headers = self._mapping(mapping.get("headers"), f"{where}.headers")
        self._only(headers, _HEADERS, f"{where}.headers")
        self._switch(mapping, "http2", where)
        kept: dict[str, str] = {}
        for name in headers:
            value = self._text(headers, name, f"{where}.headers")
            if value is not None and not (value.isascii() and value.isprintable()):
                self._mistakes.append(f"{where}.headers.{name}: holds a line break or another character than ASCII's")
            elif value is not None:
                kept[name] = value
        return kept

    def _text(self, mapping: dict[str, Any], key: str, where: str) -> str | None:
        """Return a value that must be a text, None for one that is missing or was noted as a mistake."""
        value: Any = mapping.get(key)
        if value is not None and not isinstance(value, str):
            self._mistakes.append(f"{where}.{key}: must be a text, is {type(value).__name__}")
            return None
        return value or None

    def _switch(self, mapping: dict[str, Any], key: str, where: str) -> bool | None:
        """Return a value that must be true or false, None for one that is missing or was noted as a mistake."""
        value: Any = mapping.get(key)
        if value is not None and not isinstance(value, bool):
            self._mistakes.append(f"{where}.{key}: must be true or false, is {value!r}")
            return None
        return value

    def _tls(self, mapping: dict[str, Any]) -> ssl.SSLContext | None:
        where = "$.tls_server_config"
        self._only(mapping, _TLS_KEYS, where)
        if not mapping:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._versions(context, mapping, where)
        self._certificate(context, mapping, where)
        self._clients(context, mapping, where)
        suites = self._names(mapping, "cipher_suites", where)
        if suites:
            try:
                context.set_ciphers(":".join(_openssl_name(suite) for suite in suites))
            except (ssl.SSLError, ValueError) as error:
                self._mistakes.append(f"{where}.cipher_suites: {error}")
        if mapping.get("curve_preferences"):
            self._mistakes.append(f"{where}.curve_preferences: not supported; OpenSSL's own order is used")
        if self._switch(mapping, "prefer_server_cipher_suites", where) is False:
            context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        else:
            context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
        return context

    def _names(self, mapping: dict[str, Any], key: str, where: str) -> list[str]:
        """Return a list of texts, empty for one that is missing or was noted as a mistake."""
        value: Any = mapping.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(name, str) for name in cast("list[Any]", value)):
            self._mistakes.append(f"{where}.{key}: must be a list of names")
            return []
        return cast("list[str]", value)

    def _versions(self, context: ssl.SSLContext, mapping: dict[str, Any], where: str) -> None:
        for key, attribute in (("min_version", "minimum_version"), ("max_version", "maximum_version")):
            name = self._text(mapping, key, where)
            if name is None:
                if key == "min_version":
                    context.minimum_version = ssl.TLSVersion.TLSv1_2
            elif name in _VERSIONS:
                setattr(context, attribute, _VERSIONS[name])
            elif name in _OLD_VERSIONS:
                self._mistakes.append(f"{where}.{key}: {name} is broken; use TLS12 or TLS13")
            else:
                self._mistakes.append(f"{where}.{key}: {name!r} is none of TLS12, TLS13")
        if (mapping.get("min_version"), mapping.get("max_version")) == ("TLS13", "TLS12"):
            self._mistakes.append(f"{where}.min_version: TLS13 is above max_version, TLS12: no client could connect")

    def _certificate(self, context: ssl.SSLContext, mapping: dict[str, Any], where: str) -> None:
        for name in ("cert", "key"):
            given = [key for key in (name, f"{name}_file") if mapping.get(key)]
            if len(given) != 1:
                self._mistakes.append(f"{where}: needs exactly one of {name} and {name}_file")
        paths: list[str] = []
        descriptors: list[int] = []
        for name in ("cert", "key"):
            path = self._file(mapping, f"{name}_file", where)
            text = self._text(mapping, name, where)
            if path is not None:
                paths.append(str(path))
            elif text is not None:
                descriptors.append(_in_memory(text))
                paths.append(f"/proc/self/fd/{descriptors[-1]}")
        try:
            if len(paths) == 2:
                context.load_cert_chain(paths[0], paths[1], password=_refuse_password)
                fault = find_date_fault(context, paths[0])
                if fault is not None:
                    self._warnings.append(f"the certificate of {self._path} {fault}: clients will refuse it")
        except (ssl.SSLError, OSError, ValueError) as error:
            self._mistakes.append(f"{where}: certificate and key cannot be used together: {error}")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _clients(self, context: ssl.SSLContext, mapping: dict[str, Any], where: str) -> None:
        kind = self._text(mapping, "client_auth_type", where) or "NoClientCert"
        if kind not in _CLIENT_AUTH:
            self._mistakes.append(f"{where}.client_auth_type: {kind!r} is none of {', '.join(_CLIENT_AUTH)}")
            return
        path = self._file(mapping, "client_ca_file", where)
        authority = self._text(mapping, "client_ca", where)
        if kind == "NoClientCert":
            if path is not None or authority:
                self._mistakes.append(f"{where}: a client CA is given, but client_auth_type asks for no certificate")
            return
        if not mapping.get("client_ca_file") and not mapping.get("client_ca"):
            # OpenSSL has no way to take a certificate that it cannot check.
            self._mistakes.append(f"{where}.client_auth_type: {kind} needs client_ca_file")
            return
        if path is None and authority is None:
            return
        try:
            context.load_verify_locations(cafile=None if path is None else str(path), cadata=authority or None)
        except (ssl.SSLError, OSError, ValueError) as error:
            self._mistakes.append(f"{where}.client_ca_file: {error}")
        context.verify_mode = _CLIENT_AUTH[kind]

    def _file(self, mapping: dict[str, Any], key: str, where: str) -> Path | None:
        name = self._text(mapping, key, where)
        if name is None:
            return None
        path = self._path.parent / name
        if "\0" in name or not path.is_file():
            self._mistakes.append(f"{where}.{key}: no file {path}")
            return None
        if not os.access(path, os.R_OK):
            self._mistakes.append(f"{where}.{key}: {path} may not be read")
            return None
        self._files.append(path)
        return path


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite that Go names `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`."""
    name = name.removeprefix("TLS_").replace("_WITH_", "-").replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    return name.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_", "-")


def _in_memory(text: str) -> int:
    """Return the descriptor of a file with this text that never reaches a disk."""
    descriptor = os.memfd_create("scope-pem")
    os.write(descriptor, text.encode())
    return descriptor


def find_date_fault(server: ssl.SSLContext, certificate: str) -> str | None:
    """Return what a client that trusts a certificate would say of its dates; None when they are right.

    Args:
        server: With the certificate and its key.
        certificate: Path of the certificate.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cafile=certificate)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True))
    # Hello; certificate; verdict.
    for end in (*ends, ends[0]):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return _DATE_FAULTS.get(error.verify_code)
        except ssl.SSLError:
            return None
    return None


def _refuse_password() -> str:
    message = "the key is encrypted; the exporter cannot ask for its password"
    raise ValueError(message)


class Authenticator:
    """Checks basic authentication.

    bcrypt is slow on purpose, so a right password is remembered by a keyed hash, and an unknown user costs as much as a
    wrong password. Wrong ones are checked one after the other: however many are tried, they take one core, and nobody
    with a right password waits behind them.

    Args:
        users: bcrypt hash by user.

    Raises:
        MissingExtraError: bcrypt is not installed.
    """

    def __init__(self, users: dict[str, bytes]) -> None:
        try:
            import bcrypt
        except ImportError as error:
            message = "basic authentication needs bcrypt: pip install 'stepscope[exporter]'"
            raise MissingExtraError(message) from error
        self._bcrypt = bcrypt
        self._users = users
        self._secret = secrets.token_bytes(32)
        self._known: set[bytes] = set()
        self._lock = threading.Lock()

    def allows(self, header: str | None) -> bool:
        """Return whether an Authorization header names a user with the right password."""
        scheme, _, encoded = (header or "").partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            user, separator, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        if not separator:
            return False
        hashed = self._users.get(user, _DECOY)
        key = hmac.digest(self._secret, hashlib.sha256(user.encode()).digest() + hashed + password.encode(), "sha256")
        if key in self._known:
            return True
        with self._lock:
            # bcrypt takes 72 bytes; a longer password is refused by it and so by us.
            try:
                allowed = self._bcrypt.checkpw(password.encode(), hashed) and user in self._users
            except ValueError:
                return False
        if allowed:
            self._known.add(key)
        return allowed
