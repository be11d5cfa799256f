"""`suwi console` as people start and stop it."""

import http.client
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from suwi.console.access import CHANGE_HEADER
from suwi.console.server import STATIC
from tests.broker_process import COMMAND, unique_name
from tests.cli.support import Suwi

PATIENCE_S = 120

needs_pages = pytest.mark.skipif(
    not Path(STATIC, "index.html").exists(), reason="the pages of the console are not built"
)


@contextmanager
def started(suwi: Suwi, *arguments: object) -> "Iterator[tuple[subprocess.Popen[bytes], str]]":
    """The process, and the address that it printed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with suwi.start(*arguments, **pipes) as process:
        try:
            assert process.stdout is not None
            seen = b""
            while (found := re.search(rb"console at +(https?://\S+)\n", seen)) is None:
                line = process.stdout.readline()
                assert line, seen
                seen += line
            yield process, found[1].decode()
        finally:
            process.kill()


def log_in(address: str) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    connection.request("GET", f"/?{parts.query}")
    with connection.getresponse() as response:
        cookie = response.getheader("set-cookie") or ""
        response.read()
    return connection, {"Cookie": cookie.partition(";")[0]}


@needs_pages
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_at_once_even_while_a_page_is_open(suwi: Suwi, number: signal.Signals) -> None:
    with started(suwi, "console", "--port", 0) as (process, address):
        connection, headers = log_in(address)
        live = {**headers, "Accept": "text/event-stream"}
        connection.request("GET", "/api/clusters/cluster/overview", headers=live)
        response = connection.getresponse()
        assert any(line == b"event: page\n" for line in response)
        process.send_signal(number)
        rest, _ = process.communicate(timeout=PATIENCE_S)
        response.close()
        connection.close()
    assert rest == b""
    assert process.returncode == (0 if number == signal.SIGINT else -number)


@needs_pages
def test_it_opens_the_browser(suwi: Suwi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    os.mkfifo(opened)
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    with started(suwi, "console", "--port", 0, "--open") as (_, address):
        assert opened.read_text().strip() == address


@needs_pages
def test_several_clusters_come_from_a_file(suwi: Suwi, tmp_path: Path) -> None:
    file = tmp_path / "clusters.toml"
    file.write_text(f'[here]\nbroker = "{suwi.broker}"\n[there]\nbroker = "127.0.0.1:1"\n')
    with started(suwi, "console", "--port", 0, "--clusters", file) as (_, address):
        connection, headers = log_in(address)
        connection.request("GET", "/api/clusters", headers=headers)
        with connection.getresponse() as response:
            assert b'"clusters":["here","there"]' in response.read()
        connection.close()


@pytest.mark.parametrize("name", ["a/b", "..", "", "a\\n"])
def test_a_name_that_cannot_be_in_an_address_is_refused(
    suwi: Suwi, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "clusters.toml"
    file.write_text(f'["{name}"]\nbroker = "{suwi.broker}"\n')
    assert "cannot be the name" in suwi.misuse("console", "--clusters", file)


@pytest.mark.parametrize("text", ["x", "", "[a]", "[a]\nbroker = 1", "[a]\nbroker = ''\nb = ''"])
def test_a_file_that_names_no_clusters_is_refused(suwi: Suwi, tmp_path: Path, text: str) -> None:
    file = tmp_path / "clusters.toml"
    file.write_text(text)
    assert "clusters.toml" in suwi.misuse("console", "--clusters", file)


def test_a_registry_that_has_no_address_is_refused(suwi: Suwi, tmp_path: Path) -> None:
    assert "http://" in suwi.misuse("console", "--schema-registry", "somewhere")
    file = tmp_path / "clusters.toml"
    file.write_text(f'[a]\nbroker = "{suwi.broker}"\nschema-registry = "somewhere"\n')
    assert "http://" in suwi.misuse("console", "--clusters", file)


@needs_pages
def test_serve_starts_it_and_stops_it(suwi: Suwi, tmp_path: Path) -> None:
    options = ("--listen", "127.0.0.1:0", "--data", tmp_path / "data", "--console")
    with started(suwi, "serve", *options) as (process, address):
        connection, _ = log_in(address)
        connection.close()
        process.terminate()
        rest, _ = process.communicate(timeout=PATIENCE_S)
        assert b"stopped cleanly" in rest
        assert process.returncode == 0
    with pytest.raises(ConnectionRefusedError):
        log_in(address)


def test_a_port_that_is_taken_is_named(suwi: Suwi, console: object) -> None:
    port = console.port  # type: ignore[attr-defined]
    done = subprocess.run(
        [*COMMAND, "console", "--port", str(port)],
        env=suwi.environment(),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert b"choose another port with --port" in done.stderr


@needs_pages
@pytest.mark.parametrize("is_serve", [False, True])
def test_changes_are_allowed_by_an_option_and_logged_as_json(
    suwi: Suwi, tmp_path: Path, is_serve: bool
) -> None:
    serve = ("serve", "--listen", "127.0.0.1:0", "--data", tmp_path / "data", "--console")
    command = serve if is_serve else ("console", "--port", 0)
    with started(suwi, *command, "--allow-changes") as (process, address):
        connection, headers = log_in(address)
        sent = {**headers, "Origin": address.partition("/?")[0], CHANGE_HEADER: "1"}

        def created() -> tuple[str, int]:
            """A new topic, and the status of its creation: 503 if the broker got no CPU."""
            topic = unique_name("logged")
            values = {"topic": topic, "partitions": 1, "replication_factor": 1, "configs": {}}
            body = json.dumps({"values": values, "is_preview": False})
            connection.request("POST", "/api/clusters/cluster/changes/create-topic", body, sent)
            with connection.getresponse() as response:
                said = json.load(response)
                assert response.status == 503 or said == {"text": f"created {topic}"}
                return topic, response.status

        topic, status = created()
        while status == 503:
            topic, status = created()
        connection.close()
        process.terminate()
        rest, _ = process.communicate(timeout=PATIENCE_S)
    *_, line = [json.loads(each) for each in rest.splitlines() if each.startswith(b"{")]
    assert (line["change"], line["on"], line["outcome"]) == ("create-topic", topic, "done")


def test_changes_are_allowed_only_to_a_console(suwi: Suwi, tmp_path: Path) -> None:
    assert "--console" in suwi.refusal("serve", "--data", tmp_path / "data", "--allow-changes")
    assert "--console" in suwi.misuse("cluster", "start", "--data", tmp_path, "--allow-changes")
