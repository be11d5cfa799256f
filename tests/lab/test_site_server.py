"""The site of the lab, served: scenarios are played when asked for, for this machine only."""

import http.client
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from threading import Thread

import pytest

from suwi.lab import events
from suwi.lab.site_server import Pages, serving
from tests.cli.support import Suwi


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(Pages({})) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def ask(port: int, path: str, host: str | None = None) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_a_scenario_is_played_when_it_is_asked_for(port: int) -> None:
    answer, index = ask(port, "/")
    assert answer.status == 200
    assert 'href="zombie-producer.html"' in index
    answer, page = ask(port, "/zombie-producer.play.ko.html?x")
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    assert 'lang="ko"' in page
    answer, script = ask(port, "/recordings/zombie-producer.instead-1.js")
    assert "javascript" in str(answer.getheader("Content-Type"))
    assert "INVALID_PRODUCER_EPOCH" in script


def test_pages_may_load_nothing_from_outside(port: int) -> None:
    answer, _ = ask(port, "/index.html")
    policy = str(answer.getheader("Content-Security-Policy"))
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    "path", ["/nothing.html", "/kip-101", "/../pyproject.toml", "/recordings/"]
)
def test_what_is_not_there_is_not_found(port: int, path: str) -> None:
    answer, text = ask(port, path)
    assert (answer.status, text) == (404, "not found\n")


def test_a_name_of_others_that_leads_here_gets_nothing(port: int) -> None:
    answer, _ = ask(port, "/index.html", host=f"attacker.example:{port}")
    assert answer.status == 404


def test_the_command_prints_where_the_pages_are_until_it_is_interrupted(tmp_path: Path) -> None:
    happened = [events.Violation(at_s=1, what="lost")]
    for name in ("kip-101", "a b"):
        lines = events.write(events.Recording("seed 1", 3, happened))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    files = (tmp_path / "kip-101.jsonl", tmp_path / "a b.jsonl")
    process = Suwi("").start("lab", "serve", *files, "--port", 0, "--lang", "ko", stdout=PIPE)
    assert process.stdout is not None
    lines = [process.stdout.readline().decode().strip() for _ in range(4)]
    address = lines[0].removesuffix("index.ko.html")
    pages = ("index", "kip-101-2.play", "a-b.play", "kip-101-2.beside.play")
    assert lines == [f"{address}{page}.ko.html" for page in pages]
    for line in lines:
        answer, _ = ask(
            int(address.rstrip("/").rpartition(":")[2]), line.removeprefix(address[:-1])
        )
        assert answer.status == 200
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    process.stdout.close()


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text("[]\n")
    assert "run.jsonl, line 1: this is no JSON object" in Suwi("").refusal("lab", "serve", file)
