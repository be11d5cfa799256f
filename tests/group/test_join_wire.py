"""JoinGroup over the wire: ids, generations, protocols, static members, and names of any length."""

import asyncio
from typing import Any

import pytest

from suwi.client.connection import ConnectionLost
from suwi.wire.versions import ApiKey
from tests.group.wire import GROUP, TOPIC, Wire, join_fields, on_broker

# -- JoinGroup -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_an_error_of_a_join_has_the_form_of_its_version(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        for fields, code in (
            ({"group": ""}, 24),
            ({"session_ms": 5_999}, 26),
            ({"session_ms": 1_800_001}, 26),
            ({"session_ms": 5_999, "member_id": "stranger"}, 26),
            ({"member_id": "stranger"}, 25),
            ({"protocols": ()}, 23),
            ({"protocol_type": ""}, 23),
        ):
            answer = await wire.join(version, **fields)
            asked_id = fields.get("member_id", "")
            assert (answer.error_code, answer.member_id) == (code, asked_id), fields
            assert (answer.generation_id, answer.leader, answer.members) == (-1, "", ())
            assert answer.protocol_name == (None if version >= 7 else "")
            if version >= 7:
                assert answer.protocol_type is None

    on_broker(scenario)


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_the_bounds_of_session_timeouts_are_allowed(session_ms: int) -> None:
    async def scenario(wire: Wire) -> None:
        assert (await wire.join(session_ms=session_ms)).error_code == 79

    on_broker(scenario)


