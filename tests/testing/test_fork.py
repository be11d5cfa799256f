"""Snapshots and forks of a cluster, with real clients."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from suwi.client.addresses import Address
from suwi.client.cluster import Cluster as ClientCluster
from suwi.client.groups import GroupDescription, describe_group
from suwi.client.transaction_admin import TransactionDescription, describe_transaction
from suwi.client.transactions import end_transaction
from suwi.env import SystemRandom
from suwi.sim.incarnation import current
from suwi.testing import Cluster, ClusterSnapshot
from suwi.testing.loop import ClusterLoop
from suwi.transaction.marker_sender import TransactionMarkers
from tests.testing.clients import PATIENCE_S, read, send, until

TOPIC = "orders"
PATIENT = {"replica.lag.time.max.ms": 120_000}
"""Followers that are cut off stay in the in-sync set."""


def leaders(cluster: Cluster, partitions: int = 1) -> list[tuple[int, int, tuple[int, ...] | None]]:
    """Leader, leader epoch and in-sync set of each partition, as the leader knows them."""
    found = []
    for partition in range(partitions):
        leader = cluster.wait_leader(TOPIC, partition)
        state = cluster.replicas(TOPIC, partition)[leader]
        found.append((leader, state.leader_epoch, state.isr))
    return found


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a directory with its bytes and the time of its last change."""
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


def segment(cluster: Cluster, broker: int, base: int = 0) -> Path:
    return cluster.files(broker) / f"{TOPIC}-0" / f"{base:020}.log"


def replicated(cluster: Cluster) -> int:
    """The end of the log, once every replica has all records and they are committed."""

    def ends() -> set[int]:
        states = cluster.replicas(TOPIC).values()
        return {end for state in states for end in (state.log_end, state.high_watermark)}

    cluster.wait_until_healthy()
    until(lambda: len(ends()) == 1, ends)
    return ends().pop()


def shares_file(one: Path, other: Path) -> bool:
    return one.stat().st_ino == other.stat().st_ino


def ask(cluster: Cluster, question: Callable[[ClientCluster], Any]) -> Any:
    async def main() -> Any:
        host, port = cluster.bootstrap_servers.split(",")[0].split(":")
        async with ClientCluster([Address(host, int(port))], random=SystemRandom()) as client:
            return await question(client)

    return asyncio.run(main())


# -- state -----------------------------------------------------------------------------------------


