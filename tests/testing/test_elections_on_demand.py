"""ElectLeaders by an administrator: the new leader, and the records that remain."""

from confluent_kafka import ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from suwi.metadata.cluster_events import UNCLEAN_ELECTION
from suwi.testing import Cluster
from tests.testing.clients import PATIENCE_S, read, send, until

TOPIC = "orders"
ON_DEMAND_ONLY = {"auto.leader.rebalance.enable": False}


def elect(cluster: Cluster, kind: ElectionType) -> int:
    """The error code for partition 0."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    asked = TopicPartition(TOPIC, 0)
    answers = admin.elect_leaders(kind, [asked]).result(PATIENCE_S)
    assert list(answers) == [asked]
    error = answers[asked]
    return KafkaError.NO_ERROR if error is None else error.code()


def replicas_of(cluster: Cluster) -> tuple[int, ...]:
    """The replicas, after all are in sync; the first is the preferred leader."""
    cluster.wait_until_healthy()
    return cluster.replicas(TOPIC)[cluster.wait_leader(TOPIC)].isr or ()


def ends(cluster: Cluster) -> dict[int, int]:
    return {broker: state.log_end for broker, state in cluster.replicas(TOPIC).items()}


def test_a_preferred_election_makes_the_preferred_replica_leader() -> None:
    with Cluster(brokers=3, settings=ON_DEMAND_ONLY) as cluster:
        cluster.create_topic(TOPIC)
        preferred, second, _ = replicas_of(cluster)
        assert elect(cluster, ElectionType.PREFERRED) == KafkaError.ELECTION_NOT_NEEDED
        assert send(cluster.bootstrap_servers, TOPIC, "a") == []
        cluster.kill(preferred)
        assert cluster.wait_leader(TOPIC) == second
        assert send(cluster.bootstrap_servers, TOPIC, "b") == []
        not_there = KafkaError.PREFERRED_LEADER_NOT_AVAILABLE
        assert elect(cluster, ElectionType.PREFERRED) == not_there

        cluster.restart(preferred)
        cluster.wait_until_healthy()
        assert cluster.wait_leader(TOPIC) == second
        assert elect(cluster, ElectionType.PREFERRED) == KafkaError.NO_ERROR
        cluster.wait_leader(TOPIC, 0, preferred)
        assert send(cluster.bootstrap_servers, TOPIC, "c") == []
        assert read(cluster.bootstrap_servers, TOPIC, 3) == ["a", "b", "c"]


def test_an_unclean_election_chooses_the_first_live_replica_however_short_its_log() -> None:
    with Cluster(brokers=3, settings=ON_DEMAND_ONLY) as cluster:
        cluster.create_topic(TOPIC)
        leader, second, third = replicas_of(cluster)
        assert send(cluster.bootstrap_servers, TOPIC, "a") == []
        cluster.kill(second)
        cluster.wait_isr(TOPIC, 0, {leader, third})
        assert send(cluster.bootstrap_servers, TOPIC, "b", "c") == []
        cluster.kill(third)
        cluster.wait_isr(TOPIC, 0, {leader})
        assert send(cluster.bootstrap_servers, TOPIC, "d", "e", "f") == []
        assert elect(cluster, ElectionType.UNCLEAN) == KafkaError.ELECTION_NOT_NEEDED

        cluster.kill(leader)
        for broker in (third, second):
            cluster.restart(broker)
        until(lambda: ends(cluster) == {second: 1, third: 3}, lambda: ends(cluster))
        # Until the controller notices the failure of the leader, no election is needed.
        until(lambda: elect(cluster, ElectionType.UNCLEAN) == KafkaError.NO_ERROR)
        assert cluster.wait_leader(TOPIC) == second
        cluster.wait_event(UNCLEAN_ELECTION)
        assert send(cluster.bootstrap_servers, TOPIC, "g") == []

        cluster.restart(leader)
        cluster.wait_until_healthy()
        assert cluster.wait_leader(TOPIC) == second
        assert ends(cluster) == {leader: 2, second: 2, third: 2}
        assert read(cluster.bootstrap_servers, TOPIC, 2) == ["a", "g"]
