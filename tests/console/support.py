"""A console as a browser sees it: real requests over HTTP."""

import asyncio
import http.client
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from suwi.client import own_apis
from suwi.client.addresses import parse_addresses
from suwi.console import brokers, clusters, groups, overview, record_changes, records, series
from suwi.console.access import CHANGE_HEADER
from suwi.console.clusters import ClusterAddress
from suwi.console.server import serve_console
from suwi.console.sessions import Public
from suwi.decoders.registry import Registry
from suwi.env import local_env

PATIENCE_S = 120
COMMANDS = os.path.dirname(sys.executable)
CLUSTER = "local"


def _wait_longer_for_brokers() -> None:
    """A console gives up after seconds, because people wait. A broker may get no CPU for longer."""
    for module, limit in (
        (own_apis, "_TIMEOUT_S"),
        (groups, "TIMEOUT_S"),
        (record_changes, "TIMEOUT_S"),
        (series, "TIMEOUT_S"),
        (records, "_READ_S_MAX"),
    ):
        assert hasattr(module, limit)
        setattr(module, limit, float(PATIENCE_S))
    overview._CRITERIA = overview._CRITERIA._replace(timeout_s=PATIENCE_S)
    brokers._WITHOUT_GROUPS = brokers._WITHOUT_GROUPS._replace(timeout_s=PATIENCE_S)
    clusters._SETTINGS = replace(
        clusters._SETTINGS,
        connect_timeout_s=PATIENCE_S,
        request_timeout_s=PATIENCE_S,
        retry_timeout_s=PATIENCE_S,
    )


_wait_longer_for_brokers()


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    def json(self) -> Any:
        return json.loads(self.body)


class RunningConsole:
    """Where a console is."""

    def __init__(self, address: str, trusted: ssl.SSLContext | None = None) -> None:
        """`address` is with the token; `trusted`: what a browser needs to trust the certificate."""
        self.address = address
        self._trusted = trusted

    @property
    def port(self) -> int:
        port = urlsplit(self.address).port
        assert port is not None
        return port

    @property
    def origin(self) -> str:
        return self.address.partition("/?")[0].rstrip("/")

    def connect(self) -> http.client.HTTPConnection:
        if self._trusted is not None:
            return http.client.HTTPSConnection(
                "localhost", self.port, timeout=PATIENCE_S, context=self._trusted
            )
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    @property
    def token(self) -> str:
        return urlsplit(self.address).query.removeprefix("token=")


class ConsoleThread(RunningConsole):
    """A console in a thread of its own, for one or more clusters by name."""

    def __init__(
        self,
        static: Path,
        addresses: Sequence[ClusterAddress] = (),
        *,
        public: Public | None = None,
        allow_changes: bool = False,
        registry: str | None = None,
        trusted: ssl.SSLContext | None = None,
        **brokers: str,
    ) -> None:
        super().__init__("", trusted)  # The address is known when it is ready.
        schemas = None if registry is None else Registry(registry)
        self._addresses = [
            *addresses,
            *(
                ClusterAddress(
                    name, parse_addresses(broker), None, ("--broker", broker), registry=schemas
                )
                for name, broker in brokers.items()
            ),
        ]
        self._public = public
        self._static = str(static)
        self._allow_changes = allow_changes
        self._is_ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "ConsoleThread":
        self._thread.start()
        assert self._is_ready.wait(PATIENCE_S)
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        async def serve() -> None:
            self._loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            self._task = task
            await serve_console(
                self._addresses,
                local_env(),
                0,
                self._on_ready,
                static=self._static,
                public=self._public,
                allow_changes=self._allow_changes,
            )

        try:
            asyncio.run(serve())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._failure = error
        finally:
            self._is_ready.set()

    def _on_ready(self, address: str) -> None:
        self.address = address
        self._is_ready.set()


