"""What real coordinators got wrong, one transcript each. The numbers are those of the hazards list.

Every event is checked against a replay of the log, see `driver.py` (H0).
"""

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from suwi.coordinator.record import CoordinatorRecord, RecordFacts
from suwi.group.classic_group import ClassicState
from suwi.group.classic_group_records import GroupMetadataKey, GroupMetadataValue
from suwi.group.group_coordinator_shard import GROUP_RECORDS
from suwi.group.history import Trigger
from suwi.group.offset_records import OffsetCommitKey
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.wire.consumer_protocol import Subscription, encode_assignment, encode_subscription
from tests.group.driver import (
    GROUP,
    REBALANCE_MS,
    RETENTION_MS,
    SESSION_MS,
    Driver,
    subscription,
)

EMPTY, STABLE = ClassicState.EMPTY, ClassicState.STABLE
PREPARING = ClassicState.PREPARING_REBALANCE
COMPLETING = ClassicState.COMPLETING_REBALANCE


# -- G1, G2: who may commit ----------------------------------------------------------------------


def test_g1_a_commit_of_the_generation_before_is_refused() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    generation = driver.group.generation
    assert driver.commit(5, member_id=follower, generation=generation) == ErrorCode.none
    driver.join(leader)
    driver.join(follower)
    driver.assign()
    assert driver.group.generation == generation + 1
    stale = driver.commit(4, member_id=follower, generation=generation)
    assert stale == ErrorCode.illegal_generation
    assert driver.offset() == 5


def test_g1_the_member_is_judged_before_its_generation() -> None:
    driver = Driver()
    (member_id,) = driver.stable(instances=["pod-1"])
    assert driver.commit(1, member_id="stranger", generation=9) == ErrorCode.unknown_member_id
    fenced = driver.commit(1, member_id="stranger", generation=9, instance="pod-1")
    assert fenced == ErrorCode.fenced_instance_id
    assert driver.commit(1, member_id=member_id, generation=9) == ErrorCode.illegal_generation


def test_g1_without_a_generation_only_an_empty_group_takes_offsets() -> None:
    driver = Driver()
    (member_id,) = driver.stable()
    assert driver.commit(1) == ErrorCode.unknown_member_id
    driver.leave(member_id)
    assert driver.commit(1) == ErrorCode.none
    assert driver.commit(2, instance="pod-1") == ErrorCode.none  # KAFKA-14201


def test_g2_no_commit_while_an_assignment_is_awaited() -> None:
    driver = Driver()
    member_id = driver.id_of(driver.join())
    assert driver.state is COMPLETING
    refused = driver.commit(1, member_id=member_id, generation=1)
    assert refused == ErrorCode.rebalance_in_progress
    driver.assign()
    assert driver.commit(1, member_id=member_id, generation=1) == ErrorCode.none


# -- G3, G4: who never comes -----------------------------------------------------------------------


@pytest.mark.parametrize("leader_syncs", [True, False])
def test_g3_who_joined_and_never_syncs_is_expelled(leader_syncs: bool) -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    driver.join(leader)
    driver.join(follower)
    if leader_syncs:
        driver.sync(leader, {leader: b"all"})
    waits = driver.sync(follower) if not leader_syncs else None
    silent, other = (follower, leader) if leader_syncs else (leader, follower)
    driver.sleep(REBALANCE_MS + 1, silent, other)
    assert list(driver.group.members) == [other]
    assert driver.state is PREPARING
    if waits is not None:
        assert driver.replies[waits].error == ErrorCode.rebalance_in_progress
    driver.join(other)
    driver.assign()
    if leader_syncs:  # Else it is still the rebalance that the leader began.
        assert driver.notices[-1].cause.trigger is Trigger.SYNC_TIMEOUT


