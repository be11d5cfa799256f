"""FindCoordinator, SyncGroup, Heartbeat and LeaveGroup over the wire, as Kafka 4.3."""

import asyncio
from typing import Any

import pytest

from suwi.coordinator.shard import Status
from suwi.wire.versions import ApiKey
from tests.group.wire import GROUP, TOPIC, Wire, on_broker

# -- FindCoordinator -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_a_coordinator_is_found_in_every_version(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        answer = await wire.find(GROUP, version=version)
        if version >= 4:
            (answer,) = answer.coordinators
            assert answer.key == GROUP
        found = (answer.error_code, answer.node_id, answer.host, answer.port)
        assert found == (0, wire.broker.broker.config.node_id, "b1", 9092)  # type: ignore[union-attr]

    on_broker(scenario)


def test_several_coordinators_are_found_at_once_each_with_its_own_error() -> None:
    async def scenario(wire: Wire) -> None:
        keys = ["a", "", "x" * 32_767]
        answer = await wire.find(*keys)
        assert [each.error_code for each in answer.coordinators] == [0, 0, 0]
        assert [each.key for each in answer.coordinators] == keys

    on_broker(scenario)


def test_a_coordinator_of_an_unknown_kind_is_an_invalid_request() -> None:
    async def scenario(wire: Wire) -> None:
        for key_type in (2, 9):
            answer = await wire.find("a", version=1, key_type=key_type)
            assert (answer.error_code, answer.node_id, answer.host, answer.port) == (42, -1, "", -1)

    on_broker(scenario)


# -- SyncGroup -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_the_errors_of_a_sync(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        async def error(group: str, member_id: str, generation: int, **how: Any) -> int:
            answer = await wire.sync(group, member_id, generation, version, **how)
            assert answer.assignment == b""
            if version >= 5:
                assert (answer.protocol_type, answer.protocol_name) == (None, None)
            return int(answer.error_code)

        assert await error("", "m", 1) == 24
        assert await error("unknown", "m", 1) == 25
        (member_id,) = await wire.stable()
        assert await error(GROUP, "stranger", 1) == 25
        assert await error(GROUP, member_id, 0) == 22
        assert await error(GROUP, member_id, 2) == 22
        if version >= 3:
            assert await error(GROUP, member_id, 1, instance="pod-1") == 25
        if version >= 5:
            assert await error(GROUP, member_id, 1, protocol_type="connect") == 23
            assert await error(GROUP, member_id, 1, protocol="sticky") == 23
        await wire.leave(GROUP, (member_id, None))
        assert await error(GROUP, member_id, 1) == 25

    on_broker(scenario)


def test_a_sync_during_the_next_join_phase_is_told_to_join() -> None:
    async def scenario(wire: Wire) -> None:
        leader, follower = await wire.stable(count=2)
        again = wire.joining(member_id=leader)
        await asyncio.sleep(0.1)
        assert (await wire.sync(GROUP, follower, 1)).error_code == 27
        await wire.leave(GROUP, (follower, None))
        assert (await again).generation_id == 2

    on_broker(scenario)


def test_a_follower_waits_for_the_leader_and_a_stable_group_answers_at_once() -> None:
    async def scenario(wire: Wire) -> None:
        ids = [await wire.member() for _ in range(2)]
        answers = [await join for join in [wire.joining(member_id=each) for each in ids]]
        leader = answers[0].leader
        (follower,) = set(ids) - {leader}
        waiting = asyncio.ensure_future(wire.sync(GROUP, follower, 1))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await wire.sync(GROUP, leader, 1, assignments={follower: b"all"})
        assert (await waiting).assignment == b"all"
        again = await wire.sync(GROUP, follower, 1, protocol_type=None, protocol=None)
        assert (again.error_code, again.assignment) == (0, b"all")
        assert (again.protocol_type, again.protocol_name) == ("consumer", "range")
        assert (await wire.sync(GROUP, leader, 1)).assignment == b""

    on_broker(scenario)


