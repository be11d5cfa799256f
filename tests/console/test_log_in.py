"""A console that others reach: TLS, log-in with the cluster's users, and who tries without."""

import http.client
import json
import logging
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from suwi.console.access import CHANGE_HEADER
from suwi.console.sessions import _FREE_ATTEMPTS, _SESSIONS_OF_USER_MAX, _WaitingTimes
from tests.cli.support import Suwi
from tests.console.public_console import client_properties, public_console, secure_broker
from tests.console.support import Browser, ConsoleThread, page_path
from tests.console.test_command import needs_pages, started
from tests.security.certificates import Identity
from tests.security.secure_broker import PASSWORDS, SCRAM_PASSWORDS, SecureBroker
from tests.testing.clients import until

PATIENCE_S = 120


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path_factory.mktemp("secure")) as broker:
        yield broker


@pytest.fixture(scope="module")
def identity(secure: SecureBroker) -> Identity:
    return secure.authority.issue("mine")


@pytest.fixture(scope="module")
def public(
    secure: SecureBroker, static: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConsoleThread]:
    with public_console(tmp_path_factory.mktemp("public"), secure, static) as console:
        yield console


@pytest.fixture
def stranger(public: ConsoleThread) -> Browser:
    return Browser(public)


def log_in(browser: Browser, user: str, password: str) -> Browser:
    """Waits as long as earlier failures of this address demand."""
    limit_s = time.monotonic() + PATIENCE_S
    while True:
        answer = browser.post("/api/login", {"user": user, "password": password})
        if answer.status != 429:
            break
        assert time.monotonic() < limit_s
        time.sleep(0.2)
    assert answer.status == 200, answer.body
    browser.cookie = answer.headers["set-cookie"].partition(";")[0]
    return browser


def refused(browser: Browser, user: str, password: str) -> int:
    limit_s = time.monotonic() + PATIENCE_S
    while (
        status := browser.post("/api/login", {"user": user, "password": password}).status
    ) == 429:
        assert time.monotonic() < limit_s
        time.sleep(0.2)
    return status


def test_without_a_log_in_there_are_not_even_the_names_of_clusters(stranger: Browser) -> None:
    for path in ("/api/clusters", page_path("overview", "first"), page_path("tail", "first")):
        answer = stranger.get(path)
        assert (answer.status, answer.json()["kind"]) == (401, "login")
        assert b"first" not in answer.body
    assert stranger.get("/").status == 200


def test_a_user_sees_the_clusters_whose_user_it_is(stranger: Browser) -> None:
    log_in(stranger, "dave", SCRAM_PASSWORDS["dave"])
    begun = stranger.get("/api/clusters").json()
    assert (begun["clusters"], begun["user"]) == (["first"], "dave")
    assert stranger.page("overview", "first")["is_healthy"]
    assert stranger.problem("overview", "second") == (404, "missing")


def test_the_cookie_is_for_this_site_and_for_tls_only(stranger: Browser) -> None:
    log_in(stranger, "carol", SCRAM_PASSWORDS["carol"])
    answer = stranger.post("/api/login", {"user": "carol", "password": SCRAM_PASSWORDS["carol"]})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-suwi-console-")
    for attribute in ("HttpOnly", "SameSite=strict", "Secure", "Path=/"):
        assert attribute in cookie


def has_to_wait(browser: Browser) -> bool:
    """Not, if the next attempt comes so late that the time of waiting is over."""
    assert refused(browser, "bob", "a wrong one") == 401
    at_once = browser.post("/api/login", {"user": "bob", "password": PASSWORDS["bob"]})
    assert ("set-cookie" in at_once.headers) == (at_once.status == 200)
    return at_once.status == 429