class Browser:
    """Requests with the cookies that the console has set."""

    def __init__(self, console: RunningConsole) -> None:
        self._console = console
        self.cookie: str | None = None

    def log_in(self, console: RunningConsole) -> "Browser":
        answer = self.get(f"/?token={console.token}")
        assert answer.status == 303, answer.body
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return self

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, headers=headers)

    def send(
        self, method: str, path: str, *, headers: Mapping[str, str] = {}, body: bytes | None = None
    ) -> Answer:
        connection = self._console.connect()
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            own = {} if self.cookie is None else {"Cookie": self.cookie}
            connection.request(method, path, body, {**own, **given})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def post(self, path: str, given: Any, **headers: str) -> Answer:
        """A request that changes something, as the front end sends it."""
        own = {"Origin": self._console.origin, CHANGE_HEADER: "1", **headers}
        return self.send("POST", path, headers=own, body=json.dumps(given).encode())

    # -- changes ---------------------------------------------------------------------------------

    def order(self, change: str, body: object, cluster: str = CLUSTER) -> Answer:
        """A request for a change, as the front end sends it."""
        return self.post(f"/api/clusters/{cluster}/changes/{change}", body)

    def preview(self, change: str, **values: object) -> Any:
        answer = self.order(change, {"values": values, "is_preview": True})
        assert answer.status == 200, answer.body
        return answer.json()

    def change(self, change: str, **values: object) -> str:
        """Make a change as it was previewed; what the console says was done."""
        shown = self.preview(change, **values)
        seen = {"confirm": shown["confirm"], "seen": shown["seen"]}
        answer = self.order(change, {"values": values, "is_preview": False, **seen})
        assert answer.status == 200, answer.body
        return str(answer.json()["text"])

    def refusal(self, change: str, **values: object) -> tuple[str, str]:
        """The text of a change that is refused, and the field that it is about."""
        answer = self.order(change, {"values": values, "is_preview": True})
        assert answer.status != 200, answer.body
        return answer.json()["text"], answer.json()["field"]

    # -- pages -----------------------------------------------------------------------------------

    def page(self, name: str, cluster: str = CLUSTER, **query: object) -> Any:
        """The JSON of a page that must be there."""
        answer = self.get(page_path(name, cluster, **query))
        assert answer.status == 200, answer.body
        return answer.json()

    def problem(self, name: str, cluster: str = CLUSTER, **query: object) -> tuple[int, str]:
        """The status and kind of a page that cannot be shown."""
        answer = self.get(page_path(name, cluster, **query))
        return answer.status, answer.json()["kind"]

    def events(self, name: str, cluster: str = CLUSTER, **query: object) -> Iterator[Any]:
        """The names and values of a stream, without its comments; closing it ends it."""
        connection = self._console.connect()
        assert self.cookie is not None
        headers = {"Cookie": self.cookie, "Accept": "text/event-stream"}
        connection.request("GET", page_path(name, cluster, **query), headers=headers)
        response = connection.getresponse()
        assert response.status == 200
        try:
            event = ""
            while line := response.readline():
                key, _, value = line.decode().rstrip("\n").partition(": ")
                if key == "event":
                    event = value
                elif key == "data":
                    yield event, json.loads(value)
        finally:
            response.close()
            connection.close()


def run_copied(command: str) -> str:
    """What a command prints that was copied from a page into a shell."""
    path = f"{COMMANDS}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        env={**os.environ, "PATH": path},
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def page_path(name: str, cluster: str, **query: object) -> str:
    asked = f"?{urlencode(query)}" if query else ""
    return f"/api/clusters/{quote(cluster, safe='')}/{name}{asked}"


def read_on(query: dict[str, object], told: dict[str, Any]) -> dict[str, object] | None:
    """What the front end asks for next (console/src/read_on.ts)."""
    rest, is_backward = told["rest"], query.get("from", "end") in ("end", "before")
    place, stop = ("first", "start") if is_backward else ("next", "end")
    left = [r for r in told["ranges"] if r[place] != r[stop]]
    if not left:
        return None
    named = [r for r in left if rest is None or r["partition"] < rest]
    at = ",".join(f"{r['partition']}:{r[place]}" for r in named)
    if rest is not None:
        return {**query, "at": at, "rest": rest}
    return {**query, "at": at, "from": "before" if is_backward else "at", "rest": 0}
