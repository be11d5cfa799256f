"""The hazards of committed offsets, by number: expiry, and what transactions have staged."""

import pytest
from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Event, TransactionalProducer
from suwi.coordinator.record import CoordinatorRecord, RecordFacts
from suwi.env.slices import run_to_end
from suwi.group.classic_group import ClassicGroup, ClassicState, Committer
from suwi.group.classic_group_records import GroupMetadataKey, GroupMetadataValue
from suwi.group.offset_manager import OffsetToCommit
from suwi.group.offset_records import OffsetCommitKey, OffsetCommitValue
from suwi.group.offset_requests import OffsetsCommitted
from suwi.records.record import Marker, MarkerType
from tests.group.consumer_world import a_call
from tests.group.driver import (
    EXPIRY_INTERVAL_MS,
    GROUP,
    RETENTION_MS,
    Driver,
    subscription,
)

# -- G12, G13: expiry ------------------------------------------------------------------------------


def test_g12_offsets_of_a_live_group_do_not_expire() -> None:
    driver = Driver()
    (member_id,) = driver.stable(protocols=[("range", subscription("t"))])
    driver.commit(1, member_id=member_id, generation=1)
    driver.commit(1, member_id=member_id, generation=1, expire_ms=driver.now_ms + 1)
    driver.sleep(RETENTION_MS * 3, member_id)
    assert driver.offset() == 1


def test_g12_offsets_of_a_topic_that_is_no_longer_read_expire() -> None:
    driver = Driver()
    (member_id,) = driver.stable(protocols=[("range", subscription("t"))])
    driver.commit(1, member_id=member_id, generation=1, topic="t")
    driver.commit(2, member_id=member_id, generation=1, topic="left")
    driver.sleep(RETENTION_MS - 1, member_id)
    assert driver.offset(topic="left") == 2
    driver.sleep(EXPIRY_INTERVAL_MS, member_id)
    assert (driver.offset(topic="t"), driver.offset(topic="left")) == (1, None)


def test_g12_nothing_expires_while_the_subscription_is_not_known() -> None:
    driver = Driver()
    (member_id,) = driver.stable(protocols=[("range", b"what is this")])
    driver.commit(1, member_id=member_id, generation=1)
    driver.sleep(RETENTION_MS * 3, member_id)
    assert driver.offset() == 1
    other = Driver()
    (member_id,) = other.stable(protocol_type="connect", protocols=[("sessioned", b"")])
    other.commit(1, member_id=member_id, generation=1)
    other.sleep(RETENTION_MS * 3, member_id)
    assert other.offset() == 1


@pytest.mark.parametrize("failed_over", [False, True])
def test_g12_retention_counts_from_when_the_group_became_empty(failed_over: bool) -> None:
    """KAFKA-10401: also after a fail-over."""
    driver = Driver()
    (member_id,) = driver.stable(protocols=[("range", subscription("t"))])
    driver.commit(1, member_id=member_id, generation=1)
    driver.sleep(RETENTION_MS, member_id)
    driver.leave(member_id)
    if failed_over:
        driver.fail_over()
    driver.sleep(RETENTION_MS - 1)
    assert driver.offset() == 1
    driver.sleep(EXPIRY_INTERVAL_MS)
    assert driver.offset() is None
    assert driver.machine.groups.classic == {}


def test_g12_a_group_from_long_ago_does_not_say_since_when_it_is_empty() -> None:
    """Group records had no time before Kafka 2.1: the offsets' own counts."""
    driver = Driver()
    value = GroupMetadataValue("consumer", 3, None, None, -1, ())
    driver.do(lambda _m, value, event: event.append(GroupMetadataKey(GROUP), value), value)
    driver.commit(1)
    driver.sleep(RETENTION_MS - 1)
    assert driver.offset() == 1
    driver.sleep(EXPIRY_INTERVAL_MS)
    assert driver.offset() is None


