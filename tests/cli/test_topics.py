"""`suwi topics`."""

import re
from pathlib import Path

import pytest

from suwi.testing import Cluster
from tests.broker_process import unique_name
from tests.cli.support import Suwi, write_lines


def described(suwi: Suwi, topic: str) -> dict[str, object]:
    (found,) = suwi.json("topics", "describe", topic)
    return dict(found)


def test_a_topic_is_created_and_listed(suwi: Suwi) -> None:
    name = unique_name("created")
    said = suwi.ok("topics", "create", name, "--partitions", 3)
    assert said == f"created {name}: 3 partitions, replication factor 1\n"
    assert re.search(rf"^{name} +3 +1$", suwi.ok("topics", "list"), re.MULTILINE)
    (listed,) = [t for t in suwi.json("topics", "list") if t["topic"] == name]
    assert (listed["partition_count"], listed["replication_factor"]) == (3, 1)
    assert len(listed["topic_id"]) == 22


def test_an_existing_topic_is_refused_or_ignored(suwi: Suwi, topic: str) -> None:
    assert suwi.refusal("topics", "create", topic) == f"topic '{topic}' already exists"
    assert suwi.ok("topics", "create", topic, "--if-not-exists") == f"{topic} already exists\n"
    assert suwi.json("topics", "create", topic, "--if-not-exists") == []


def test_of_several_topics_the_valid_ones_are_created(suwi: Suwi, topic: str) -> None:
    name = unique_name("created")
    result = suwi("topics", "create", topic, name)
    assert result.exit_code == 1
    assert f"created {name}" in result.stdout
    assert f"'{topic}' already exists" in result.stderr


def test_a_dry_run_creates_nothing(suwi: Suwi) -> None:
    name = unique_name("dry")
    assert suwi.ok("topics", "create", name, "--dry-run").startswith(f"would create {name}")
    assert name not in suwi.ok("topics", "list")


def test_an_error_of_the_broker_is_shown(suwi: Suwi) -> None:
    name = unique_name("bad")
    assert "live brokers" in suwi.refusal("topics", "create", name, "-r", 3)
    assert "allowed" in suwi.refusal("topics", "create", name, "-c", "segment.bytes=1")
    assert "'no.such.key'" in suwi.refusal("topics", "create", name, "-c", "no.such.key=1")
    assert "letters" in suwi.refusal("topics", "create", "a/b")


def test_a_topic_is_described_with_everything_about_it(suwi: Suwi, tmp_path: Path) -> None:
    name = unique_name("described")
    suwi.ok("topics", "create", name, "-p", 2, "-c", "retention.ms=86400000")
    lines = write_lines(tmp_path / "lines", "a", "b")
    suwi.ok("produce", name, "--file", lines, "--partition", 1)
    text = suwi.ok("topics", "describe", name)
    assert re.search(rf"^Topic +{name}$", text, re.MULTILINE)
    assert re.search(r"^TopicId +[\w-]{22}$", text, re.MULTILINE)
    assert re.search(r"^PartitionCount +2$", text, re.MULTILINE)
    assert re.search(r"^ReplicationFactor +1$", text, re.MULTILINE)
    assert re.search(r"^Configs +retention.ms=86400000$", text, re.MULTILINE)
    assert re.search(
        r"^Partition +Leader +Replicas +Isr +StartOffset +EndOffset +Size$", text, re.MULTILINE
    )
    assert re.search(r"^ +1 +0 +0 +0 +0 +2 +\d+ B$", text, re.MULTILINE)
    found = described(suwi, name)
    assert found["configs"] == {"retention.ms": "86400000"}
    partitions = found["partitions"]
    assert isinstance(partitions, list)
    assert partitions[1] | {"size_bytes": 0} == {
        "partition": 1,
        "leader": 0,
        "leader_epoch": 0,
        "replicas": [0],
        "isr": [0],
        "offline_replicas": [],
        "start_offset": 0,
        "end_offset": 2,
        "size_bytes": 0,
        "problem": None,
    }


def test_without_a_name_all_topics_are_described(suwi: Suwi, topic: str) -> None:
    assert topic in [found["topic"] for found in suwi.json("topics", "describe")]


