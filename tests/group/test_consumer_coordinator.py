"""A consumer group, heartbeat by heartbeat: who joins, what each is assigned, who is refused."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Event
from suwi.group.consumer_group import (
    GroupState,
    MemberState,
    consumer_rebalance_timer,
    consumer_session_timer,
)
from suwi.group.history import Trigger
from tests.group.consumer_world import GROUP, Client, Image, World, settle, topic_id, two_members

A, B = topic_id("a"), topic_id("b")


# -- joining --------------------------------------------------------------------------------------


def test_the_first_member_gets_everything_at_once() -> None:
    world = World()
    response = Client(world, "m1").beat()
    assert response.error is ErrorCode.none
    assert (response.member_id, response.member_epoch) == ("m1", 1)
    assert response.heartbeat_interval_ms == 5_000
    assert response.assignment == {A: (0, 1, 2, 3)}
    assert world.group.state is GroupState.STABLE
    assert [r.cause.trigger for r in world.rebalances] == [Trigger.JOIN]
    world.check_replay()


def test_a_second_member_gets_its_half_when_the_first_has_revoked_it() -> None:
    world = World()
    first, second = Client(world, "m1"), Client(world, "m2")
    first.beat()
    assert second.beat().assignment == {}
    assert world.group.state is GroupState.RECONCILING
    assert world.group.members["m2"].current.state is MemberState.UNRELEASED_PARTITIONS
    assert first.beat().assignment == {A: (0, 1)}
    assert first.epoch == 1
    assert second.beat().assignment is None, "the first has not confirmed"
    assert first.beat().member_epoch == 2
    assert second.beat().assignment == {A: (2, 3)}
    assert world.group.state is GroupState.STABLE
    assert len(world.rebalances) == 2
    assert (world.rebalances[1].from_generation, world.rebalances[1].to_generation) == (1, 2)
    world.check_replay()


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    world, first, _ = two_members()
    before = len(world.log)
    assert first.beat().assignment is None
    assert len(world.log) == before


def test_a_client_of_version_0_is_given_a_member_id() -> None:
    world = World()
    client = Client(world, "")
    assert client.beat(must_bring_its_id=False).member_id == "made-1"


def test_a_member_without_topics_is_a_member_without_partitions() -> None:
    world, first, second = two_members()
    third = Client(world, "m3", names=())
    assert third.beat().assignment == {}
    settle(world, [first, second, third])
    assert (first.count, second.count, third.count) == (2, 2, 0)


def test_members_choose_the_assignor_by_majority() -> None:
    world = World()
    clients = [Client(world, f"m{n}", ("a", "b"), assignor="range") for n in range(2)]
    clients[0].beat()
    settle(world, clients)
    assert [client.owned for client in clients] == [{A: (0, 1), B: (0, 1)}, {A: (2, 3), B: (2, 3)}]


# -- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.invalid_request),
        ({"member_id": ""}, ErrorCode.invalid_request),
        ({"instance_id": ""}, ErrorCode.invalid_request),
        ({"rack_id": ""}, ErrorCode.invalid_request),
        ({"rebalance_timeout_ms": -1}, ErrorCode.invalid_request),
        ({"topic_names": None}, ErrorCode.invalid_request),
        ({"owned": None}, ErrorCode.invalid_request),
        ({"member_epoch": -2}, ErrorCode.invalid_request),
        ({"member_epoch": -3}, ErrorCode.invalid_request),
        ({"server_assignor": "mine"}, ErrorCode.unsupported_assignor),
        ({"member_epoch": 1}, ErrorCode.group_id_not_found),
        ({"member_epoch": -1}, ErrorCode.group_id_not_found),
        ({"member_epoch": 1, "instance_id": "i"}, ErrorCode.group_id_not_found),
        ({"member_epoch": -2, "instance_id": "i"}, ErrorCode.group_id_not_found),
    ],
)
def test_a_bad_heartbeat_is_refused(changes: dict[str, Any], error: ErrorCode) -> None:
    world = World()
    response = Client(world, "m1").beat(**changes)
    assert response.error is error
    assert response.message
    assert not world.log


def test_g19_whoever_joins_owns_nothing() -> None:
    world = World()
    assert Client(world, "m").beat(owned={A: (0,)}).error is ErrorCode.invalid_request
    assert Client(world, "m").beat(owned={A: ()}).error is ErrorCode.none


def test_a_full_group_takes_nobody_but_a_static_member_that_returns() -> None:
    world = World(size_max=1)
    first = Client(world, "m1", instance_id="i")
    first.beat()
    assert Client(world, "m2").beat().error is ErrorCode.group_max_size_reached
    assert first.beat().error is ErrorCode.none
    first.leave(-2)
    assert Client(world, "m3", instance_id="i").beat().error is ErrorCode.none


# -- epochs ---------------------------------------------------------------------------------------


def test_g19_a_lost_reply_is_answered_again_in_full() -> None:
    world = World()
    first = Client(world, "m1")
    first.beat(is_lost=True)
    assert first.beat().assignment == {A: (0, 1, 2, 3)}
    # The epoch before is accepted as long as the member owns no more than it was assigned.
    first.subscribe("a", "b")
    first.beat(is_lost=True)
    assert first.epoch == 2
    assert first.beat().error is ErrorCode.none


def test_g19_the_previous_epoch_is_accepted_only_with_a_subset_of_the_assignment() -> None:
    world = World()
    client = Client(world, "m1")
    client.beat()
    client.names, client.must_send_all = ("a", "b"), True
    client.beat(is_lost=True)
    member = world.group.members["m1"]
    assert (member.epoch, member.current.previous_epoch) == (2, 1)
    fenced = ErrorCode.fenced_member_epoch
    for epoch, owned in ((1, None), (1, {A: (7,)}), (3, {}), (3, None)):
        assert world.send(client.request(member_epoch=epoch, owned=owned)).error is fenced
    response = world.send(client.request(member_epoch=1, owned={A: (0,)}))
    assert response.error is ErrorCode.none
    assert response.assignment == {A: (0, 1, 2, 3), B: (0, 1, 2, 3)}


def test_a_fenced_member_comes_back_with_epoch_0_and_keeps_its_place() -> None:
    world, first, second = two_members()
    assert first.beat(member_epoch=99).error is ErrorCode.fenced_member_epoch
    assert first.epoch == 0
    response = first.beat()
    assert response.error is ErrorCode.none
    assert response.assignment == {A: (0, 1)}
    settle(world, [first, second])


def test_a_member_in_an_unknown_state_must_give_up_everything() -> None:
    world, first, second = two_members()
    current = world.log[-1]
    for record in reversed(world.log):
        if getattr(record.key, "member_id", "") == "m1" and hasattr(record.value, "state"):
            current = record
            break
    assert current.value is not None
    values = {name: getattr(current.value, name) for name in current.value.__slots__}
    later = current._replace(value=type(current.value)(**{**values, "state": 9}))
    world.groups.replay(later)
    world.log.append(later)
    assert first.beat(owned={A: (0, 1)}).error is ErrorCode.fenced_member_epoch
    settle(world, [first, second])
    assert first.count == 2


# -- revocation -----------------------------------------------------------------------------------


def test_g17_only_an_explicit_list_without_the_partition_releases_it() -> None:
    world = World()
    first, second = Client(world, "m1"), Client(world, "m2")
    first.beat()
    second.beat()
    first.beat()
    for owned in (None, {A: (0, 1, 2, 3)}, {A: (2,)}):
        assert first.beat(owned=owned, is_lost=True).member_epoch == 1
        assert second.beat().assignment is None
        assert second.count == 0
        world.check_one_owner()
    assert first.beat(owned={A: (0, 1)}).member_epoch == 2
    assert second.beat().assignment == {A: (2, 3)}


def test_g18_a_revocation_does_not_begin_anew_with_each_target() -> None:
    world = World()
    first, second = Client(world, "m1"), Client(world, "m2")
    first.beat()
    second.beat()
    first.beat()
    key = consumer_rebalance_timer(GROUP, "m1")
    deadline_ms = world.timers[key]
    frozen = world.group.members["m1"].current
    for number in range(3, 6):
        world.advance(10)
        Client(world, f"m{number}").beat()
        assert first.beat(owned=None).member_epoch == 1
        assert world.group.members["m1"].current == frozen
        assert world.timers[key] == deadline_ms


def test_a_member_that_does_not_revoke_is_expelled_after_its_rebalance_timeout() -> None:
    world = World()
    first, second = Client(world, "m1"), Client(world, "m2")
    first.beat()
    second.beat()
    first.beat()
    for _ in range(30):
        world.advance(1_000)
        second.beat()
        first.beat(owned=None)
    assert "m1" not in world.group.members
    settle(world, [second])
    assert second.count == 4
    assert first.beat().error is ErrorCode.none, "it may come back"
    assert world.rebalances[1].cause.trigger is Trigger.JOIN
    world.check_replay()


def test_a_silent_member_is_expelled_after_its_session() -> None:
    world, first, second = two_members()
    for _ in range(50):
        world.advance(1_000)
        second.beat()
    assert list(world.group.members) == ["m2"]
    assert second.count == 4
    assert world.rebalances[-1].cause.trigger is Trigger.SESSION_TIMEOUT
    assert first.beat().error is ErrorCode.unknown_member_id


def test_g24_with_a_member_its_timers_go() -> None:
    world, first, second = two_members()
    Client(world, "m3").beat()
    first.beat()
    second.beat()
    revoking = [m for m in ("m1", "m2") if consumer_rebalance_timer(GROUP, m) in world.timers]
    assert revoking
    first.leave()
    assert consumer_session_timer(GROUP, "m1") not in world.timers
    assert consumer_rebalance_timer(GROUP, "m1") not in world.timers
    Client(world, "m3").leave()
    second.leave()
    assert world.timers == {}


def test_unsubscribing_gives_up_a_topic_without_waiting_for_a_target() -> None:
    world = World(assignment_interval_ms=60_000)
    client = Client(world, "m1", ("a", "b"))
    client.beat()
    world.advance(1)
    assert client.subscribe("b").assignment == {B: (0, 1, 2, 3)}
    assert world.group.state is GroupState.ASSIGNING
    assert world.group.members["m1"].current.state is MemberState.UNREVOKED_PARTITIONS
    client.beat()
    world.advance(60_000)
    settle(world, [client])
    assert world.group.state is GroupState.STABLE


# -- leaving --------------------------------------------------------------------------------------


def test_who_leaves_gives_its_partitions_to_the_others() -> None:
    world, first, second = two_members()
    response = first.leave()
    assert (response.member_id, response.member_epoch) == ("m1", -1)
    settle(world, [second])
    assert second.owned == {A: (0, 1, 2, 3)}
    assert world.rebalances[-1].cause.trigger is Trigger.LEAVE
    world.check_replay()


def test_g21_an_empty_group_has_nothing_left_to_assign() -> None:
    world, first, second = two_members()
    first.leave()
    second.leave()
    group = world.group
    assert group.state is GroupState.EMPTY
    assert group.assignment_epoch == group.epoch == 4
    assert group.metadata_hash == 0
    assert world.rebalances[-1].members == 0
    world.check_replay()


def test_an_empty_group_can_be_deleted_and_leaves_nothing() -> None:
    world, first, second = two_members()
    assert world.coordinator.delete(world.group, Event(0)) is ErrorCode.non_empty_group
    first.leave()
    second.leave()
    event = Event(0)
    assert world.coordinator.delete(world.group, event) is ErrorCode.none
    world.carry_out(event)
    assert len(world.groups) == 0
    last = {record.key: record.value for record in world.log}
    assert set(last.values()) == {None}
    world.check_replay()


# -- the assignment interval ----------------------------------------------------------------------


def test_targets_are_made_at_most_once_per_interval() -> None:
    world = World(Image().with_topic("a", 12), assignment_interval_ms=1_000)
    clients = [Client(world, f"m{n}") for n in range(6)]
    for client in clients:
        assert client.beat().error is ErrorCode.none
    assert world.group.assignment_epoch == 1
    assert world.group.epoch == 6
    assert world.group.state is GroupState.ASSIGNING
    world.advance(999)
    assert world.group.assignment_epoch == 1
    world.advance(1)
    assert world.group.assignment_epoch == 6
    settle(world, clients)
    assert [client.count for client in clients] == [2] * 6
    world.check_replay()


def test_the_interval_does_not_wait_for_a_clock_that_was_ahead() -> None:
    world = World(assignment_interval_ms=1_000)
    first, second = Client(world, "m1"), Client(world, "m2")
    world.now_ms = 1_000_000
    first.beat()
    world.now_ms = 5_000
    world.fail_over()
    second.beat()
    assert world.group.assignment_epoch == 2


def test_a_large_group_is_assigned_by_a_job_while_members_come_and_go() -> None:
    world = World(Image().with_topic("a", 5_000), assignment_interval_ms=1_000)
    clients = [Client(world, f"m{n:04}", instance_id=f"i{n:04}") for n in range(3_000)]
    for client in clients:
        client.beat()
    world.advance(1_000, run_jobs=False)
    assert len(world.jobs) == 1
    assert world.group.assignment_epoch == 1
    clients[0].leave(-2)
    again = Client(world, "again", instance_id="i0000")
    assert again.beat().error is ErrorCode.none
    clients[1].leave()
    world.finish_jobs()
    assert world.group.assignment_epoch == 3_000
    assert sum(map(len, world.group.targets["again"].values())) in (1, 2)
    assert "m0001" not in world.group.targets
    world.advance(1_000)
    assert world.group.assignment_epoch == 3_001
    settle(world, [again, *clients[2:]], rounds=6)
    assert again.count + sum(client.count for client in clients[2:]) == 5_000
