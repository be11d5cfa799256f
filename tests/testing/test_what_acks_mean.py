"""The guarantees of acks and their limits: each case counts its records."""

import warnings

import pytest
from confluent_kafka import KafkaError

from suwi.controller import replication_control
from suwi.metadata.cluster_events import RECORDS_LOST, UNCLEAN_ELECTION
from suwi.testing import Cluster
from tests.testing.clients import PATIENCE_S, make_producer, read, send, send_with, until

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    # kafka-python reads its schemas with a call that is deprecated in Python 3.11.
    from kafka import KafkaProducer
    from kafka.errors import NotEnoughReplicasAfterAppendError, NotEnoughReplicasError

TOPIC = "promises"
IN_SYNC = {"replica.lag.time.max.ms": 30_000}
"""No replica leaves the ISR because of its lag."""


def end_of(cluster: Cluster, partition: int = 0) -> int:
    leader = cluster.wait_leader(TOPIC, partition)
    return cluster.replicas(TOPIC, partition)[leader].high_watermark


def wait_end(cluster: Cluster, end: int, partition: int = 0) -> None:
    """Wait until all of a leader is committed. A new leader may know of an older high watermark."""
    leader = cluster.wait_leader(TOPIC, partition)
    assert cluster.replicas(TOPIC, partition)[leader].log_end == end
    until(lambda: end_of(cluster, partition) == end, lambda: cluster.replicas(TOPIC, partition))


def others(cluster: Cluster, *but: int) -> list[int]:
    return [broker for broker in cluster.brokers if broker not in but]


def test_acks_1_loses_records_that_only_the_leader_had() -> None:
    with Cluster(brokers=3, settings=IN_SYNC) as cluster:
        cluster.create_topic(TOPIC)
        assert send(cluster.bootstrap_servers, TOPIC, "a", "b", acks="all") == []
        leader = cluster.wait_leader(TOPIC)
        cluster.partition({leader}, others(cluster, leader))
        assert send(cluster.bootstrap_servers, TOPIC, "c", "d", "e", acks="1") == []
        assert cluster.replicas(TOPIC)[leader].log_end == 5
        cluster.kill(leader)
        cluster.heal()
        assert cluster.wait_leader(TOPIC) != leader
        wait_end(cluster, 2)  # three acknowledged records are lost
        send(cluster.bootstrap_servers, TOPIC, "f")
        cluster.restart(leader)
        cluster.wait_until_healthy()
        assert read(cluster.bootstrap_servers, TOPIC, 3) == ["a", "b", "f"]
        assert {state.log_end for state in cluster.replicas(TOPIC).values()} == {3}
        assert cluster.events() == []  # no committed record is lost


def test_acks_all_loses_nothing_in_the_same_scenario() -> None:
    with Cluster(brokers=3, settings=IN_SYNC) as cluster:
        cluster.create_topic(TOPIC)
        assert send(cluster.bootstrap_servers, TOPIC, "a", "b") == []
        leader = cluster.wait_leader(TOPIC)
        cluster.partition({leader}, others(cluster, leader))
        refused = send(cluster.bootstrap_servers, TOPIC, "c", "d", "e", timeout_s=1)
        assert len(refused) == 3  # none was acknowledged, so none is lost
        cluster.kill(leader)
        cluster.heal()
        assert cluster.wait_leader(TOPIC) != leader
        wait_end(cluster, 2)


def test_a_leader_alone_in_the_isr_acknowledges_and_no_other_replica_may_lead() -> None:
    """acks=all means all in-sync replicas, which may be a single one."""
    with Cluster(brokers=3) as cluster:
        cluster.create_topic(TOPIC)
        leader = cluster.wait_leader(TOPIC)
        for broker in others(cluster, leader):
            cluster.kill(broker)
        cluster.wait_isr(TOPIC, 0, {leader})
        assert send(cluster.bootstrap_servers, TOPIC, "a", "b", "c") == []
        cluster.kill(leader)
        for broker in others(cluster, leader):
            cluster.restart(broker)
        refused = send(cluster.bootstrap_servers, TOPIC, "d", timeout_s=1)
        assert len(refused) == 1  # they are live, but may not lead
        cluster.restart(leader)
        cluster.wait_until_healthy()
        wait_end(cluster, 3)
        assert read(cluster.bootstrap_servers, TOPIC, 3) == ["a", "b", "c"]


