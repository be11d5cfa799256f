"""Preferred leaders, moves of replicas and drains, on three brokers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from suwi.client.addresses import parse_addresses
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster as Client
from suwi.env import local_env
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.testing import Cluster
from tests.console.support import Browser, ConsoleThread
from tests.testing.clients import send, until

TOPIC = "water"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, session_timeout_s=60) as running:
        yield running


@pytest.fixture(scope="module")
def editor(cluster: Cluster, static: Path) -> Iterator[Browser]:
    address = cluster.bootstrap_servers
    with ConsoleThread(static, allow_changes=True, local=address) as console:
        editor = Browser(console).log_in(console)
        values = {"topic": TOPIC, "partitions": 3, "replication_factor": 2, "configs": {}}
        editor.change("create-topic", **values)
        send(address, TOPIC, "a", "b")
        yield editor


def replicas(cluster: Cluster) -> list[list[int]]:
    """As another client sees them."""
    outside = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    partitions = outside.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions
    return [partitions[index].replicas for index in sorted(partitions)]


def leaders(cluster: Cluster) -> list[int]:
    outside = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    partitions = outside.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions
    return [partitions[index].leader for index in sorted(partitions)]


def test_replicas_are_moved_as_planned(cluster: Cluster, editor: Browser) -> None:
    before = replicas(cluster)[0]
    (other,) = {1, 2, 3} - set(before)
    target = [other, before[0]]
    values = {"topic": TOPIC, "partition": 0, "replicas": target}
    shown = editor.preview("move-replicas", **values)
    assert shown["rows"][0]["after"] == ", ".join(map(str, target))
    assert shown["command"].startswith(f"suwi topics move {TOPIC} 0 --to {other},")
    editor.change("move-replicas", **values)
    until(lambda: replicas(cluster)[0] == target)
    until(lambda: editor.page("reassignments")["rows"] == [])


def test_a_plan_that_is_no_longer_what_was_shown_is_refused(
    cluster: Cluster, editor: Browser
) -> None:
    values = {"topic": TOPIC, "partition": 0, "replicas": replicas(cluster)[0][::-1]}
    order = {"values": values, "is_preview": False, "seen": "of something else"}
    answer = editor.order("move-replicas", order)
    assert (answer.status, answer.json()["kind"]) == (409, "refused")
    assert "look at it again" in answer.json()["text"]


@pytest.mark.parametrize("target", [[], [1, 1], [9]])
def test_brokers_that_make_no_sense_are_refused(editor: Browser, target: list[int]) -> None:
    text, _ = editor.refusal("move-replicas", topic=TOPIC, partition=0, replicas=target)
    assert "broker" in text


def test_the_preferred_leaders_are_elected(cluster: Cluster, editor: Browser) -> None:
    target = replicas(cluster)[1][::-1]
    editor.change("move-replicas", topic=TOPIC, partition=1, replicas=target)
    until(lambda: replicas(cluster)[1] == target)
    until(lambda: editor.page("reassignments")["rows"] == [])
    if leaders(cluster)[1] != target[0]:
        editor.change("elect-leaders", topic=TOPIC)
    until(lambda: leaders(cluster)[1] == target[0])
    until(lambda: "preferred leader already" in editor.refusal("elect-leaders", topic=TOPIC)[0])


def test_a_broker_is_drained_as_planned(cluster: Cluster, editor: Browser) -> None:
    shown = editor.preview("drain-broker", broker=3)
    assert shown["command"].startswith("suwi cluster drain 3 ")
    assert all("3" not in row["after"].split(", ") for row in shown["rows"])
    editor.change("drain-broker", broker=3)
    until(lambda: all(3 not in nodes for nodes in replicas(cluster)))
    until(lambda: editor.page("reassignments")["rows"] == [])
    assert "no partition has a replica" in editor.refusal("drain-broker", broker=9)[0]


def test_a_reassignment_that_waits_is_shown_and_can_be_cancelled(
    cluster: Cluster, editor: Browser
) -> None:
    """A broker that was drained stops; the reassignment to it waits."""
    gone = next(broker for broker in (3, 2) if broker != cluster.controller())
    if any(gone in nodes for nodes in replicas(cluster)):
        editor.change("drain-broker", broker=gone)
        until(lambda: all(gone not in nodes for nodes in replicas(cluster)))
        until(lambda: editor.page("reassignments")["rows"] == [])
    place = {"topic": TOPIC, "partition": 0}
    assert "not being reassigned" in editor.refusal("cancel-reassignment", **place)[0]
    cluster.kill(gone)
    before = replicas(cluster)[0]

    async def reassign() -> None:
        addresses = parse_addresses(cluster.bootstrap_servers)
        async with Client(addresses, random=local_env().random) as client:
            await Admin(client).reassign(
                {TopicPartition(TOPIC, PartitionIndex(0)): (*before, gone)}
            )

    asyncio.run(reassign())
    (row,) = editor.page("reassignments")["rows"]
    assert (row["topic"], row["partition"], row["adding"]) == (TOPIC, 0, [gone])
    editor.change("cancel-reassignment", **place)
    until(lambda: editor.page("reassignments")["rows"] == [])
    until(lambda: replicas(cluster)[0] == before)
