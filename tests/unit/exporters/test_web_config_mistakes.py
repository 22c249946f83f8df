"""Mistakes in a web-config, each kind by itself: refused with the place named, and promtool agrees."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import bcrypt
import pytest
import yaml

from exporters.web_config import load_web_config
from scope.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
TLS = {"cert_file": "node.pem", "key_file": "node.key"}
GOOD = {
    "tls_server_config": {
        **TLS, "client_ca_file": "node.pem", "client_auth_type": "RequireAndVerifyClientCert", "min_version": "TLS12",
        "max_version": "TLS13", "client_allowed_sans": ["a.example"], "prefer_server_cipher_suites": True,
        "cipher_suites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"],
    },
    "http_server_config": {"http2": True, "headers": {"X-Frame-Options": "deny"}},
    "basic_auth_users": {"ada": HASH},
    "rate_limit": {"interval": "1s", "burst": 5},
}  # fmt: skip
WRONG = (7, 1.5, True, "text", [], ["text"], [1], {}, {"a": "b"}, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_certificate: Callable[..., None]) -> Path:
    """A folder with a certificate and its key."""
    made = tmp_path_factory.mktemp("web")
    make_certificate(made, "node")
    return made


def places(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Give the path of every key of a mapping, nested ones too."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key)
            yield from places(item, (*path, key))


def change(path: tuple[str, ...], value: object) -> dict[str, object]:
    """Return the good file with one value replaced."""
    changed = copy.deepcopy(GOOD)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def refusal(folder: Path, text: str) -> str:
    """Return what the exporter says of a file; empty when it takes it."""
    path = folder / "web.yml"
    path.write_text(text)
    try:
        load_web_config(path)
    except ConfigError as error:
        said = str(error)
    else:
        return ""
    assert str(path) in said
    return said


@pytest.mark.system("openssl")
def test_every_value_of_a_wrong_type(folder: Path) -> None:
    """Each key with each other type is taken or refused with its place, and nothing else ever happens."""
    assert refusal(folder, yaml.safe_dump(GOOD)) == ""
    for path in places(GOOD):
        good = GOOD
        for key in path:
            good = good[key]
        for value in WRONG:
            said = refusal(folder, json.dumps(change(path, value)))  # which is YAML too
            if value is not None and type(value) is not type(good):
                assert said, (path, value)
                assert f"$.{'.'.join(path)}" in said, (path, value, said)


TEXTS = {
    "an unknown key": "tls: {}\n",
    "an unknown key inside": "tls_server_config: {cert_file: node.pem, key_file: node.key, ca: x}\n",
    "a hash that is too short": "basic_auth_users: {ada: $2b$10$short}\n",
    "a hash with another letter": f"basic_auth_users: {{ada: '{HASH[:-1]}!'}}\n",
    "a plain password": "basic_auth_users: {ada: secret}\n",
    "no certificate": "tls_server_config: {cert_file: none.pem, key_file: node.key}\n",
    "no key": "tls_server_config: {cert_file: node.pem}\n",
    "a key as certificate": "tls_server_config: {cert_file: node.key, key_file: node.key}\n",
    "no authority": "tls_server_config: {cert_file: node.pem, key_file: node.key, client_ca_file: none.pem, "
    "client_auth_type: RequireAndVerifyClientCert}\n",
    "an authority that nobody asks for": "tls_server_config: {cert_file: node.pem, key_file: node.key, "
    "client_ca_file: node.pem}\n",
    "a kind of client that there is not": "tls_server_config: {cert_file: node.pem, key_file: node.key, "
    "client_auth_type: Maybe}\n",
    "a version that there is not": "tls_server_config: {cert_file: node.pem, key_file: node.key, min_version: TLS14}\n",
    "a key that stands twice": f"basic_auth_users: {{ada: '{HASH}', ada: '{HASH}'}}\n",
    "a list as a whole": "- tls_server_config\n",
    "a text as a whole": "hello\n",
    "broken YAML": "tls_server_config: {cert_file: [\n",
    "a tab": "tls_server_config:\n\tcert_file: x\n",
}


@pytest.mark.system("promtool", "openssl")
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_promtool_refuses_is_refused(folder: Path, text: str) -> None:
    """Both say no; Scope names the file, and the place where there is one."""
    said = refusal(folder, text)
    assert said
    done = subprocess.run(["promtool", "check", "web-config", folder / "web.yml"], capture_output=True, check=False)
    # promtool looks at no password: it would be refused when somebody logs in.
    if "basic_auth_users" not in text or "twice" in said:
        assert done.returncode != 0


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' * 5_000,
        "a: &a {b: *a}\n",
        "basic_auth_users: {a: 2024-99-99}\n",
        "a: \x00\n",
        "a: !!python/object/apply:os.system ['true']\n",
        "".join(f"x{number}: &x{number} [{f'*x{number - 1},' * 9 if number else '1'}]\n" for number in range(9)),
        "x0: &x0 {a: 1}\n"
        + "".join(f"x{place + 1}: &x{place + 1} {{a: *x{place}, b: *x{place}}}\n" for place in range(40)),
        "".join(f"key{number}: 1\n" for number in range(20_000)),
    ],
    ids=["deep", "recursive", "no date", "a zero byte", "an object", "a bomb", "a bomb of mappings", "many keys"],
)
def test_hostile_yaml_is_refused(tmp_path: Path, text: str) -> None:
    """It is an error of the file in bounded time, never a traceback and never run."""
    assert refusal(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    ["basic_auth_users: {ada: *x40}", "rate_limit: {interval: 1s, burst: *x40}", "http_server_config: {http2: *x40}"],
)
def test_a_bomb_where_a_value_should_be(tmp_path: Path, text: str) -> None:
    """Two values, doubled forty times, are never written out."""
    aliases = "".join(f"x{place + 1}: &x{place + 1} [*x{place}, *x{place}]\n" for place in range(40))
    assert "more than 100,000 values" in refusal(tmp_path, f"x0: &x0 [a]\n{aliases}{text}\n")


def test_a_user_that_nobody_could_be(tmp_path: Path) -> None:
    """What stands before the first colon is the name, so none can hold one."""
    assert "$.basic_auth_users.a:b: a user's name can hold no colon" in refusal(
        tmp_path, yaml.safe_dump({"basic_auth_users": {"a:b": HASH}})
    )


def test_a_web_config_that_is_no_file(tmp_path: Path) -> None:
    """A folder, a pipe that nobody writes to, and bytes that are no text."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="no file"):
        load_web_config(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="cannot read"):
        load_web_config(tmp_path)
    (tmp_path / "web.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"web\.yml"):
        load_web_config(tmp_path / "web.yml")


@pytest.mark.system("openssl")
def test_a_key_that_may_not_be_read_or_has_a_password(folder: Path, tmp_path: Path) -> None:
    """Nobody is there to type it in."""
    shutil.copy(folder / "node.pem", tmp_path)
    command = ["openssl", "ec", "-aes128", "-passout", "pass:x", "-in", folder / "node.key", "-out", "node.key"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert "encrypted" in refusal(tmp_path, yaml.safe_dump({"tls_server_config": TLS}))


@pytest.mark.system("openssl")
def test_versions_that_exclude_each_other(folder: Path) -> None:
    """A server that no client could reach is refused."""
    said = refusal(
        folder, yaml.safe_dump({"tls_server_config": {**TLS, "min_version": "TLS13", "max_version": "TLS12"}})
    )
    assert "above max_version" in said