def test_with_min_insync_replicas_2_a_leader_alone_in_the_isr_refuses_records() -> None:
    with Cluster(brokers=3) as cluster:
        cluster.create_topic(TOPIC, configs={"min.insync.replicas": 2})
        leader = cluster.wait_leader(TOPIC)
        first, second = others(cluster, leader)
        cluster.kill(first)
        cluster.wait_isr(TOPIC, 0, {leader, second})
        assert send(cluster.bootstrap_servers, TOPIC, "a") == []  # two are enough
        cluster.kill(second)
        cluster.wait_isr(TOPIC, 0, {leader})
        refused = send(cluster.bootstrap_servers, TOPIC, "b", "c", timeout_s=1)
        assert len(refused) == 2
        assert cluster.replicas(TOPIC)[leader].log_end == 1  # refused before the append
        assert send(cluster.bootstrap_servers, TOPIC, "d", acks="1") == []
        assert end_of(cluster) == 1  # acks=1 is accepted, but not readable yet
        cluster.restart(first)
        cluster.wait_isr(TOPIC, 0, {leader, first})
        assert read(cluster.bootstrap_servers, TOPIC, 2) == ["a", "d"]


@pytest.mark.slow
def test_records_appended_before_an_isr_shrink_are_not_acknowledged() -> None:
    """They were appended while two replicas were in sync, and one of them did not get them."""
    settings = {"replica.lag.time.max.ms": 4000}
    with Cluster(brokers=3, settings=settings, session_timeout_s=60) as cluster:
        cluster.create_topic(TOPIC, configs={"min.insync.replicas": 3})
        leader = cluster.wait_leader(TOPIC)
        controller = cluster.controller()
        assert controller is not None
        paused = others(cluster, leader, controller)[0]
        producer = make_producer(cluster.bootstrap_servers, timeout_s=20)
        assert send_with(producer, TOPIC, "a") == []  # it is connected
        cluster.pause(paused)
        errors = send_with(producer, TOPIC, "b")
        assert [error.code() for error in errors] == [KafkaError._MSG_TIMED_OUT]
        cluster.wait_isr(TOPIC, 0, others(cluster, paused))
        assert cluster.replicas(TOPIC)[leader].log_end >= 2
        assert end_of(cluster) == 1


def test_a_client_without_retries_learns_whether_its_record_was_appended() -> None:
    with Cluster(brokers=3, session_timeout_s=60) as cluster:
        cluster.create_topic(TOPIC, configs={"min.insync.replicas": 3})
        leader = cluster.wait_leader(TOPIC)
        controller = cluster.controller()
        assert controller is not None
        paused = others(cluster, leader, controller)[0]
        producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers,
            acks="all",
            enable_idempotence=False,
            retries=0,
            request_timeout_ms=int(PATIENCE_S * 1000),
        )
        try:
            producer.send(TOPIC, b"a", partition=0).get(PATIENCE_S)
            cluster.pause(paused)
            with pytest.raises(NotEnoughReplicasAfterAppendError):
                producer.send(TOPIC, b"b", partition=0).get(PATIENCE_S)
            cluster.wait_isr(TOPIC, 0, others(cluster, paused))
            with pytest.raises(NotEnoughReplicasError):
                producer.send(TOPIC, b"c", partition=0).get(PATIENCE_S)
        finally:
            producer.close()
        state = cluster.replicas(TOPIC)[leader]
        assert (state.high_watermark, state.log_end) == (1, 2)  # "b" is stored, but not committed
        cluster.resume(paused)
        until(lambda: end_of(cluster) == 2)
        assert read(cluster.bootstrap_servers, TOPIC, 2) == ["a", "b"]


