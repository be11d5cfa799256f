"""Rounds over all groups and offsets of a shard: a bounded part in one event."""

from collections import deque

import pytest

from suwi.coordinator.event import Event
from suwi.group import group_coordinator_shard, offset_requests
from suwi.group.group_coordinator_shard import GroupCoordinatorShard
from suwi.group.offset_requests import EXPIRY
from tests.group.consumer_driver import ConsumerDriver
from tests.group.driver import EXPIRY_INTERVAL_MS, RETENTION_MS, Driver

GROUPS = 10


def test_a_round_in_which_nothing_expires_is_in_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_requests, "EXPIRY_CHECKED_PER_EVENT", 4)
    driver = Driver()
    for number in range(GROUPS):
        driver.commit(number, group=f"g{number}")
    began_ms, events = driver.now_ms, 1
    driver.expire(EXPIRY)
    while driver.timers[EXPIRY] == began_ms:
        driver.expire(EXPIRY)
        events += 1
    assert events == GROUPS // 2 + 1
    assert driver.timers[EXPIRY] == began_ms + EXPIRY_INTERVAL_MS
    driver.sleep(RETENTION_MS + EXPIRY_INTERVAL_MS)
    assert not list(driver.machine.offsets.groups()), "no group is left out"


def consumer_groups(driver: ConsumerDriver) -> dict[str, int]:
    """By group its epoch."""
    return {group.group_id: group.epoch for group in driver.machine.groups.consumer}


def grown(driver: ConsumerDriver) -> None:
    driver.image = driver.image.with_topic("a0", 2)
    driver.do(GroupCoordinatorShard.topics_changed, frozenset())


def test_a_topic_that_changes_is_compared_with_some_groups_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_coordinator_shard, "_TOPICS_COMPARED_PER_EVENT", 6)
    driver = ConsumerDriver()
    for number in range(GROUPS):
        driver.beat("m", "a0", group=f"g{number}")
    before = consumer_groups(driver)
    grown(driver)
    changed = [group for group, epoch in consumer_groups(driver).items() if epoch > before[group]]
    assert len(changed) == 3
    driver.sleep(1)
    assert all(epoch == before[group] + 1 for group, epoch in consumer_groups(driver).items())


@pytest.mark.parametrize("cause", ["topics changed", "elected"])
def test_new_epochs_of_many_groups_need_not_fit_one_batch(cause: str) -> None:
    driver = ConsumerDriver()
    driver.beat("m", "a0")
    driver.image = driver.image.with_topic("a0", 2)
    event = Event(driver.now_ms, topics=driver.image)  # type: ignore[arg-type]
    if cause == "elected":
        deque(driver.machine.elected(event), 0)
    else:
        deque(driver.machine.topics_changed(frozenset(), event), 0)
    assert event.records
    assert not event.is_atomic
