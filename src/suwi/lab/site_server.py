"""Serves the site of the lab to browsers of this machine.

`Pages` plays a scenario when it is first asked for, `serving` opens the port.
Invariant: it listens on loopback only, and answers only to that name.
"""

import mimetypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

from suwi.lab.events import Recording
from suwi.lab.library import ORDER, scenario_of
from suwi.lab.site import Played, common_files, play_all, scenario_files

_HOST = "127.0.0.1"
_PORT = 9481
_POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"


class Pages:
    """The files of the site, by their paths."""

    def __init__(self, given: Mapping[str, Recording]) -> None:
        self._scenarios = [Played(name, scenario_of(name), ()) for name in ORDER]
        self._files = dict(common_files(self._scenarios, given))
        self._unplayed = set(ORDER)
        self._lock = Lock()

    def get(self, path: str) -> str | None:
        """Plays the scenario that the path belongs to, if it was not played yet."""
        name = path.removeprefix("recordings/").partition(".")[0]
        with self._lock:
            if path not in self._files and name in self._unplayed:
                self._files |= scenario_files(play_all(name), self._scenarios)
                self._unplayed.discard(name)
        return self._files.get(path)


@contextmanager
def serving(pages: Pages, port: int | None = 0) -> Iterator[ThreadingHTTPServer]:
    """Raises OSError if the port is taken; None: the usual one, or a free one if it is taken."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A page of another origin must not read recordings through a name that it controls.
            name = self.headers.get("Host", "").partition(":")[0]
            path = self.path.partition("?")[0].lstrip("/") or "index.html"
            found = pages.get(path) if name in (_HOST, "localhost") else None
            content = (found if found is not None else "not found\n").encode()
            kind = mimetypes.guess_type(path)[0] if found is not None else None
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Type", f"{kind or 'text/plain'}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Security-Policy", _POLICY)
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

    try:
        server = ThreadingHTTPServer((_HOST, _PORT if port is None else port), Handler)
    except OSError:
        if port is not None:
            raise
        server = ThreadingHTTPServer((_HOST, 0), Handler)
    with server:
        yield server