@pytest.fixture
def _replicas_may_answer_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """If they are asked what an unclean election loses."""
    monkeypatch.setattr(replication_control, "_LOSSES_TIMEOUT_S", PATIENCE_S)


@pytest.mark.usefixtures("_replicas_may_answer_late")
def test_an_unclean_election_reports_the_lost_records() -> None:
    _elect_uncleanly(watermark_is_written=True)


@pytest.mark.usefixtures("_replicas_may_answer_late")
def test_a_leader_killed_before_its_checkpoint_reports_all_records_it_truncates() -> None:
    """It has only the checkpointed high watermark; any later record may be committed."""
    _elect_uncleanly(watermark_is_written=False)


def _elect_uncleanly(*, watermark_is_written: bool) -> None:
    settings = {
        "replica.lag.time.max.ms": 500,
        "unclean.leader.election.enable": True,
        "log.flush.scheduler.interval.ms": 20,
        "replica.high.watermark.checkpoint.interval.ms": 50 if watermark_is_written else 600_000,
    }
    with Cluster(brokers=3, settings=settings) as cluster:
        cluster.create_topic(TOPIC, 3)
        cluster.wait_until_healthy()
        # The controller leads it, so that it can shrink the ISR while it is cut off.
        controller = cluster.controller()
        led_by = {cluster.wait_leader(TOPIC, partition): partition for partition in range(3)}
        assert controller is not None
        partition = led_by[controller]
        topic = f"{TOPIC}:{partition}"
        _, behind, ahead = cluster.replicas(TOPIC, partition)[controller].isr or ()

        assert send(cluster.bootstrap_servers, topic, "a", "b") == []
        until(lambda: {s.log_end for s in cluster.replicas(TOPIC, partition).values()} == {2})
        cluster.partition({controller}, {behind})
        assert send(cluster.bootstrap_servers, topic, "c", "d", "e") == []
        cluster.wait_isr(TOPIC, partition, {controller, ahead})
        until(lambda: cluster.replicas(TOPIC, partition)[ahead].high_watermark == 5)
        cluster.partition({controller}, {ahead})
        assert send(cluster.bootstrap_servers, topic, "f", "g") == []
        cluster.wait_isr(TOPIC, partition, {controller})
        wait_end(cluster, 7, partition)
        checkpoint = cluster.files(controller) / "replication-offset-checkpoint"
        if watermark_is_written:
            until(lambda: f"{TOPIC} {partition} 7" in checkpoint.read_text())

        cluster.kill(controller)
        cluster.heal()
        assert cluster.wait_leader(TOPIC, partition) == behind
        known = cluster.wait_event(UNCLEAN_ELECTION).facts
        assert known["partition"] == f"{TOPIC}-{partition}"
        assert known["lost_at_least"] == [2, 5]  # the high watermark of `ahead`
        cluster.restart(controller)
        cluster.wait_isr(TOPIC, partition, {1, 2, 3})
        wait_end(cluster, 2, partition)

        def lost() -> dict[int, list[dict[str, int]]]:
            found = [event.facts for event in cluster.events() if event.kind == RECORDS_LOST]
            return {facts["broker"]: facts["ranges"] for facts in found}

        exactly = {
            controller: [{"epoch": 0, "first": 2, "end": 7}],
            ahead: [{"epoch": 0, "first": 2, "end": 5}],
        }
        until(lambda: lost() == exactly, lost)


@pytest.mark.parametrize(("flush_messages", "left"), [(1, 3), (1_000_000, 0)])
def test_a_single_replica_keeps_synced_records_in_a_power_loss(
    flush_messages: int, left: int
) -> None:
    """An acknowledgement guarantees only what the replicas have synced to disk."""
    with Cluster(brokers=1) as cluster:
        cluster.create_topic(TOPIC, configs={"flush.messages": flush_messages})
        assert send(cluster.bootstrap_servers, TOPIC, "a", "b", "c") == []
        cluster.power_loss(1)
        cluster.restart(1)
        cluster.wait_until_healthy()
        wait_end(cluster, left)