def test_g4_an_id_that_is_never_used_holds_up_the_phase_for_no_longer_than_its_session() -> None:
    driver = Driver()
    (leader,) = driver.stable()
    given = driver.replies[driver.join(known_id=True)]
    assert given.error == ErrorCode.member_id_required
    waits = driver.join(leader)
    assert waits in driver.waiting
    driver.sleep(SESSION_MS + 1)
    assert driver.replies[waits].generation == 2
    late = driver.replies[driver.join(given.member_id)]
    assert (late.error, late.member_id) == (ErrorCode.unknown_member_id, given.member_id)


def test_g4_ids_that_were_handed_out_count_and_those_of_others_end_the_phase() -> None:
    driver = Driver(size_max=2)
    (leader,) = driver.stable()
    pending = driver.replies[driver.join(known_id=True)].member_id
    refused = driver.replies[driver.join(known_id=True)]
    assert refused.error == ErrorCode.group_max_size_reached
    waits = driver.join(leader)
    joined = driver.join(pending)
    assert driver.replies[waits].generation == driver.replies[joined].generation == 2


def test_g4_ids_leave_nothing_behind() -> None:
    driver = Driver()
    pending = driver.replies[driver.join(known_id=True)].member_id
    assert driver.leave(pending) == [ErrorCode.none]
    assert driver.machine.groups.classic == {}
    assert driver.log == []
    assert list(driver.timers) == [("expiry",)]


# -- G5, G6: static members ------------------------------------------------------------------------


@pytest.mark.parametrize("state", [PREPARING, COMPLETING, STABLE])
def test_g5_a_static_member_is_replaced_in_every_state(state: ClassicState) -> None:
    driver = Driver()
    one, _two = driver.stable(instances=["pod-1", "pod-2"])
    instance = driver.group.members[one].instance_id
    (other,) = (m for m in driver.group.members.values() if m.member_id != one)
    waits = None
    if state is not STABLE:
        waits = driver.join(one, instance=instance)
    if state is COMPLETING:
        driver.join(other.member_id, instance=other.instance_id)
        waits = driver.sync(other.member_id, instance=other.instance_id)
        one, instance = other.member_id, other.instance_id
    assert driver.state is state
    back = driver.join(instance=instance)
    if waits is not None:
        assert driver.replies[waits].error == ErrorCode.fenced_instance_id
        assert back in driver.waiting
        assert driver.state is PREPARING
        for member in list(driver.group.members.values()):
            if member.awaiting_join is None:
                driver.join(member.member_id, instance=member.instance_id)
        driver.assign()
    assert driver.heartbeat(one, instance=instance) == ErrorCode.fenced_instance_id
    new = driver.id_of(back)
    assert driver.heartbeat(new, instance=instance) == ErrorCode.none


def test_g6_the_replacement_is_persisted_before_it_is_told() -> None:
    driver = Driver()
    (old,) = driver.stable(instances=["pod-1"])
    records = len(driver.log)
    new = driver.id_of(driver.join(instance="pod-1", session_ms=20_000, rebalance_ms=40_000))
    assert len(driver.log) == records + 1
    driver.fail_over()
    assert driver.heartbeat(new, instance="pod-1") == ErrorCode.none
    assert driver.heartbeat(old, instance="pod-1") == ErrorCode.fenced_instance_id
    member = driver.group.members[new]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (20_000, 40_000)
    assert member.assignment == old.encode()


def test_g6_a_replacement_during_a_rebalance_is_persisted_before_it_is_told() -> None:
    """Kafka does not: there the new one is fenced by the old one's id after the fail-over."""
    driver = Driver()
    other, old = driver.stable(instances=["pod-1", "pod-2"])
    value = driver.group.persisted
    assert value is not None
    first, second = (driver.group.members[each].instance_id for each in (old, other))
    driver.join(other, instance=second)
    back = driver.join(instance=first)
    assert driver.state is COMPLETING
    new = driver.id_of(back)
    assert driver.group.persisted == replace(
        value,
        members=tuple(
            replace(each, member_id=new) if each.member_id == old else each
            for each in value.members
        ),
    )
    driver.fail_over()
    assert (driver.state, driver.group.generation) == (STABLE, value.generation)
    assert driver.heartbeat(old, instance=first) == ErrorCode.fenced_instance_id
    generation = value.generation + 1
    late = driver.replies[driver.sync(new, instance=first, generation=generation)]
    assert late.error == ErrorCode.illegal_generation
    driver.join(other, instance=second)
    driver.join(new, instance=first)
    driver.assign()


