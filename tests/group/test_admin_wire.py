"""DescribeGroups, ListGroups and DeleteGroups over the wire, as Kafka 4.3 answers them."""

import asyncio

import pytest

from suwi.wire.versions import ApiKey
from tests.group.wire import GROUP, OTHER, TOPIC, Wire, on_broker

NOT_ASKED = -(2**31)
OPERATIONS = sum(1 << each for each in (3, 6, 8, 10, 11))
"""Read, delete, describe, and both of configurations."""


# -- DescribeGroups ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_a_stable_group_is_described(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        (member_id,) = await wire.stable(instances=["pod-1"])
        (group,) = await wire.describe(GROUP, version=version, operations=True)
        assert (group.error_code, group.group_id, group.group_state) == (0, GROUP, "Stable")
        assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
        (member,) = group.members
        assert (member.member_id, member.client_id) == (member_id, "raw")
        assert member.client_host.startswith("/")
        assert (member.member_metadata, member.member_assignment) == (b"sub", member_id.encode())
        if version >= 3:
            assert group.authorized_operations == OPERATIONS
        if version >= 4:
            assert member.group_instance_id == "pod-1"

    on_broker(scenario)


@pytest.mark.parametrize("version", range(7))
def test_a_group_that_nobody_knows_is_dead_and_an_error_from_v6_on(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        groups = await wire.describe("unknown", "", version=version, operations=True)
        assert [group.group_id for group in groups] == ["unknown", ""]
        for group in groups:
            assert (group.error_code, group.group_state) == (69 if version >= 6 else 0, "Dead")
            assert (group.protocol_type, group.protocol_data, group.members) == ("", "", ())
            if version >= 6:
                assert group.error_message == f"Group {group.group_id} not found."
                assert group.authorized_operations == NOT_ASKED

    on_broker(scenario)


def test_what_members_tell_each_other_shows_only_while_a_group_is_stable() -> None:
    async def scenario(wire: Wire) -> None:
        leader, follower = await wire.stable(count=2)
        again = wire.joining(member_id=leader)
        await asyncio.sleep(0.1)
        for state in ("PreparingRebalance", "CompletingRebalance"):
            (group,) = await wire.describe(GROUP)
            assert (group.group_state, group.protocol_type) == (state, "consumer")
            assert group.protocol_data == ""
            assert {each.member_id for each in group.members} == {leader, follower}
            assert {(m.member_metadata, m.member_assignment) for m in group.members} == {(b"", b"")}
            if not again.done():
                await wire.join(member_id=follower)
                await again
        await wire.leave(GROUP, (leader, None), (follower, None))
        (group,) = await wire.describe(GROUP)
        assert (group.group_state, group.protocol_type, group.members) == ("Empty", "consumer", ())

    on_broker(scenario)


def test_a_simple_group_is_described_as_empty() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.commit({(TOPIC, 0): 1}, "simple")
        (group,) = await wire.describe("simple")
        assert (group.error_code, group.group_state, group.protocol_type) == (0, "Empty", "")

    on_broker(scenario)


# -- ListGroups ----------------------------------------------------------------------------------


async def three_groups(wire: Wire) -> None:
    await wire.stable("stable")
    await wire.commit({(TOPIC, 0): 1}, "simple")
    await wire.join(3, group="completing", protocol_type="connect")


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        await three_groups(wire)
        groups = await wire.list(version)
        assert {name: group.protocol_type for name, group in groups.items()} == {
            "stable": "consumer",
            "simple": "",
            "completing": "connect",
        }
        if version >= 4:
            assert {name: group.group_state for name, group in groups.items()} == {
                "stable": "Stable",
                "simple": "Empty",
                "completing": "CompletingRebalance",
            }
        if version >= 5:
            assert {group.group_type for group in groups.values()} == {"classic"}

    on_broker(scenario)


def test_groups_are_filtered_by_state_and_by_type_whatever_the_case_of_the_letters() -> None:
    async def scenario(wire: Wire) -> None:
        await three_groups(wire)
        assert set(await wire.list(4, states=["Stable"])) == {"stable"}
        assert set(await wire.list(4, states=["sTABLE", "empty"])) == {"stable", "simple"}
        assert set(await wire.list(4, states=["unheard of"])) == set()
        assert set(await wire.list(5, types=["Classic"])) == {"stable", "simple", "completing"}
        assert set(await wire.list(5, types=["consumer"])) == set()
        assert set(await wire.list(5, types=["unheard of"])) == set()
        assert set(await wire.list(5, states=["Empty"], types=["classic"])) == {"simple"}

    on_broker(scenario)


# -- DeleteGroups --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_groups_without_members_are_deleted_each_with_its_own_error(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        await three_groups(wire)
        (member_id,) = await wire.stable("empty")
        await wire.commit(
            {(TOPIC, 0): 1, (OTHER, 1): 1}, "empty", member_id=member_id, generation=1
        )
        await wire.leave("empty", (member_id, None))
        names = ["stable", "simple", "completing", "empty", "unknown", "simple"]
        assert await wire.delete_groups(*names, version=version) == {
            "stable": 68,
            "simple": 0,
            "completing": 68,
            "empty": 0,
            "unknown": 69,
        }
        assert set(await wire.list()) == {"stable", "completing"}
        assert await wire.fetch("empty") == (0, {})

    on_broker(scenario)


def test_a_group_with_more_offsets_than_one_batch_holds_is_deleted() -> None:
    """Hazard G16."""

    async def scenario(wire: Wire) -> None:
        topic = {
            "name": "wide",
            "num_partitions": 2_000,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        fields = {"topics": [topic], "timeout": 30_000, "validate_only": False}
        assert (await wire.client.call(ApiKey.CREATE_TOPICS, 7, fields)).topics[0].error_code == 0
        long = "g" * 3_000
        for first in range(0, 2_000, 200):
            part = range(first, first + 200)
            committed = await wire.commit({("wide", index): 1 for index in part}, long)
            assert set(committed.values()) == {0}
        assert await wire.delete_groups(long) == {long: 0}
        assert await wire.fetch(long) == (0, {})
        await wire.commit({("wide", index): 1 for index in range(100)}, long)
        await wire.delete_topic("wide")
        await asyncio.sleep(1)
        assert await wire.fetch(long) == (0, {})

    on_broker(scenario)
