"""Who may see the dashboard, and from where."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import bcrypt
import pytest

from dashboards import users
from dashboards.__main__ import parse_arguments, streamlit_command
from dashboards.settings import check_exposure, check_tls
from dashboards.users import Gate, read_users
from scope.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

HASH = bcrypt.hashpw(b"correct horse", bcrypt.gensalt(rounds=4)).decode()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "127.255.255.254", "::1", "localhost"])
def test_loopback_needs_no_password(address: str) -> None:
    """This machine alone may look without more."""
    check_exposure(address, allow_remote=False, users={})


@pytest.mark.parametrize(
    ("allow_remote", "users", "missing"),
    [(False, {}, "--allow-remote"), (False, {"a": HASH}, "--allow-remote"), (True, {}, "--auth-file")],
)
def test_other_machines_need_consent_and_a_password(allow_remote: bool, users: dict[str, str], missing: str) -> None:
    """Beyond loopback both are demanded, and the message names the one that is missing."""
    with pytest.raises(UsageError, match=missing):
        check_exposure("0.0.0.0", allow_remote=allow_remote, users=users)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "128.0.0.1", "127.evil.example", "localhost.evil.example", ""])
def test_what_only_looks_like_loopback_is_not(address: str) -> None:
    """Neither all addresses of the machine, nor a name that begins like one of its own, nor none at all."""
    with pytest.raises(UsageError, match="--allow-remote"):
        check_exposure(address, allow_remote=False, users={})


def test_consent_and_a_password_open_it() -> None:
    """With both it serves."""
    check_exposure("0.0.0.0", allow_remote=True, users={"a": HASH})


def test_users_come_from_the_exporters_format(tmp_path: Path) -> None:
    """`basic_auth_users` of a web configuration file."""
    file = tmp_path / "web.yml"
    file.write_text(f"basic_auth_users:\n  ann: {HASH}\n")
    assert read_users(file) == {"ann": HASH}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "basic_auth_users"),
        ("- a\n", "basic_auth_users"),
        ("basic_auth_users: {}\n", "basic_auth_users"),
        ("basic_auth_users:\n  ann: secret\n  bob: x\n", r"users\.ann, \$\.basic_auth_users\.bob"),
        ("a: [", "cannot be read"),
        ("a: !!python/object/apply:os.system ['true']", "cannot be read"),
    ],
)
def test_mistakes_in_the_users_file_are_named(tmp_path: Path, text: str, problem: str) -> None:
    """Every mistake is one error that names the file and all places."""
    file = tmp_path / "web.yml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_users(file)


def test_a_gate_opens_for_the_password_alone() -> None:
    """The right password opens it, another or an unknown name does not."""
    now = [0.0]
    gate = Gate({"ann": HASH}, clock=lambda: now[0])
    assert gate.admits("ann", "correct horse")
    assert not gate.admits("ann", "wrong")
    now[0] += 100
    assert not gate.admits("bob", "correct horse")


def test_a_gate_slows_down_guessing() -> None:
    """After a failure it stays shut for longer and longer, even for the right password."""
    now = [0.0]
    gate = Gate({"ann": HASH}, clock=lambda: now[0])
    waits: list[float] = []
    for _ in range(4):
        assert not gate.admits("ann", "wrong")
        waits.append(gate.wait_s())
        assert not gate.admits("ann", "correct horse")
        now[0] += gate.wait_s()
    assert waits == sorted(set(waits))
    assert gate.admits("ann", "correct horse")


@pytest.mark.parametrize("addresses", [("192.0.2.1",), ("192.0.2.1", "192.0.2.2")])
def test_fifty_guesses_without_a_pause_are_one_a_client(addresses: tuple[str, ...]) -> None:
    """In two seconds each client gets three looks at a password, and one that has not guessed gets in at once."""
    now = [0.0]
    gate = Gate({"ann": HASH}, clock=lambda: now[0])
    looks = dict.fromkeys(addresses, 0)
    for _ in range(50):
        for client in addresses:
            looks[client] += gate.wait_s(client) == 0
            assert not gate.admits("ann", "wrong", client=client)
        now[0] += 0.04
    # At 0 s, after half a second, and after one more second; the next look would be two seconds later.
    assert set(looks.values()) == {3}
    assert not gate.admits("ann", "correct horse", client=addresses[0])
    assert gate.admits("ann", "correct horse", client="192.0.2.9")


def test_days_of_guessing_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 1,100 failures the wait is still half a minute, and whoever knows the password gets in after it."""
    now = [0.0]
    gate = Gate({"ann": HASH}, clock=lambda: now[0])
    with monkeypatch.context() as patched:
        # Each real look takes a millisecond and more.
        patched.setattr(users.bcrypt, "checkpw", lambda *_: False)
        for _ in range(1_100):
            assert not gate.admits("ann", "wrong")
            assert 0.5 <= gate.wait_s() <= 30
            now[0] += gate.wait_s()
    assert gate.admits("ann", "correct horse")


