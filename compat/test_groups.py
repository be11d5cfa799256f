"""Apache Kafka's own group tools and consumers against a broker of Suwi, with both protocols."""

import re

import pytest

from compat.kafka import run_java
from compat.test_tools import CONSUME, PRODUCE, create, kafka
from tests.broker_process import BrokerProcess

CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
DUMP = "org.apache.kafka.tools.DumpLogSegments"
PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
RECORDS = 300


def fill(suwi: BrokerProcess, topic: str, partitions: int = 3) -> None:
    create(suwi, topic, "--partitions", str(partitions))
    lines = "".join(f"key{number}:{number}\n" for number in range(RECORDS))
    separated = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    kafka(suwi, PRODUCE, "--topic", topic, *separated, stdin=lines)


def consume(suwi: BrokerProcess, topic: str, group: str, protocol: str, count: int) -> list[int]:
    printed = kafka(
        suwi,
        CONSUME,
        *("--topic", topic, "--group", group, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", "30000"),
        *("--consumer-property", f"group.protocol={protocol}"),
    )
    return [int(line) for line in printed.splitlines() if line.isdigit()]


def described(suwi: BrokerProcess, group: str, *form: str) -> str:
    return kafka(suwi, CONSUMER_GROUPS, "--describe", "--group", group, *form)


def lag(suwi: BrokerProcess, topic: str, group: str) -> dict[int, tuple[int, int]]:
    """By partition the committed offset and the lag."""
    rows = re.findall(
        rf"^{group}\s+{topic}\s+(\d+)\s+(\d+)\s+\d+\s+(\d+)", described(suwi, group), re.M
    )
    return {int(partition): (int(offset), int(lag)) for partition, offset, lag in rows}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_console_consumer_continues_where_its_group_left_off(
    suwi: BrokerProcess, topic: str, protocol: str
) -> None:
    fill(suwi, topic)
    group = f"{topic}-{protocol}"
    first = consume(suwi, topic, group, protocol, 100)
    rest = consume(suwi, topic, group, protocol, 200)
    assert sorted(first + rest) == list(range(RECORDS))
    found = lag(suwi, topic, group)
    assert sum(offset for offset, _ in found.values()) == RECORDS
    assert all(behind == 0 for _, behind in found.values())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafka_consumer_groups_lists_describes_resets_and_deletes(
    suwi: BrokerProcess, topic: str, protocol: str
) -> None:
    fill(suwi, topic)
    group = f"{topic}-{protocol}"
    consume(suwi, topic, group, protocol, RECORDS)
    assert group in kafka(suwi, CONSUMER_GROUPS, "--list").splitlines()
    listed = kafka(suwi, CONSUMER_GROUPS, "--list", "--state", "Empty")
    assert re.search(rf"^{group}\s+Empty", listed, re.M | re.I)
    assert re.search(rf"^{group}\s", kafka(suwi, GROUPS, "--list"), re.M)
    assert "Empty" in described(suwi, group, "--state")
    described(suwi, group, "--members", "--verbose")
    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    kafka(suwi, CONSUMER_GROUPS, *reset, "--shift-by", "-10", "--execute")
    assert all(behind == 10 for _, behind in lag(suwi, topic, group).values())
    kafka(suwi, CONSUMER_GROUPS, *reset, "--to-earliest", "--execute")
    assert sum(behind for _, behind in lag(suwi, topic, group).values()) == RECORDS
    kafka(suwi, CONSUMER_GROUPS, "--delete-offsets", "--group", group, "--topic", topic)
    assert not lag(suwi, topic, group)
    kafka(suwi, CONSUMER_GROUPS, "--delete", "--group", group)
    assert group not in kafka(suwi, CONSUMER_GROUPS, "--list").splitlines()
    assert re.search("does not exist|not found", described(suwi, group))


def test_consumer_performance_reads_in_a_group(suwi: BrokerProcess, topic: str) -> None:
    fill(suwi, topic)
    measured = run_java(
        PERFORMANCE,
        *("--bootstrap-server", suwi.address, "--topic", topic, "--messages", str(RECORDS)),
        *("--group", topic, "--timeout", "30000"),
    )
    assert re.search(rf", {RECORDS}, ", measured)


def test_kafkas_formatter_decodes_our_offset_records(suwi: BrokerProcess, topic: str) -> None:
    fill(suwi, topic, partitions=1)
    consume(suwi, topic, topic, "classic", RECORDS)
    logs = sorted(suwi.data.glob("__consumer_offsets-*/*.log"))
    dumped = run_java(
        DUMP,
        "--offsets-decoder",
        "--files",
        ",".join(str(log) for log in logs if log.stat().st_size),
    )
    assert re.search(rf'"group":"{topic}","topic":"{topic}","partition":0', dumped)
    assert re.search(rf'"offset":{RECORDS}\b', dumped)