def test_a_fork_has_all_records_and_each_cluster_goes_on_by_itself(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    send(cluster.bootstrap_servers, TOPIC, "one", "two")
    with cluster.fork() as fork:
        assert set(fork.bootstrap_servers.split(",")).isdisjoint(
            cluster.bootstrap_servers.split(",")
        )
        assert read(fork.bootstrap_servers, TOPIC, 2) == ["one", "two"]
        assert send(fork.bootstrap_servers, TOPIC, "of the fork") == []
        assert send(cluster.bootstrap_servers, TOPIC, "of the original", "another") == []
        assert read(fork.bootstrap_servers, TOPIC, 3) == ["one", "two", "of the fork"]
        fork.wait_until_healthy()
        assert fork.events() == []
        files = fork.files(1)
    assert not files.exists()
    expected = ["one", "two", "of the original", "another"]
    assert read(cluster.bootstrap_servers, TOPIC, 4) == expected
    cluster.wait_until_healthy()


def test_leaders_epochs_and_in_sync_sets_stay(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC, 3)
    for partition in range(3):
        send(cluster.bootstrap_servers, f"{TOPIC}:{partition}", "one")
    moved = cluster.wait_leader(TOPIC, 0)
    cluster.kill(moved)  # Now the preferred leader of a partition does not lead it.
    cluster.restart(moved)
    cluster.wait_until_healthy()
    before = leaders(cluster, 3)
    assert before[0][0] != moved
    with cluster.fork() as fork:
        assert leaders(fork, 3) == before
        send(fork.bootstrap_servers, TOPIC, "two")
        assert replicated(fork) == 2
        assert leaders(fork, 3) == before
        states = fork.replicas(TOPIC).values()
        assert {state.epochs[-1] for state in states} == {(before[0][1], 1)}


def test_a_record_that_only_the_leader_has_is_in_the_fork() -> None:
    """It would be lost if another broker became the leader of the fork."""
    with Cluster(brokers=3, settings=PATIENT) as cluster:
        cluster.create_topic(TOPIC)
        leader = cluster.wait_leader(TOPIC)
        cluster.wait_until_healthy()
        cluster.partition({leader}, set(cluster.brokers) - {leader})
        send(cluster.address(leader), TOPIC, "unreplicated", acks="1")
        with cluster.fork() as fork:
            assert replicated(fork) == 1
            assert read(fork.bootstrap_servers, TOPIC, 1) == ["unreplicated"]


@pytest.mark.slow
def test_a_snapshot_under_load_is_a_prefix_of_what_was_written(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC, configs={"segment.bytes": 10_000})
    acknowledged: list[str] = []
    stopping = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 1})
        for number in count():
            if stopping.is_set():
                break
            producer.produce(
                TOPIC,
                f"{number:0100}",
                partition=0,
                on_delivery=lambda error, record: acknowledged.append(record.value().decode()),
            )
            producer.poll(0.001)
        assert producer.flush(PATIENCE_S) == 0

    writing = threading.Thread(target=write)
    writing.start()
    try:
        snapshots, certain = [], []
        for _ in range(3):
            wanted = len(acknowledged) + 200
            until(lambda wanted=wanted: len(acknowledged) > wanted)
            certain.append(len(acknowledged))
            snapshots.append(cluster.snapshot())
    finally:
        stopping.set()
        writing.join()
    for snapshot, least in zip(snapshots, certain, strict=True):
        with snapshot, snapshot.fork() as fork:
            end = replicated(fork)
            assert end >= least
            assert read(fork.bootstrap_servers, TOPIC, end) == acknowledged[:end]


