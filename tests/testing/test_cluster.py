"""The public API of the test kit."""

import asyncio
import gc
import json
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from suwi.broker.broker import Broker
from suwi.model.errors import TopicAlreadyExists
from suwi.replica.leader_state import Shrinking
from suwi.replica.log_manager import LogManager
from suwi.testing import Cluster, NotInTime

PATIENCE_S = 120


def send(bootstrap_servers: str, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0


def read(bootstrap_servers: str, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found = []
        while len(found) < count:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            assert message.error() is None, message.error()
            found.append(message.value().decode())
        return found
    finally:
        consumer.close()


def test_three_brokers_replicate_records(cluster: Cluster) -> None:
    send(cluster.bootstrap_servers, "water", "high", "low")
    assert read(cluster.bootstrap_servers, "water", 2) == ["high", "low"]
    cluster.wait_until_healthy()
    states = cluster.replicas("water")
    assert {node: state.log_end for node, state in states.items()} == {1: 2, 2: 2, 3: 2}
    assert sorted(state.role for state in states.values()) == ["follower", "follower", "leader"]
    logs = {(cluster.files(n) / "water-0" / f"{0:020}.log").read_bytes() for n in cluster.brokers}
    assert len(logs) == 1


def wait_for_new_threads(old: set[threading.Thread]) -> None:
    """Until they have ended: that of the metadata store does so by itself."""
    for thread in set(threading.enumerate()) - old:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_no_files_are_left_behind() -> None:
    threads = set(threading.enumerate())
    with Cluster(brokers=2) as cluster:
        files = cluster.files(1)
        assert files.is_dir()
    assert not files.exists()
    wait_for_new_threads(threads)


def test_several_clusters_run_side_by_side() -> None:
    with Cluster(brokers=1) as one, Cluster(brokers=1) as other:
        send(one.bootstrap_servers, "water", "of one")
        send(other.bootstrap_servers, "water", "of the other")
        assert read(one.bootstrap_servers, "water", 1) == ["of one"]
        assert read(other.bootstrap_servers, "water", 1) == ["of the other"]


def test_a_given_directory_is_kept(tmp_path: Path) -> None:
    with Cluster(brokers=2, directory=str(tmp_path)) as cluster:
        send(cluster.bootstrap_servers, "water", "high")
    with Cluster(brokers=2, directory=str(tmp_path)) as cluster:
        assert read(cluster.bootstrap_servers, "water", 1) == ["high"]


def test_settings_have_kafkas_keys() -> None:
    with Cluster(brokers=1, settings={"num.partitions": 4}) as cluster:
        send(cluster.bootstrap_servers, "water", "high")
        assert len(cluster.replicas("water", 3)) == 1


def test_coroutines_can_use_the_same_methods() -> None:
    async def main() -> None:
        async with Cluster(brokers=3) as cluster:
            topic = await cluster.create_topic("water", 2)
            leader = await cluster.wait_leader(topic, 1)
            await cluster.kill(leader)
            await cluster.wait_leader(topic, 1)
            # A client that blocks the test's loop does not block the brokers.
            send(cluster.bootstrap_servers, topic, "high")
            await cluster.restart(leader)
            await cluster.wait_until_healthy()
            assert len(await cluster.replicas(topic, 1)) == 3
            assert await cluster.controller() in cluster.brokers

    asyncio.run(main())


def test_a_restarted_broker_has_its_old_address_and_its_data(cluster: Cluster) -> None:
    topic = cluster.create_topic("water")
    send(cluster.bootstrap_servers, topic, "high")
    address = cluster.address(2)
    cluster.kill(2)
    cluster.restart(2)
    assert cluster.address(2) == address
    cluster.wait_until_healthy()
    assert cluster.replicas(topic)[2].log_end == 1


@pytest.mark.skipif(sys.platform != "linux", reason="ports are reserved on Linux only")
def test_no_other_server_gets_the_port_of_a_killed_broker(cluster: Cluster) -> None:
    cluster.kill(2)
    host, port = cluster.address(2).split(":")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, int(port)))
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect((host, int(port)))


