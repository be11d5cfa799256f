"""Static members of a consumer group, and what becomes of it when topics change."""

import pytest
from kio.schema.errors import ErrorCode

from suwi.group.history import Trigger
from tests.group.consumer_world import Client, World, settle, topic_id, two_members

A, B = topic_id("a"), topic_id("b")


# -- static members -------------------------------------------------------------------------------


def test_g22_a_static_member_that_leaves_for_a_while_keeps_its_place() -> None:
    world = World()
    first, second = Client(world, "m1", instance_id="i"), Client(world, "m2")
    first.beat()
    settle(world, [first, second])
    epoch, owned = world.group.epoch, dict(first.owned)
    assert first.leave(-2).member_epoch == -2
    assert second.beat().assignment is None
    again = Client(world, "m3", instance_id="i")
    assert again.beat().assignment == owned
    assert world.group.epoch == epoch, "nothing is moved"
    assert "m1" not in world.group.members
    assert first.beat(member_epoch=epoch).error is ErrorCode.fenced_instance_id
    settle(world, [again, second])
    world.check_replay()


def test_g22_a_second_live_member_with_the_same_instance_id_is_refused() -> None:
    world = World()
    Client(world, "m1", instance_id="i").beat()
    response = Client(world, "m2", instance_id="i").beat()
    assert response.error is ErrorCode.unreleased_instance_id


def test_g22_the_same_static_member_may_join_again() -> None:
    world = World()
    client = Client(world, "m1", instance_id="i")
    client.beat(is_lost=True)
    assert client.beat().assignment == {A: (0, 1, 2, 3)}
    client.leave(-2)
    assert client.beat().assignment == {A: (0, 1, 2, 3)}
    assert client.epoch == 1


def test_a_static_member_that_does_not_return_is_expelled_after_its_session() -> None:
    world = World()
    client = Client(world, "m1", instance_id="i")
    client.beat()
    client.leave(-2)
    world.advance(45_000)
    assert world.group.is_empty


def test_a_static_member_can_leave_for_good() -> None:
    world = World()
    client = Client(world, "m1", instance_id="i")
    client.beat()
    assert Client(world, "m2", instance_id="i").leave().error is ErrorCode.fenced_instance_id
    client.leave(-1)
    assert world.group.is_empty
    assert world.group.static == {}


def test_a_static_member_may_return_with_another_subscription() -> None:
    world = World()
    first, second = Client(world, "m1", instance_id="i"), Client(world, "m2")
    first.beat()
    settle(world, [first, second])
    first.leave(-2)
    again = Client(world, "m3", ("b",), instance_id="i")
    again.beat()
    settle(world, [again, second])
    assert again.owned == {B: (0, 1, 2, 3)}
    assert second.owned == {A: (0, 1, 2, 3)}
    world.check_replay()


# -- topics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_told", [True, False])
def test_new_partitions_are_assigned(is_told: bool) -> None:
    world, first, second = two_members()
    world.change_topics(world.image.with_topic("a", 6), tell=is_told)
    settle(world, [first, second])
    assert (first.count, second.count) == (3, 3)
    assert world.rebalances[-1].cause.trigger is Trigger.NEW_PARTITIONS


def test_a_topic_that_nobody_reads_is_no_reason_to_rebalance() -> None:
    world, first, second = two_members()
    epoch = world.group.epoch
    world.change_topics(world.image.with_topic("c", 6))
    world.change_topics(world.image.with_topic("b", 6), tell=False)
    settle(world, [first, second])
    assert world.group.epoch == epoch


def test_a_topic_that_comes_into_being_later_is_assigned() -> None:
    world = World()
    client = Client(world, "m1", ("later",))
    assert client.beat().assignment == {}
    world.change_topics(world.image.with_topic("later", 1))
    settle(world, [client])
    assert client.owned == {topic_id("later"): (0,)}


def test_a_deleted_topic_is_revoked() -> None:
    world, first, second = two_members()
    world.change_topics(world.image.without("a"))
    settle(world, [first, second])
    assert (first.count, second.count) == (0, 0)
    assert world.rebalances[-1].cause.trigger is Trigger.TOPIC_DELETED
    world.check_replay()


def test_g23_a_recreated_topic_is_another_topic() -> None:
    world, first, second = two_members()
    world.change_topics(world.image.without("a").with_topic("a", 4, number=99))
    settle(world, [first, second])
    assert {topic.int for client in (first, second) for topic in client.owned} == {99}
    assert (first.count, second.count) == (2, 2)


def test_g21_a_change_of_topics_is_found_after_a_fail_over() -> None:
    world, first, second = two_members()
    world.image = world.image.with_topic("a", 6)
    world.fail_over()
    settle(world, [first, second])
    assert (first.count, second.count) == (3, 3)
