"""Apache Kafka's tools for replicas, against three processes on ZooKeeper:
kafka-reassign-partitions, leaders, kafka-configs, kafka-cluster."""

import json
from pathlib import Path

import pytest

from compat.kafka import ToolFailed, run_java
from suwi.local_cluster.cluster import LocalCluster
from tests.testing.clients import send, until

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
_RECORD = "x" * 500_000


def kafka(cluster: LocalCluster, tool: str, *arguments: str) -> str:
    return run_java(tool, "--bootstrap-server", cluster.bootstrap_servers, *arguments)


def plan(directory: Path, topic: str, *replicas: int) -> str:
    """A file with the new replicas of partition 0."""
    moved = {"topic": topic, "partition": 0, "replicas": list(replicas)}
    path = directory / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    return str(path)


def create(cluster: LocalCluster, topic: str, *replicas: int, config: str = "") -> None:
    assignment = ":".join(map(str, replicas))
    more = ("--config", config) if config else ()
    kafka(cluster, TOPICS, "--create", "--topic", topic, "--replica-assignment", assignment, *more)


def described(cluster: LocalCluster, topic: str) -> str:
    return kafka(cluster, TOPICS, "--describe", "--topic", topic)


def test_a_reassignment_is_generated_executed_with_a_throttle_and_verified(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    create(cluster, topic, 1, 2)
    send(cluster.bootstrap_servers, topic, "a", "b")
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    generated = kafka(
        cluster,
        REASSIGN,
        *("--generate", "--broker-list", "2,3", "--topics-to-move-json-file", str(topics)),
    )
    assert "Proposed partition reassignment configuration" in generated
    file = plan(tmp_path, topic, 3, 2)
    executed = kafka(
        cluster,
        REASSIGN,
        *("--execute", "--reassignment-json-file", file, "--throttle", "100000000"),
    )
    assert "Successfully started partition reassignment" in executed

    def verified() -> str:
        return kafka(cluster, REASSIGN, "--verify", "--reassignment-json-file", file)

    until(lambda: f"{topic}-0 is completed" in verified(), verified)
    assert "Replicas: 3,2" in described(cluster, topic)
    for entity in (("topics", topic), ("brokers", "1"), ("brokers", "3")):
        of_entity = ("--entity-type", entity[0], "--entity-name", entity[1])
        assert "throttled" not in kafka(cluster, CONFIGS, "--describe", *of_entity)


def test_a_throttled_reassignment_is_listed_and_cancelled(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    create(cluster, topic, 1, 2)
    send(cluster.bootstrap_servers, topic, *[_RECORD] * 8)
    file = plan(tmp_path, topic, 3, 1)
    kafka(cluster, REASSIGN, "--execute", "--reassignment-json-file", file, "--throttle", "1000")
    listed = kafka(cluster, REASSIGN, "--list")
    assert f"{topic}-0: replicas: 3,1,2. adding: 3. removing: 2." in listed
    cancelled = kafka(cluster, REASSIGN, "--cancel", "--reassignment-json-file", file)
    assert f"Successfully cancelled partition reassignment for: {topic}-0" in cancelled
    assert "No partition reassignments found" in kafka(cluster, REASSIGN, "--list")


def test_preferred_leaders_are_elected(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    create(cluster, topic, 1, 2)
    file = plan(tmp_path, topic, 2, 1)
    kafka(cluster, REASSIGN, "--execute", "--reassignment-json-file", file)
    assert "Leader: 1\tReplicas: 2,1" in described(cluster, topic)
    elected = kafka(
        cluster, ELECT, "--election-type", "preferred", "--topic", topic, "--partition", "0"
    )
    assert "Successfully completed leader election (PREFERRED)" in elected
    assert "Leader: 2\tReplicas: 2,1" in described(cluster, topic)


def test_configs_of_a_topic_and_of_one_broker_are_altered(
    cluster: LocalCluster, topic: str
) -> None:
    create(cluster, topic, 1, 2)
    for kind, name, key in (
        ("topics", topic, "retention.ms=12345678"),
        ("brokers", "2", "log.retention.ms=23456789"),
    ):
        entity = ("--entity-type", kind, "--entity-name", name)

        def shown(entity: tuple[str, ...] = entity) -> str:
            return kafka(cluster, CONFIGS, "--describe", *entity)

        kafka(cluster, CONFIGS, "--alter", *entity, "--add-config", key)
        until(lambda key=key, shown=shown: key in shown(), shown)
        kafka(cluster, CONFIGS, "--alter", *entity, "--delete-config", key.partition("=")[0])
        until(lambda key=key, shown=shown: key not in shown(), shown)


def test_an_unclean_leader_is_elected_on_request(cluster: LocalCluster, topic: str) -> None:
    create(cluster, topic, 1, 2, config="min.insync.replicas=1")
    send(cluster.bootstrap_servers, topic, "a")
    cluster.kill("broker-2")
    until(lambda: "Isr: 1\t" in described(cluster, topic))
    cluster.kill("broker-1")
    try:
        until(lambda: "Leader: none" in described(cluster, topic))
        cluster.start_processes(["broker-2"])
        elected = kafka(
            cluster, ELECT, "--election-type", "unclean", "--topic", topic, "--partition", "0"
        )
        assert "Successfully completed leader election (UNCLEAN)" in elected
        assert "Leader: 2" in described(cluster, topic)
    finally:
        cluster.start_processes(["broker-1", "broker-2"])
        cluster.wait_in_sync()


def test_only_a_broker_that_has_stopped_is_unregistered(cluster: LocalCluster) -> None:
    servers = cluster.bootstrap_servers
    with pytest.raises(ToolFailed, match="broker 3 is running: stop it first"):
        run_java(CLUSTER, "unregister", "--bootstrap-server", servers, "--id", "3")
