"""The state of a consumer group: replay in any order, who owns what, who may commit."""

import asyncio
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.coordinator.event import TransactionalProducer
from suwi.coordinator.record import CoordinatorRecord
from suwi.env.slices import Slices, run_to_end
from suwi.group.classic_group import Committer
from suwi.group.classic_group_records import GroupMetadataKey
from suwi.group.consumer_group import ConsumerGroups, CurrentAssignment, MemberState
from suwi.group.consumer_group_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartitions,
)
from suwi.group.consumer_validation import check_fetch, fence_commit
from suwi.handlers.consumer_group_describe import consumer_group_describe
from suwi.wire.versions import ApiKey
from tests.group.consumer_world import GROUP, Client, Image, World, replayed, settle, topic_id
from tests.handlers.requests import request, response_to

PRODUCER = TransactionalProducer(7, 0, None)
A, B = topic_id("a"), topic_id("b")
SUBSCRIPTION = ConsumerGroupMemberMetadataValue(
    "i", None, "client", "/host", ("a",), "b.*", 1_000, "range"
)
KEYS = (
    ConsumerGroupMetadataKey(GROUP),
    ConsumerGroupPartitionMetadataKey(GROUP),
    ConsumerGroupMemberMetadataKey(GROUP, "m"),
    ConsumerGroupTargetAssignmentMetadataKey(GROUP),
    ConsumerGroupTargetAssignmentMemberKey(GROUP, "m"),
    ConsumerGroupCurrentMemberAssignmentKey(GROUP, "m"),
    ConsumerGroupRegularExpressionKey(GROUP, "b.*"),
)


def current(epoch: int, *partitions: int, state: int = 0) -> CoordinatorRecord:
    owned = (TopicPartitions(A, partitions, tuple(epoch for _ in partitions)),)
    return CoordinatorRecord(
        ConsumerGroupCurrentMemberAssignmentKey(GROUP, "m"),
        ConsumerGroupCurrentMemberAssignmentValue(epoch, epoch - 1, state, owned, ()),
    )


RECORDS = (
    CoordinatorRecord(KEYS[0], ConsumerGroupMetadataValue(5, 77)),
    CoordinatorRecord(KEYS[2], SUBSCRIPTION),
    CoordinatorRecord(KEYS[3], ConsumerGroupTargetAssignmentMetadataValue(5, 123)),
    CoordinatorRecord(
        KEYS[4], ConsumerGroupTargetAssignmentMemberValue((TopicPartitions(A, (1, 0)),))
    ),
    current(5, 0, 1),
    CoordinatorRecord(KEYS[6], ConsumerGroupRegularExpressionValue(("b",), 1, 2)),
)


@pytest.mark.parametrize("key", KEYS)
def test_g14_a_tombstone_of_the_unknown_is_nothing(key: object) -> None:
    groups = ConsumerGroups()
    assert groups.replay(CoordinatorRecord(key, None)) is None
    assert len(groups) == 0


@pytest.mark.parametrize("record", RECORDS)
def test_g14_any_record_creates_the_group_and_its_tombstone_deletes_it(
    record: CoordinatorRecord,
) -> None:
    groups = ConsumerGroups()
    groups.replay(record)
    assert groups.get(GROUP) is not None
    groups.replay(record._replace(value=None))
    assert groups.get(GROUP) is None


def test_g14_g26_records_in_any_order_give_the_same_group_and_never_raise() -> None:
    expected = replayed(RECORDS)
    random = Random(1)
    for _ in range(200):
        records = [*RECORDS, *(current(epoch, epoch % 7, epoch % 5 + 7) for epoch in range(3))]
        random.shuffle(records)
        replayed(records)
        last = [record for record in records if record in RECORDS]
        stale = [record for record in records if record not in RECORDS]
        assert replayed([*stale, *last]) == expected


def test_g14_the_epoch_of_a_partition_need_not_be_the_one_before() -> None:
    group = replayed([current(5, 0, 1), current(9, 1, 2), current(3, 2)])[GROUP]
    assert group.owner(A, 2) == "m"
    assert group.owner(A, 0) is group.owner(A, 1) is None


