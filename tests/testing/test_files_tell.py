"""The checkpoint files of a replicated partition during commits and elections."""

from pathlib import Path

from suwi.testing import Cluster
from tests.testing.clients import send, until

TOPIC = "peter-test01"
SETTINGS = {
    "log.flush.scheduler.interval.ms": 20,
    "replica.high.watermark.checkpoint.interval.ms": 50,
    "leader.imbalance.check.interval.seconds": 1,
    "leader.imbalance.per.broker.percentage": 0,
    "replica.lag.time.max.ms": 30_000,  # An acknowledged record is on all replicas that run.
}


def lines(path: Path) -> list[str]:
    """The entries of a checkpoint file, without version and count."""
    return path.read_text().splitlines()[2:] if path.exists() else []


def epochs(cluster: Cluster, broker: int) -> list[str]:
    return lines(cluster.files(broker) / f"{TOPIC}-0" / "leader-epoch-checkpoint")


def watermarks(cluster: Cluster, broker: int) -> list[str]:
    return lines(cluster.files(broker) / "replication-offset-checkpoint")


def wait_watermark(cluster: Cluster, broker: int, line: str) -> None:
    until(lambda: line in watermarks(cluster, broker), lambda: watermarks(cluster, broker))


def wait_epochs(cluster: Cluster, broker: int, wanted: list[str]) -> None:
    until(lambda: epochs(cluster, broker) == wanted, lambda: epochs(cluster, broker))


def test_checkpoints_show_commits_and_leader_epochs() -> None:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        cluster.create_topic(TOPIC)
        preferred = cluster.wait_leader(TOPIC)
        followers = [broker for broker in cluster.brokers if broker != preferred]
        assert epochs(cluster, preferred) == ["0 0"]

        send(cluster.bootstrap_servers, TOPIC, *"abcdef")
        for broker in cluster.brokers:
            wait_watermark(cluster, broker, f"{TOPIC} 0 6")  # the next offset, not the last one
        assert [epochs(cluster, broker) for broker in cluster.brokers] == [["0 0"]] * 3

        cluster.kill(preferred)
        leader = cluster.wait_leader(TOPIC)
        (follower,) = [broker for broker in followers if broker != leader]
        assert epochs(cluster, leader) == ["0 0", "1 6"]  # at once, before the first record
        assert epochs(cluster, follower) == ["0 0"]

        send(cluster.bootstrap_servers, TOPIC, "g")
        assert epochs(cluster, follower) == ["0 0", "1 6"]  # with the record
        for broker in followers:
            wait_watermark(cluster, broker, f"{TOPIC} 0 7")
        assert watermarks(cluster, preferred) == [f"{TOPIC} 0 6"]  # it was killed

        cluster.restart(preferred)
        cluster.wait_isr(TOPIC, 0, {1, 2, 3})
        wait_watermark(cluster, preferred, f"{TOPIC} 0 7")
        cluster.wait_leader(TOPIC, 0, preferred)  # by automatic preferred election
        assert epochs(cluster, preferred) == ["0 0", "1 6", "2 7"]

        send(cluster.bootstrap_servers, TOPIC, "h")
        for broker in followers:
            wait_epochs(cluster, broker, ["0 0", "1 6", "2 7"])
            wait_watermark(cluster, broker, f"{TOPIC} 0 8")


def test_a_high_watermark_that_rises_long_after_the_append_is_checkpointed() -> None:
    with Cluster(brokers=2, settings=SETTINGS) as cluster:
        cluster.create_topic(TOPIC)
        leader = cluster.wait_leader(TOPIC)
        cluster.slow(leader, ms=150)  # several checkpoints are written before it is committed
        send(cluster.bootstrap_servers, TOPIC, "a")
        wait_watermark(cluster, leader, f"{TOPIC} 0 1")
