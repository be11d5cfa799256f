"""Why groups rebalanced, as it is kept, and for how long who stood still."""

import struct
from collections.abc import Sequence

from suwi.group.classic_group import JoinRequest, Protocol
from suwi.group.history import Cause, History, Rebalance, Trigger
from tests.group.test_classic_coordinator import World


def rebalance(group: str, generation: int, members: int = 0) -> Rebalance:
    still_ms = {f"m{number}": number for number in range(members)}
    return Rebalance(
        group, Cause(Trigger.JOIN), 0, generation, generation + 1, 5, members, still_ms
    )


def generations(history: History, group: str) -> list[int]:
    return [kept.from_generation for kept in history.of(group)]


def test_the_newest_of_each_group_are_kept() -> None:
    history = History(per_group_max=2)
    for generation in range(4):
        history.add(rebalance("a", generation))
    history.add(rebalance("b", 0))
    assert generations(history, "a") == [2, 3]
    assert generations(history, "b") == [0]
    assert history.of("c") == []


def test_a_group_that_rebalances_all_the_time_costs_other_groups_nothing() -> None:
    history = History(per_group_max=2, in_all_max=4)
    history.add(rebalance("quiet", 0))
    for generation in range(100):
        history.add(rebalance("busy", generation))
    assert generations(history, "quiet") == [0]


def test_the_oldest_go_where_there_are_too_many_in_all() -> None:
    history = History(in_all_max=3)
    for number in range(5):
        history.add(rebalance(f"g{number}", number))
    assert [generations(history, f"g{n}") for n in range(5)] == [[], [], [2], [3], [4]]


def test_large_groups_do_not_make_the_history_large() -> None:
    history = History(members_in_all_max=10)
    for generation in range(5):
        history.add(rebalance("large", generation, members=4))
    assert generations(history, "large") == [3, 4]


def test_long_names_and_reasons_are_kept_in_part() -> None:
    history = History()
    cause = Cause(Trigger.LEAVE, "m" * 1000, "c" * 1000, "/h", "r" * 30_000)
    history.add(Rebalance("g", cause, 0, 1, 2, 5, 1, {"m" * 1000: 7}))
    (kept,) = history.of("g")
    assert kept.cause == Cause(Trigger.LEAVE, "m" * 255, "c" * 255, "/h", "r" * 255)
    assert kept.stood_still_ms == {"m" * 255: 7}


def told(world: World) -> Rebalance:
    """The last rebalance that has ended."""
    found = world.notices[-1]
    assert isinstance(found, Rebalance)
    return found


def test_a_member_stands_still_from_its_join_until_there_is_an_assignment() -> None:
    world = World()
    (first,) = world.stable(1)
    world.now_ms = 1000
    waiting = world.join()
    world.now_ms = 1200
    world.join(first)
    world.now_ms = 1500
    (newcomer,) = [m for m in world.group.members if m != first]
    world.sync(newcomer)
    world.sync(first, {first: b"a", newcomer: b"b"})
    assert told(world).stood_still_ms == {first: 300, newcomer: 500}
    assert (told(world).began_ms, told(world).pause_ms) == (1000, 500)
    assert world.replies[waiting].generation == 2


def test_what_a_member_waited_in_the_rebalance_before_does_not_count() -> None:
    world = World()
    (first,) = world.stable(1)
    world.now_ms = 10_000
    world.join(first)
    world.now_ms = 10_007
    world.sync(first, {first: b"a"})
    assert told(world).cause.trigger is Trigger.LEADER_REJOINED
    assert told(world).stood_still_ms == {first: 7}


def subscription(*topics: str, owned: Sequence[int] = ()) -> bytes:
    names = b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)
    head = struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)
    if not owned:
        return head + struct.pack(">i", 0)
    partitions = struct.pack(f">i{len(owned)}i", len(owned), *owned)
    return head + struct.pack(">ih", 1, 1) + b"a" + partitions


def trigger_of_rejoin(before: bytes, after: bytes) -> Trigger:
    world = World()
    (member,) = world.stable(1)
    for metadata in (before, after):
        event = world.event()
        protocols = (Protocol("range", metadata),)
        request = JoinRequest(
            "g", member, None, "consumer", protocols, 10_000, 30_000, "client", "/127.0.0.1"
        )
        world.coordinator.join(world.group, request, event)
        world.carry_out(event)
        world.sync(member, {member: b"a"})
    return told(world).cause.trigger


def test_other_topics_are_another_subscription() -> None:
    trigger = trigger_of_rejoin(subscription("a"), subscription("a", "b"))
    assert trigger is Trigger.SUBSCRIPTION_CHANGE


def test_other_partitions_that_a_member_owns_are_no_other_subscription() -> None:
    trigger = trigger_of_rejoin(subscription("a"), subscription("a", owned=[0, 2]))
    assert trigger is Trigger.LEADER_REJOINED