@pytest.mark.parametrize("version", range(4))
def test_old_clients_join_without_an_id_of_their_own(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        answer = await wire.join(version)
        assert (answer.error_code, answer.generation_id) == (0, 1)
        assert answer.protocol_name == "range"
        assert answer.leader == answer.member_id
        assert [(each.member_id, each.metadata) for each in answer.members] == [
            (answer.member_id, b"sub")
        ]

    on_broker(scenario)


@pytest.mark.parametrize("version", range(4, 10))
def test_newer_clients_are_given_an_id_first(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        given = await wire.join(version)
        assert (given.error_code, given.generation_id) == (79, -1)
        assert given.member_id.startswith("raw-")
        assert (given.protocol_name, given.leader) == (None if version >= 7 else "", "")
        joined = await wire.join(version, member_id=given.member_id)
        assert (joined.error_code, joined.member_id) == (0, given.member_id)
        assert joined.protocol_name == "range"
        if version >= 7:
            assert joined.protocol_type == "consumer"

    on_broker(scenario)


def test_static_members_need_no_id_first_and_have_their_instance_in_it() -> None:
    async def scenario(wire: Wire) -> None:
        joined = await wire.join(5, instance="pod-1")
        assert joined.error_code == 0
        assert joined.member_id.startswith("pod-1-")
        assert joined.members[0].group_instance_id == "pod-1"

    on_broker(scenario)


def test_only_the_leader_is_told_the_members_and_the_protocol_is_elected_by_votes() -> None:
    async def scenario(wire: Wire) -> None:
        ids = [await wire.member() for _ in range(3)]
        wanted = ["ab", "ba", "ba"]
        joins = [
            wire.joining(
                member_id=member_id,
                protocols=[(name, f"{name}{at}".encode()) for name in names],
            )
            for at, (member_id, names) in enumerate(zip(ids, wanted, strict=True))
        ]
        answers = [await join for join in joins]
        assert {each.protocol_name for each in answers} == {"b"}
        assert len({each.leader for each in answers}) == 1
        for answer in answers:
            if answer.member_id == answer.leader:
                assert sorted(each.metadata for each in answer.members) == [b"b0", b"b1", b"b2"]
            else:
                assert answer.members == ()

    on_broker(scenario)


def test_a_protocol_must_be_one_that_all_members_share() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.stable(protocols=[("range", b""), ("sticky", b"")])
        assert (await wire.join(protocols=[("roundrobin", b"")])).error_code == 23
        assert (await wire.join(protocol_type="connect")).error_code == 23
        assert (await wire.join(member_id="stranger", protocols=[("x", b"")])).error_code == 23
        assert (await wire.join(protocols=[("sticky", b"")])).error_code == 79

    on_broker(scenario)


def test_the_only_member_of_a_group_cannot_change_its_type_or_all_its_protocols() -> None:
    async def scenario(wire: Wire) -> None:
        (only,) = await wire.stable()
        for fields in ({"protocol_type": "connect"}, {"protocols": [("other", b"")]}):
            answer = await wire.join(member_id=only, **fields)
            assert (answer.error_code, answer.member_id) == (23, only)
        assert await wire.state_of() == "Stable"

    on_broker(scenario)


def test_a_member_that_is_not_known_is_told_so_with_its_id() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.stable()
        answer = await wire.join(member_id="stranger")
        assert (answer.error_code, answer.member_id) == (25, "stranger")
        answer = await wire.join(member_id="stranger", instance="pod-9")
        assert (answer.error_code, answer.member_id) == (25, "stranger")

    on_broker(scenario)


def test_an_id_that_was_handed_out_cannot_be_used_for_a_static_member() -> None:
    async def scenario(wire: Wire) -> None:
        (holder,) = await wire.stable(instances=["pod-1"])
        pending = await wire.member()
        assert (await wire.join(member_id=pending, instance="pod-1")).error_code == -1
        assert wire.machine().groups.classic[GROUP].static == {"pod-1": holder}
        assert await wire.heartbeat(GROUP, holder, 1, instance="pod-1") == 0

    on_broker(scenario)


def test_a_follower_that_joins_again_unchanged_is_told_the_generation_it_is_in() -> None:
    async def scenario(wire: Wire) -> None:
        leader, follower = await wire.stable(count=2)
        answer = await wire.join(member_id=follower)
        assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, leader)
        assert answer.members == ()
        assert await wire.state_of() == "Stable"

    on_broker(scenario)


def test_a_leader_that_joins_again_makes_the_group_rebalance() -> None:
    async def scenario(wire: Wire) -> None:
        leader, follower = await wire.stable(count=2)
        again = wire.joining(member_id=leader)
        await asyncio.sleep(0.1)
        assert await wire.heartbeat(GROUP, follower, 1) == 27
        await wire.join(member_id=follower)
        assert (await again).generation_id == 2

    on_broker(scenario)


def test_a_follower_with_a_new_subscription_makes_the_group_rebalance() -> None:
    async def scenario(wire: Wire) -> None:
        leader, follower = await wire.stable(count=2)
        again = wire.joining(member_id=follower, protocols=[("range", b"more")])
        await asyncio.sleep(0.1)
        assert await wire.state_of() == "PreparingRebalance"
        led = await wire.join(member_id=leader)
        assert {each.metadata for each in led.members} == {b"sub", b"more"}
        await again

    on_broker(scenario)


def test_a_lost_reply_to_a_join_is_given_again_while_the_assignment_is_awaited() -> None:
    async def scenario(wire: Wire) -> None:
        member_id = await wire.member()
        first = await wire.join(member_id=member_id)
        again = await wire.join(member_id=member_id)
        assert again == first
        changed = await wire.join(member_id=member_id, protocols=[("range", b"changed")])
        assert changed.generation_id == 2

    on_broker(scenario)


def test_a_group_takes_no_more_members_than_group_max_size() -> None:
    async def scenario(wire: Wire) -> None:
        first = (await wire.join(3)).member_id
        second = wire.joining(3)
        await asyncio.sleep(0.1)
        await wire.join(member_id=first)
        await wire.sync(GROUP, (await second).leader, 2, assignments={})
        for version in (0, 3, 5, 9):
            answer = await wire.join(version)
            assert (answer.error_code, answer.member_id) == (81, "")
        assert await wire.heartbeat(GROUP, first, 2) == 0
        assert await wire.state_of() == "Stable"

    on_broker(scenario, group_max_size="2")


def test_who_comes_back_to_a_rebalance_that_is_full_is_no_member_any_more() -> None:
    """KAFKA-9885."""

    async def scenario(wire: Wire) -> None:
        (old,) = await wire.stable()
        news = [wire.joining(3) for _ in range(2)]
        await asyncio.sleep(0.1)
        answer = await wire.join(member_id=old)
        assert (answer.error_code, answer.member_id) == (81, "")
        assert {(await new).error_code for new in news} == {0}
        assert await wire.heartbeat(GROUP, old, 1) == 25

    on_broker(scenario, group_max_size="2")


def test_the_first_rebalance_waits_for_others() -> None:
    async def scenario(wire: Wire) -> None:
        joins = []
        for _ in range(3):
            joins.append(wire.joining(member_id=await wire.member()))
            await asyncio.sleep(0.5)
        answers = [await join for join in joins]
        assert {each.generation_id for each in answers} == {1}
        assert max(len(each.members) for each in answers) == 3

    on_broker(scenario, group_initial_rebalance_delay_ms="3000")


def test_who_does_not_join_again_in_time_is_expelled() -> None:
    async def scenario(wire: Wire) -> None:
        leader, follower = await wire.stable(count=2, rebalance_ms=20_000, session_ms=60_000)
        again = await wire.join(member_id=leader, rebalance_ms=20_000, session_ms=60_000)
        assert (again.generation_id, len(again.members)) == (2, 1)
        assert await wire.heartbeat(GROUP, follower, 1) == 25

    on_broker(scenario)


@pytest.mark.parametrize("version", range(5, 10))
def test_a_static_member_that_returns_keeps_its_assignment(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        leader, follower = await wire.stable(instances=["pod-1", "pod-2"])
        instance = wire.machine().groups.classic[GROUP].members[follower].instance_id
        back = await wire.join(version, instance=instance)
        assert (back.error_code, back.generation_id, back.leader) == (0, 1, leader)
        assert back.member_id != follower
        assert back.members == ()
        answer = await wire.sync(GROUP, back.member_id, 1, instance=instance)
        assert answer.assignment == follower.encode()
        assert await wire.heartbeat(GROUP, follower, 1, instance=instance) == 82
        assert await wire.heartbeat(GROUP, follower, 1) == 25

    on_broker(scenario)


@pytest.mark.parametrize("version", range(5, 10))
def test_a_static_leader_that_returns_does_not_assign(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        leader, _ = await wire.stable(instances=["pod-1", "pod-2"])
        instance = wire.machine().groups.classic[GROUP].members[leader].instance_id
        back = await wire.join(version, instance=instance)
        assert (back.error_code, back.generation_id) == (0, 1)
        if version >= 9:
            assert back.skip_assignment
            assert back.leader == back.member_id
            assert len(back.members) == 2
        else:
            assert back.leader == leader != back.member_id
            assert back.members == ()

    on_broker(scenario)


def test_a_static_member_with_an_id_that_was_replaced_is_fenced_everywhere() -> None:
    async def scenario(wire: Wire) -> None:
        (old,) = await wire.stable(instances=["pod-1"])
        new = (await wire.join(instance="pod-1")).member_id
        joined = await wire.join(member_id=old, instance="pod-1")
        assert (joined.error_code, joined.member_id) == (82, old)
        assert (await wire.sync(GROUP, old, 1, instance="pod-1")).error_code == 82
        assert await wire.heartbeat(GROUP, old, 1, instance="pod-1") == 82
        committed = await wire.commit(
            {(TOPIC, 0): 1}, member_id=old, generation=1, instance="pod-1"
        )
        assert committed == {(TOPIC, 0): 82}
        assert await wire.leave(GROUP, (old, "pod-1")) == (0, [82])
        assert await wire.heartbeat(GROUP, new, 1, instance="pod-1") == 0

    on_broker(scenario)


@pytest.mark.parametrize("field", ["group", "instance", "protocol_type", "member_id", "protocols"])
def test_a_string_of_100_kb_costs_its_client_the_connection_as_in_kafka_and_nobody_else(
    field: str,
) -> None:
    async def scenario(wire: Wire) -> None:
        (member_id,) = await wire.stable("other")
        value: Any = [(LONG_ID, b"")] if field == "protocols" else LONG_ID
        with pytest.raises(ConnectionLost):
            await wire.join(**{field: value})
        assert await wire.heartbeat("other", member_id, 1) == 0

    on_broker(scenario)


@pytest.mark.parametrize("field", ["group", "protocol_type", "protocols"])
def test_the_longest_names_there_can_be_are_stored(field: str) -> None:
    async def scenario(wire: Wire) -> None:
        longest = "é" * 16_383 + "x"
        value: Any = [(longest, b"")] if field == "protocols" else longest
        joined = await wire.join(3, **{field: value})
        group = value if field == "group" else GROUP
        answer = await wire.sync(group, joined.member_id, 1, 0, assignments={})
        assert answer.error_code == 0
        assert await wire.heartbeat(group, joined.member_id, 1) == 0

    on_broker(scenario)


def test_a_name_that_leaves_no_room_for_a_member_id_is_an_invalid_request() -> None:
    async def scenario(wire: Wire) -> None:
        assert (await wire.join(instance="x" * 32_731)).error_code == 42
        assert (await wire.join(instance="x" * 32_730)).error_code == 0
        client = await wire.connect("c" * 32_767)
        answer = await client.call(ApiKey.JOIN_GROUP, 0, join_fields("another"))
        assert answer.error_code == 42

    on_broker(scenario)


def test_a_protocol_that_is_named_twice_counts_once() -> None:
    async def scenario(wire: Wire) -> None:
        joined = await wire.join(3, protocols=[("range", b"1"), ("range", b"2")])
        assert (joined.error_code, joined.protocol_name) == (0, "range")
        assert joined.members[0].metadata == b"1"

    on_broker(scenario)


LONG_ID = "x" * 100_000
