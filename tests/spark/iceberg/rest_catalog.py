"""A catalog that is asked over HTTP, in front of an SQLite catalog; it can lose its answers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, Table

_STATUS = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
}


class RestCatalog(ThreadingHTTPServer):
    def __init__(self, warehouse: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        warehouse.mkdir(parents=True)
        self._given = {
            "type": "sql",
            "uri": f"sqlite:///{warehouse}/behind.db",
            "warehouse": str(warehouse),
        }
        self.uri = f"http://127.0.0.1:{self.server_port}"
        self.lost_answers = 0
        """So many of the next commits are made, and answered with an error."""
        self.tokens: set[str | None] = set()

    def behind(self) -> Catalog:
        return load_catalog("behind", **self._given)


class _Handler(BaseHTTPRequestHandler):
    server: RestCatalog

    def do_GET(self) -> None:
        self._answer(lambda catalog, path: self._get(catalog, path))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(lambda catalog, path: self._post(catalog, path, body))

    def _get(self, catalog: Catalog, path: list[str]) -> str:
        if path == ["config"]:
            return json.dumps({"defaults": {}, "overrides": {}})
        _, namespace, _, name = path
        return _response(catalog.load_table((namespace, name)))

    def _post(self, catalog: Catalog, path: list[str], body: bytes) -> str:
        if path == ["namespaces"]:
            catalog.create_namespace(tuple(json.loads(body)["namespace"]))
            return "{}"
        _, namespace, _, *name = path
        if not name:
            asked = CreateTableRequest.model_validate({"location": None, **json.loads(body)})
            spec, properties = asked.partition_spec, asked.properties
            made = catalog.create_table(
                (namespace, asked.name), asked.table_schema, None, spec, properties=properties
            )
            return _response(made)
        wanted = CommitTableRequest.model_validate_json(body)
        table = catalog.load_table((namespace, *name))
        done = catalog.commit_table(table, wanted.requirements, wanted.updates)
        if self.server.lost_answers:
            self.server.lost_answers -= 1
            raise ConnectionAbortedError("after the commit")
        return done.model_dump_json(by_alias=True)

    def _answer(self, ask: Any) -> None:
        self.server.tokens.add(self.headers["Authorization"])
        path = self.path.partition("?")[0].removeprefix("/v1/").split("/")
        try:
            with self.server.behind() as catalog:
                status, text = 200, ask(catalog, path)
        except Exception as error:
            status = _STATUS.get(type(error), 500)
            said = {"message": str(error), "type": type(error).__name__, "code": status}
            text = json.dumps({"error": said})
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def _response(table: Table) -> str:
    said = TableResponse(metadata=table.metadata, metadata_location=table.metadata_location)
    return said.model_dump_json(by_alias=True)


@contextmanager
def serving(warehouse: Path) -> Iterator[RestCatalog]:
    with RestCatalog(warehouse) as catalog:
        thread = Thread(target=catalog.serve_forever)
        thread.start()
        try:
            yield catalog
        finally:
            catalog.shutdown()
            thread.join()
