"""`suwi explain`: what an offset is or was."""

import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from suwi.metadata.cluster_events import RECORDS_LOST, UNCLEAN_ELECTION
from suwi.testing import Cluster
from tests.broker_process import BrokerProcess, unique_name
from tests.cli.support import Suwi
from tests.cli.transactional_producer import ABORT, COMMIT, OPEN, transact
from tests.testing.clients import send, until

_LIMIT_S = 120


def explained(suwi: Suwi, topic: str, *offsets: int) -> list[str]:
    """The explanations for people, without the offset."""
    lines = suwi.ok("explain", topic, 0, *offsets).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [str(offset) for offset in offsets]
    return [line.partition(": ")[2] for line in lines]


def test_a_record_and_an_offset_that_was_never_written(
    broker: BrokerProcess, suwi: Suwi, topic: str
) -> None:
    assert send(broker.address, topic, "a") == []
    record, nothing = explained(suwi, topic, 0, 1)
    assert record.startswith("record (2")
    assert "leader epoch 0" in record
    assert nothing == "never written: the log ends at 1"
    found = suwi.json("explain", topic, 0, 0)[0]
    assert (found["what"], found["leader_epoch"], found["losses"]) == ("record", 0, [])


def test_what_was_deleted_is_below_the_log_start(
    broker: BrokerProcess, suwi: Suwi, topic: str
) -> None:
    assert send(broker.address, topic, "a", "b", "c") == []
    admin = AdminClient({"bootstrap.servers": broker.address})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        deleted.result()
    below, record = explained(suwi, topic, 1, 2)
    assert below == "below the log start (2): removed by retention or DeleteRecords"
    assert record.startswith("record")
    suwi.ok("configs", "set", "topic", topic, "retention.ms=-1")
    assert explained(suwi, topic, 1) == ["below the log start (2): removed by DeleteRecords"]


@pytest.mark.parametrize(
    ("offsets", "reason"), [((), "Missing argument"), (("-1",), "No such option"), (("x",), "x")]
)
def test_wrong_offsets_are_misuse(suwi: Suwi, offsets: tuple[str, ...], reason: str) -> None:
    assert reason in suwi.misuse("explain", "topic", 0, *offsets)


def test_unknown_topics_and_partitions_are_refused(suwi: Suwi, topic: str) -> None:
    assert "does not exist" in suwi.refusal("explain", "nowhere-else", 0, 0)
    assert "7" in suwi.refusal("explain", topic, 7, 0)


def test_compacted_records_are_told_from_missing_ones() -> None:
    configs = {
        "cleanup.policy": "compact",
        "segment.ms": "50",
        "min.cleanable.dirty.ratio": "0.01",
    }
    with Cluster(brokers=1, settings={"log.cleaner.backoff.ms": 100}) as cluster:
        cluster.create_topic("latest", configs=configs)
        suwi = Suwi(cluster.bootstrap_servers)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
        limit_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < limit_s:
            producer.produce("latest", b"value", key=b"key", partition=0)
            assert producer.flush(_LIMIT_S) == 0
            (first,) = explained(suwi, "latest", 0)
            if not first.startswith("record"):
                break
            time.sleep(0.1)
        assert first == "compacted away"


def test_a_lost_record_names_the_election_that_lost_it() -> None:
    settings = {"unclean.leader.election.enable": True, "replica.lag.time.max.ms": 30_000}
    with Cluster(brokers=3, settings=settings) as cluster:
        cluster.create_topic("water", replication_factor=2)
        leader = cluster.wait_leader("water")
        (other,) = set(cluster.replicas("water")) - {leader}
        assert send(cluster.bootstrap_servers, "water", "a") == []
        cluster.kill(other)
        cluster.wait_isr("water", 0, {leader})
        assert send(cluster.bootstrap_servers, "water", "b", "c") == []
        cluster.kill(leader)
        cluster.restart(other)
        cluster.wait_leader("water")
        cluster.wait_event(UNCLEAN_ELECTION)
        cluster.restart(leader)
        cluster.wait_event(RECORDS_LOST)
        cluster.wait_until_healthy()
        assert send(cluster.bootstrap_servers, "water", "d") == []
        suwi = Suwi(cluster.bootstrap_servers)
        until(lambda: "lost" in explained(suwi, "water", 2)[0])  # its image may lag behind
        kept, written_again, gone, never = explained(suwi, "water", 0, 1, 2, 3)
        assert "lost" not in kept + never
        assert written_again.startswith("record")
        for text in (written_again, gone):
            assert "; a record with this offset was lost at 2" in text
            assert f"broker {leader} lost 1-2 of epoch 0" in text
        assert gone.startswith("never written: the log ends at 2")


def test_records_of_transactions_and_their_markers(
    broker: BrokerProcess, suwi: Suwi, topic: str
) -> None:
    name = unique_name("id")
    transact(broker.address, name, topic, COMMIT, ABORT, OPEN)
    assert send(broker.address, topic, "plain") == []
    found = explained(suwi, topic, 0, 1, 2, 3, 4, 5)
    assert [text.partition(" (")[0] for text in found] == [
        "record of a transaction: committed",
        "transaction marker: commit",
        "record of a transaction: aborted",
        "transaction marker: abort",
        "record of a transaction: open",
        "record",
    ]
    assert all(f"transactional id {name}" in text for text in found[:5])
    # Behind an open transaction the outcome of another one is known from its marker.
    transact(broker.address, unique_name("id"), topic, COMMIT, ABORT)

    def outcomes() -> list[str | None]:
        return [each.get("transaction") for each in suwi.json("explain", topic, 0, 4, 6, 8)]

    # EndTxn is answered before the markers are written.
    until(lambda: outcomes() == ["open", "committed", "aborted"], outcomes)


def test_consume_committed_shows_exactly_what_is_committed(
    broker: BrokerProcess, suwi: Suwi, topic: str
) -> None:
    transact(broker.address, unique_name("id"), topic, ABORT, COMMIT, ABORT, COMMIT)
    arguments = ("consume", topic, "--from-beginning", "--no-follow", "--offsets")

    def shown() -> list[list[str]]:
        lines = suwi.ok(*arguments, "--committed").splitlines()
        return [line.split("\t")[1:] for line in lines]

    # EndTxn is answered before the markers are written.
    until(lambda: shown() == [["2", "commit"], ["6", "commit"]], shown)
    assert len(suwi.ok(*arguments).splitlines()) == 4
