"""A schema registry over HTTP, as Confluent's answers: enough of it to decode by."""

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class FakeRegistry:
    """Schemas by id and by subject; it can fail, ask for a password and redirect."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.failing: int | None = None
        self.password: str | None = None
        self.moved_to: str | None = None
        self.authorizations: list[str | None] = []
        self.knows_serialized = True
        self._schemas: list[dict[str, Any]] = []

    def register(
        self,
        subject: str,
        schema: str,
        kind: str = "AVRO",
        *,
        serialized: bytes = b"",
        references: list[tuple[str, str, int]] | None = None,
    ) -> int:
        version = 1 + sum(one["subject"] == subject for one in self._schemas)
        self._schemas.append(
            {
                "id": 100 + len(self._schemas),
                "subject": subject,
                "version": version,
                "schema": schema,
                "serialized": base64.b64encode(serialized).decode(),
                "schemaType": kind,
                "references": [
                    {"name": name, "subject": other, "version": number}
                    for name, other, number in references or []
                ],
            }
        )
        return int(self._schemas[-1]["id"])

    def spoil(self, schema_id: int, **fields: Any) -> None:
        """Answer with other fields from now on."""
        next(one for one in self._schemas if one["id"] == schema_id).update(fields)

    def answer(self, target: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        self.asked.append(target)
        self.authorizations.append(authorization)
        if self.failing is not None:
            return self.failing, {"message": "not today"}
        if self.password is not None and authorization != self._expected():
            return 401, {"message": "Unauthorized"}
        parts = urlsplit(target)
        found = self._find(unquote(parts.path))
        if found is None:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        shown = dict(found)
        serialized = shown.pop("serialized")
        if "format=serialized" in parts.query and self.knows_serialized:
            shown["schema"] = serialized
        if shown["schemaType"] == "AVRO":
            del shown["schemaType"]  # It is the default, and left out.
        return 200, shown

    def _find(self, path: str) -> dict[str, Any] | None:
        by_id = re.fullmatch(r"/schemas/ids/(\d+)", path)
        if by_id:
            return next((one for one in self._schemas if one["id"] == int(by_id[1])), None)
        by_subject = re.fullmatch(r"/subjects/(.+)/versions/(\d+|latest)", path)
        assert by_subject, path
        found = [
            one
            for one in self._schemas
            if one["subject"] == by_subject[1] and by_subject[2] in ("latest", str(one["version"]))
        ]
        return found[-1] if found else None

    def _expected(self) -> str:
        return "Basic " + base64.b64encode(f"reader:{self.password}".encode()).decode()


@contextmanager
def running_registry() -> Iterator[FakeRegistry]:
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if registry.moved_to is not None:
                self.send_response(302)
                self.send_header("Location", registry.moved_to + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            code, answer = registry.answer(self.path, self.headers.get("Authorization"))
            body = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
