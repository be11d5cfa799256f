"""Bytes that change and files that disappear on real disks, under a real client."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from suwi.testing import Cluster
from tests.cli.support import Suwi
from tests.testing.clients import send, until

TOPIC = "orders"
VALUES = [f"{number:0200d}" for number in range(40)]
SETTINGS: dict[str, Any] = {
    "log.scrubber.io.max.bytes.per.second": 1_000_000,
    "log.scrubber.interval.ms": 200,
    "auto.leader.rebalance.enable": "false",
}
CONFIG: dict[str, Any] = {"segment.bytes": 1024}


def fill(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC, configs=CONFIG)
    for value in VALUES:
        send(cluster.bootstrap_servers, TOPIC, value)


def segments(cluster: Cluster, broker: int) -> list[Path]:
    return sorted((cluster.files(broker) / f"{TOPIC}-0").glob("*.log"))


def content(cluster: Cluster, broker: int) -> bytes:
    try:
        return b"".join(path.read_bytes() for path in segments(cluster, broker))
    except FileNotFoundError:
        return b""  # The log is being discarded.


def damage(cluster: Cluster, broker: int) -> int:
    """Change a byte of a record in a closed segment. Returns the record's offset."""
    path = segments(cluster, broker)[1]
    offset = int(path.stem) + 1
    position = path.read_bytes().index(VALUES[offset].encode())
    with path.open("r+b") as file:
        file.seek(position)
        file.write(b"?")
    return offset


def consume(servers: str, first: int, end: int) -> list[str]:
    """The values from an offset up to another one, and what a consumer gets after them."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, 0, first)])
    values: list[str] = []

    def poll(timeout_s: float) -> None:
        message = consumer.poll(timeout_s)
        if message is not None and message.error() is None:
            values.append(message.value().decode())

    def has_all() -> bool:
        poll(0.2)
        return len(values) >= end - first

    try:
        until(has_all, lambda: f"{len(values)} records were read")
        poll(1.0)
    finally:
        consumer.close()
    return values


def problems(cluster: Cluster) -> str:
    result = Suwi(cluster.bootstrap_servers)("status")
    assert result.exit_code != 0 or "damaged batch" not in result.output
    return result.output


def test_one_broker_refuses_only_the_damaged_record_and_says_so() -> None:
    with Cluster(brokers=1, settings=SETTINGS) as cluster:
        fill(cluster)
        bad = damage(cluster, 1)
        place = f"orders-0 offsets {bad}-{bad}: damaged batch"
        until(lambda: place in problems(cluster), lambda: problems(cluster))
        assert consume(cluster.bootstrap_servers, 0, bad) == VALUES[:bad]
        after = consume(cluster.bootstrap_servers, bad + 1, len(VALUES))
        assert after == VALUES[bad + 1 :]


def test_a_consumer_that_seeks_behind_the_damage_reads_the_rest_after_an_unclean_restart() -> None:
    """librdkafka takes the error for one that passes: it asks again, and its user hears nothing."""
    with Cluster(brokers=1) as cluster:
        fill(cluster)
        cluster.kill(1)
        (cluster.files(1) / f"{TOPIC}-0" / "leader-epoch-checkpoint").unlink()  # All is read again.
        bad = damage(cluster, 1)
        cluster.restart(1)
        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "log_level": 0}
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        values: list[str] = []

        def has_read(end: int) -> bool:
            message = consumer.poll(0.2)
            if message is not None:
                assert message.error() is None
                values.append(message.value().decode())
            return len(values) >= end

        try:
            until(lambda: has_read(bad), lambda: f"{len(values)} records were read")
            for _ in range(10):
                assert not has_read(bad + 1), "the damaged record is not skipped silently"
            place = f"orders-0 offsets {bad}-{bad}: damaged batch"
            until(lambda: place in problems(cluster), lambda: problems(cluster))
            consumer.seek(TopicPartition(TOPIC, 0, bad + 1))
            until(lambda: has_read(len(VALUES) - 1), lambda: f"{len(values)} records were read")
        finally:
            consumer.close()
        assert values == VALUES[:bad] + VALUES[bad + 1 :]


def test_one_broker_notices_a_missing_segment_when_the_log_is_opened() -> None:
    with Cluster(brokers=1) as cluster:
        fill(cluster)
        cluster.stop_broker(1)
        before, gone, after = segments(cluster, 1)[1:4]
        for path in cluster.files(1).glob(f"{TOPIC}-0/{gone.stem}.*"):
            if path.suffix != ".snapshot":
                path.unlink()
        cluster.restart(1)
        first, end = int(gone.stem), int(after.stem)
        values = consume(cluster.bootstrap_servers, int(before.stem), first)
        assert values == VALUES[int(before.stem) : first], "records are not skipped silently"
        place = f"orders-0 offsets {first}-{end - 1}: damaged batch"
        until(lambda: place in problems(cluster), lambda: problems(cluster))
        assert consume(cluster.bootstrap_servers, end, len(VALUES)) == VALUES[end:]


@pytest.mark.slow
def test_three_brokers_replace_a_damaged_follower_and_a_damaged_leader() -> None:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        fill(cluster)
        leader = cluster.wait_leader(TOPIC)
        follower = next(broker for broker in cluster.brokers if broker != leader)
        for broker in (follower, leader):
            cluster.wait_isr(TOPIC, 0, {1, 2, 3})
            whole = content(cluster, next(b for b in cluster.brokers if b != broker))
            damage(cluster, broker)
            assert content(cluster, broker) != whole

            def is_whole(broker: int = broker, whole: bytes = whole) -> bool:
                return content(cluster, broker) == whole

            until(is_whole, lambda: problems(cluster))
            cluster.wait_isr(TOPIC, 0, {1, 2, 3})
            assert consume(cluster.bootstrap_servers, 0, len(VALUES)) == VALUES
        assert cluster.wait_leader(TOPIC) != leader
        until(lambda: "damaged" not in problems(cluster), lambda: problems(cluster))
