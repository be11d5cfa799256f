"""Who may ask the console, and what a hostile page or program on the same machine gets."""

import socket
from pathlib import Path

import pytest

from suwi.admin.failure import Failure
from suwi.console import slow_requests
from suwi.console.access import CHANGE_HEADER
from tests.console.support import CLUSTER, Browser, ConsoleThread, page_path

OVERVIEW = page_path("overview", CLUSTER)


def test_the_token_becomes_a_cookie_and_leaves_the_address(
    console: ConsoleThread, stranger: Browser
) -> None:
    answer = stranger.get(f"/?token={console.token}")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert console.token not in cookie


def test_a_session_sees_the_clusters(browser: Browser) -> None:
    assert browser.get("/api/clusters").json()["clusters"] == ["local", "away"]


@pytest.mark.parametrize("other", ['prefs={"a": 1}', "a=b c", "x@y=1", "a", "="])
def test_a_cookie_of_another_program_does_not_hide_the_session(
    browser: Browser, other: str
) -> None:
    browser.cookie = f"{other}; {browser.cookie}"
    assert browser.get("/api/clusters").status == 200


@pytest.mark.parametrize("path", ["/api/clusters", OVERVIEW])
def test_without_a_session_there_is_no_data(stranger: Browser, path: str) -> None:
    assert stranger.get(path).status == 401
    stranger.cookie = "suwi-console-1=x; broken;;=\x7f"
    assert stranger.get(path).status == 401


def test_the_token_of_an_earlier_console_is_refused(
    console: ConsoleThread, browser: Browser, static: Path
) -> None:
    with ConsoleThread(static) as other:
        assert Browser(other).get(f"/?token={console.token}").status == 401
        visitor = Browser(other)
        assert browser.cookie is not None
        _, _, session = browser.cookie.partition("=")
        visitor.cookie = f"suwi-console-{other.port}={session}"
        assert visitor.get("/api/clusters").status == 401


def test_the_front_end_is_given_to_everybody_and_holds_no_data(stranger: Browser) -> None:
    assert stranger.get("/").status == 200
    assert stranger.get("/assets/main.js").status == 200


@pytest.mark.parametrize("path", ["/", "/assets/main.js", "/api/clusters", "/nothing"])
def test_every_response_has_the_headers_that_protect_it(browser: Browser, path: str) -> None:
    headers = browser.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] in ("no-store", "no-cache")
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers


def test_a_page_of_another_site_is_refused(console: ConsoleThread, browser: Browser) -> None:
    assert browser.get(OVERVIEW, Origin="https://evil.example").status == 403
    assert browser.get(OVERVIEW, Origin="null").status == 403
    assert browser.get(OVERVIEW, Origin=f"http://127.0.0.1:{console.port + 1}").status == 403
    assert browser.get(OVERVIEW, Sec_Fetch_Site="cross-site").status == 403
    assert browser.get(OVERVIEW, Sec_Fetch_Site="same-site").status == 403
    own = f"http://127.0.0.1:{console.port}"
    assert browser.get(OVERVIEW, Origin=own, Sec_Fetch_Site="same-origin").status == 200


def test_a_link_from_another_site_leads_to_the_front_end(stranger: Browser) -> None:
    assert stranger.get("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9480", "127.0.0.1.evil.example", ""]
)
def test_a_name_that_was_bound_to_this_machine_is_refused(browser: Browser, host: str) -> None:
    assert browser.get(OVERVIEW, Host=host).status == 403
    assert browser.get("/", Host=host).status == 403


def test_a_forwarded_port_of_this_machine_is_accepted(browser: Browser) -> None:
    assert browser.get("/api/clusters", Host="localhost:8080").status == 200
    assert browser.get("/api/clusters", Host="[::1]:8080").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_a_change_needs_its_origin_and_header_and_a_page_has_none(
    console: ConsoleThread, browser: Browser, method: str
) -> None:
    own = f"http://127.0.0.1:{console.port}"
    assert browser.send(method, OVERVIEW).status == 403
    assert browser.send(method, OVERVIEW, headers={CHANGE_HEADER: "1"}).status == 403
    assert browser.send(method, OVERVIEW, headers={"Origin": own}).status == 403
    both = {"Origin": own, CHANGE_HEADER: "1"}
    assert browser.send(method, OVERVIEW, headers=both).status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../server.py",
        "/assets/..%2fserver.py",
        "/assets/%2e%2e/%2e%2e/access.py",
        "/assets//etc/passwd",
        "/assets/%00",
        "/../../etc/passwd",
        "/api/../index.html",
        "/api/clusters/..%2f..%2fetc/overview",
        "/api/clusters/127.0.0.1:22/overview",
    ],
)
def test_no_path_leads_out_of_the_console(browser: Browser, path: str) -> None:
    answer = browser.get(path)
    assert answer.status in (400, 404)
    assert b"root:" not in answer.body
    assert b"import" not in answer.body


def test_an_oversized_request_is_refused(console: ConsoleThread, browser: Browser) -> None:
    own = {"Origin": f"http://127.0.0.1:{console.port}", CHANGE_HEADER: "1"}
    assert browser.get(f"{OVERVIEW}?x={'a' * 9_000}").status == 414
    try:
        assert browser.get(OVERVIEW, Cookie="a" * 300_000).status == 400
    except ConnectionError:
        pass  # it has closed the connection before all was sent
    large = {**own, "Content-Length": "10000000000"}
    assert browser.send("POST", OVERVIEW, headers=large).status == 413
    chunked = {**own, "Transfer-Encoding": "chunked"}
    assert browser.send("POST", OVERVIEW, headers=chunked, body=b"0\r\n\r\n").status == 413


def test_what_is_no_http_does_not_stop_the_console(
    console: ConsoleThread, browser: Browser
) -> None:
    for data in (b"\x00\x00\x00\x12\x00\x12\x00\x00", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 9_000):
        with socket.create_connection(("127.0.0.1", console.port), timeout=60) as peer:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(4096):
                pass
    assert browser.get("/api/clusters").status == 200


def test_a_request_that_does_not_come_to_its_end_is_given_up(
    console: ConsoleThread, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_requests, "REQUEST_S_MAX", 0.5)
    own = f"Host: 127.0.0.1:{console.port}\r\nCookie: {browser.cookie}\r\n"
    for begun in (
        "",
        "GET / HTTP/1.1\r\nHost: 127",
        f"POST / HTTP/1.1\r\n{own}Content-Length: 9\r\n",
    ):
        with socket.create_connection(("127.0.0.1", console.port), timeout=60) as peer:
            peer.sendall(begun.encode())
            assert peer.recv(4096) == b""
    assert browser.get("/api/clusters").status == 200


def test_a_cluster_that_was_not_named_at_the_start_does_not_exist(browser: Browser) -> None:
    assert browser.problem("overview", "other") == (404, "missing")


def test_it_listens_on_this_machine_only(console: ConsoleThread) -> None:
    assert console.address.startswith("http://127.0.0.1:")


def test_without_built_pages_it_says_how_to_build_them(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="npm run build"), ConsoleThread(tmp_path):
        pass