def test_a_mistyped_topic_gets_a_suggestion(suwi: Suwi) -> None:
    name = unique_name("unmistakable")
    suwi.ok("topics", "create", name)
    for command in (["topics", "describe"], ["configs", "describe", "topic"], ["consume"]):
        message = suwi.refusal(*command, name.replace("stak", "satk"))
        assert message.endswith(f"does not exist; did you mean '{name}'?")


def test_the_error_for_an_unknown_topic_says_how_to_create_it(suwi: Suwi) -> None:
    assert suwi.refusal("topics", "describe", "zzz").endswith("`suwi topics create zzz` creates it")


def test_partitions_are_added_and_settings_changed(suwi: Suwi, topic: str) -> None:
    said = suwi.ok("topics", "alter", topic, "-p", 3, "-c", "retention.ms=1000")
    assert said == f"changed {topic}: 3 partitions, retention.ms=1000\n"
    suwi.ok("topics", "alter", topic, "--unset", "retention.ms", "-c", "segment.ms=5000")
    found = described(suwi, topic)
    assert found["partition_count"] == 3
    assert found["configs"] == {"segment.ms": "5000"}


def test_partitions_are_never_removed(suwi: Suwi, topic: str) -> None:
    suwi.ok("topics", "alter", topic, "-p", 2)
    assert "never removed" in suwi.refusal("topics", "alter", topic, "-p", 1)
    assert "already" in suwi.refusal("topics", "alter", topic, "-p", 2)


def test_an_error_in_one_change_leaves_all_unchanged(suwi: Suwi, topic: str) -> None:
    suwi.refusal("topics", "alter", topic, "-p", 3, "-c", "segment.bytes=1")
    suwi.refusal("topics", "alter", topic, "-p", 3, "-r", 9)
    assert described(suwi, topic)["partition_count"] == 1


def test_a_dry_run_changes_nothing(suwi: Suwi, topic: str) -> None:
    assert suwi.ok("topics", "alter", topic, "-p", 3, "--dry-run").startswith("would change")
    assert described(suwi, topic)["partition_count"] == 1


def test_deleting_asks_first_and_needs_yes_in_a_script(suwi: Suwi, topic: str) -> None:
    assert "--yes" in suwi.refusal("topics", "delete", topic)
    assert topic in suwi.ok("topics", "list")
    assert suwi.ok("topics", "delete", topic, "--yes") == f"deleted {topic}\n"
    assert topic not in suwi.ok("topics", "list")


def test_a_topic_that_does_not_exist_cannot_be_deleted(suwi: Suwi, topic: str) -> None:
    assert suwi.refusal("topics", "delete", topic, "gone", "--yes") == "topic 'gone' does not exist"
    assert topic in suwi.ok("topics", "list")
    assert suwi.ok("topics", "delete", "gone", "--yes", "--if-exists") == ""


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_topics_are_described_while_a_registered_broker_does_not_respond(fault: str) -> None:
    with Cluster(brokers=3, session_timeout_s=60) as cluster:
        cluster.wait_until_healthy()
        cluster.create_topic("one", replication_factor=1)
        leader = cluster.wait_leader("one")
        silent = next(n for n in cluster.brokers if n not in (leader, cluster.controller()))
        getattr(cluster, fault)(silent)
        try:
            (found,) = Suwi(cluster.address(leader)).json("topics", "describe", "one")
        finally:
            if fault == "pause":
                cluster.resume(silent)
    (partition,) = found["partitions"]
    assert (partition["leader"], partition["size_bytes"]) == (leader, 0)


def test_the_records_before_an_offset_are_deleted(suwi: Suwi, topic: str) -> None:
    suwi.run("produce", topic, "--partition", 0, stdin=b"a\nb\nc\n")
    delete = ("topics", "delete-records", topic, 0)
    assert "needs --yes" in suwi.refusal(*delete, "--before", 2)
    assert suwi.ok(*delete, "--before", 2, "--yes") == f"{topic}-0 begins at offset 2\n"
    assert suwi.json(*delete, "--yes")["start_offset"] == 3
    assert "no records to delete" in suwi.refusal(*delete, "--yes")
