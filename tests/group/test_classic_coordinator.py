"""A classic group, event by event: who joins, who assigns, who is expelled."""

from itertools import count
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call, Event
from suwi.env.slices import run_to_end
from suwi.group.classic_coordinator import ClassicCoordinator, ClassicGroupConfig
from suwi.group.classic_group import (
    ClassicGroup,
    ClassicState,
    Committer,
    JoinRequest,
    LeavingMember,
    Protocol,
    SyncRequest,
    join_timer,
    session_timer,
)
from tests.group.consumer_world import a_call


class World:
    """One group and its coordinator, with a clock that is set by hand."""

    def __init__(self, *, delay_ms: int = 0, size_max: int = 100) -> None:
        ids = count(1)
        config = ClassicGroupConfig(delay_ms, 6_000, 1_800_000, size_max)
        self.coordinator = ClassicCoordinator(config, lambda: str(next(ids)))
        self.group = ClassicGroup("g")
        self.now_ms = 0
        self.replies: dict[Call[Any], Any] = {}
        self.timers: dict[Any, int] = {}
        self.records: list[Any] = []
        self.notices: list[Any] = []

    def event(self) -> Event:
        """An event of a request, in the way of the shard's."""
        return Event(self.now_ms, a_call())

    def carry_out(self, event: Event) -> Call[Any]:
        self.replies |= dict(event.replies)
        self.records += event.records
        self.notices += event.notices
        for key, deadline_ms in event.timers.items():
            if deadline_ms is None:
                self.timers.pop(key, None)
            else:
                self.timers[key] = deadline_ms
        assert event.call is not None
        return event.call

    def join(self, member_id: str = "", instance: str | None = None, *names: str) -> Call[Any]:
        protocols = tuple(Protocol(name, b"s") for name in names or ("range",))
        event = self.event()
        request = JoinRequest(
            "g",
            member_id,
            instance,
            "consumer",
            protocols,
            10_000,
            30_000,
            "client",
            "/127.0.0.1",
            must_know_its_id=False,
        )
        self.coordinator.join(self.group, request, event)
        return self.carry_out(event)

    def sync(self, member_id: str, assignments: dict[str, bytes] | None = None) -> Call[Any]:
        event = self.event()
        request = SyncRequest(
            "g", member_id, None, self.group.generation, None, None, assignments or {}
        )
        self.coordinator.sync(self.group, request, event)
        return self.carry_out(event)

    def heartbeat(self, member_id: str, generation: int | None = None) -> ErrorCode:
        event = self.event()
        number = self.group.generation if generation is None else generation
        error = self.coordinator.heartbeat(
            self.group, Committer("g", member_id, None, number), event
        )
        self.carry_out(event)
        return error

    def stable(self, members: int) -> list[str]:
        """That many members, all of them with an assignment."""
        joined = [self.join()]
        for _ in range(members - 1):
            joined += [self.join()]
            for member_id in list(self.group.members):
                if self.group.members[member_id].awaiting_join is None:
                    self.join(member_id)
        ids = list(self.group.members)
        for member_id in ids:
            self.sync(member_id, {each: each.encode() for each in ids})
        assert self.group.state is ClassicState.STABLE
        return ids


def test_the_first_member_leads_and_its_assignment_is_persisted() -> None:
    """Hazard G15: only a whole generation is persisted."""
    world = World()
    joined = world.replies[world.join()]
    assert (joined.error, joined.generation, joined.leader) == (0, 1, joined.member_id)
    assert [member.member_id for member in joined.members] == [joined.member_id]
    assert world.records == []
    synced = world.replies[world.sync(joined.member_id, {joined.member_id: b"a"})]
    assert (synced.error, synced.assignment) == (0, b"a")
    assert world.group.state is ClassicState.STABLE
    (record,) = world.records
    loaded = ClassicGroup("g")
    loaded.apply(record.value)
    assert loaded.value() == world.group.value()


def test_a_second_member_makes_the_first_join_again() -> None:
    world = World()
    (first,) = world.stable(1)
    waiting = world.join()
    assert waiting not in world.replies
    assert world.heartbeat(first) == ErrorCode.rebalance_in_progress
    again = world.replies[world.join(first)]
    assert (again.generation, again.leader, len(again.members)) == (2, first, 2)
    assert world.replies[waiting].members == ()


def test_who_is_silent_for_longer_than_its_session_is_expelled_and_the_others_rebalance() -> None:
    """Hazard G24: its timers go with it."""
    world = World()
    first, second = world.stable(2)
    world.now_ms = world.timers[session_timer("g", second)]
    world.heartbeat(first)
    event = world.event()
    world.coordinator.session_timed_out(world.group, second, event)
    world.carry_out(event)
    assert list(world.group.members) == [first]
    assert world.group.state is ClassicState.PREPARING_REBALANCE
    assert session_timer("g", second) not in world.timers


def test_the_last_member_that_leaves_makes_the_group_empty_in_a_new_generation() -> None:
    world = World()
    (only,) = world.stable(1)
    event = world.event()
    leaving = [LeavingMember(only, None)]
    errors = run_to_end(world.coordinator.leave(world.group, leaving, event))
    world.carry_out(event)
    assert errors == [ErrorCode.none]
    assert (world.group.state, world.group.generation) == (ClassicState.EMPTY, 2)
    assert world.records[-1].value.members == ()


def test_a_static_member_that_comes_back_moves_nothing_and_fences_the_one_before() -> None:
    """Hazards G5 and G6: the replacement is persisted."""
    world = World()
    joined = world.replies[world.join("", "pod-1")]
    world.sync(joined.member_id, {joined.member_id: b"a"})
    generation = world.group.generation
    back = world.replies[world.join("", "pod-1")]
    assert back.error == ErrorCode.none
    assert back.generation == generation
    assert back.member_id != joined.member_id
    assert world.group.state is ClassicState.STABLE
    assert world.heartbeat(joined.member_id) == ErrorCode.unknown_member_id
    assert world.records[-1].value.members[0].member_id == back.member_id


def test_a_member_without_a_protocol_that_all_share_is_refused() -> None:
    world = World()
    world.stable(1)
    refused = world.replies[world.join("", None, "sticky")]
    assert refused.error == ErrorCode.inconsistent_group_protocol


def test_the_group_takes_no_more_members_than_it_may_have() -> None:
    """Hazard G16."""
    world = World(size_max=1)
    world.stable(1)
    refused = world.replies[world.join()]
    assert refused.error == ErrorCode.group_max_size_reached


def test_the_first_rebalance_waits_for_those_who_are_about_to_come() -> None:
    world = World(delay_ms=3_000)
    first, second = world.join(), world.join()
    assert first not in world.replies
    for _ in range(2):
        world.now_ms = world.timers[join_timer("g")]
        event = world.event()
        world.coordinator.rebalances.join_timed_out(world.group, event)
        world.carry_out(event)
    assert world.replies[first].generation == world.replies[second].generation == 1
    assert world.now_ms == 6_000


def test_commits_and_heartbeats_of_an_old_generation_are_refused() -> None:
    """Hazard G1."""
    world = World()
    (only,) = world.stable(1)
    assert world.heartbeat(only, 0) == ErrorCode.illegal_generation
    assert world.heartbeat("stranger") == ErrorCode.unknown_member_id