def test_g12_offsets_of_a_simple_group_expire_one_by_one() -> None:
    driver = Driver()
    driver.commit(1, topic="old")
    driver.sleep(RETENTION_MS // 2)
    driver.commit(1, topic="new")
    driver.sleep(RETENTION_MS // 2 + EXPIRY_INTERVAL_MS)
    assert (driver.offset(topic="old"), driver.offset(topic="new")) == (None, 1)


def test_g13_what_a_transaction_has_staged_survives_expiry_and_is_committed_with_it() -> None:
    driver = Driver()
    driver.commit(1)
    staged = OffsetCommitValue(2, -1, "", driver.now_ms)
    facts = RecordFacts(50, True, 7, 0, is_transactional=True)
    record = CoordinatorRecord(OffsetCommitKey(GROUP, "t", 0), staged)
    driver.machine.replay(record, facts)
    offsets = driver.machine.offsets.of(GROUP)
    assert offsets is not None
    assert (driver.offset(), offsets.is_unstable(("t", 0))) == (1, True)
    driver.sleep(RETENTION_MS * 2)
    assert driver.offset() == 1
    marker = Marker(MarkerType.COMMIT, 0)
    facts = RecordFacts(51, True, 7, 0, is_transactional=True)
    run_to_end(driver.machine.replaying_marker(marker, facts))
    assert driver.offset() == 2
    assert not offsets.is_unstable(("t", 0))


def stage(driver: Driver, log_offset: int, value: int, producer_id: int = 7) -> None:
    record = CoordinatorRecord(
        OffsetCommitKey(GROUP, "t", 0), OffsetCommitValue(value, -1, "", driver.now_ms)
    )
    facts = RecordFacts(log_offset, True, producer_id, 0, is_transactional=True)
    driver.machine.replay(record, facts)


def end_transaction(driver: Driver, log_offset: int, producer_id: int = 7) -> None:
    facts = RecordFacts(log_offset, True, producer_id, 0, is_transactional=True)
    run_to_end(driver.machine.replaying_marker(Marker(MarkerType.COMMIT, 0), facts))


def test_g13_what_a_transaction_has_staged_survives_the_deletion_of_its_group() -> None:
    driver = Driver()
    driver.is_checked = False  # The staged record is not in the driver's log.
    driver.commit(1)
    driver.commit(5, topic="other")
    stage(driver, 50, 2)
    event = Event(driver.now_ms)
    run_to_end(driver.machine.offset_requests.delete_group(GROUP, event))
    deleted = [key for key, value in event.records if isinstance(key, OffsetCommitKey)]
    assert deleted == [OffsetCommitKey(GROUP, "other", 0)]
    end_transaction(driver, 51)
    assert driver.offset() == 2


def test_t14_of_two_commits_the_record_with_the_higher_offset_wins_whichever_ends_first() -> None:
    driver = Driver()
    driver.is_checked = False
    stage(driver, 50, 2, producer_id=7)
    stage(driver, 51, 3, producer_id=8)
    end_transaction(driver, 52, producer_id=8)
    end_transaction(driver, 53, producer_id=7)
    assert driver.offset() == 3


def test_t14_a_deletion_after_a_staged_offset_wins_as_compaction_keeps_it() -> None:
    """Else the live state would have an offset that a replay of the compacted log has not (H0)."""
    driver = Driver()
    driver.is_checked = False
    driver.commit(1)
    stage(driver, 50, 2)
    tombstone = CoordinatorRecord(OffsetCommitKey(GROUP, "t", 0), None)
    driver.machine.replay(tombstone, RecordFacts(51))
    end_transaction(driver, 52)
    assert driver.machine.offsets.of(GROUP) is None


def test_staged_offsets_go_with_their_topic() -> None:
    driver = Driver()
    driver.is_checked = False
    stage(driver, 50, 2)
    event = Event(driver.now_ms)
    list(driver.machine.offset_requests.topics_deleted(frozenset({"t"}), event))
    assert event.records == [CoordinatorRecord(OffsetCommitKey(GROUP, "t", 0), None)]


def test_g2_a_transactional_commit_needs_no_member_and_may_come_during_a_rebalance() -> None:
    group = ClassicGroup(GROUP)
    producer = TransactionalProducer(7, 0, None)
    for state in (ClassicState.PREPARING_REBALANCE, ClassicState.COMPLETING_REBALANCE):
        group.state = state
        driver = Driver()
        driver.is_checked = False
        driver.machine.groups.classic[GROUP] = group
        for who, error in (
            (Committer(GROUP, producer=producer), ErrorCode.none),
            (Committer(GROUP, "m", None, 0, producer=producer), ErrorCode.unknown_member_id),
            (Committer(GROUP), ErrorCode.unknown_member_id),
        ):
            event = Event(0, a_call())
            offset = OffsetToCommit("t", 0, OffsetCommitValue(1, -1, "", 0))
            list(driver.machine.offset_requests.commit(who, [offset], event))
            assert event.replies == [(event.call, [error])]
            assert len(event.records) == (error is ErrorCode.none)


def test_an_offset_whose_record_is_on_its_way_is_not_stable() -> None:
    """KIP-447: who asks for stable offsets must not be given one that is about to change."""
    driver = Driver()
    driver.commit(1)
    value = OffsetCommitValue(2, -1, "", driver.now_ms)
    record = CoordinatorRecord(OffsetCommitKey(GROUP, "t", 0), value)
    driver.machine.replay(record, RecordFacts(1, is_committed=False))
    offsets = driver.machine.offsets.of(GROUP)
    assert offsets is not None
    assert (driver.offset(), offsets.is_unstable(("t", 0))) == (1, True)
    driver.machine.committed(2)
    assert (driver.offset(), offsets.is_unstable(("t", 0))) == (2, False)


def test_commits_are_counted_once_they_are_in_the_log() -> None:
    driver = Driver()
    driver.commit(1)
    assert driver.event.notices == []
    assert driver.event.notices_when_committed == [OffsetsCommitted(1)]
