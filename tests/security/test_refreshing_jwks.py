"""The keys of a token issuer: from a file or a URL, read again, and kept when that fails."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from suwi.env import LocalDisk
from suwi.env.problems import Problems
from suwi.env.tasks import Tasks
from suwi.security import refreshing_jwks
from suwi.security.jwt_validator import BadKeys, BadToken
from suwi.security.refreshing_jwks import JwksSource, RefreshingJwks
from suwi.sim import ManualClock
from tests.security.issuer import Issuer, SigningKey

PATIENCE_S = 120
DAY_S = 24 * 3600


class Endpoint(ThreadingHTTPServer):
    """Answers with what a test sets, and counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.answer, self.asked = 200, b"", 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.location = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/keys"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        answer = server.answer
        server.asked += 1
        server.may_answer.wait(PATIENCE_S)
        self.send_response(server.status)
        if server.location:
            self.send_header("Location", server.location)
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


class Keys:
    def __init__(self, url: str, **times: int) -> None:
        self.now_s = 0.0
        """By the event loop."""
        self.problems = Problems(ManualClock())
        source = JwksSource(url, retry_ms=1, retry_ms_max=20, **times)
        self.jwks = RefreshingJwks(
            source, "OUTSIDE", LocalDisk(), self.problems, lambda: self.now_s
        )

    @asynccontextmanager
    async def started(self) -> AsyncIterator["Keys"]:
        await self.jwks.start(Tasks(lambda failure: None, self.problems))
        yield self
        await self.jwks.stop()

    def has(self, key_id: str) -> bool:
        try:
            return bool(self.jwks.find(key_id))
        except BadToken:
            return False


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():  # noqa: ASYNC110 (nobody else tells it)
            await asyncio.sleep(0.01)


def test_a_file_is_read_at_once_and_must_have_keys(tmp_path: Path) -> None:
    path = tmp_path / "the keys"
    with pytest.raises(FileNotFoundError):
        Keys(path.as_uri())
    path.write_text("{}")
    with pytest.raises(BadKeys):
        Keys(path.as_uri())
    Issuer().publish(path)

    async def scenario() -> None:
        async with Keys(path.as_uri()).started() as keys:
            assert keys.has("first")
            assert not keys.has("second")
            assert [key.id for key in keys.jwks.find(None)] == ["first"]

    asyncio.run(scenario())


def test_an_unknown_key_id_causes_one_refresh_in_ten_seconds(endpoint: Endpoint) -> None:
    issuer = Issuer()
    endpoint.answer = issuer.jwks

    async def scenario() -> None:
        async with Keys(endpoint.url).started() as keys:
            assert endpoint.asked == 1
            keys.now_s += 10
            issuer.keys.append(SigningKey("second"))
            endpoint.answer = issuer.jwks
            for number in range(1000):
                assert not keys.has(f"unknown {number}")
            await until(lambda: endpoint.asked == 2)
            await until(lambda: keys.has("second"))
            for number in range(1000):
                assert not keys.has(f"unknown {number}")
            await asyncio.sleep(0.1)
            assert endpoint.asked == 2
            keys.now_s += 10
            assert not keys.has("unknown")
            await until(lambda: endpoint.asked == 3)

    asyncio.run(scenario())


def test_a_key_that_is_asked_for_during_a_refresh_causes_another(endpoint: Endpoint) -> None:
    """The issuer may have answered before it had the key."""
    issuer = Issuer()
    endpoint.answer = issuer.jwks

    async def scenario() -> None:
        async with Keys(endpoint.url).started() as keys:
            endpoint.may_answer.clear()
            keys.now_s += 10
            assert not keys.has("unknown")
            await until(lambda: endpoint.asked == 2)
            issuer.keys.append(SigningKey("second"))
            endpoint.answer = issuer.jwks
            keys.now_s += 10
            assert not keys.has("second")
            endpoint.may_answer.set()
            await until(lambda: keys.has("second"))
            assert endpoint.asked == 3

    asyncio.run(scenario())


def test_keys_are_read_again_and_one_that_was_withdrawn_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    Issuer().publish(path)

    async def scenario() -> None:
        async with Keys(path.as_uri(), refresh_ms=10).started() as keys:
            assert keys.has("first")
            Issuer(SigningKey("second")).publish(path)
            await until(lambda: keys.has("second"))
            assert not keys.has("first")

    asyncio.run(scenario())


def test_if_a_refresh_fails_the_old_keys_are_used_for_a_day(endpoint: Endpoint) -> None:
    endpoint.answer = Issuer().jwks

    async def scenario() -> None:
        async with Keys(endpoint.url, refresh_ms=1000).started() as keys:
            endpoint.status = 503
            keys.now_s += 10
            assert not keys.has("unknown")
            await until(lambda: bool(list(keys.problems)))
            (problem,) = keys.problems
            assert problem.kind.label == "token-keys-unreadable"
            assert (problem.place, problem.reason) == (
                "OUTSIDE",
                f"{endpoint.url}: HTTP status 503",
            )
            assert keys.has("first")
            keys.now_s += DAY_S
            assert not keys.has("first")
            endpoint.status = 200
            await until(lambda: keys.has("first"))
            await until(lambda: not list(keys.problems))

    asyncio.run(scenario())


def test_without_keys_at_the_start_tokens_are_refused_until_they_can_be_read(
    endpoint: Endpoint,
) -> None:
    endpoint.status = 500

    async def scenario() -> None:
        async with Keys(endpoint.url).started() as keys:
            with pytest.raises(BadToken, match="cannot be read"):
                keys.jwks.find("first")
            endpoint.answer, endpoint.status = Issuer().jwks, 200
            await until(lambda: keys.has("first"))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (200, b"<html>", "it is not JSON"),
        (200, b"{}" + b" " * (1 << 20), "it is too large or too slow"),
        (302, b"", "HTTP status 302"),
        (404, b"", "HTTP status 404"),
    ],
)
def test_another_answer_is_told_and_a_redirection_is_not_followed(
    endpoint: Endpoint, status: int, answer: bytes, reason: str
) -> None:
    endpoint.status, endpoint.answer = status, answer
    endpoint.location = endpoint.url + "?elsewhere" if status == 302 else ""

    async def scenario() -> None:
        async with Keys(endpoint.url).started() as keys:
            (problem,) = keys.problems
            assert problem.reason == f"{endpoint.url}: {reason}"

    asyncio.run(scenario())


def test_an_endpoint_that_is_too_slow_is_given_up(endpoint: Endpoint) -> None:
    endpoint.answer = Issuer().jwks
    times_s = iter([0.0, 100.0])
    with pytest.raises(OSError, match="too slow"):
        refreshing_jwks._fetch(endpoint.url, lambda: next(times_s))


def test_an_endpoint_that_is_not_there_is_told() -> None:
    async def scenario() -> None:
        async with Keys("http://127.0.0.1:1/keys").started() as keys:
            (problem,) = keys.problems
            assert "refused" in problem.reason

    asyncio.run(scenario())
