"""Apache Kafka's `VerifiableProducer` and `VerifiableConsumer`, of its system tests, while brokers
are restarted one after another and partitions move: three processes on ZooKeeper."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from compat.directories import wait_until
from compat.kafka import JavaProcess
from compat.test_reassignment import REASSIGN, TOPICS, kafka
from suwi.local_cluster.cluster import LocalCluster

PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
PER_SECOND = 200
PARTITIONS = 3
CALM_S = 2
MOVES = 3


class Verifiable:
    """One of the two tools; it prints an event as JSON on each line."""

    def __init__(self, output: Path, tool: str, cluster: LocalCluster, *arguments: str) -> None:
        servers = ("--bootstrap-server", cluster.bootstrap_servers)
        self.process = JavaProcess(output, tool, *servers, *arguments)

    def events(self, *names: str) -> Iterator[dict[str, Any]]:
        whole, _, _ = self.process.output.read_text().rpartition("\n")
        for line in whole.splitlines():
            if line.startswith("{"):
                event = json.loads(line)
                if event["name"] in names:
                    yield event

    def is_up(self) -> bool:
        self.process.check()
        return any(self.events("startup_complete"))


class Pair:
    """Two producers and two consumers of one topic.

    The first producer is as the tool has it: it does not retry. The second is idempotent.
    """

    def __init__(
        self, cluster: LocalCluster, topic: str, directory: Path, protocol: str, stack: ExitStack
    ) -> None:
        def run(name: str, tool: str, *arguments: str) -> Verifiable:
            of_topic = ("--topic", topic, *arguments)
            tools = Verifiable(directory / f"{name}.out", tool, cluster, *of_topic)
            stack.enter_context(tools.process)
            return tools

        retrying = directory / "producer.properties"
        retrying.write_text("enable.idempotence=true\nretries=1000000\n")
        group = ("--verbose", "--group-id", topic, "--group-protocol", protocol)
        rate = ("--throughput", str(PER_SECOND), "--value-prefix")
        self.consumers = [run(f"consumer-{n}", CONSUMER, *group) for n in (1, 2)]
        wait_until(self._all_assigned, "both consumers to have partitions")
        self.plain = run("plain", PRODUCER, *rate, "1")
        self.idempotent = run("idempotent", PRODUCER, *rate, "2", "--command-config", str(retrying))
        self.producers = [self.plain, self.idempotent]
        wait_until(lambda: all(each.is_up() for each in self.producers), "the producers")

    def _all_assigned(self) -> bool:
        held = [_partitions(consumer) for consumer in self.consumers]
        return all(held) and sum(map(len, held)) == PARTITIONS

    def assignments(self) -> list[int]:
        return [len(list(each.events("partitions_assigned"))) for each in self.consumers]

    def acknowledged(self) -> dict[tuple[int, int], str]:
        """The value that was acknowledged at each partition and offset."""
        return {
            (event["partition"], event["offset"]): event["value"]
            for producer in self.producers
            for event in producer.events("producer_send_success")
        }

    def consumed(self) -> dict[tuple[int, int], str]:
        found: dict[tuple[int, int], str] = {}
        for consumer in self.consumers:
            for event in consumer.events("record_data"):
                at = (event["partition"], event["offset"])
                assert found.setdefault(at, event["value"]) == event["value"], at
        return found

    def stop_and_check(self) -> None:
        for producer in self.producers:
            producer.process.stop()
        acknowledged = self.acknowledged()
        wait_until(
            lambda: acknowledged.keys() <= self.consumed().keys(), "the consumers to read the rest"
        )
        for consumer in self.consumers:
            consumer.process.stop()
            assert any(consumer.events("shutdown_complete"))
        consumed = self.consumed()
        assert {at: consumed[at] for at in acknowledged} == acknowledged
        for partition in range(PARTITIONS):
            offsets = sorted(offset for index, offset in consumed if index == partition)
            assert offsets == list(range(len(offsets)))
        self._check_told(acknowledged)
        # What the idempotent producer sent is there once, and nothing of it failed.
        once = Counter(value for value in consumed.values() if value.startswith("2."))
        assert set(once.values()) == {1}
        failed = list(self.idempotent.events("producer_send_error"))
        assert all("has been closed" in event["message"] for event in failed), failed

    def _check_told(self, acknowledged: dict[tuple[int, int], str]) -> None:
        """The tools count as we do."""
        told = [next(each.events("tool_data")) for each in self.producers]
        assert sum(data["acked"] for data in told) == len(acknowledged)
        assert len(acknowledged) > PER_SECOND * CALM_S
        counts = (event["count"] for c in self.consumers for event in c.events("records_consumed"))
        assert sum(counts) >= len(acknowledged)


def _partitions(consumer: Verifiable) -> set[int]:
    """What it has: with the consumer protocol an event names only what has changed."""
    held: set[int] = set()
    for event in consumer.events("partitions_assigned", "partitions_revoked"):
        named = {each["partition"] for each in event["partitions"]}
        held = held | named if event["name"] == "partitions_assigned" else held - named
    return held


def through(
    disturb: Callable[[Pair], None],
    cluster: LocalCluster,
    topic: str,
    directory: Path,
    protocol: str,
) -> None:
    with ExitStack() as stack:
        pair = Pair(cluster, topic, directory, protocol, stack)
        time.sleep(CALM_S)
        disturb(pair)
        time.sleep(CALM_S)
        pair.stop_and_check()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_every_acknowledged_record_is_consumed_through_a_rolling_restart(
    cluster: LocalCluster, topic: str, tmp_path: Path, protocol: str
) -> None:
    described = ("--partitions", str(PARTITIONS), "--replication-factor", "3")
    kafka(cluster, TOPICS, "--create", "--topic", topic, *described)

    def roll(pair: Pair) -> None:
        before = pair.assignments()
        cluster.roll()
        assert pair.assignments() == before  # the members stay, whoever coordinates them

    through(roll, cluster, topic, tmp_path, protocol)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_every_acknowledged_record_is_consumed_through_a_reassignment(
    cluster: LocalCluster, topic: str, tmp_path: Path, protocol: str
) -> None:
    """Each partition gets another leader and another pair of brokers, several times."""
    pairs = [(1, 2), (2, 3), (3, 1)]
    assignment = ",".join(f"{leader}:{follower}" for leader, follower in pairs)
    kafka(cluster, TOPICS, "--create", "--topic", topic, "--replica-assignment", assignment)

    def reassign(_: Pair) -> None:
        for turn in range(1, MOVES + 1):
            moved = [
                {"topic": topic, "partition": at, "replicas": pairs[(at + turn) % len(pairs)]}
                for at in range(PARTITIONS)
            ]
            plan = tmp_path / f"plan-{turn}.json"
            plan.write_text(json.dumps({"version": 1, "partitions": moved}))
            of_plan = ("--reassignment-json-file", str(plan))
            executed = kafka(cluster, REASSIGN, "--execute", *of_plan)
            assert "Successfully started partition reassignments" in executed

            def is_complete(of_plan: tuple[str, str] = of_plan) -> bool:
                verified = kafka(cluster, REASSIGN, "--verify", *of_plan)
                return verified.count("is completed") == PARTITIONS

            wait_until(is_complete, "the reassignment")

    through(reassign, cluster, topic, tmp_path, protocol)