def test_brokers_of_a_fork_connect_to_each_other_only(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored registrations have the addresses of the original, which runs."""
    cluster.create_topic(TOPIC, 3)
    elsewhere: list[int] = []
    connect = ClusterLoop.create_connection

    async def note(loop: ClusterLoop, factory: Any, host: Any, port: int, **options: Any) -> Any:
        if current.get() is not None and port not in loop.network.host_of_port:
            elsewhere.append(port)
        return await connect(loop, factory, host, port, **options)

    with cluster.snapshot() as snapshot:
        monkeypatch.setattr(ClusterLoop, "create_connection", note)
        with snapshot.fork() as fork:
            fork.wait_until_healthy()
    assert elsewhere == []


# -- files -----------------------------------------------------------------------------------------


@contextmanager
def diverged() -> Iterator[tuple[Cluster, int]]:
    """A cluster, and a broker that is down, in whose closed segment the last records are not those
    of the others."""
    with Cluster(brokers=3, settings=PATIENT) as cluster:
        cluster.create_topic(TOPIC)
        send(cluster.bootstrap_servers, TOPIC, "kept")
        old = cluster.wait_leader(TOPIC)
        cluster.wait_until_healthy()
        cluster.partition({old}, set(cluster.brokers) - {old})
        send(cluster.address(old), TOPIC, "lost", "lost too", acks="1")
        cluster.snapshot().remove()  # It begins a new segment.
        cluster.kill(old)
        cluster.heal()
        until(lambda: cluster.wait_leader(TOPIC) != old)
        send(cluster.bootstrap_servers, TOPIC, "instead")
        assert segment(cluster, old, 3).exists()
        yield cluster, old


def test_a_truncation_in_the_fork_leaves_the_original_as_it_is() -> None:
    with diverged() as (original, broker), original.fork() as fork:
        assert shares_file(segment(original, broker), segment(fork, broker))
        before = contents(original.files(broker))
        fork.restart(broker)
        fork.wait_until_healthy()
        assert read(fork.bootstrap_servers, TOPIC, 2) == ["kept", "instead"]
        until(lambda: b"instead" in segment(fork, broker).read_bytes())
        assert b"lost" not in segment(fork, broker).read_bytes()
        assert contents(original.files(broker)) == before


def test_a_truncation_in_the_original_leaves_forks_and_snapshots_as_they_are() -> None:
    with (
        diverged() as (original, broker),
        original.snapshot() as snapshot,
        snapshot.fork() as fork,
    ):
        assert shares_file(segment(original, broker), segment(fork, broker))
        before = contents(fork.files(broker))
        original.restart(broker)
        original.wait_until_healthy()
        assert b"lost" not in segment(original, broker).read_bytes()
        assert contents(fork.files(broker)) == before
        with snapshot.fork() as later:
            assert contents(later.files(broker)) == before


def test_a_fork_that_is_a_copy_shares_no_file(cluster: Cluster) -> None:
    send(cluster.bootstrap_servers, TOPIC, "one")
    with cluster.snapshot() as snapshot, snapshot.fork() as linked, snapshot.fork(copy=True) as own:
        assert shares_file(segment(cluster, 1), segment(linked, 1))
        assert not shares_file(segment(cluster, 1), segment(own, 1))
        assert segment(own, 1).stat().st_nlink == 1
        assert read(own.bootstrap_servers, TOPIC, 1) == ["one"]


def test_files_are_copied_where_they_cannot_be_linked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)

    send(cluster.bootstrap_servers, TOPIC, "one")
    monkeypatch.setattr(os, "link", refuse)
    with cluster.fork() as fork:
        assert segment(fork, 1).stat().st_nlink == 1
        assert read(fork.bootstrap_servers, TOPIC, 1) == ["one"]


def test_logs_of_a_fork_need_no_recovery(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    send(cluster.bootstrap_servers, TOPIC, "one", "two" * 10_000)
    with caplog.at_level("INFO", "suwi"), cluster.fork() as fork:
        assert read(fork.bootstrap_servers, TOPIC, 2) == ["one", "two" * 10_000]
        assert not [r for r in caplog.records if "recover" in r.message or "missing" in r.message]


def test_deleted_records_stay_deleted(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    send(cluster.bootstrap_servers, TOPIC, *"abcdef")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for deleted in admin.delete_records([TopicPartition(TOPIC, 0, 4)]).values():
        deleted.result(PATIENCE_S)
    with cluster.fork() as fork:
        assert replicated(fork) == 6
        assert {state.log_start for state in fork.replicas(TOPIC).values()} == {4}


# -- groups ----------------------------------------------------------------------------------------


def join(cluster: Cluster, protocol: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "billing",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([TOPIC])
    return consumer


def next_value(consumer: Consumer) -> str:
    message = consumer.poll(PATIENCE_S)
    assert message is not None, "no record arrived"
    assert message.error() is None, message.error()
    return str(message.value().decode())


def billing(cluster: Cluster) -> GroupDescription:
    found = ask(cluster, lambda client: describe_group(client, "billing"))
    assert isinstance(found, GroupDescription)
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_offsets_stay_and_members_are_dropped(cluster: Cluster, protocol: str) -> None:
    cluster.create_topic(TOPIC)
    send(cluster.bootstrap_servers, TOPIC, "one", "two", "three")
    member = join(cluster, protocol)
    try:
        assert next_value(member) == "one"
        member.commit(asynchronous=False)
        with cluster.snapshot() as snapshot:
            with snapshot.fork() as fork:
                assert billing(fork).members == ()
                other = join(fork, protocol)
                assert next_value(other) == "two"
                other.commit(asynchronous=False)
                other.close()
            with snapshot.fork(keep_members=True) as fork:
                expected = [each.id for each in billing(cluster).members]
                assert [each.id for each in billing(fork).members] == expected
        assert next_value(member) == "two"  # It is a member of the original all the time.
        member.commit(asynchronous=False)
    finally:
        member.close()


# -- transactions ----------------------------------------------------------------------------------


def transactional(cluster: Cluster) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": "till",
            "transaction.timeout.ms": 300_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def committed(cluster: Cluster) -> list[str]:
    """The records of committed transactions, up to the last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    values: list[str] = []
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"neither a record nor the end after {values}"
            if message.error() is None:
                values.append(message.value().decode())
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return values
    finally:
        consumer.close()


def till(cluster: Cluster) -> TransactionDescription:
    found = ask(cluster, lambda client: describe_transaction(client, "till"))
    assert isinstance(found, TransactionDescription)
    return found


def test_an_open_transaction_is_open_in_each_fork_and_ends_there_by_itself(
    cluster: Cluster,
) -> None:
    cluster.create_topic(TOPIC)
    producer = transactional(cluster)
    producer.begin_transaction()
    producer.produce(TOPIC, "paid", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    with ExitStack() as stack:
        snapshot = stack.enter_context(cluster.snapshot())
        aborted, ended, open_still = [stack.enter_context(snapshot.fork()) for _ in range(3)]
        assert {till(fork).state for fork in (aborted, ended)} == {"Ongoing"}
        # The producer with this transactional id comes back: its transaction is aborted.
        transactional(aborted)
        assert send(aborted.bootstrap_servers, TOPIC, "later") == []
        until(lambda: committed(aborted) == ["later"])
        # One with the same producer id and epoch commits it.
        identity = till(ended).producer
        ask(ended, lambda client: end_transaction(client, "till", identity, commit=True))
        until(lambda: committed(ended) == ["paid"])
        assert till(open_still).state == till(cluster).state == "Ongoing"
        assert committed(open_still) == committed(cluster) == []
    producer.commit_transaction(PATIENCE_S)
    until(lambda: committed(cluster) == ["paid"])


def pay(producer: Producer, value: str) -> None:
    producer.begin_transaction()
    producer.produce(TOPIC, value, partition=0)
    producer.commit_transaction(PATIENCE_S)


def test_what_read_committed_consumers_have_read_they_read_in_the_fork_at_once(
    cluster: Cluster,
) -> None:
    cluster.create_topic(TOPIC)
    pay(transactional(cluster), "paid")
    until(lambda: committed(cluster) == ["paid"])
    with cluster.fork() as fork:
        assert committed(fork) == ["paid"]


def test_a_transaction_that_is_decided_is_completed_by_the_fork(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit is answered when it is decided, before its markers are written."""
    cluster.create_topic(TOPIC)
    producer = transactional(cluster)
    with monkeypatch.context() as original:
        original.setattr(TransactionMarkers, "send", lambda *_: None)
        pay(producer, "paid")
        snapshot = cluster.snapshot()
    assert till(cluster).state == "PrepareCommit"
    with snapshot, snapshot.fork() as fork:
        until(lambda: committed(fork) == ["paid"])
        until(lambda: till(fork).state == "CompleteCommit")
    assert committed(cluster) == []


def test_an_idempotent_producer_of_the_original_is_known_in_the_fork(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    pay(transactional(cluster), "paid")
    with cluster.fork() as fork:
        pay(transactional(fork), "paid again")
        assert till(fork).producer.producer_id == till(cluster).producer.producer_id
        until(lambda: committed(fork) == ["paid", "paid again"])


# -- several of them -------------------------------------------------------------------------------


def test_forks_of_forks_and_several_of_a_snapshot_are_independent(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    send(cluster.bootstrap_servers, TOPIC, "root")
    with ExitStack() as stack:
        snapshot = stack.enter_context(cluster.snapshot())
        one, other = (stack.enter_context(snapshot.fork()) for _ in range(2))
        send(one.bootstrap_servers, TOPIC, "one")
        send(other.bootstrap_servers, TOPIC, "other")
        below = stack.enter_context(one.fork())
        send(below.bootstrap_servers, TOPIC, "below")
        assert read(one.bootstrap_servers, TOPIC, 2) == ["root", "one"]
        assert read(other.bootstrap_servers, TOPIC, 2) == ["root", "other"]
        assert read(below.bootstrap_servers, TOPIC, 3) == ["root", "one", "below"]
        files = [segment(each, 1) for each in (cluster, one, other, below)]
        assert all(shares_file(files[0], file) for file in files)


def test_a_fork_that_is_started_again_begins_at_the_same_point(cluster: Cluster) -> None:
    send(cluster.bootstrap_servers, TOPIC, "one")
    fork = cluster.fork()
    for _ in range(2):
        with fork:
            send(fork.bootstrap_servers, TOPIC, "two")
            assert read(fork.bootstrap_servers, TOPIC, 2) == ["one", "two"]


def test_a_snapshot_outlives_its_cluster_and_removes_its_files() -> None:
    with Cluster(brokers=2) as cluster:
        send(cluster.bootstrap_servers, TOPIC, "one")
        snapshot = cluster.snapshot()
    with snapshot, snapshot.fork() as fork:
        assert read(fork.bootstrap_servers, TOPIC, 1) == ["one"]
        directory = Path(snapshot.directory)
        assert directory.is_dir()
    assert not directory.exists()


def test_settings_of_a_fork_are_added_to_those_of_the_original() -> None:
    with (
        Cluster(brokers=1, settings={"num.partitions": 2}) as cluster,
        cluster.fork(settings={"message.max.bytes": 1_000}) as fork,
    ):
        (error,) = send(fork.bootstrap_servers, TOPIC, "x" * 2_000)
        assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
        assert send(fork.bootstrap_servers, f"{TOPIC}:1", "one") == []


def test_brokers_that_are_down_or_paused_are_down_in_the_fork(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    send(cluster.bootstrap_servers, TOPIC, "one")
    cluster.wait_until_healthy()
    cluster.kill(2)
    cluster.pause(3)
    with cluster.fork() as fork:
        assert fork.wait_leader(TOPIC) == 1
        fork.wait_isr(TOPIC, 0, {1})
        fork.restart(2)
        fork.restart(3)
        fork.wait_until_healthy()
        assert read(fork.bootstrap_servers, TOPIC, 1) == ["one"]
    cluster.resume(3)
    cluster.restart(2)
    cluster.wait_until_healthy()


def test_a_broker_that_lost_power_is_suspect_in_the_fork_too(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    send(cluster.bootstrap_servers, TOPIC, "one")
    cluster.wait_until_healthy()
    cluster.power_loss(2)
    with cluster.fork() as fork:
        fork.restart(2)
        assert replicated(fork) == 1
        assert fork.events() == []


def test_a_fork_goes_on_under_load_and_faults_and_loses_nothing(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC, configs={"min.insync.replicas": 2})
    send(cluster.bootstrap_servers, TOPIC, "of the original")
    cluster.wait_until_healthy()
    with cluster.fork() as fork:
        producer = Producer(
            {"bootstrap.servers": fork.bootstrap_servers, "enable.idempotence": True}
            | {"linger.ms": 1, "log_level": 0}
        )
        sent, stopping = 0, threading.Event()

        def write() -> None:
            nonlocal sent
            while not stopping.wait(0.002):
                producer.produce(TOPIC, str(sent), partition=0)
                sent += 1
                producer.poll(0)

        writing = threading.Thread(target=write)
        writing.start()
        try:
            for fault, end_of_it in (
                (fork.kill, fork.restart),
                (fork.power_loss, fork.restart),
                (fork.pause, fork.resume),
            ):
                before, leader = sent, fork.wait_leader(TOPIC)
                fault(leader)
                fork.wait_isr(TOPIC, 0, set(fork.brokers) - {leader})
                until(lambda before=before: sent > before + 100)
                end_of_it(leader)
                fork.wait_until_healthy()
        finally:
            stopping.set()
            writing.join()
        assert producer.flush(PATIENCE_S) == 0
        values = read(fork.bootstrap_servers, TOPIC, 1 + sent)
        assert values == ["of the original", *map(str, range(sent))]
        assert replicated(fork) == 1 + sent
        assert fork.events() == []
    assert replicated(cluster) == 1


def test_coroutines_can_fork_too() -> None:
    async def main() -> None:
        async with Cluster(brokers=1) as cluster:
            await asyncio.to_thread(send, cluster.bootstrap_servers, TOPIC, "one")
            snapshot = await cluster.snapshot()
            assert isinstance(snapshot, ClusterSnapshot)
            snapshot.remove()
            async with await cluster.fork() as fork:
                values = await asyncio.to_thread(read, fork.bootstrap_servers, TOPIC, 1)
                assert values == ["one"]

    asyncio.run(main())