def test_an_assignment_too_large_to_be_stored_fails_the_sync_and_nothing_else() -> None:
    """Hazard G16."""

    async def scenario(wire: Wire) -> None:
        (other,) = await wire.stable("other")
        member_id = await wire.member()
        await wire.join(member_id=member_id)
        answer = await wire.sync(GROUP, member_id, 1, assignments={member_id: b"x" * 2_000_000})
        assert (answer.error_code, answer.assignment) == (-1, b"")
        assert await wire.state_of() == "PreparingRebalance"
        assert (await wire.join(member_id=member_id)).generation_id == 2
        answer = await wire.sync(GROUP, member_id, 2, assignments={member_id: b"x"})
        assert (answer.error_code, answer.assignment) == (0, b"x")
        assert await wire.heartbeat("other", other, 1) == 0

    on_broker(scenario)


# -- Heartbeat -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_the_errors_of_a_heartbeat(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        async def error(group: str, member_id: str, generation: int, **how: Any) -> int:
            return await wire.heartbeat(group, member_id, generation, version, **how)

        assert await error("", "m", 1) == 24
        assert await error("unknown", "m", 1) == 25
        await wire.commit({(TOPIC, 0): 1}, "simple")
        assert await error("simple", "m", 1) == 25
        (member_id,) = await wire.stable()
        assert await error(GROUP, member_id, 1) == 0
        assert await error(GROUP, "stranger", 1) == 25
        assert await error(GROUP, member_id, 0) == 22
        if version >= 3:
            assert await error(GROUP, member_id, 1, instance="pod-1") == 25
        await wire.leave(GROUP, (member_id, None))
        assert await error(GROUP, member_id, 1) == 25

    on_broker(scenario)


def test_while_a_group_is_loaded_heartbeats_are_answered_and_all_else_has_to_wait() -> None:
    async def scenario(wire: Wire) -> None:
        (member_id,) = await wire.stable()
        assert wire.broker.broker is not None
        (shard,) = wire.broker.broker.groups.runtime
        shard.status = Status.LOADING
        assert await wire.heartbeat(GROUP, member_id, 1) == 0
        assert (await wire.join(member_id=member_id)).error_code == 14
        assert (await wire.sync(GROUP, member_id, 1)).error_code == 14
        assert await wire.leave(GROUP, (member_id, None)) == (14, [])
        assert await wire.commit({(TOPIC, 0): 1}) == {(TOPIC, 0): 14}
        assert await wire.fetch() == (14, {})
        assert await wire.delete_offsets({TOPIC: [0]}) == (14, {})
        assert await wire.delete_groups(GROUP) == {GROUP: 14}
        (group,) = await wire.describe(GROUP, operations=True)
        assert (group.error_code, group.group_state) == (14, "")
        listed = await wire.client.call(ApiKey.LIST_GROUPS, 5, {})
        assert (listed.error_code, listed.groups) == (14, ())
        shard.status = Status.ACTIVE

    on_broker(scenario)


def test_heartbeats_while_a_group_rebalances_keep_the_session_alive() -> None:
    async def scenario(wire: Wire) -> None:
        leader, follower = await wire.stable(count=2, session_ms=6_000)
        again = wire.joining(member_id=leader, session_ms=6_000)
        for _ in range(5):
            await asyncio.sleep(4)
            assert await wire.heartbeat(GROUP, follower, 1) == 27
        await wire.join(member_id=follower, session_ms=6_000)
        assert (await again).error_code == 0
        assert await wire.heartbeat(GROUP, follower, 2) == 0  # The assignment is awaited.
        assert len((await wire.describe(GROUP))[0].members) == 2

    on_broker(scenario)


