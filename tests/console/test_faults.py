"""Faults through the console: only where it was started with --faults, each a line in the log."""

import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from suwi.client.addresses import parse_addresses
from suwi.console.clusters import Breakable, ClusterAddress
from suwi.local_cluster.cluster import ClusterError
from suwi.local_cluster.layout import Cut
from tests.broker_process import BrokerProcess
from tests.console.support import Answer, Browser, ConsoleThread


class Breaker:
    """In the place of a cluster: remembers what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def kill(self, name: str) -> None:
        if name == "broker-9":
            raise ClusterError("broker-9 does not run")
        self.asked.append(("kill", name))

    def restart(self, name: str) -> None:
        self.asked.append(("restart", name))

    def pause(self, name: str) -> None:
        self.asked.append(("pause", name))

    def resume(self, name: str) -> None:
        self.asked.append(("resume", name))

    def isolate(self, broker: int) -> None:
        self.asked.append(("isolate", broker))

    def cut(self, pairs: Iterable[Cut], *, one_way: bool = False) -> None:
        self.asked.append(("cut", *pairs, one_way))

    def slow(self, broker: int) -> None:
        self.asked.append(("slow", broker))

    def heal(self) -> None:
        self.asked.append(("heal",))


@pytest.fixture(scope="module")
def breaker() -> Breaker:
    return Breaker()


@pytest.fixture(scope="module")
def breaking_console(
    broker: BrokerProcess, static: Path, breaker: Breaker
) -> Iterator[ConsoleThread]:
    address = ClusterAddress(
        "local",
        parse_addresses(broker.address),
        None,
        ("--broker", broker.address),
        breakable=Breakable(breaker, "my cluster"),
    )
    with ConsoleThread(static, [address]) as console:
        yield console


@pytest.fixture
def saboteur(breaking_console: ConsoleThread, breaker: Breaker) -> Browser:
    breaker.asked.clear()
    return Browser(breaking_console).log_in(breaking_console)


def path(fault: str) -> str:
    return f"/api/clusters/local/faults/{fault}"


def cause(browser: Browser, fault: str, **values: object) -> Answer:
    return browser.post(path(fault), {"values": values, "is_preview": False})


@pytest.mark.parametrize(
    ("fault", "values", "asked", "command"),
    [
        ("kill", {"broker": 1}, ("kill", "broker-1"), "kill 1"),
        ("restart", {"broker": 1}, ("restart", "broker-1"), "restart 1"),
        ("pause", {"broker": 2}, ("pause", "broker-2"), "pause 2"),
        ("resume", {"broker": 2}, ("resume", "broker-2"), "resume 2"),
        ("isolate", {"broker": 3}, ("isolate", 3), "isolate 3"),
        ("slow", {"broker": 3}, ("slow", 3), "slow 3"),
        (
            "cut",
            {"broker": 1, "other": 2, "one_way": True},
            ("cut", ("1", "2"), True),
            "cut 1 2 --one-way",
        ),
        (
            "cut",
            {"broker": 1, "other": 2, "one_way": False},
            ("cut", ("1", "2"), False),
            "cut 1 2",
        ),
        ("heal", {"links": "all"}, ("heal",), "heal"),
    ],
)
def test_a_fault_is_caused_and_is_a_line_in_the_log(
    saboteur: Browser,
    breaker: Breaker,
    caplog: pytest.LogCaptureFixture,
    fault: str,
    values: dict[str, Any],
    asked: tuple[object, ...],
    command: str,
) -> None:
    caplog.set_level(logging.INFO, "suwi.console.audit")
    answer = cause(saboteur, fault, **values)
    assert answer.status == 200, answer.body
    assert breaker.asked == [asked]
    (line,) = [json.loads(r.message) for r in caplog.records if r.name == "suwi.console.audit"]
    assert (line["change"], line["who"], line["outcome"]) == (fault, "token", "done")
    assert line["text"] == answer.json()["text"]
    preview = saboteur.post(path(fault), {"values": values, "is_preview": True}).json()
    assert preview["command"] == f"suwi cluster {command} --data 'my cluster'"
    assert breaker.asked == [asked]


def test_what_cannot_be_done_is_said_and_is_a_line_too(
    saboteur: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "suwi.console.audit")
    answer = cause(saboteur, "kill", broker=9)
    assert (answer.status, answer.json()["text"]) == (409, "broker-9 does not run")
    (line,) = [json.loads(r.message) for r in caplog.records if r.name == "suwi.console.audit"]
    assert (line["on"], line["outcome"]) == (9, "failed")


def test_full_disks_power_losses_and_holds_are_for_brokers_of_one_process(
    saboteur: Browser,
) -> None:
    for fault in ("power-loss", "fill-disk", "free-disk", "hold"):
        values: dict[str, object] = {"links": "all"} if fault == "hold" else {"broker": 1}
        answer = cause(saboteur, fault, **values)
        assert answer.status == 409
        assert "suwi serve --brokers N --faults" in answer.json()["text"]


def test_without_faults_a_console_breaks_nothing(browser: Browser, editor: Browser) -> None:
    for each in (browser, editor):  # the second may change something
        answer = cause(each, "kill", broker=1)
        assert (answer.status, answer.json()["kind"]) == (403, "forbidden")
        assert "--faults" in answer.json()["text"]
        assert not any(each.get("/api/clusters").json()["faults"].values())


def test_only_the_pages_of_the_console_itself_break_something(
    saboteur: Browser, breaking_console: ConsoleThread, breaker: Breaker
) -> None:
    body = json.dumps({"values": {"broker": 1}, "is_preview": False}).encode()
    stranger = Browser(breaking_console)
    own = {"Origin": breaking_console.origin}
    assert cause(stranger, "kill", broker=1).status == 401
    assert saboteur.send("POST", path("kill"), headers=own, body=body).status == 403
    other = cause_from(saboteur, "http://example.com")
    assert other.status == 403
    assert saboteur.get(path("kill")).status in (404, 405)
    assert breaker.asked == []
    (told,) = saboteur.get("/api/clusters").json()["faults"].values()
    assert "kill" in told
    assert "power-loss" not in told


def cause_from(browser: Browser, origin: str) -> Answer:
    return browser.post(path("kill"), {"values": {"broker": 1}, "is_preview": False}, Origin=origin)