def test_g6_a_rebalance_without_a_replacement_persists_nothing_before_the_assignment() -> None:
    driver = Driver()
    one, two = driver.stable(instances=["pod-1", "pod-2"])
    records = len(driver.log)
    for each in (one, two):
        driver.join(each, instance=driver.group.members[each].instance_id)
    driver.join(one, instance=driver.group.members[one].instance_id)
    assert driver.state is COMPLETING
    assert len(driver.log) == records


def test_g6_a_static_member_that_wants_other_topics_makes_its_group_rebalance() -> None:
    """KAFKA-12759."""
    driver = Driver()
    driver.stable(instances=["pod-1"], protocols=[("range", subscription("a"))])
    driver.join(instance="pod-1", protocols=[("range", subscription("a", "b"))])
    assert driver.group.generation == 2
    assert driver.state is COMPLETING


@pytest.mark.parametrize("failed_over", [False, True])
def test_g6_a_static_restart_moves_nothing_whatever_else_its_client_says(failed_over: bool) -> None:
    """Cooperative consumers say what they own: nothing, after a restart. And after a fail-over the
    coordinator knows of their protocols only the one in use."""
    driver = Driver()
    before = [("range", subscription("a", user_data=b"all")), ("sticky", subscription("a"))]
    (old,) = driver.stable(instances=["pod-1"], protocols=before)
    if failed_over:
        driver.fail_over()
    after = [("range", subscription("a", user_data=b"none")), ("sticky", subscription("a"))]
    joined = driver.replies[driver.join(instance="pod-1", protocols=after)]
    assert (joined.error, joined.generation) == (ErrorCode.none, 1)
    assert driver.state is STABLE
    assert driver.group.members[joined.member_id].assignment == old.encode()


@pytest.mark.parametrize("failed_over", [False, True])
def test_g6_a_static_member_that_did_not_give_up_its_partitions_makes_its_group_rebalance(
    failed_over: bool,
) -> None:
    """Found by the simulation (seed 31107): it stopped when it had to give up a partition and join
    again, and was back in time. Nobody else joins: the partition would have no owner."""
    driver = Driver()
    topic = [TopicPartition("a", PartitionIndex(0)), TopicPartition("a", PartitionIndex(1))]

    def protocols(*owned: TopicPartition) -> list[tuple[str, bytes]]:
        return [("cooperative-sticky", encode_subscription(Subscription(("a",), owned)))]

    waiting = driver.join(instance="pod-1", protocols=protocols(*topic))
    member_id = driver.replies[waiting].member_id
    driver.sync(member_id, {member_id: encode_assignment(topic[:1])}, instance="pod-1")
    assert driver.state is STABLE
    if failed_over:
        driver.fail_over()
    driver.join(instance="pod-1", protocols=protocols())
    assert driver.group.generation == 2
    member_id = next(iter(driver.group.members))
    driver.sync(member_id, {member_id: encode_assignment(topic)}, instance="pod-1")
    driver.join(instance="pod-1", protocols=protocols())
    assert driver.group.generation == 2, "nothing was to be given up"


def test_g6_a_static_member_that_changes_the_protocol_in_use_makes_its_group_rebalance() -> None:
    driver = Driver()
    driver.stable(instances=["pod-1"], protocols=[("range", b"s"), ("sticky", b"s")])
    driver.join(instance="pod-1", protocols=[("sticky", b"s"), ("range", b"s")])
    assert (driver.group.generation, driver.group.protocol) == (2, "sticky")


# -- G14, G15: replay ------------------------------------------------------------------------------


def test_g14_a_tombstone_of_what_nobody_knows_is_nothing() -> None:
    driver = Driver()
    for key in (GroupMetadataKey("x"), OffsetCommitKey("x", "t", 0)):
        driver.machine.replay(CoordinatorRecord(key, None), RecordFacts(0))
    assert driver.machine.groups.classic == {}
    assert list(driver.machine.groups.ids()) == []


