"""Upgrades and downgrades as the whole machine decides them: fail-overs, and what does not fit."""

from kio.schema.errors import ErrorCode

from suwi.group.classic_group import ClassicState
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.wire.consumer_protocol import Subscription, encode_assignment, encode_subscription
from tests.group.consumer_driver import ConsumerDriver
from tests.group.consumer_world import topic_id
from tests.group.driver import subscription


def downgraded() -> tuple[ConsumerDriver, list[str]]:
    """The last member of the consumer protocol has just left, its partitions with it."""
    driver = ConsumerDriver()
    classic = driver.classic_members(2)
    assert driver.beat("m1", "a0", "a1").error is ErrorCode.none
    assert driver.consumer.classic_members == 2
    assert driver.beat("m1", epoch=-1).error is ErrorCode.none
    return driver, classic


def test_a_fail_over_right_after_a_downgrade_does_not_lose_its_rebalance() -> None:
    driver, classic = downgraded()
    assert driver.state is ClassicState.STABLE, "it has not begun"
    driver.fail_over()
    assert driver.state is ClassicState.PREPARING_REBALANCE
    for member_id in classic:
        assert driver.heartbeat(member_id) is ErrorCode.rebalance_in_progress


def test_a_fail_over_during_the_rebalance_of_a_downgrade_begins_it_again() -> None:
    driver, classic = downgraded()
    driver.sleep(1)
    assert driver.state is ClassicState.PREPARING_REBALANCE
    driver.resign_and_return()
    assert driver.state is ClassicState.PREPARING_REBALANCE
    assert driver.heartbeat(classic[0]) is ErrorCode.rebalance_in_progress


def test_g17_an_upgrade_in_an_interrupted_rebalance_leaves_members_what_they_still_read() -> None:
    driver = ConsumerDriver()
    ours = [TopicPartition("a0", PartitionIndex(0))]
    protocols = [("cooperative-sticky", encode_subscription(Subscription(("a0",), tuple(ours))))]
    member_id = driver.id_of(driver.join(protocols=protocols))
    driver.sync(member_id, {member_id: encode_assignment(ours)})
    driver.join(member_id, protocols=protocols)
    assert driver.state is ClassicState.COMPLETING_REBALANCE
    driver.join(protocols=[("cooperative-sticky", subscription("a0"))])
    assert driver.state is ClassicState.PREPARING_REBALANCE
    assert driver.group.members[member_id].assignment == b""
    joined = driver.beat("m1", "a0")
    assert (joined.error, joined.assignment) == (ErrorCode.none, {})
    assert driver.consumer.owner(topic_id("a0"), 0) == member_id


def test_an_upgrade_that_does_not_fit_a_batch_changes_nothing() -> None:
    driver = ConsumerDriver()
    classic = driver.classic_members(2)
    driver.join(classic[0], protocols=[("range", subscription("a0", user_data=b"x"))])
    assert driver.state is ClassicState.PREPARING_REBALANCE
    records, timers, waiting = len(driver.log), dict(driver.timers), dict(driver.waiting)
    driver.batch_bytes_max = 300
    assert driver.beat("m1", "a0").error is ErrorCode.unknown_server_error
    assert (len(driver.log), driver.timers, driver.waiting) == (records, timers, waiting)
    driver.batch_bytes_max = 1 << 20
    assert driver.beat("m1", "a0").error is ErrorCode.none
    assert driver.consumer.classic_members == 2


def test_a_group_whose_downgrade_does_not_fit_a_batch_stays_a_consumer_group() -> None:
    driver = ConsumerDriver()
    driver.classic_members(20)
    assert driver.beat("m1", "a0").error is ErrorCode.none
    driver.batch_bytes_max = 2_000
    assert driver.beat("m1", epoch=-1).error is ErrorCode.none
    assert driver.consumer.classic_members == len(driver.consumer.members) == 20
    sessions = [key for key in driver.timers if key[0] == "consumer-session"]  # type: ignore[index]
    assert len(sessions) == 20