def test_g14_an_outdated_claim_does_not_take_a_partition_from_its_owner() -> None:
    """Compaction may keep an old record of one member beside a newer one of another."""
    other = ConsumerGroupCurrentMemberAssignmentKey(GROUP, "other")
    claim = current(1, 0)._replace(key=other)
    group = replayed(
        [
            claim,
            current(2, 0),
            CoordinatorRecord(ConsumerGroupMemberMetadataKey(GROUP, "other"), SUBSCRIPTION),
            current(3, 1)._replace(key=other),
        ]
    )[GROUP]
    assert group.owner(A, 0) == "m"
    assert group.owner(A, 1) == "other"


def test_records_of_other_kinds_are_left_to_others() -> None:
    assert not ConsumerGroups().replay(CoordinatorRecord(GroupMetadataKey(GROUP), None))


def test_counts_follow_the_subscriptions_of_members() -> None:
    groups = ConsumerGroups()
    for record in RECORDS:
        groups.replay(record)
    group = groups.get(GROUP)
    assert group is not None
    assert set(group.subscribed_topics()) == {"a", "b"}
    assert "b" in group.subscribed_topics()
    assert group.static == {"i": "m"}
    assert dict(group.assignors) == {"range": 1}
    other = replace(SUBSCRIPTION, instance_id=None, topic_names=("c",), topic_regex="")
    groups.replay(CoordinatorRecord(KEYS[2], other))
    assert set(group.subscribed_topics()) == {"c"}
    assert "b" not in group.subscribed_topics()
    assert group.static == {}


def test_a_state_of_a_later_version_is_unknown() -> None:
    member = replayed([current(5, state=42)])[GROUP].members["m"]
    assert member.current.state is MemberState.UNKNOWN


def test_partitions_without_epochs_are_assigned_in_the_epoch_of_their_member() -> None:
    value = ConsumerGroupCurrentMemberAssignmentValue(7, 6, 0, (TopicPartitions(A, (1,)),), ())
    assert run_to_end(CurrentAssignment.of(value)).assigned == {A: {1: 7}}


# -- commits --------------------------------------------------------------------------------------


def moved() -> World:
    """m1 is in epoch 3: half of topic a since epoch 1, topic b since epoch 3."""
    world = World(Image().with_topic("a", 4).with_topic("b", 1))
    first, second = Client(world, "m1"), Client(world, "m2")
    first.beat()
    settle(world, [first, second])
    first.subscribe("a", "b")
    settle(world, [first, second])
    assert first.epoch == 3
    assert A in first.owned
    return world


def test_g20_a_commit_under_an_older_epoch_counts_for_what_was_assigned_then() -> None:
    world = moved()
    group = world.group
    mine = next(iter(group.members["m1"].current.assigned[A]))
    theirs = next(iter(group.members["m2"].current.assigned[A]))
    now = fence_commit(group, Committer(GROUP, "m1", None, 3, 9))
    assert now.error is now.of(A, theirs) is ErrorCode.none, "its own epoch is always accepted"
    before = fence_commit(group, Committer(GROUP, "m1", None, 2, 9))
    assert before.error is before.of(A, mine) is ErrorCode.none
    assert before.of(A, theirs) is ErrorCode.stale_member_epoch
    assert before.of(B, 0) is ErrorCode.stale_member_epoch, "assigned in epoch 3"
    assert (
        fence_commit(group, Committer(GROUP, "m1", None, 4, 9)).error
        is ErrorCode.stale_member_epoch
    )


def test_g20_a_partition_that_is_being_revoked_can_be_committed() -> None:
    world = World()
    first, second = Client(world, "m1"), Client(world, "m2")
    first.beat()
    first.subscribe("a", "b")
    first.beat()
    second.beat()
    first.beat()
    member = world.group.members["m1"]
    assert member.current.state is MemberState.UNREVOKED_PARTITIONS
    fence = fence_commit(world.group, Committer(GROUP, "m1", None, member.epoch - 1, 9))
    for topic, partitions in member.current.pending_revocation.items():
        for partition, assigned_in in partitions.items():
            code = fence.of(topic, partition)
            assert (code is ErrorCode.none) is (assigned_in <= member.epoch - 1)


