"""Kafka's Java consumer in groups of Suwi: every assignor, members that come and go."""

import re
from pathlib import Path

import pytest

from compat.kafka import run_java
from compat.test_groups import CONSUMER_GROUPS
from compat.test_tools import PRODUCE, create, kafka
from tests.broker_process import BrokerProcess

MEMBERS = str(Path(__file__).with_name("GroupMembers.java"))
RECORDS = 2000
PARTITIONS = 6
_ASSIGNORS = "org.apache.kafka.clients.consumer."
SETTINGS = {
    "range": f"partition.assignment.strategy={_ASSIGNORS}RangeAssignor",
    "round-robin": f"partition.assignment.strategy={_ASSIGNORS}RoundRobinAssignor",
    "sticky": f"partition.assignment.strategy={_ASSIGNORS}StickyAssignor",
    "cooperative-sticky": f"partition.assignment.strategy={_ASSIGNORS}CooperativeStickyAssignor",
    "consumer protocol": "group.protocol=consumer",
    "range on the broker": "group.protocol=consumer group.remote.assignor=range",
}


def fill(suwi: BrokerProcess, topic: str) -> None:
    create(suwi, topic, "--partitions", str(PARTITIONS))
    lines = "".join(f"key{number}:{number}\n" for number in range(RECORDS))
    separated = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    kafka(suwi, PRODUCE, "--topic", topic, *separated, stdin=lines)


@pytest.mark.parametrize("assignor", SETTINGS)
def test_members_that_come_and_go_read_every_record_once(
    suwi: BrokerProcess, topic: str, assignor: str
) -> None:
    fill(suwi, topic)
    told = run_java(
        MEMBERS, suwi.address, topic, topic, str(RECORDS), *SETTINGS[assignor].split(), time_s=300
    )
    assert not re.findall(r"^(?:failed|lost) .*", told, re.M)
    read = re.findall(r"^read (\w+) (\d+)$", told, re.M)
    assert sorted(int(number) for _, number in read) == list(range(RECORDS))
    assert {member for member, _ in read} == {"first", "second", "third"}
    assert _owners_after_each_rebalance(told) == []
    described = kafka(suwi, CONSUMER_GROUPS, "--describe", "--group", topic)
    assert len(re.findall(rf"^{topic}\s+{topic}\s+\d+\s+\d+\s+\d+\s+0\s", described, re.M)) == (
        PARTITIONS
    )


def _owners_after_each_rebalance(told: str) -> list[str]:
    """Where a partition was given to a member before another one had given it up."""
    owners: dict[str, str] = {}
    wrong = []
    for what, member, listed in re.findall(r"^(assigned|revoked) (\w+) \[(.*)\]$", told, re.M):
        for partition in filter(None, listed.split(",")):
            if what == "revoked":
                owners.pop(partition, None)
            elif partition in owners:
                wrong.append(f"{partition} to {member} while {owners[partition]} has it")
            else:
                owners[partition] = member
    return wrong
