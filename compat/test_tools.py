"""Apache Kafka's own command-line tools against a broker of Suwi."""

import json
import re
from pathlib import Path

import pytest

from compat.kafka import ToolFailed, run_java
from suwi.wire.versions import APIS
from tests.broker_process import BrokerProcess

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
PRODUCE = "org.apache.kafka.tools.ConsoleProducer"
CONSUME = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"


def kafka(suwi: BrokerProcess, tool: str, *arguments: str, stdin: str = "") -> str:
    return run_java(tool, "--bootstrap-server", suwi.address, *arguments, stdin=stdin)


def create(suwi: BrokerProcess, topic: str, *arguments: str) -> None:
    assert f"Created topic {topic}" in kafka(suwi, TOPICS, "--create", "--topic", topic, *arguments)


def test_kafka_topics_creates_describes_alters_lists_and_deletes(
    suwi: BrokerProcess, topic: str
) -> None:
    create(suwi, topic, "--partitions", "3", "--config", "retention.ms=3600000")
    described = kafka(suwi, TOPICS, "--describe", "--topic", topic)
    head = described.splitlines()[0]
    assert re.search(r"TopicId: [\w-]{22}\s", head)
    assert "PartitionCount: 3" in head
    assert "ReplicationFactor: 1" in head
    assert "Configs: retention.ms=3600000" in head
    assert "Partition: 2\tLeader: 0\tReplicas: 0\tIsr: 0" in described
    kafka(suwi, TOPICS, "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in kafka(suwi, TOPICS, "--describe", "--topic", topic)
    assert topic in kafka(suwi, TOPICS, "--list").splitlines()
    kafka(suwi, TOPICS, "--delete", "--topic", topic)
    assert topic not in kafka(suwi, TOPICS, "--list").splitlines()


def test_kafka_topics_is_told_what_is_wrong(suwi: BrokerProcess, topic: str) -> None:
    create(suwi, topic, "--partitions", "2")
    with pytest.raises(ToolFailed, match=r"already exists|exists already"):
        create(suwi, topic)
    with pytest.raises(ToolFailed, match="can only grow"):
        kafka(suwi, TOPICS, "--alter", "--topic", topic, "--partitions", "1")
    with pytest.raises(ToolFailed, match="larger than the number of live brokers"):
        create(suwi, topic + "2", "--replication-factor", "3")
    with pytest.raises(ToolFailed, match=r"segment\.bytes"):
        create(suwi, topic + "3", "--config", "segment.bytes=-5")


def test_kafka_configs_changes_topics_and_brokers(suwi: BrokerProcess, topic: str) -> None:
    create(suwi, topic)
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    kafka(suwi, CONFIGS, "--alter", *of_topic, "--add-config", "max.message.bytes=2000000")
    described = kafka(suwi, CONFIGS, "--describe", *of_topic)
    assert "max.message.bytes=2000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG" in described
    kafka(suwi, CONFIGS, "--alter", *of_topic, "--delete-config", "max.message.bytes")
    assert "max.message.bytes" not in kafka(suwi, CONFIGS, "--describe", *of_topic)

    of_broker = ("--entity-type", "brokers", "--entity-name", "0")
    kafka(suwi, CONFIGS, "--alter", *of_broker, "--add-config", "log.retention.ms=12345678")
    described = kafka(suwi, CONFIGS, "--describe", "--all", *of_topic)
    assert "retention.ms=12345678" in described
    kafka(suwi, CONFIGS, "--alter", *of_broker, "--delete-config", "log.retention.ms")
    described = kafka(suwi, CONFIGS, "--describe", "--all", *of_topic)
    assert "retention.ms=604800000" in described or "log.retention.hours=168" in described


def test_kafka_configs_changes_groups(suwi: BrokerProcess, topic: str) -> None:
    key, group = "consumer.session.timeout.ms", ("--entity-type", "groups", "--entity-name", topic)
    kafka(suwi, CONFIGS, "--alter", *group, "--add-config", f"{key}=50000")
    assert f"{key}=50000" in kafka(suwi, CONFIGS, "--describe", "--entity-type", "groups")
    described = kafka(suwi, CONFIGS, "--describe", *group)
    assert f"DYNAMIC_GROUP_CONFIG:{key}=50000, DEFAULT_CONFIG:group.{key}=45000" in described
    with pytest.raises(ToolFailed, match="this broker allows 45000 to 60000"):
        kafka(suwi, CONFIGS, "--alter", *group, "--add-config", f"{key}=1")
    kafka(suwi, CONFIGS, "--alter", *group, "--delete-config", key)
    assert key not in kafka(suwi, CONFIGS, "--describe", *group)


def test_console_producer_and_consumer_by_partition(suwi: BrokerProcess, topic: str) -> None:
    create(suwi, topic)
    lines = "".join(f"key{i}:value{i}\n" for i in range(1000))
    kafka(
        suwi,
        PRODUCE,
        "--topic",
        topic,
        "--property",
        "parse.key=true",
        "--property",
        "key.separator=:",
        "--compression-codec",
        "zstd",
        stdin=lines,
    )
    printed = kafka(
        suwi,
        CONSUME,
        "--topic",
        topic,
        "--partition",
        "0",
        "--offset",
        "10",
        "--max-messages",
        "990",
        "--timeout-ms",
        "30000",
        "--property",
        "print.key=true",
        "--property",
        "key.separator=:",
    )
    received = [line for line in printed.splitlines() if line.startswith("key")]
    assert received == lines.splitlines()[10:]


def test_get_offsets_and_delete_records(suwi: BrokerProcess, topic: str, tmp_path: Path) -> None:
    create(suwi, topic)
    kafka(suwi, PRODUCE, "--topic", topic, stdin="a\nb\nc\n")
    assert f"{topic}:0:3" in kafka(suwi, OFFSETS, "--topic", topic)
    asked = tmp_path / "offsets.json"
    asked.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 2}]})
    )
    answer = kafka(
        suwi,
        "org.apache.kafka.tools.DeleteRecordsCommand",
        "--offset-json-file",
        str(asked),
    )
    assert "low_watermark: 2" in answer
    assert f"{topic}:0:2" in kafka(suwi, OFFSETS, "--topic", topic, "--time", "earliest")
    assert f"{topic}:0:2" in kafka(suwi, OFFSETS, "--topic", topic, "--time", "max-timestamp")


