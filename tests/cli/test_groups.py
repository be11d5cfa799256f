"""`suwi groups`, with librdkafka's consumers as members."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from suwi.client.groups import GroupList
from suwi.model.ids import NodeId
from suwi.testing import Cluster
from tests.broker_process import unique_name
from tests.cli.group_members import Member, until
from tests.cli.support import Suwi, write_lines

PARTITIONS = 2
RECORDS = 10
"""In each partition."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings={"offsets.topic.num.partitions": 4}) as cluster:
        yield cluster


@pytest.fixture
def suwi(cluster: Cluster) -> Suwi:
    return Suwi(cluster.bootstrap_servers)


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = cluster.create_topic(unique_name("orders"), PARTITIONS)
    produce(cluster, name, RECORDS)
    return name


@pytest.fixture
def group() -> str:
    return unique_name("group")


@pytest.fixture
def read(suwi: Suwi, cluster: Cluster, topic: str, group: str) -> str:
    """A group that has read half of the topic's records, and has no members."""
    suwi.ok("groups", "reset", group, "--topic", topic, "--to-offset", RECORDS // 2, "--execute")
    return group


def produce(cluster: Cluster, topic: str, records: int, *, partitions: int = PARTITIONS) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for partition in range(partitions):
        for number in range(records):
            producer.produce(
                topic, str(number), partition=partition, timestamp=1_000_000 + number * 1000
            )
    assert producer.flush(60) == 0


def described(suwi: Suwi, group: str) -> dict[str, Any]:
    (found,) = suwi.json("groups", "describe", group)
    return dict(found)


def offsets(suwi: Suwi, group: str) -> list[int | None]:
    return [p["current_offset"] for p in described(suwi, group)["partitions"]]


# -- list and describe -----------------------------------------------------------------------------


def test_a_group_is_listed_with_its_state_and_its_coordinator(suwi: Suwi, read: str) -> None:
    listed = suwi.ok("groups", "list")
    assert re.search(rf"^{read} +Empty +classic +- +[123]$", listed, re.MULTILINE)
    assert read in [g["group"] for g in suwi.json("groups", "list", "--state", "empty")]
    assert read not in [g["group"] for g in suwi.json("groups", "list", "--state", "Stable")]


def test_a_group_is_described_with_members_assignment_and_lag_in_records_and_time(
    suwi: Suwi, cluster: Cluster, topic: str, group: str
) -> None:
    servers = cluster.bootstrap_servers
    with (
        Member(servers, group, topic, client="a") as first,
        Member(servers, group, topic, client="b", group_instance_id="pod-2") as second,
    ):
        until(lambda: len(first.assigned) == len(second.assigned) == 1)
        until(lambda: offsets(suwi, group) == [RECORDS, RECORDS])
        found = described(suwi, group)
        assert (found["state"], found["protocol"], found["lag"]) == ("Stable", "range", 0)
        by_client = {m["client_id"]: m for m in found["members"]}
        assert by_client["a"]["instance_id"] is None
        assert by_client["b"]["instance_id"] == "pod-2"
        assert by_client["b"]["host"] == "/127.0.0.1"
        for member, client in ((first, "a"), (second, "b")):
            owned = [(p["topic"], p["partition"]) for p in by_client[client]["partitions"]]
            assert set(owned) == member.assigned
        assert {p["client_id"] for p in found["partitions"]} == {"a", "b"}
        assert [p["lag_ms"] for p in found["partitions"]] == [0, 0]
        text = suwi.ok("groups", "describe", group)
        assert re.search(r"^Members +2$", text, re.MULTILINE)
        assert re.search(rf"^{topic} +0 +10 +10 +0 +0 +[ab] +/127.0.0.1$", text, re.MULTILINE)
        assert re.search(r"^pod-2-\S+ +b +/127.0.0.1 +pod-2 +1$", text, re.MULTILINE)


def test_the_lag_in_time_is_the_age_of_the_first_unread_record(suwi: Suwi, read: str) -> None:
    found = described(suwi, read)
    assert [p["lag"] for p in found["partitions"]] == [RECORDS // 2] * PARTITIONS
    ages_ms = {p["lag_ms"] // 1000 for p in found["partitions"]}
    suwi.ok("groups", "reset", read, "--all-topics", "--shift-by", "-3", "--execute")
    later_ms = {p["lag_ms"] // 1000 for p in described(suwi, read)["partitions"]}
    assert min(later_ms) - max(ages_ms) >= 2
    assert re.search(r" \d+\.\d d ", suwi.ok("groups", "describe", read))


def test_records_that_were_deleted_before_they_were_read_are_told(
    suwi: Suwi, cluster: Cluster, topic: str, read: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for deleted in admin.delete_records([TopicPartition(topic, 0, RECORDS - 2)]).values():
        deleted.result(60)
    assert f"{topic}-0: begins at 8; records from 5 on were deleted" in suwi.ok(
        "groups", "describe", read
    )
    age_0, age_1 = (p["lag_ms"] for p in described(suwi, read)["partitions"])
    assert age_0 < age_1


def test_the_offsets_of_a_topic_go_with_it(suwi: Suwi, topic: str, read: str) -> None:
    suwi.ok("topics", "delete", topic, "--yes")
    until(lambda: suwi("groups", "describe", read).exit_code == 1)


def test_a_mistyped_group_gets_a_suggestion(suwi: Suwi, read: str) -> None:
    for command in ("describe", "history"):
        said = suwi.refusal("groups", command, f"{read}x")
        assert said == f"group '{read}x' does not exist; did you mean '{read}'?"


# -- reset -----------------------------------------------------------------------------------------


def test_a_reset_is_only_shown_unless_it_is_to_be_executed(suwi: Suwi, read: str) -> None:
    said = suwi.ok("groups", "reset", read, "--all-topics", "--to-earliest")
    assert re.search(r"^\S+ +0 +5 +0 +-5$", said, re.MULTILINE)
    assert said.endswith("nothing was changed: --execute resets 2 partitions\n")
    assert offsets(suwi, read) == [5, 5]
    said = suwi.ok("groups", "reset", read, "--all-topics", "--to-earliest", "--execute")
    assert said.endswith(f"reset 2 partitions of group {read}\n")
    assert offsets(suwi, read) == [0, 0]


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        (("--to-latest",), RECORDS),
        (("--to-current",), RECORDS // 2),
        (("--to-offset", 3), 3),
        (("--shift-by", 2), RECORDS // 2 + 2),
        (("--shift-by", -2), RECORDS // 2 - 2),
        (("--to-datetime", "1970-01-01T00:16:44"), 4),
        (("--to-datetime", "1970-01-01T02:16:44.000+02:00"), 4),
        (("--to-datetime", "2026-01-01"), RECORDS),
        (("--by-duration", "P40000D"), 0),
        (("--by-duration", "PT1H30M"), RECORDS),
        (("--by-duration", "2h"), RECORDS),
    ],
)
def test_a_group_is_reset_to(
    suwi: Suwi, read: str, topic: str, goal: tuple[object, ...], expected: int
) -> None:
    changes = suwi.json("groups", "reset", read, "--topic", topic, *goal)
    assert [c["new_offset"] for c in changes] == [expected] * PARTITIONS
    assert all(c["dry_run"] for c in changes)


def test_single_partitions_are_reset(suwi: Suwi, topic: str, read: str) -> None:
    suwi.ok("groups", "reset", read, "--topic", f"{topic}:1", "--to-latest", "--execute")
    assert offsets(suwi, read) == [5, RECORDS]


def test_what_is_exported_can_be_imported(
    suwi: Suwi, topic: str, read: str, tmp_path: Path
) -> None:
    exported = suwi.ok("groups", "reset", read, "--all-topics", "--to-current", "--export")
    assert exported == f"{topic},0,5\n{topic},1,5\n"
    suwi.ok("groups", "reset", read, "--all-topics", "--to-latest", "--execute")
    file = write_lines(tmp_path / "offsets.csv", *exported.splitlines())
    suwi.ok("groups", "reset", read, "--from-file", file, "--execute")
    assert offsets(suwi, read) == [5, 5]
    file = write_lines(tmp_path / "both.csv", f"{read},{topic},1,7", f"other,{topic},0,1")
    suwi.ok("groups", "reset", read, "--from-file", file, "--execute")
    assert offsets(suwi, read) == [5, 7]


def test_an_offset_that_a_partition_does_not_have_becomes_the_nearest(
    suwi: Suwi, topic: str, read: str
) -> None:
    result = suwi("groups", "reset", read, "--topic", f"{topic}:0", "--to-offset", 99, "--execute")
    assert result.exit_code == 0
    assert f"suwi: {topic}-0 has offsets 0 to 10: 10 is taken instead of 99" in result.stderr
    assert offsets(suwi, read) == [RECORDS, 5]


def test_a_group_with_members_is_not_reset_and_not_deleted(
    suwi: Suwi, cluster: Cluster, topic: str, group: str
) -> None:
    with Member(cluster.bootstrap_servers, group, topic, client="billing") as member:
        until(lambda: len(member.assigned) == PARTITIONS)
        until(lambda: RECORDS in offsets(suwi, group))
        for how in ("--dry-run", "--execute"):
            said = suwi.refusal("groups", "reset", group, "--all-topics", "--to-earliest", how)
            assert said.startswith(f"group '{group}' has 1 member (billing at /127.0.0.1), which")
        said = suwi.refusal("groups", "delete", group, "--yes")
        assert said == f"group '{group}' was not deleted: it has members; stop them first"
        result = suwi("groups", "delete", group, "--topic", topic, "--yes")
        assert result.exit_code == 1
        assert "its members are subscribed to the topic" in result.stderr
    assert RECORDS in offsets(suwi, group)


def test_mistakes_in_a_reset_are_told_with_what_is_possible(
    suwi: Suwi, topic: str, read: str, tmp_path: Path
) -> None:
    reset = ("groups", "reset", read)
    assert "--all-topics" in suwi.misuse(*reset, "--to-earliest")
    assert "--to-earliest" in suwi.misuse(*reset, "--all-topics")
    assert "only one" in suwi.misuse(*reset, "--all-topics", "--to-earliest", "--to-latest")
    assert "orders:0,1" in suwi.misuse(*reset, "--topic", f"{topic}:a", "--to-latest")
    assert "2026" in suwi.misuse(*reset, "--all-topics", "--to-datetime", "noon")
    assert "PT" in suwi.misuse(*reset, "--all-topics", "--by-duration", "PT")
    assert "No such file" in suwi.misuse(*reset, "--from-file", tmp_path / "none")
    bad = write_lines(tmp_path / "bad.csv", f"{topic},0,5", f"{topic},zero,5")
    assert "line 2" in suwi.misuse(*reset, "--from-file", bad)
    assert "no partition 9" in suwi.refusal(*reset, "--topic", f"{topic}:9", "--to-latest")
    assert "did you mean" in suwi.refusal(*reset, "--topic", f"{topic}x", "--to-latest")
    assert "did you mean" not in suwi.ok(*reset, "--topic", topic, "--to-latest")


def test_a_group_that_does_not_exist_can_be_given_offsets(
    suwi: Suwi, topic: str, group: str
) -> None:
    reset = ("groups", "reset", group, "--to-latest")
    assert "--topic" in suwi.refusal(*reset, "--all-topics")
    said = suwi.ok(*reset, "--topic", topic)
    assert f"group {group} does not exist yet" in said
    assert "no committed offset" in suwi.refusal(
        "groups", "reset", group, "--topic", topic, "--shift-by", 1
    )
    suwi.ok(*reset, "--topic", topic, "--execute")
    assert offsets(suwi, group) == [RECORDS, RECORDS]


# -- delete ----------------------------------------------------------------------------------------


def test_a_group_is_deleted_with_its_offsets(suwi: Suwi, read: str) -> None:
    assert "--yes" in suwi.refusal("groups", "delete", read)
    assert suwi.ok("groups", "delete", read, "--yes") == f"deleted {read}\n"
    assert read not in suwi.ok("groups", "list")
    assert "does not exist" in suwi.refusal("groups", "delete", read, "--yes")
    assert suwi.json("groups", "delete", read, "--yes", "--if-exists") == []


def test_offsets_of_single_topics_and_partitions_are_deleted(
    suwi: Suwi, topic: str, read: str
) -> None:
    delete = ("groups", "delete", read, "--yes")
    assert suwi.ok(*delete, "--topic", f"{topic}:1") == f"deleted the offset 5 of {topic}-1\n"
    assert offsets(suwi, read) == [5]
    assert "no offset" in suwi.refusal(*delete, "--topic", f"{topic}:1")
    assert "one group" in suwi.misuse("groups", "delete", read, "b", "--topic", topic)
    suwi.ok(*delete, "--topic", topic)
    assert "does not exist" in suwi.refusal("groups", "describe", read)


# -- history ---------------------------------------------------------------------------------------


def test_the_history_says_who_made_the_group_rebalance_and_for_how_long(
    suwi: Suwi, cluster: Cluster, topic: str, group: str
) -> None:
    servers = cluster.bootstrap_servers
    with Member(servers, group, topic, client="a") as first:
        until(lambda: len(first.assigned) == 2)
        with Member(servers, group, topic, client="b") as second:
            until(lambda: len(second.assigned) == 1)
        until(lambda: len(first.assigned) == 2)
        history = suwi.json("groups", "history", group)["history"]
        assert [
            (h["trigger"], h["client_id"], h["from_generation"], h["to_generation"], h["members"])
            for h in history
        ] == [("join", "a", 0, 1, 1), ("join", "b", 1, 2, 2), ("leave", "b", 2, 3, 1)]
        assert len(history[1]["stood_still_ms"]) == 2
        assert all(
            0 <= ms <= history[1]["pause_ms"] for ms in history[1]["stood_still_ms"].values()
        )
        text = suwi.ok("groups", "history", group, "--limit", 1, "--members")
        assert re.search(r"Z +leave +b +/127.0.0.1 +2 -> 3 +1 +\d+ ms", text)
        assert re.search(r"Z +a-\S+ +\d+ ms$", text, re.MULTILINE)


def test_new_partitions_are_the_reason_of_the_rebalance_they_cause(
    suwi: Suwi, cluster: Cluster, topic: str, group: str
) -> None:
    with Member(cluster.bootstrap_servers, group, topic) as member:
        until(lambda: len(member.assigned) == PARTITIONS)
        suwi.ok("topics", "alter", topic, "--partitions", PARTITIONS + 1)
        until(lambda: len(member.assigned) == PARTITIONS + 1)
        last = suwi.json("groups", "history", group)["history"][-1]
        assert (last["trigger"], last["reason"]) == ("new partitions", f"topic {topic}")


def test_the_second_step_of_a_cooperative_rebalance_is_no_change_of_subscription(
    suwi: Suwi, cluster: Cluster, topic: str, group: str
) -> None:
    how: dict[str, Any] = {"partition_assignment_strategy": "cooperative-sticky"}
    servers = cluster.bootstrap_servers
    with Member(servers, group, topic, client="a", **how) as first:
        until(lambda: len(first.assigned) == 2)
        with Member(servers, group, topic, client="b", **how) as second:
            until(lambda: len(second.assigned) == 1)
            triggers = [h["trigger"] for h in suwi.json("groups", "history", group)["history"]]
            assert triggers[:2] == ["join", "join"]
            assert set(triggers[2:]) <= {"leader rejoined", "member rejoined"}
            assert triggers[2:]


def test_a_coordinator_that_moved_is_told_as_no_rebalance() -> None:
    with Cluster(brokers=3) as cluster:
        suwi = Suwi(cluster.bootstrap_servers)
        topic = cluster.create_topic("orders", 2)
        with Member(cluster.bootstrap_servers, "billing", topic) as member:
            until(lambda: len(member.assigned) == 2)
            coordinator = described(suwi, "billing")["coordinator"]
            cluster.stop_broker(coordinator)
            until(lambda: described(suwi, "billing")["coordinator"] != coordinator)
            found = suwi.json("groups", "history", "billing")
            assert found["coordinator"] != coordinator
            assert [h["trigger"] for h in found["history"]] == ["coordinator moved"]
            assert described(suwi, "billing")["state"] == "Stable"
            text = suwi.ok("groups", "history", "billing")
            assert f"to broker {found['coordinator']}; no rebalance" in text


# -- suwi consume --group ------------------------------------------------------------------------


def test_consume_in_a_group_continues_where_the_group_left_off(
    suwi: Suwi, topic: str, group: str
) -> None:
    first = suwi.ok("consume", topic, "--group", group, "--from-beginning", "-n", 3)
    rest = suwi.ok("consume", topic, "--group", group, "--from-beginning", "--no-follow")
    assert len(first.splitlines()) == 3
    assert sorted((first + rest).split()) == sorted(
        str(number) for number in range(RECORDS) for _ in range(PARTITIONS)
    )
    assert suwi.ok("consume", topic, "--group", group, "--no-follow") == ""
    assert re.search(r"^Lag +0 records$", suwi.ok("groups", "describe", group), re.MULTILINE)


def test_consume_in_a_group_shares_the_partitions_with_other_clients(
    suwi: Suwi, cluster: Cluster, topic: str, group: str
) -> None:
    with Member(cluster.bootstrap_servers, group, topic) as member:
        until(lambda: len(member.assigned) == PARTITIONS)
        printed = suwi.ok("consume", topic, "--group", group, "--from-beginning", "--no-follow")
        assert len(printed.split()) <= RECORDS
        until(lambda: len(member.assigned) == PARTITIONS)


def test_a_group_knows_the_offsets_itself(suwi: Suwi, topic: str, group: str) -> None:
    assert "groups reset" in suwi.misuse("consume", topic, "--group", group, "--offset", 3)


def test_a_static_member_keeps_its_place_when_it_ends(suwi: Suwi, topic: str, group: str) -> None:
    assert "requires --group" in suwi.misuse("consume", topic, "--instance-id", "pod-0")
    words = ("consume", topic, "--group", group, "--instance-id", "pod-0", "--from-beginning")
    suwi.ok(*words, "--no-follow")
    (described,) = suwi.json("groups", "describe", group)
    assert [member["instance_id"] for member in described["members"]] == ["pod-0"]


# -- a broker that does not respond ----------------------------------------------------------------


def test_nothing_is_said_of_groups_that_a_silent_broker_may_have(
    suwi: Suwi, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def list_groups(*_: object) -> GroupList:
        return GroupList([], {NodeId(2): "no response in time"})

    monkeypatch.setattr("suwi.cli.groups.list_groups", list_groups)
    monkeypatch.setattr("suwi.admin.group_descriptions.list_groups", list_groups)
    result = suwi("groups", "describe")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "suwi: broker 2 has not reported its groups: no response in time\n"
    assert suwi.ok("groups", "delete", read, "--yes") == f"deleted {read}\n"
    assert "does not exist" in suwi.refusal("groups", "delete", read, "--yes")