def test_g14_any_record_may_be_the_first_of_its_group() -> None:
    """Compaction leaves the newest of each key, in whatever order."""
    driver = Driver()
    (member_id,) = driver.stable()
    driver.commit(1, member_id=member_id, generation=1)
    records = [GROUP_RECORDS.decode(*logged) for logged in driver.log]
    for order in (records, records[::-1]):
        machine = Driver().machine
        for offset, record in enumerate(order):
            assert record is not None
            machine.replay(record, RecordFacts(offset))
        assert list(machine.groups.classic[GROUP].members) == [member_id]
        offsets = machine.offsets.of(GROUP)
        assert offsets is not None
        found = offsets.get(("t", 0))
        assert found is not None
        assert found.offset == 1


def test_g14_a_record_of_an_older_generation_is_no_error_in_a_replay() -> None:
    driver = Driver()
    machine = driver.machine
    for generation in (5, 4):
        value = GroupMetadataValue("consumer", generation, None, None, 1, ())
        machine.replay(CoordinatorRecord(GroupMetadataKey("x"), value), RecordFacts(0))
    assert machine.groups.classic["x"].generation == 4


@pytest.mark.parametrize("how", ["fail over", "resign"])
@pytest.mark.parametrize("state", [PREPARING, COMPLETING])
def test_g15_a_rebalance_that_was_not_persisted_never_happened(
    state: ClassicState, how: str
) -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    generation = driver.group.generation
    driver.join(leader, protocols=[("range", b"other")])
    driver.join()
    if state is COMPLETING:
        driver.join(follower)
    assert driver.state is state
    if how == "resign":
        driver.resign_and_return()
    else:
        driver.fail_over()
    assert (driver.state, driver.group.generation) == (STABLE, generation)
    assert set(driver.group.members) == {leader, follower}
    if state is COMPLETING:
        # They know of a generation that does not exist, and join again.
        assert driver.heartbeat(leader, generation + 1) == ErrorCode.illegal_generation
    driver.join(leader)
    driver.join(follower)
    assert driver.group.generation == generation + 1
    driver.assign()


def test_g15_who_is_silent_after_a_fail_over_has_a_whole_session_and_no_more() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    driver.sleep(SESSION_MS - 1_000, leader)
    driver.fail_over()
    driver.sleep(SESSION_MS - 1, leader)
    assert set(driver.group.members) == {leader, follower}
    driver.sleep(2, leader)
    assert set(driver.group.members) == {leader}


# -- G16: what is too large ------------------------------------------------------------------------


def test_g16_an_assignment_that_the_log_cannot_take_is_refused_and_the_group_goes_on() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    generation, records = driver.group.generation, len(driver.log)
    driver.join(leader)
    driver.join(follower)
    driver.batch_bytes_max = 10_000
    waits = driver.sync(follower)
    answer = driver.sync(leader, {leader: b"x" * 10_000})
    for token in (waits, answer):
        assert driver.replies[token].error == ErrorCode.unknown_server_error
    assert (driver.state, len(driver.log)) == (PREPARING, records)
    driver.fail_over()
    assert (driver.state, driver.group.generation) == (STABLE, generation)


def test_g16_ten_thousand_members_become_a_generation_and_one_more_is_refused() -> None:
    driver = Driver(size_max=10_000, delay_ms=3_000)
    driver.is_checked = False  # It would take long.
    tokens = [driver.join() for _ in range(10_000)]
    refused = driver.join()
    assert driver.replies[refused].error == ErrorCode.group_max_size_reached
    driver.now_ms += 3_000
    driver.expire(("join", GROUP))
    driver.now_ms += 3_000
    driver.expire(("join", GROUP))
    leader = driver.replies[tokens[0]]
    assert (leader.error, len(leader.members)) == (ErrorCode.none, 10_000)
    assert {driver.replies[token].generation for token in tokens} == {leader.generation}
    assert driver.commit(1, group="other") == ErrorCode.none
    driver.batch_bytes_max = 10 << 20
    synced = driver.sync(leader.member_id, {leader.member_id: b"a"})
    assert driver.replies[synced].assignment == b"a"
    driver.is_checked = True
    driver.check()