def test_g20_classic_members_are_told_of_a_generation() -> None:
    world = moved()
    value = world.group.members["m1"].subscription
    assert value is not None
    classic = replace(value, classic=ClassicMemberMetadata(1_000, ()))
    world.groups.replay(CoordinatorRecord(ConsumerGroupMemberMetadataKey(GROUP, "m1"), classic))
    illegal = ErrorCode.illegal_generation
    assert fence_commit(world.group, Committer(GROUP, "m1", None, 9, 2)).error is illegal
    assert fence_commit(world.group, Committer(GROUP, "m1", None, 2, 2)).of(B, 0) is illegal
    assert check_fetch(world.group, "m1", 2) is illegal


def test_who_may_commit_and_fetch() -> None:
    world = moved()
    group = world.group
    none, unknown = ErrorCode.none, ErrorCode.unknown_member_id
    stale = ErrorCode.stale_member_epoch
    assert (
        fence_commit(group, Committer(GROUP, "m1", None, 3, 8)).error
        is ErrorCode.unsupported_version
    )
    assert fence_commit(group, Committer(GROUP, "", None, -1, 9)).error is unknown
    transactional = fence_commit(group, Committer(GROUP, "", None, -1, 3, producer=PRODUCER))
    assert transactional.error is none
    late = fence_commit(group, Committer(GROUP, "m1", None, 9, 3, producer=PRODUCER))
    assert late.error is ErrorCode.illegal_generation, "its clients know no stale epoch"
    assert check_fetch(group, None, -1) is none
    assert check_fetch(group, "m1", 3) is none
    assert check_fetch(group, "m1", 2) is check_fetch(group, "m1", 4) is stale
    assert check_fetch(group, "m9", 3) is unknown
    for client in list(group.members):
        Client(world, client, epoch=3).leave()
    assert fence_commit(world.group, Committer(GROUP, "", None, -1, 9)).error is none


def test_a_static_member_that_left_commits_nothing_any_more() -> None:
    world = World()
    client = Client(world, "m1", instance_id="i")
    client.beat()
    client.leave(-2)
    stale = ErrorCode.stale_member_epoch
    assert fence_commit(world.group, Committer(GROUP, "m1", "i", 1, 9)).error is stale


def described_by(world: World) -> Any:
    """The response to ConsumerGroupDescribe."""
    machine = SimpleNamespace(
        group=world.groups.get, config=SimpleNamespace(consumer_of=lambda _: world.config)
    )

    def shard_to_read(_group_id: str) -> Slices[Any]:
        yield from ()
        return SimpleNamespace(machine=machine)

    runtime: Any = SimpleNamespace(shard_to_read=shard_to_read)
    fields = {"group_ids": [GROUP], "include_authorized_operations": False}
    asked = request(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, fields)
    described = consumer_group_describe(runtime, lambda: world.image, asked)  # type: ignore[arg-type,return-value]
    return asyncio.run(response_to(asked, described))


def test_a_group_is_described_as_it_is() -> None:
    world = World()
    client = Client(world, "m1", ("a", "gone"), instance_id="i", assignor="range")
    client.beat()
    (described,) = described_by(world).groups
    assert (described.group_state, described.group_epoch) == ("Stable", 1)
    assert (described.assignment_epoch, described.assignor_name) == (1, "range")
    (member,) = described.members
    assert (member.member_id, member.instance_id, member.client_id) == ("m1", "i", "c")
    assert member.subscribed_topic_names == ("a", "gone")
    assert member.assignment == member.target_assignment
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_id, topic.topic_name) == (topic_id("a"), "a")
    assert topic.partitions == (0, 1, 2, 3)
    assert member.member_type == 1