def test_who_guesses_shuts_out_itself_alone() -> None:
    """After a wrong password from one address another one still gets in, and one IPv6 network is one guesser."""
    gate = Gate({"ann": HASH}, clock=lambda: 0.0)
    assert not gate.admits("ann", "wrong", client="192.0.2.1")
    assert not gate.admits("ann", "wrong", client="2001:db8:1:2::1")
    assert gate.wait_s("192.0.2.1") > 0
    assert gate.wait_s("192.0.2.2") == gate.wait_s(None) == 0
    assert not gate.admits("ann", "correct horse", client="2001:db8:1:2:ffff::9")
    assert not gate.admits("ann", "correct horse", client="::ffff:192.0.2.1")
    assert gate.admits("ann", "correct horse", client="192.0.2.2")
    assert gate.admits("ann", "correct horse", client="2001:db8:1:3::1")


def test_questions_at_once_are_no_more_than_one() -> None:
    """Of eight guesses at the same time the gate looks at one; the right password among them has no better luck."""
    gate = Gate({"ann": bcrypt.hashpw(b"correct horse", bcrypt.gensalt(rounds=8)).decode()}, clock=lambda: 0.0)
    barrier = threading.Barrier(8)
    admitted: list[bool] = []

    def guess() -> None:
        barrier.wait()
        admitted.append(gate.admits("ann", "correct horse", client="192.0.2.1"))

    threads = [threading.Thread(target=guess) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 1


def test_the_gate_forgets_the_oldest_guesser_and_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for two, the third guesser takes the place of the first."""
    monkeypatch.setattr(users, "_MAX_CLIENTS", 2)
    gate = Gate({"ann": HASH}, clock=lambda: 0.0)
    for last in (1, 2, 3):
        assert not gate.admits("ann", "wrong", client=f"192.0.2.{last}")
    assert [gate.wait_s(f"192.0.2.{last}") > 0 for last in (1, 2, 3)] == [False, True, True]


def test_nothing_leaves_the_machine() -> None:
    """The server listens where it was told, and sends no statistics."""
    command = streamlit_command(parse_arguments(["--port", "7000"]))
    assert "--server.address=127.0.0.1" in command
    assert "--server.port=7000" in command
    assert "--browser.gatherUsageStats=false" in command


def test_only_names_of_this_machine_reach_a_dashboard_without_sign_in() -> None:
    """On loopback a foreign name that resolves here is refused; elsewhere users sign in."""
    local = streamlit_command(parse_arguments([]))
    assert {"--server.allowedHosts=127.0.0.1", "--server.allowedHosts=localhost"} <= set(local)
    other = streamlit_command(parse_arguments(["--address", "127.0.0.2"]))
    assert "--server.allowedHosts=127.0.0.2" in other
    assert "--server.allowedHosts=*" not in other
    remote = streamlit_command(parse_arguments(["--address", "0.0.0.0"]))
    assert not [each for each in remote if each.startswith("--server.allowedHosts")]


def test_half_of_tls_is_refused(tmp_path: Path) -> None:
    """A certificate without its key must not end in plain HTTP."""
    certificate = tmp_path / "c.pem"
    certificate.write_text("x")
    with pytest.raises(UsageError, match="TLS needs both"):
        check_tls(certificate, None)
    with pytest.raises(ConfigError, match="is no file"):
        check_tls(certificate, tmp_path / "absent.pem")
    check_tls(certificate, certificate)


@pytest.mark.parametrize("port", ["-1", "99999", "http"])
def test_a_port_that_is_none_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says which ports there are."""
    with pytest.raises(SystemExit):
        parse_arguments(["--port", port])
    assert "--port" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e400", "-5", "0", "soon"])
def test_a_refresh_that_no_clock_can_keep_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither never nor all the time; the message says from when to when."""
    with pytest.raises(SystemExit):
        parse_arguments([f"--refresh={seconds}"])
    assert "from 0.5 to 86,400" in capsys.readouterr().err


def test_places_may_stand_on_both_sides_of_the_options() -> None:
    """As most commands take them; without any, the folder here is shown."""
    assert parse_arguments(["runs", "--port", "1", "traces"]).places == ["runs", "traces"]
    assert parse_arguments(["--port", "1"]).places == ["."]


def test_nobody_can_send_what_fills_the_memory() -> None:
    """What a browser may send before its sign-in is limited."""
    assert "--server.maxMessageSize=32" in streamlit_command(parse_arguments([]))


@pytest.mark.parametrize("text", ["{a: 2024-99-99}", "[" * 5000])
def test_odd_user_files_are_refused(text: str, tmp_path: Path) -> None:
    """What the YAML parser itself fails on is the file's fault."""
    path = tmp_path / "users.yml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_users(path)
