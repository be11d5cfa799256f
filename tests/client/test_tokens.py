"""OAuth tokens: from a file, from an endpoint, or unsecured; and no secret in any text."""

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from suwi.client.security import TokenLogin, read_sasl_login
from suwi.client.tokens import EndpointTokens, NoToken, read_tokens
from suwi.env import local_env
from suwi.model.config_kinds import BadConfig

SECRET = "pssst-7"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


class Endpoint(HTTPServer):
    """Responds with what a test puts into `answers`, and records the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, bytes]] = []
        self.asked: list[tuple[str, str]] = []
        self.headers: dict[str, str] = {}
        """Of each response."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/token"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        server.asked.append((self.headers["Authorization"], body))
        status, answer = server.answers.pop(0)
        self.send_response(status)
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def tokens_of(tokens: Any, count: int = 1) -> list[str]:
    async def get() -> list[str]:
        return [await tokens.token(local_env()) for _ in range(count)]

    return asyncio.run(get())


def test_a_token_file_is_read_for_every_authentication(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    tokens = read_tokens({"sasl.oauthbearer.token.endpoint.url": file.as_uri()}, {})
    with pytest.raises(NoToken, match="No such file"):
        tokens_of(tokens)
    file.write_text("first\n")
    assert tokens_of(tokens) == ["first"]
    file.write_text("second")
    assert tokens_of(tokens) == ["second"]
    file.write_bytes(b"\xff")
    with pytest.raises(NoToken, match="has no token"):
        tokens_of(tokens)


def test_an_endpoint_is_asked_once_for_most_of_a_tokens_lifetime(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, b'{"access_token": "abc", "expires_in": 3600}')]
    options = {"clientId": "me", "clientSecret": SECRET, "scope": "kafka read"}
    tokens = read_tokens({"sasl.oauthbearer.token.endpoint.url": endpoint.url}, options)
    assert tokens_of(tokens, 3) == ["abc"] * 3
    basic = base64.b64encode(f"me:{SECRET}".encode()).decode()
    assert endpoint.asked == [
        (f"Basic {basic}", "grant_type=client_credentials&scope=kafka+read"),
    ]


@pytest.mark.parametrize("lifetime", [b"", b', "expires_in": NaN'])
def test_a_token_of_unknown_lifetime_is_not_cached(endpoint: Endpoint, lifetime: bytes) -> None:
    endpoint.answers = [
        (200, b'{"access_token": "%b"%b}' % (name, lifetime)) for name in (b"a", b"b")
    ]
    assert tokens_of(EndpointTokens(endpoint.url, "me", SECRET), 2) == ["a", "b"]


@pytest.mark.parametrize(
    ("status", "answer", "problem"),
    [
        (401, b"no", "HTTP status 401"),
        (200, b"no", "is not a JSON object"),
        (200, b"[]", "is not a JSON object"),
        (200, b"[" * 100_000, "is not a JSON object"),
        (200, b'{"token": 1}', "has no access_token"),
    ],
)
def test_an_endpoint_without_a_token_is_named_in_the_error(
    endpoint: Endpoint, status: int, answer: bytes, problem: str
) -> None:
    endpoint.answers = [(status, answer)]
    with pytest.raises(NoToken, match=problem) as failed:
        tokens_of(EndpointTokens(endpoint.url, "me", SECRET))
    assert endpoint.url in str(failed.value)
    assert SECRET not in str(failed.value)


def test_a_response_that_is_cut_off_is_named_in_the_error(endpoint: Endpoint) -> None:
    endpoint.answers, endpoint.headers = [(200, b"{")], {"Content-Length": "100"}
    with pytest.raises(NoToken, match=f"no token from {endpoint.url}: IncompleteRead"):
        tokens_of(EndpointTokens(endpoint.url, "me", SECRET))


def test_a_redirection_does_not_get_the_secret(endpoint: Endpoint) -> None:
    """It would get it with a GET, which this endpoint refuses with another status."""
    endpoint.answers, endpoint.headers = [(302, b"")], {"Location": endpoint.url}
    with pytest.raises(NoToken, match="HTTP status 302"):
        tokens_of(EndpointTokens(endpoint.url, "me", SECRET))


def test_an_unreachable_endpoint_is_named_in_the_error() -> None:
    with pytest.raises(NoToken, match=r"no token from http://127\.0\.0\.1:1/x: .*refused"):
        tokens_of(EndpointTokens("http://127.0.0.1:1/x", "me", SECRET))


def test_an_unsecured_token_can_be_made_for_brokers_that_accept_it() -> None:
    log_in = read_sasl_login(
        {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f'{MODULE} unsecuredLoginStringClaim_sub="alice" '
            'unsecuredLoginLifetimeSeconds="60";',
        }
    )
    assert isinstance(log_in, TokenLogin)
    mechanism = asyncio.run(log_in.start(local_env()))
    assert mechanism.name == "OAUTHBEARER"
    first = mechanism.first().decode()
    assert first.startswith("n,,\x01auth=Bearer ")
    assert first.endswith(".\x01\x01")
    head, claims, _ = first.removeprefix("n,,\x01auth=Bearer ").split(".")
    assert json.loads(base64.urlsafe_b64decode(head + "==")) == {"alg": "none"}
    said = json.loads(base64.urlsafe_b64decode(claims + "=="))
    assert said["sub"] == "alice"
    assert said["exp"] - said["iat"] == pytest.approx(60)


def test_a_failed_authentication_gets_a_final_message_and_a_successful_one_does_not() -> None:
    from suwi.security.oauthbearer import OAuthBearerClient

    assert OAuthBearerClient("t").respond(b'{"status":"invalid_token"}') == b"\x01"
    assert OAuthBearerClient("t").respond(b"") is None


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "sasl.oauthbearer.token.endpoint.url is missing"),
        ({"sasl.oauthbearer.token.endpoint.url": "ftp://x"}, "https://…, http://… or file:///…"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://x"}, "client.credentials.client.id"),
        ({"sasl.jaas.config": f"{MODULE} scope="}, "sasl.jaas.config: "),
        (
            {
                "sasl.jaas.config": f'{MODULE} unsecuredLoginStringClaim_sub="a" '
                'unsecuredLoginLifetimeSeconds="long";'
            },
            "unsecuredLoginLifetimeSeconds must be a number",
        ),
    ],
)
def test_settings_without_a_usable_token_source_are_named_in_the_error(
    settings: dict[str, str], problem: str
) -> None:
    with pytest.raises(BadConfig) as bad:
        read_sasl_login({"sasl.mechanism": "OAUTHBEARER", **settings})
    assert problem in str(bad.value)


def test_secrets_are_in_no_text() -> None:
    given = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://x",
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
    }
    assert SECRET not in repr(read_sasl_login(given))
    password = {
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'x required username="a" password="{SECRET}";',
    }
    assert SECRET not in repr(read_sasl_login(password))