def test_a_broker_that_lost_power_leaves_no_pending_task(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.power_loss(1)
    cluster.restart(1)
    gc.collect()
    assert "Task was destroyed but it is pending" not in caplog.text


def test_the_error_after_a_timeout_describes_the_state(cluster: Cluster) -> None:
    topic = cluster.create_topic("water")
    with pytest.raises(NotInTime, match=r"in-sync replicas \[1\] awaited"):
        cluster.wait_isr(topic, 0, {1}, timeout_s=0.05)
    with pytest.raises(NotInTime, match="no-such-0 does not exist"):
        cluster.wait_leader("no-such", timeout_s=0.05)
    cluster.kill(3)
    with pytest.raises(NotInTime, match="broker 3 is not in service"):
        cluster.wait_until_healthy(timeout_s=0.05)


def test_a_cluster_is_not_healthy_while_a_leader_is_about_to_change_an_isr() -> None:
    async def main() -> None:
        async with Cluster(brokers=2) as cluster:
            topic = await cluster.create_topic("water")
            send(cluster.bootstrap_servers, topic, "high")
            await cluster.wait_until_healthy()
            leader = await cluster.wait_leader(topic)
            replica = cluster._brokers._replica(leader, topic, 0)
            assert replica is not None
            assert replica.leader_state is not None
            members = replica.leader_state.isr.members
            replica.leader_state.isr = Shrinking(members, members - {leader})
            with pytest.raises(NotInTime, match="a fetch of every follower awaited"):
                await cluster.wait_until_healthy(timeout_s=0.05)

    asyncio.run(main())


def test_invalid_calls_raise(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="there is no broker 4"):
        cluster.kill(4)
    cluster.kill(1)
    with pytest.raises(RuntimeError, match="broker 1 is not running"):
        cluster.pause(1)
    cluster.pause(2)
    with pytest.raises(RuntimeError, match="broker 2 is paused: resume it first"):
        cluster.stop_broker(2)
    with pytest.raises(ValueError, match="at least one"):
        Cluster(brokers=0)


def test_a_cluster_that_cannot_start_raises_the_reason_and_leaves_no_files() -> None:
    threads = set(threading.enumerate())
    with (
        pytest.raises(Exception, match=r"num\.partitions"),
        Cluster(settings={"num.partitions": "x"}),
    ):
        pass
    wait_for_new_threads(threads)


def test_a_broker_that_fails_to_stop_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set(threading.enumerate())

    async def fail(_: Broker, together_with: object) -> bool:
        raise RuntimeError("it does not stop")

    cluster = Cluster(brokers=2, directory=str(tmp_path))
    cluster.start()
    ports = [int(cluster.address(number).partition(":")[2]) for number in (1, 2)]
    monkeypatch.setattr(Broker, "stop", fail)
    with pytest.raises(RuntimeError, match="it does not stop"):
        cluster.stop()
    monkeypatch.undo()
    wait_for_new_threads(threads)
    for port in ports:
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", port))
    with Cluster(brokers=2, directory=str(tmp_path)) as cluster:
        cluster.wait_until_healthy()


def test_brokers_that_start_together_agree_on_the_clusters_id(cluster: Cluster) -> None:
    properties = [(cluster.files(n) / "meta.properties").read_text() for n in cluster.brokers]
    ids = {line for text in properties for line in text.splitlines() if "cluster.id" in line}
    assert len(ids) == 1


def test_a_controller_that_stops_resigns_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression: it was deposed when it was unreachable, and re-elected until it had ended."""
    stop = LogManager.stop

    async def stop_slowly(log_manager: LogManager) -> bool:
        await asyncio.sleep(0.1)  # as if there were much to flush
        return await stop(log_manager)

    monkeypatch.setattr(LogManager, "stop", stop_slowly)
    controller = cluster.controller()
    assert controller is not None
    with caplog.at_level("INFO", "suwi.controller.controller_election"):
        cluster.stop_broker(controller)
        cluster.restart(controller)
        cluster.wait_until_healthy()
    elected = [record for record in caplog.records if record.getMessage() == "elected controller"]
    assert len(elected) == 1


def test_a_topic_is_created_and_deleted_right_after_the_controller_was_killed() -> None:
    with Cluster(brokers=3) as cluster:
        for topic in ("first", "second"):
            controller = cluster.controller()
            assert controller is not None
            cluster.kill(controller)
            cluster.create_topic(topic, replication_factor=2)
            cluster.restart(controller)
            cluster.wait_until_healthy()
        controller = cluster.controller()
        assert controller is not None
        cluster.kill(controller)
        cluster.delete_topic("first")
        assert cluster.topics() == ["second"]
        with pytest.raises(TopicAlreadyExists):
            cluster.create_topic("second", replication_factor=2)


def test_a_consumer_reads_from_the_follower_in_its_rack() -> None:
    """KIP-392 with librdkafka: only the leader's first response has the preferred replica."""
    settings = {
        "broker.rack": "rack-{node}",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    with Cluster(brokers=3, settings=settings) as cluster:
        cluster.create_topic("water")
        leader = cluster.wait_leader("water")
        follower = next(number for number in cluster.brokers if number != leader)
        send(cluster.bootstrap_servers, "water", "high", "low")
        cluster.wait_until_healthy()
        asked: dict[str, int] = {}

        def note(statistics: str) -> None:
            for broker in json.loads(statistics)["brokers"].values():
                asked[str(broker["nodeid"])] = broker["req"].get("Fetch", 0)

        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "none",
                "enable.auto.commit": False,
                "client.rack": f"rack-{follower}",
                "statistics.interval.ms": 100,
                "stats_cb": note,
            }
        )
        consumer.assign([TopicPartition("water", 0, 0)])
        found: list[str] = []
        end_s = time.monotonic() + PATIENCE_S
        while len(found) < 2 or asked.get(str(follower), 0) == 0:
            assert time.monotonic() < end_s, (found, asked)
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value().decode())
        consumer.close()
        assert found == ["high", "low"]
