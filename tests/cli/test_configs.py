"""`suwi configs`."""

import re
from collections.abc import Iterator

import pytest

from suwi.testing import Cluster
from tests.cli.support import Suwi


@pytest.fixture
def _brokers_as_before(suwi: Suwi) -> Iterator[None]:
    yield
    for name in ("all", "0"):
        suwi.ok("configs", "unset", "broker", name, "log.retention.ms")


def test_a_topics_settings_are_set_shown_and_unset(suwi: Suwi, topic: str) -> None:
    assert suwi.ok("configs", "describe", "topic", topic).startswith(
        f"nothing is set for topic {topic}"
    )
    said = suwi.ok("configs", "set", "topic", topic, "retention.ms=1000", "segment.ms=2000")
    assert said.splitlines()[0] == f"changed topic {topic}: retention.ms=1000"
    shown = suwi.ok("configs", "describe", "topic", topic)
    assert re.search(r"^retention.ms +1000 +topic$", shown, re.MULTILINE)
    suwi.ok("configs", "unset", "topic", topic, "retention.ms")
    (left,) = suwi.json("configs", "describe", "topic", topic)
    assert (left["key"], left["value"], left["source"]) == ("segment.ms", "2000", "topic")


def test_all_keys_are_shown_with_all(suwi: Suwi, topic: str) -> None:
    shown = suwi.ok("configs", "describe", "topic", topic, "--all")
    assert re.search(r"^cleanup.policy +delete +default$", shown, re.MULTILINE)
    assert len(suwi.json("configs", "describe", "topic", topic, "--all")) > 20


def test_a_key_is_explained_with_the_sources_of_its_value(suwi: Suwi, topic: str) -> None:
    suwi.ok("configs", "set", "topic", topic, "segment.bytes=5000")
    shown = suwi.ok("configs", "describe", "topic", topic, "segment.bytes").splitlines()
    assert shown[0] == "segment.bytes = 5000"
    assert "rolled" in shown[1]
    assert shown[2:] == [
        "  from topic: segment.bytes=5000",
        "  from default: log.segment.bytes=1073741824",
    ]


@pytest.mark.usefixtures("_brokers_as_before")
def test_brokers_are_configured_one_by_one_or_all(suwi: Suwi, topic: str) -> None:
    suwi.ok("configs", "set", "broker", "all", "log.retention.ms=5000")
    suwi.ok("configs", "set", "broker", 0, "log.retention.ms=6000")
    (everywhere,) = suwi.json("configs", "describe", "broker", "all")
    assert (everywhere["value"], everywhere["source"]) == ("5000", "all brokers")
    here = {s["key"]: s for s in suwi.json("configs", "describe", "broker", 0)}
    assert (here["log.retention.ms"]["value"], here["log.retention.ms"]["source"]) == (
        "6000",
        "broker",
    )
    assert here["log.dirs"]["source"] == "at start"
    (key,) = suwi.json("configs", "describe", "topic", topic, "retention.ms")
    assert key["value"] == "6000"


def test_a_dry_run_changes_nothing(suwi: Suwi, topic: str) -> None:
    said = suwi.ok("configs", "set", "topic", topic, "retention.ms=1", "--dry-run")
    assert said == f"would change topic {topic}: retention.ms=1\n"
    assert suwi.json("configs", "describe", "topic", topic) == []


def test_errors_say_what_is_allowed(suwi: Suwi, topic: str) -> None:
    of = ["topic", topic]
    assert "allowed: a whole number" in suwi.refusal("configs", "set", *of, "retention.ms=x")
    assert "'no.such'" in suwi.refusal("configs", "set", *of, "no.such=1")
    for verb in ("describe", "unset"):
        message = suwi.refusal("configs", verb, *of, "retention.msec")
        assert message.endswith("did you mean 'retention.ms'?")
    assert (
        suwi.refusal("configs", "describe", "broker", 7) == "there is no broker 7; live brokers: 0"
    )
    assert "while running" in suwi.refusal("configs", "set", "broker", 0, "log.dirs=/x")


def test_keys_of_all_brokers_are_known_while_one_does_not_respond() -> None:
    with Cluster(brokers=2, session_timeout_s=60) as cluster:
        cluster.wait_until_healthy()
        cluster.kill(1)
        suwi = Suwi(cluster.address(2))
        said = suwi.ok("configs", "unset", "broker", "all", "log.retention.ms")
        assert said == "changed all brokers: log.retention.ms unset\n"