def test_log_dirs(suwi: BrokerProcess, topic: str) -> None:
    create(suwi, topic)
    kafka(suwi, PRODUCE, "--topic", topic, stdin="a\n")
    printed = kafka(
        suwi, "org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", topic
    )
    described = json.loads(printed.splitlines()[-1])
    (directory,) = described["brokers"][0]["logDirs"]
    assert directory["error"] is None
    assert directory["partitions"][0]["partition"] == f"{topic}-0"
    assert directory["partitions"][0]["size"] > 0


def test_broker_api_versions_are_kafkas_own(suwi: BrokerProcess) -> None:
    printed = kafka(suwi, "org.apache.kafka.tools.BrokerApiVersionsCommand")
    ours = re.findall(r"\t(\w+)\((\d+)\): (\d+) to (\d+) \[usable: (\d+)\]", printed)
    assert ours
    for name, key, low, high, usable in ours:
        api = APIS[int(key)]
        assert (int(low), int(high)) == (api.advertised_from, api.max_version), name
        # The tool has Kafka's released versions: ours must be exactly as new.
        assert usable == high, name


def test_producer_performance_tool(suwi: BrokerProcess, topic: str) -> None:
    create(suwi, topic)
    printed = kafka(
        suwi,
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic",
        topic,
        "--num-records",
        "20000",
        "--record-size",
        "1000",
        "--throughput",
        "-1",
    )
    assert "20000 records sent" in printed
    assert f"{topic}:0:20000" in kafka(suwi, OFFSETS, "--topic", topic)


@pytest.mark.parametrize(
    ("kind", "name", "quota"),
    [
        ("users", "bob", "producer_byte_rate=1000000.0"),
        ("clients", "app", "request_percentage=50.0"),
        ("ips", "10.0.0.1", "connection_creation_rate=100.0"),
    ],
)
def test_kafka_configs_sets_and_removes_quotas(
    suwi: BrokerProcess, kind: str, name: str, quota: str
) -> None:
    key, _, value = quota.partition("=")
    entity = ("--entity-type", kind, "--entity-name", name)
    kafka(suwi, CONFIGS, "--alter", *entity, "--add-config", f"{key}={value.removesuffix('.0')}")
    assert quota in kafka(suwi, CONFIGS, "--describe", *entity)
    kafka(suwi, CONFIGS, "--alter", *entity, "--delete-config", key)
    assert quota not in kafka(suwi, CONFIGS, "--describe", *entity)


def test_transactions_tool_describes_producers(suwi: BrokerProcess, topic: str) -> None:
    create(suwi, topic)
    idempotent = ("--producer-property", "enable.idempotence=true")
    kafka(suwi, PRODUCE, "--topic", topic, *idempotent, stdin="a\nb\n")
    printed = kafka(
        suwi,
        "org.apache.kafka.tools.TransactionsCommand",
        "describe-producers",
        *("--topic", topic, "--partition", "0"),
    )
    heading, row = printed.splitlines()[-2:]
    assert heading.split()[:3] == ["ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch"]
    assert dict(zip(heading.split(), row.split(), strict=True))["LastSequence"] == "1"


def test_a_default_for_all_brokers_is_set_and_given_back(suwi: BrokerProcess) -> None:
    of_all = ("--entity-type", "brokers", "--entity-default")
    kafka(suwi, CONFIGS, "--alter", *of_all, "--add-config", "log.cleaner.backoff.ms=20000")
    assert "log.cleaner.backoff.ms=20000" in kafka(suwi, CONFIGS, "--describe", *of_all)
    kafka(suwi, CONFIGS, "--alter", *of_all, "--delete-config", "log.cleaner.backoff.ms")
    assert "log.cleaner.backoff.ms=20000" not in kafka(suwi, CONFIGS, "--describe", *of_all)
