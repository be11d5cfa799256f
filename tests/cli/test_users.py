"""`suwi users`, including an authentication with the created user."""

import os
import pty
import re
from pathlib import Path

import pytest

from tests.broker_process import unique_name
from tests.cli.support import Suwi


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("sesame\nnot this line\n")
    return path


@pytest.fixture
def user(suwi: Suwi, password_file: Path) -> str:
    name = unique_name("user")
    suwi.ok("users", "add", name, "--password-file", password_file)
    return name


def test_a_user_is_added_and_listed(suwi: Suwi, password_file: Path) -> None:
    name = unique_name("user")
    said = suwi.ok("users", "add", name, "--password-file", password_file)
    assert said == f"added {name}: SCRAM-SHA-256, SCRAM-SHA-512\n"
    listed = suwi.ok("users", "list")
    assert re.search(rf"^{name} +SCRAM-SHA-256 +8192$", listed, re.MULTILINE)
    assert re.search(rf"^{name} +SCRAM-SHA-512 +8192$", listed, re.MULTILINE)
    mechanisms = {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}
    assert {"user": name, "mechanisms": mechanisms} in suwi.json("users", "list")


def test_a_password_is_changed(suwi: Suwi, user: str, password_file: Path) -> None:
    changed = suwi.ok(
        *("users", "add", user, "--password-file", password_file),
        *("--mechanism", "SCRAM-SHA-512", "--iterations", 16384),
    )
    assert changed == f"changed the password of {user}: SCRAM-SHA-512\n"
    (found,) = [u for u in suwi.json("users", "list") if u["user"] == user]
    assert found["mechanisms"] == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 16384}


def test_a_user_is_removed_for_one_mechanism_or_for_all(suwi: Suwi, user: str) -> None:
    said = suwi.ok("users", "remove", user, "-m", "SCRAM-SHA-256")
    assert said == f"removed {user}: SCRAM-SHA-256\n"
    assert "no SCRAM-SHA-256" in suwi.refusal("users", "remove", user, "-m", "SCRAM-SHA-256")
    assert suwi.ok("users", "remove", user) == f"removed {user}: SCRAM-SHA-512\n"
    assert user not in suwi.ok("users", "list")


def test_a_mistyped_user_gets_a_suggestion(suwi: Suwi, user: str) -> None:
    said = suwi.refusal("users", "remove", f"{user}x")
    assert said == f"user '{user}x' does not exist; did you mean '{user}'?"


def test_a_password_comes_from_standard_input(suwi: Suwi) -> None:
    name = unique_name("user")
    done = suwi.run("users", "add", name, "--password-file", "-", stdin=b"sesame\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"sesame" not in done.stdout


def test_a_password_is_read_from_a_pipe_only_if_requested(suwi: Suwi) -> None:
    done = suwi.run("users", "add", "alice", stdin=b"sesame\n")
    assert done.returncode == 2
    assert b"no terminal" in done.stderr
    assert b"sesame" not in done.stdout + done.stderr


def test_errors_are_reported_before_a_request_is_sent(suwi: Suwi, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert "No such file" in suwi.misuse("users", "add", "x", "--password-file", tmp_path / "no")
    assert "empty" in suwi.misuse("users", "add", "x", "--password-file", empty)
    assert "4096" in suwi.misuse("users", "add", "x", "--iterations", 1)
    assert "SCRAM-SHA-1" in suwi.misuse("users", "add", "x", "-m", "SCRAM-SHA-1")
    assert "--password " in suwi.misuse("users", "add", "x", "--password", "sesame")


def test_a_password_is_asked_for_twice_and_never_shown(suwi: Suwi) -> None:
    name = unique_name("user")
    terminal, far_end = pty.openpty()
    ends = {"stdin": far_end, "stdout": far_end, "stderr": far_end}
    shown = b""
    with suwi.start("users", "add", name, **ends, start_new_session=True) as process:
        os.close(far_end)
        for answer in (b"sesame\n", b"sesame\n"):
            shown += _read_until(terminal, b": ")
            os.write(terminal, answer)
        shown += _read_until(terminal, b"SCRAM-SHA-512")
    os.close(terminal)
    assert process.returncode == 0
    assert f"added {name}".encode() in shown
    assert b"sesame" not in shown


def _read_until(terminal: int, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        seen += os.read(terminal, 1000)
    return seen
