"""The commands of scenarios that look at the files of replicas."""

import pytest

from suwi.lab.scenario import ScenarioError, parse
from suwi.lab.stage import changes, play


def last_step(text: str) -> list[str]:
    return changes(play(parse(text)))[-1]


def test_the_file_of_a_broker_that_is_down_is_read_from_its_disk() -> None:
    start = "topic orders b1 b2\nproduce b1 acks=all x\nwait 1s\nkill b2\n"
    assert "b2 leader-epoch-checkpoint: 0 0" in last_step(start + "file leader-epoch-checkpoint")


def test_an_offset_that_is_not_there_yet_is_not_found() -> None:
    start = "topic orders b1\nfill b1 batches=1 records=2 bytes=10\n"
    assert "b1 index: no entries" in last_step(start + "index b1")
    assert "b1 reads 00000000000000000000.log from 0: 0-1 at 0" in last_step(start + "look-up b1 1")
    assert "b1 does not have offset 2" in last_step(start + "look-up b1 2")


def test_a_broker_without_a_replica_has_no_index() -> None:
    with pytest.raises(ScenarioError, match=r"line 2: .* b2 has no replica of orders-0"):
        last_step("topic orders b1\nindex b2")
    with pytest.raises(ScenarioError, match=r"line 2: .* NOT_LEADER_OR_FOLLOWER"):
        last_step("topic orders b1\nfill b2 batches=1 records=1 bytes=1")