def test_a_wrong_password_is_refused_and_the_next_attempt_has_to_wait(
    stranger: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        until(lambda: has_to_wait(stranger))
        log_in(stranger, "bob", PASSWORDS["bob"])
    assert stranger.get("/api/clusters").json()["clusters"] == ["second"]
    assert "log-in refused" in caplog.text
    told = " ".join(str(vars(record)) for record in caplog.records)
    assert "a wrong one" not in told
    assert PASSWORDS["bob"] not in told


@pytest.mark.parametrize(
    ("user", "password"),
    [("", "x"), ("x", ""), ("alice\0", "x"), ("x", f"\0{PASSWORDS['alice']}"), ("x" * 999, "x")],
)
def test_what_is_no_name_reaches_no_cluster(stranger: Browser, user: str, password: str) -> None:
    assert refused(stranger, user, password) == 401


@pytest.mark.parametrize("given", [{}, [], {"user": 1, "password": 2}, "x", None])
def test_a_log_in_that_makes_no_sense_is_refused(stranger: Browser, given: object) -> None:
    assert stranger.post("/api/login", given).status == 400


def test_another_site_cannot_log_in_anybody(stranger: Browser) -> None:
    given = {"user": "carol", "password": SCRAM_PASSWORDS["carol"]}
    assert stranger.post("/api/login", given, Origin="https://evil.example").status == 403
    assert stranger.post("/api/login", given, Host="evil.example").status == 403
    assert stranger.send("POST", "/api/login", body=b"{}").status == 403
    assert stranger.get("/api/login").status == 405


def test_who_logs_out_has_no_session_and_no_stream_any_more(stranger: Browser) -> None:
    log_in(stranger, "carol", SCRAM_PASSWORDS["carol"])
    events = stranger.events("overview", "first")
    assert next(events)[0] == "page"
    assert stranger.post("/api/logout", {}).status == 200
    assert list(events) == []
    assert stranger.get("/api/clusters").status == 401


def test_a_session_is_of_no_use_under_another_name(stranger: Browser) -> None:
    log_in(stranger, "carol", SCRAM_PASSWORDS["carol"])
    for host in ("evil.example", "127.0.0.1", "localhost.evil.example", ""):
        assert stranger.get("/api/clusters", Host=host).status == 403


def test_a_user_who_fails_keeps_no_other_waiting(public: ConsoleThread) -> None:
    assert refused(Browser(public), "alice", "a wrong one") == 401
    given = {"user": "carol", "password": SCRAM_PASSWORDS["carol"]}
    assert Browser(public).post("/api/login", given).status == 200


def test_an_address_from_which_many_users_fail_has_to_wait() -> None:
    waiting, address = _WaitingTimes(), ("10.0.0.1", None)
    for number in range(_FREE_ATTEMPTS):
        waiting.count(address, float(number))
        assert waiting.left_s(address, float(number)) <= 0
    waiting.count(address, 20.0)
    assert waiting.left_s(address, 20.0) == 1
    waiting.forgive(address, 20.0)
    assert waiting.left_s(address, 20.0) <= 0
    waiting.count(address, 21.0)
    waiting.count(address, 22.0)
    assert waiting.left_s(address, 22.0) == 2


def test_the_oldest_session_of_a_user_with_many_ends(public: ConsoleThread) -> None:
    carol = {"user": "carol", "password": SCRAM_PASSWORDS["carol"]}
    first = log_in(Browser(public), **carol)
    other = log_in(Browser(public), "dave", SCRAM_PASSWORDS["dave"])
    for _ in range(_SESSIONS_OF_USER_MAX):
        last = log_in(Browser(public), **carol)
    assert first.get("/api/clusters").status == 401
    assert last.get("/api/clusters").status == 200
    assert other.get("/api/clusters").status == 200


def test_a_command_names_no_file_of_the_console(stranger: Browser) -> None:
    log_in(stranger, "carol", SCRAM_PASSWORDS["carol"])
    command = stranger.page("overview", "first")["command"]
    assert command.endswith(" --command-config client.properties")


def test_a_browser_that_came_by_tls_comes_by_tls_again(stranger: Browser) -> None:
    assert stranger.get("/").headers["strict-transport-security"].startswith("max-age=")


def test_one_users_session_is_not_anothers(public: ConsoleThread) -> None:
    carol = log_in(Browser(public), "carol", SCRAM_PASSWORDS["carol"])
    bob = log_in(Browser(public), "bob", PASSWORDS["bob"])
    assert carol.get("/api/clusters").json()["user"] == "carol"
    assert bob.get("/api/clusters").json()["user"] == "bob"
    assert carol.cookie is not None
    carol.cookie = carol.cookie[:-1] + ("A" if carol.cookie[-1] != "A" else "B")
    assert carol.get("/api/clusters").status == 401


def test_the_token_of_a_console_on_this_machine_gives_nothing(stranger: Browser) -> None:
    answer = stranger.get("/?token=x")
    assert answer.status == 200
    assert "set-cookie" not in answer.headers


def test_without_tls_it_is_not_reached_from_elsewhere(suwi: Suwi, tmp_path: Path) -> None:
    assert "--tls-cert" in suwi.misuse("console", "--host", "0.0.0.0")
    assert "both" in suwi.misuse("console", "--tls-cert", tmp_path / "x.pem")


def test_what_it_needs_to_be_reached_is_named(
    suwi: Suwi, identity: Identity, secure: SecureBroker, tmp_path: Path
) -> None:
    tls = ("console", "--tls-cert", identity.certificate, "--tls-key", identity.key)
    assert "--name" in suwi.misuse(*tls, "--host", "0.0.0.0")
    assert "--command-config" in suwi.misuse(*tls)
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\n")
    assert "SCRAM-SHA-256" in suwi.misuse(*tls, "--command-config", file)
    other = ("console", "--tls-cert", identity.certificate, "--tls-key", identity.certificate)
    assert "private key" in suwi.misuse(*other)


@needs_pages
def test_the_log_says_who_logged_in_from_where(
    identity: Identity, secure: SecureBroker, tmp_path: Path
) -> None:
    file = client_properties(tmp_path, secure, "PLAIN")
    tls = ("--tls-cert", identity.certificate, "--tls-key", identity.key, "--name", "localhost")
    suwi = Suwi(secure.at("SASL_SSL"))
    options = ("console", "--port", 0, "--command-config", file, *tls)
    with started(suwi, *options) as (process, address):
        context = ssl.create_default_context(cafile=str(secure.authority.certificate))
        parts = urlsplit(address)
        connection = http.client.HTTPSConnection(
            "localhost", parts.port, timeout=PATIENCE_S, context=context
        )
        own = {"Origin": address.rstrip("/"), CHANGE_HEADER: "1"}
        given = json.dumps({"user": "alice", "password": PASSWORDS["alice"]})
        connection.request("POST", "/api/login", given, own)
        assert connection.getresponse().status == 200
        connection.close()
        process.terminate()
        rest = process.communicate(timeout=PATIENCE_S)[0].decode()
    assert "logged in user=alice address=127.0.0.1" in rest
    assert PASSWORDS["alice"] not in rest
