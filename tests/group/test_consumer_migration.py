"""Online migration: classic members in a consumer group, upgrade and downgrade."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Event
from suwi.group.classic_coordinator import ClassicCoordinator, ClassicGroupConfig
from suwi.group.classic_group import (
    ClassicGroup,
    ClassicMember,
    ClassicState,
    Committer,
    JoinRequest,
    Protocol,
    SyncRequest,
)
from suwi.group.consumer_group import GroupState
from suwi.group.consumer_migration import downgrade_timer
from suwi.group.history import Cause, Trigger
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.wire.consumer_protocol import decode_assignment, encode_assignment
from tests.group.consumer_world import GROUP, Client, a_call, topic_id
from tests.group.mixed_world import Consumer, Mixed, subscription

A, B = topic_id("a"), topic_id("b")


def settle(world: Mixed, *members: Client | Consumer) -> None:
    for _ in range(12):
        world.advance(1)
        for member in members:
            if isinstance(member, Client):
                member.beat()
            else:
                member.turn()
            world.check_one_owner()
    world.check_replay()


def classic_group(*members: str, generation: int = 3, **assignments: Any) -> ClassicGroup:
    group = ClassicGroup(GROUP, generation=generation - 1)
    for member_id in members:
        protocols = (Protocol("cooperative-sticky", subscription("a")),)
        member = ClassicMember(
            member_id, None, "client", "/h", 30_000, 10_000, "consumer", protocols
        )
        member.assignment = assignments.get(member_id, b"")
        group.add(member)
    group.begin_generation()
    group.state = ClassicState.STABLE
    return group


def assignment(topic: str, *partitions: int, **others: list[int]) -> bytes:
    named = {topic: partitions, **others}
    return encode_assignment(
        [
            TopicPartition(name, PartitionIndex(partition))
            for name, indexes in named.items()
            for partition in indexes
        ],
        1,
    )


# -- classic members ------------------------------------------------------------------------------


def mixed() -> tuple[Mixed, Client, Consumer]:
    world = Mixed()
    first, second = Client(world, "m1"), Consumer(world)
    first.beat()
    assert second.join().error is ErrorCode.member_id_required
    assert second.member_id == "client-made-1"
    settle(world, first, second)
    return world, first, second


def test_a_classic_member_shares_with_one_of_the_consumer_protocol() -> None:
    world, first, second = mixed()
    assert (first.count, second.count) == (2, 2)
    assert world.group.state is GroupState.STABLE
    assert world.group.classic_members == 1
    assert second.generation == world.group.epoch


def test_a_classic_member_is_told_to_join_when_it_has_to_revoke() -> None:
    world, first, second = mixed()
    third = Client(world, "m3")
    third.beat()
    assert second.beat() is ErrorCode.rebalance_in_progress
    settle(world, first, second, third)
    assert sorted((first.count, second.count, third.count)) == [1, 1, 2]


def test_an_eager_classic_member_gives_up_everything_when_it_joins() -> None:
    world, first, second = mixed()
    second.is_eager = True
    third = Client(world, "m3")
    third.beat()
    assert second.beat() is ErrorCode.rebalance_in_progress
    assert second.join().error is ErrorCode.none
    current = world.group.members[second.member_id].current
    assert current.pending_revocation == {}, "it had given up everything before"
    assert second.sync().error is ErrorCode.none
    settle(world, first, second, third)
    assert sorted((first.count, second.count, third.count)) == [1, 1, 2]


def test_requests_of_classic_members_are_checked() -> None:
    world, first, second = mixed()
    generation = second.generation
    unknown, illegal = ErrorCode.unknown_member_id, ErrorCode.illegal_generation
    assert second.beat(generation + 1) is illegal
    assert second.sync(generation=generation + 1).error is illegal
    assert second.sync(member_id="x").error is unknown
    assert second.sync(member_id="m1").error is unknown, "of the other protocol"
    inconsistent = ErrorCode.inconsistent_group_protocol
    assert second.sync(protocol_type="connect").error is inconsistent
    assert second.sync(protocol="range").error is inconsistent
    assert second.sync(instance_id="x").error is unknown
    other = Consumer(world, "other")
    assert other.join(protocol_type="connect").error is inconsistent
    assert other.join(protocols=(Protocol("range", subscription("a")),)).error is inconsistent
    assert other.join(protocols=(Protocol("cooperative-sticky", b""),)).error is inconsistent
    assert other.join(session_timeout_ms=1).error is ErrorCode.invalid_session_timeout
    assert second.leave("x") is unknown
    assert second.leave("m1") is unknown
    assert first.beat().error is ErrorCode.none


def test_a_classic_member_that_does_not_join_or_sync_is_expelled() -> None:
    world, first, second = mixed()
    Client(world, "m3").beat()
    for _ in range(31):
        world.advance(1_000)
        first.beat()
        if second.member_id in world.group.members:
            assert second.beat() is ErrorCode.rebalance_in_progress
    assert second.member_id not in world.group.members


def test_g3_a_classic_member_that_never_syncs_is_expelled() -> None:
    world, first, second = mixed()
    assert second.join().error is ErrorCode.none
    for _ in range(31):
        world.advance(1_000)
        first.beat()
        second.beat()
    assert second.member_id not in world.group.members


def test_a_classic_member_that_is_silent_is_expelled_after_its_own_session() -> None:
    world, first, second = mixed()
    for _ in range(10):
        world.advance(1_000)
        first.beat()
    assert second.member_id not in world.group.members
    settle(world, first)
    assert first.count == 4


def test_a_classic_member_leaves() -> None:
    world, first, second = mixed()
    assert second.leave() is ErrorCode.none
    settle(world, first)
    assert first.count == 4


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions() -> None:
    world = Mixed()
    first, second = Client(world, "m1", instance_id="i"), Client(world, "m2")
    first.beat()
    settle(world, first, second)
    epoch = world.group.epoch
    owned = dict(first.owned)
    again = Consumer(world, instance_id="i")
    assert again.join().error is ErrorCode.none
    again.sync()
    assert world.group.epoch == epoch
    assert {A: tuple(again.owned["a"])} == owned
    back = Client(world, "m9", instance_id="i")
    assert back.beat().assignment == owned
    assert world.group.classic_members == 0
    assert again.beat() is ErrorCode.fenced_instance_id


# -- upgrade and downgrade ------------------------------------------------------------------------


def test_a_classic_group_is_upgraded_by_the_first_consumer_heartbeat() -> None:
    world = Mixed()
    halves = {"c1": assignment("a", 0, 1), "c2": assignment("a", 2, 3)}
    world.classic[GROUP] = group = classic_group("c1", "c2", **halves)
    waiting = a_call()
    group.members["c1"].awaiting_join = waiting
    client = Client(world, "m1")
    response = world.upgrade(client)
    assert response.error is ErrorCode.none
    assert response.member_epoch == 4
    assert world.classic == {}
    assert world.replies[waiting].error is ErrorCode.rebalance_in_progress
    assert {m: len(x.current.assigned[A]) for m, x in world.group.members.items() if m != "m1"} == {
        "c1": 2,
        "c2": 2,
    }
    members = [Consumer(world, "c1"), Consumer(world, "c2")]
    for member, owned in zip(members, ([0, 1], [2, 3]), strict=True):
        member.generation, member.owned = 3, {"a": owned}
    settle(world, client, *members)
    assert sorted((client.count, members[0].count, members[1].count)) == [1, 1, 2]


def test_g17_a_partition_that_a_classic_group_gave_to_two_has_one_owner_after_the_upgrade() -> None:
    world = Mixed()
    both = assignment("a", 0, 1, gone=[0])
    group = world.classic[GROUP] = classic_group("c1", "c2", c1=both, c2=both)
    # The second has just joined again, without the protocol of the generation before.
    group.members["c2"].protocols = (Protocol("range", subscription("a")),)
    assert world.upgrade(Client(world, "m1")).error is ErrorCode.none
    world.check_one_owner()
    assert world.group.owner(A, 0) == "c1"


def test_an_empty_classic_group_is_simply_replaced() -> None:
    world = Mixed(upgrades=False)
    world.classic[GROUP] = ClassicGroup(GROUP, generation=9)
    client = Client(world, "m1")
    assert world.upgrade(client).assignment == {A: (0, 1, 2, 3)}
    assert world.classic == {}


@pytest.mark.parametrize("reason", ["policy", "type", "size", "malformed", "user data", "epoch"])
def test_some_groups_are_not_upgraded(reason: str) -> None:
    world = Mixed(upgrades=reason != "policy", size_max=1 if reason == "size" else 10)
    group = world.classic[GROUP] = classic_group("c1", "c2")
    client = Client(world, "m1")
    error = ErrorCode.group_id_not_found
    if reason == "type":
        group.protocol_type = "connect"
    elif reason == "malformed":
        group.members["c1"].protocols = (Protocol("cooperative-sticky", b""),)
    elif reason == "user data":
        data = assignment("a", 0)[:-4] + b"\0\0\0\1x"
        group.members["c1"].assignment = data
    elif reason == "epoch":
        client.epoch, error = 5, ErrorCode.unknown_member_id
    assert world.upgrade(client).error is error
    assert world.classic[GROUP] is group
    assert world.groups.get(GROUP) is None


def test_a_refused_heartbeat_upgrades_nothing() -> None:
    world = Mixed()
    world.classic[GROUP] = classic_group("c1")
    client = Client(world, "m1", assignor="mine")
    assert world.upgrade(client).error is ErrorCode.unsupported_assignor
    assert GROUP in world.classic


@pytest.mark.parametrize("how", ["leave", "session"])
def test_the_group_is_downgraded_when_the_last_consumer_member_goes(how: str) -> None:
    world, first, second = mixed()
    epoch = world.group.epoch
    if how == "leave":
        first.leave()
    else:
        for _ in range(46):
            world.advance(1_000)
            if world.groups.get(GROUP) is not None:
                second.turn()
    assert world.groups.get(GROUP) is None
    group = world.classic[GROUP]
    assert list(group.members) == [second.member_id]
    assert group.generation == epoch
    assert group.protocol == "cooperative-sticky"
    assert group.leader_id is None, "whoever loads it has to begin a rebalance"
    member = group.members[second.member_id]
    assert len(decode_assignment(member.assignment).partitions) == 2
    keys = {key[0] for key in world.timers}  # type: ignore[index]
    if how == "leave":
        assert downgrade_timer(GROUP) in world.timers
        assert keys == {"session", "consumer-downgrade"}
    world.check_replay()


def test_the_last_static_consumer_member_is_replaced_by_a_classic_one() -> None:
    world = Mixed()
    first, second = Client(world, "m1", instance_id="i"), Consumer(world)
    first.beat()
    second.join()
    settle(world, first, second)
    again = Consumer(world, instance_id="i")
    assert again.join().error is ErrorCode.none
    assert world.groups.get(GROUP) is None
    assert set(world.classic[GROUP].members) == {second.member_id, again.member_id}
    world.check_replay()


def test_a_group_stays_a_consumer_group_where_downgrades_are_off() -> None:
    world = Mixed(downgrades=False)
    first, second = Client(world, "m1"), Consumer(world)
    first.beat()
    second.join()
    settle(world, first, second)
    first.leave()
    settle(world, second)
    assert second.count == 4
    assert world.group.classic_members == 1


def test_a_group_goes_to_the_classic_protocol_and_back() -> None:
    world, first, second = mixed()
    first.leave()
    classic = ClassicCoordinator(ClassicGroupConfig(0, 6_000, 60_000, 10), lambda: "x")
    group = world.classic[GROUP]
    event = Event(world.now_ms, a_call())
    classic.downgraded(group, Cause(Trigger.LEAVE), event)
    beat = classic.heartbeat(
        group, Committer(GROUP, second.member_id, None, second.generation), event
    )
    assert beat is ErrorCode.rebalance_in_progress
    metadata = subscription("a", owned=second.owned)
    request = JoinRequest(
        GROUP,
        second.member_id,
        None,
        "consumer",
        (Protocol("cooperative-sticky", metadata), Protocol("range", metadata)),
        10_000,
        30_000,
        "client",
        "/h",
    )
    classic.join(group, request, event)
    ((_, joined),) = event.replies
    assert (joined.error, joined.leader) == (ErrorCode.none, second.member_id)
    everything = {second.member_id: assignment("a", 0, 1, 2, 3)}
    sync = SyncRequest(GROUP, second.member_id, None, joined.generation, None, None, everything)
    classic.sync(group, sync, event)
    assert group.state is ClassicState.STABLE
    world.carry_out(Event(world.now_ms, records=event.records))
    second.owned, second.generation = {"a": [0, 1, 2, 3]}, joined.generation

    first = Client(world, "m1")
    assert world.upgrade(first).member_epoch == joined.generation + 1
    second.names = ["cooperative-sticky", "range"]
    settle(world, first, second)
    assert (first.count, second.count) == (2, 2)