def test_who_sends_nothing_for_its_session_is_expelled_but_commits_count_as_a_sign_of_life() -> (
    None
):
    async def scenario(wire: Wire) -> None:
        leader, follower = await wire.stable(count=2, session_ms=6_000)
        for _ in range(3):
            await asyncio.sleep(3)
            committed = await wire.commit({(TOPIC, 0): 1}, member_id=leader, generation=1)
            assert committed == {(TOPIC, 0): 0}
        assert await wire.heartbeat(GROUP, follower, 1) == 25
        assert await wire.heartbeat(GROUP, leader, 1) == 27

    on_broker(scenario)


# -- LeaveGroup ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_the_errors_of_a_leave(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        async def leave(group: str, member_id: str) -> int:
            error, each = await wire.leave(group, (member_id, None), version=version)
            if version < 3:
                return error
            if not each:
                return error
            assert error == 0
            return each[0]

        assert await leave("", "m") == 24
        assert await leave("unknown", "m") == 25
        (member_id,) = await wire.stable()
        assert await leave(GROUP, "stranger") == 25
        assert await leave(GROUP, "") == 25
        assert await leave(GROUP, member_id) == 0
        assert await leave(GROUP, member_id) == 25
        assert await wire.state_of() == "Empty"

    on_broker(scenario)


def test_several_static_members_leave_at_once_each_with_its_own_error() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.stable(instances=["pod-1", "pod-2", "pod-3"])
        group = wire.machine().groups.classic[GROUP]
        two = group.static["pod-2"]
        left = await wire.leave(
            GROUP,
            ("", "pod-1"),
            (two, "pod-2"),
            ("wrong", "pod-3"),
            ("", "pod-9"),
            ("", None),
            ("stranger", None),
        )
        assert left == (0, [0, 0, 82, 25, 25, 25])
        assert list(group.static) == ["pod-3"]
        assert await wire.state_of() == "PreparingRebalance"

    on_broker(scenario)


def test_ids_that_were_handed_out_can_leave_and_the_phase_they_blocked_ends() -> None:
    """Hazard G4."""

    async def scenario(wire: Wire) -> None:
        (leader,) = await wire.stable()
        pending = await wire.member()
        again = wire.joining(member_id=leader)
        await asyncio.sleep(0.1)
        assert not again.done()
        assert await wire.leave(GROUP, (pending, None)) == (0, [0])
        assert (await again).generation_id == 2
        assert (await wire.join(member_id=pending)).error_code == 25

    on_broker(scenario)


def test_ids_that_were_handed_out_and_never_used_expire_and_leave_no_group_behind() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.member(session_ms=6_000)
        await asyncio.sleep(6.1)
        assert await wire.list() == {}

    on_broker(scenario)


def test_one_who_leaves_while_its_own_join_waits_is_answered() -> None:
    async def scenario(wire: Wire) -> None:
        leader, follower = await wire.stable(count=2)
        again = wire.joining(member_id=follower, protocols=[("range", b"new")])
        await asyncio.sleep(0.1)
        assert await wire.leave(GROUP, (follower, None)) == (0, [0])
        assert (await again).error_code == 25
        assert await wire.heartbeat(GROUP, leader, 1) == 27

    on_broker(scenario)


def test_a_member_that_never_syncs_is_expelled_though_its_group_became_stable() -> None:
    """Hazard G3 (KAFKA-12890): it sends heartbeats, and owns nothing that it knows of."""

    async def scenario(wire: Wire) -> None:
        ids = [await wire.member(rebalance_ms=10_000) for _ in range(2)]
        joins = [wire.joining(member_id=each, rebalance_ms=10_000) for each in ids]
        leader = (await joins[0]).leader
        await joins[1]
        (follower,) = set(ids) - {leader}
        await wire.sync(GROUP, leader, 1, assignments={follower: b"all"})
        assert await wire.state_of() == "Stable"
        for _ in range(5):
            await asyncio.sleep(2.1)
            await wire.heartbeat(GROUP, leader, 1)
            error = await wire.heartbeat(GROUP, follower, 1)
        assert error == 25
        assert await wire.heartbeat(GROUP, leader, 1) == 27

    on_broker(scenario)