def test_g16_expiry_of_many_offsets_is_done_in_several_events() -> None:
    driver = Driver()
    driver.is_checked = False  # It would take long, and is done at the end.
    for number in range(450):
        driver.commit(1, group=f"g{number}", topic="t")
    driver.now_ms += RETENTION_MS
    events = 0
    while any(driver.machine.offsets.groups()):
        driver.now_ms = driver.timers.pop(("expiry",))
        before = len(driver.log)
        driver.expire(("expiry",))
        assert len(driver.log) - before <= 202  # And a tombstone of the last group.
        events += 1
    assert events > 3
    driver.is_checked = True
    driver.check()


# -- G23, G24, G25 ---------------------------------------------------------------------------------


def test_g23_offsets_go_with_their_topic() -> None:
    driver = Driver()
    driver.commit(1, topic="gone")
    driver.commit(2, topic="kept")
    driver.do(
        lambda machine, deleted, event: machine.offset_requests.topics_deleted(deleted, event),
        frozenset(["gone"]),
    )
    assert (driver.offset(topic="gone"), driver.offset(topic="kept")) == (None, 2)


@pytest.mark.parametrize("how", ["leave", "session", "rebalance", "sync"])
def test_g24_with_a_member_all_its_timers_go(how: str) -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    if how == "leave":
        driver.leave(follower)
    elif how == "session":
        driver.sleep(SESSION_MS + 1, leader)
    elif how == "rebalance":
        driver.join(leader)
        driver.sleep(REBALANCE_MS + 1, leader, follower)
    else:
        driver.join(leader)
        driver.join(follower)
        driver.sync(leader, {})
        driver.sleep(REBALANCE_MS + 1, leader, follower)
    assert list(driver.group.members) == [leader]
    assert not [key for key in driver.timers if follower in str(key)]
    generation = driver.group.generation
    if driver.state is PREPARING:
        driver.join(leader)
        generation += 1
    if driver.state is COMPLETING:
        driver.assign()
    driver.sleep(REBALANCE_MS * 5, leader)
    assert (driver.state, driver.group.generation) == (STABLE, generation)


def test_g24_a_join_costs_the_same_however_many_members_there_are() -> None:
    driver = Driver(delay_ms=3_000, size_max=1_000)
    waiting = []
    for _ in range(200):
        waiting.append(driver.join())
        assert len(driver.event.timers) <= 3  # Its own session, and the phase.
    assert len(driver.log) == 0
    driver.sleep(60_000)
    assert {driver.replies[token].generation for token in waiting} == {1}
    assert sum(len(driver.replies[token].members) for token in waiting) == 200


def test_g25_one_refused_partition_of_several_leaves_nothing_pending() -> None:
    """Refused partitions never reach the machine, see `test_partitions_are_refused_one_by_one`."""
    driver = Driver()
    driver.commit(1)
    offsets = driver.machine.offsets.of(GROUP)
    assert offsets is not None
    assert not offsets.is_unstable(("t", 0))


# -- and what people are told ---------------------------------------------------------------------


def test_the_history_says_why_a_group_rebalanced() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    driver.join(follower, protocols=[("range", b"more")])
    driver.join(leader)
    driver.assign()
    driver.join(leader)
    driver.join(follower, protocols=[("range", b"more")])
    driver.assign()
    driver.leave(follower)
    driver.join(leader)
    driver.assign()
    driver.sleep(SESSION_MS + 1)
    triggers = [notice.cause.trigger for notice in driver.notices]
    assert triggers[-4:] == [
        Trigger.SUBSCRIPTION_CHANGE,
        Trigger.LEADER_REJOINED,
        Trigger.LEAVE,
        Trigger.SESSION_TIMEOUT,
    ]
    assert driver.state is EMPTY
