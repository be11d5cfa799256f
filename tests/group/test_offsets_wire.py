"""OffsetCommit, OffsetFetch and OffsetDelete over the wire, as Kafka 4.3 answers them."""

import asyncio
import hashlib
import struct
from typing import Any
from uuid import UUID

import pytest

from suwi.client.connection import ConnectionLost
from suwi.coordinator.shard_replica import Status
from suwi.model.ids import TopicId
from suwi.wire.versions import ApiKey
from tests.group.wire import GROUP, OTHER, TOPIC, Wire, on_broker

ABSENT = (-1, -1, "", 0)
LONG: Any = "x" * 100_000


def subscription(*topics: str) -> bytes:
    """As consumers of the classic protocol tell each other."""
    named = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + named + struct.pack(">ii", -1, 0)


# -- OffsetCommit --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 11))
def test_an_offset_without_a_member_makes_a_simple_group(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        committed = await wire.commit({(TOPIC, 1): (7, "note")}, version=version, epoch=3)
        assert committed == {(TOPIC, 1): 0}
        epoch = 3 if version >= 6 else -1
        assert await wire.fetch() == (0, {(TOPIC, 1): (7, epoch, "note", 0)})
        (group,) = (await wire.list()).values()
        assert (group.group_state, group.group_type, group.protocol_type) == (
            "Empty",
            "classic",
            "",
        )

    on_broker(scenario)


@pytest.mark.parametrize("version", range(2, 11))
def test_partitions_are_refused_one_by_one(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        asked: dict[tuple[str, int], int | tuple[int, str]] = {
            (TOPIC, 0): (1, "m" * 4096),
            (TOPIC, 1): (1, "m" * 4097),
            (TOPIC, 2): 1,
            (TOPIC, -1): 1,
            ("unknown", 0): 1,
            (OTHER, 0): 2,
        }
        assert await wire.commit(asked, version=version) == {
            (TOPIC, 0): 0,
            (TOPIC, 1): 12,
            (TOPIC, 2): 3,
            (TOPIC, -1): 3,
            ("unknown", 0): 100 if version >= 10 else 3,
            (OTHER, 0): 0,
        }
        _, found = await wire.fetch()
        assert {tp: each[0] for tp, each in found.items()} == {(TOPIC, 0): 1, (OTHER, 0): 2}

    on_broker(scenario)


@pytest.mark.parametrize("field", ["group", "member_id", "instance", "metadata"])
def test_a_string_of_100_kb_costs_a_committer_the_connection_and_nobody_else(field: str) -> None:
    async def scenario(wire: Wire) -> None:
        (member_id,) = await wire.stable("other")
        how = {} if field == "metadata" else {field: LONG}
        with pytest.raises(ConnectionLost):
            await wire.commit({(TOPIC, 0): (1, LONG if field == "metadata" else "")}, **how)
        wire.client = await wire.connect()
        assert await wire.heartbeat("other", member_id, 1) == 0

    on_broker(scenario)


def test_a_retention_beyond_all_times_is_accepted() -> None:
    async def scenario(wire: Wire) -> None:
        committed = await wire.commit({(TOPIC, 0): 1}, version=4, retention_ms=2**63 - 1)
        assert committed == {(TOPIC, 0): 0}
        assert await wire.fetch() == (0, {(TOPIC, 0): (1, -1, "", 0)})

    on_broker(scenario)


def test_the_length_of_metadata_is_counted_in_characters_of_java() -> None:
    async def scenario(wire: Wire) -> None:
        for text, code in (("é" * 4096, 0), ("é" * 4097, 12), ("😀" * 2048, 0), ("😀" * 2049, 12)):
            assert await wire.commit({(TOPIC, 0): (1, text)}) == {(TOPIC, 0): code}

    on_broker(scenario)


@pytest.mark.parametrize("version", [2, 7, 8, 9, 10])
def test_a_group_that_does_not_exist_has_no_generations(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        committed = await wire.commit({(TOPIC, 0): 1}, member_id="m", generation=1, version=version)
        assert committed == {(TOPIC, 0): 69 if version >= 9 else 22}
        assert await wire.list() == {}

    on_broker(scenario)


@pytest.mark.parametrize("version", [2, 6, 9, 10])
def test_who_may_commit(version: int) -> None:
    """Hazard G1."""

    async def scenario(wire: Wire) -> None:
        async def commit(member_id: str, generation: int, instance: str | None = None) -> int:
            committed = await wire.commit(
                {(TOPIC, 0): 1},
                member_id=member_id,
                generation=generation,
                instance=instance,
                version=version,
            )
            return committed[TOPIC, 0]

        (member_id,) = await wire.stable()
        assert await commit(member_id, 1) == 0
        assert await commit(member_id, 0) == 22
        assert await commit(member_id, 2) == 22
        assert await commit(member_id, -1) == 22
        assert await commit("stranger", 1) == 25
        assert await commit("", 1) == 25
        assert await commit("", -1) == 25  # The group is not empty.
        if version >= 7:
            assert await commit(member_id, 1, "pod-1") == 25
            assert await commit("", -1, "pod-1") == 25
        await wire.leave(GROUP, (member_id, None))
        assert await commit("", -1) == 0
        assert await commit("whoever", -1, "pod-1") == 0  # KAFKA-14201
        assert await commit(member_id, 1) == 25

    on_broker(scenario)


def test_commits_wait_for_the_end_of_a_rebalance_once_its_members_are_known() -> None:
    """Hazard G2: allowed while all join, refused while the assignment is awaited."""

    async def scenario(wire: Wire) -> None:
        leader, follower = await wire.stable(count=2)
        again = wire.joining(member_id=leader)
        await asyncio.sleep(0.1)
        allowed = await wire.commit({(TOPIC, 0): 1}, member_id=follower, generation=1)
        assert allowed == {(TOPIC, 0): 0}
        await wire.join(member_id=follower)
        await again
        for generation, code in ((2, 27), (1, 22)):
            committed = await wire.commit(
                {(TOPIC, 0): 1}, member_id=follower, generation=generation
            )
            assert committed == {(TOPIC, 0): code}

    on_broker(scenario)


def test_a_group_without_a_name_can_commit_and_be_looked_at_and_deleted() -> None:
    async def scenario(wire: Wire) -> None:
        assert await wire.commit({(TOPIC, 0): 4}, "") == {(TOPIC, 0): 0}
        assert (await wire.fetch(""))[1] == {(TOPIC, 0): (4, -1, "", 0)}
        assert await wire.state_of("") == "Empty"
        assert await wire.delete_groups("") == {"": 0}
        assert await wire.fetch("") == (0, {})

    on_broker(scenario)


def test_nothing_to_commit_is_answered_with_nothing() -> None:
    async def scenario(wire: Wire) -> None:
        assert await wire.commit({}) == {}

    on_broker(scenario)


def test_a_commit_too_large_for_one_batch_is_refused_and_changes_nothing() -> None:
    async def scenario(wire: Wire) -> None:
        (member_id,) = await wire.stable("other")
        assert await wire.commit({(TOPIC, 0): 1}) == {(TOPIC, 0): 0}
        many = [
            {
                "partition_index": 0,
                "committed_offset": 5,
                "committed_leader_epoch": -1,
                "committed_metadata": _incompressible(f"{number}", 4096),
            }
            for number in range(500)
        ]
        fields = {
            "group_id": GROUP,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": TOPIC, "partitions": many}],
        }
        answer = await wire.client.call(ApiKey.OFFSET_COMMIT, 9, fields)
        assert {each.error_code for each in answer.topics[0].partitions} == {-1}
        assert (await wire.fetch())[1] == {(TOPIC, 0): (1, -1, "", 0)}
        assert await wire.heartbeat("other", member_id, 1) == 0

    on_broker(scenario)


def _incompressible(seed: str, characters: int) -> str:
    parts = (hashlib.sha512(f"{seed} {n}".encode()).hexdigest() for n in range(characters // 128))
    return "".join(parts)


def test_the_retention_of_old_clients_counts_when_the_group_is_empty() -> None:
    async def scenario(wire: Wire) -> None:
        for version in (2, 3, 4):
            committed = await wire.commit({(TOPIC, 0): 1}, version=version, retention_ms=60_000)
            assert committed == {(TOPIC, 0): 0}
        await wire.commit({(TOPIC, 1): 1}, version=2, retention_ms=-1)
        await asyncio.sleep(121)
        assert (await wire.fetch())[1] == {(TOPIC, 1): (1, -1, "", 0)}

    on_broker(scenario, offsets_retention_check_interval_ms="60000")


def test_offsets_of_a_live_group_do_not_expire_even_if_an_old_client_asked_for_it() -> None:
    """Hazard G12."""

    async def scenario(wire: Wire) -> None:
        (member_id,) = await wire.stable(
            session_ms=600_000, protocols=[("range", subscription(TOPIC))]
        )
        for topic in (TOPIC, OTHER):
            await wire.commit(
                {(topic, 0): 1}, member_id=member_id, generation=1, version=2, retention_ms=60_000
            )
        await asyncio.sleep(121)
        assert list((await wire.fetch())[1]) == [(TOPIC, 0)]

    on_broker(scenario, offsets_retention_check_interval_ms="60000")


# -- OffsetFetch ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 11))
def test_offsets_are_fetched_and_absent_ones_are_no_error(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.commit({(TOPIC, 0): (5, "a"), (OTHER, 1): 6}, epoch=2)
        error, found = await wire.fetch(GROUP, {TOPIC: [0, 1, 9], OTHER: [1]}, version=version)
        epoch = 2 if version >= 5 else -1
        assert error == 0
        assert found == {
            (TOPIC, 0): (5, epoch, "a", 0),
            (TOPIC, 1): ABSENT,
            (TOPIC, 9): ABSENT,
            (OTHER, 1): (6, epoch, "", 0),
        }
        error, found = await wire.fetch("nobody", {TOPIC: [0]}, version=version)
        assert (error, found) == (0, {(TOPIC, 0): ABSENT})

    on_broker(scenario)


@pytest.mark.parametrize("version", range(2, 11))
def test_without_topics_all_offsets_of_a_group_are_fetched(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.commit({(TOPIC, 1): 5, (OTHER, 0): 6})
        error, found = await wire.fetch(version=version)
        assert error == 0
        assert {tp: each[0] for tp, each in found.items()} == {(TOPIC, 1): 5, (OTHER, 0): 6}
        assert await wire.fetch("nobody", version=version) == (0, {})
        assert await wire.fetch(GROUP, {}, version=version) == (0, {})

    on_broker(scenario)


def test_an_unknown_topic_is_an_error_only_where_it_is_asked_for_by_id() -> None:
    async def scenario(wire: Wire) -> None:
        assert (await wire.fetch(GROUP, {"unknown": [0]}))[1] == {("unknown", 0): ABSENT}
        _, found = await wire.fetch(GROUP, {"unknown": [0], TOPIC: [0]}, version=10)
        assert found == {("unknown", 0): (-1, -1, "", 100), (TOPIC, 0): ABSENT}

    on_broker(scenario)


@pytest.mark.parametrize("version", [8, 9])
def test_the_offsets_of_many_groups_are_fetched_at_once(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        await wire.commit({(TOPIC, 0): 1}, "a")
        await wire.commit({(TOPIC, 0): 2}, "b")
        asked = [
            {"group_id": group, "member_id": None, "member_epoch": -1, "topics": None}
            for group in ("a", "b", "c")
        ]
        fields = {"groups": asked, "require_stable": True}
        answer = await wire.client.call(ApiKey.OFFSET_FETCH, version, fields)
        assert [(each.group_id, each.error_code) for each in answer.groups] == [
            ("a", 0),
            ("b", 0),
            ("c", 0),
        ]
        offsets = [
            [p.committed_offset for topic in each.topics for p in topic.partitions]
            for each in answer.groups
        ]
        assert offsets == [[1], [2], []]

    on_broker(scenario)


@pytest.mark.parametrize("version", range(1, 11))
def test_an_error_of_a_coordinator_stands_where_clients_of_the_version_look_for_it(
    version: int,
) -> None:
    async def scenario(wire: Wire) -> None:
        assert wire.broker.broker is not None
        runtime = wire.broker.broker.groups.runtime
        (shard,) = runtime
        shard.follow(shard.epoch)
        error, found = await wire.fetch(GROUP, {TOPIC: [0]}, version=version)
        shard.epoch -= 1  # type: ignore[assignment]
        runtime.on_leader(shard.partition)
        assert error == (16 if version >= 2 else 0)
        # aiokafka reads with v3, and of an error only what partitions have: without, it would take
        # the group for one that has committed nothing.
        assert found == ({(TOPIC, 0): (-1, -1, "", 16)} if version < 8 else {})
        while shard.status is not Status.ACTIVE:  # noqa: ASYNC110 (nothing tells us)
            await asyncio.sleep(0.1)

    on_broker(scenario)


def test_a_recreated_topic_has_no_offsets_of_the_one_before() -> None:
    """Hazard G23."""

    async def scenario(wire: Wire) -> None:
        (member_id,) = await wire.stable("live", session_ms=600_000)
        await wire.commit({(TOPIC, 0): 5, (OTHER, 0): 6})
        await wire.commit({(TOPIC, 0): 5}, "live", member_id=member_id, generation=1)
        await wire.delete_topic(TOPIC)
        await asyncio.sleep(1)
        wire.topic_ids[TOPIC] = await wire.create_topic(TOPIC)
        for group in (GROUP, "live"):
            for version in (9, 10):
                _, found = await wire.fetch(group, {TOPIC: [0]}, version=version)
                assert found == {(TOPIC, 0): ABSENT}
        assert list((await wire.fetch())[1]) == [(OTHER, 0)]

    on_broker(scenario)


def test_an_offset_that_outlived_its_topic_is_not_of_the_next_one_of_that_name() -> None:
    """Hazard G23: no coordinator served when the topic was deleted, for example."""

    async def scenario(wire: Wire) -> None:
        await wire.commit({(TOPIC, 0): 5, (OTHER, 0): 6})
        offsets = wire.machine().offsets.of(GROUP)
        assert offsets is not None
        value = offsets.get((TOPIC, 0))
        assert value is not None
        offsets.replay((TOPIC, 0), value._replace(topic_id=TopicId(UUID(int=99))), 100)
        for version in (9, 10):
            _, found = await wire.fetch(GROUP, {TOPIC: [0]}, version=version)
            assert found == {(TOPIC, 0): ABSENT}
            assert list((await wire.fetch(version=version))[1]) == [(OTHER, 0)]

    on_broker(scenario)


# -- OffsetDelete --------------------------------------------------------------------------------


def test_offsets_of_an_empty_group_are_deleted_one_by_one() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.commit({(TOPIC, 0): 1, (TOPIC, 1): 2, (OTHER, 0): 3})
        deleted = await wire.delete_offsets({TOPIC: [0, 7], OTHER: [1], "unknown": [0]})
        assert deleted == (
            0,
            {(TOPIC, 0): 0, (TOPIC, 7): 3, (OTHER, 1): 0, ("unknown", 0): 3},
        )
        assert sorted((await wire.fetch())[1]) == [(TOPIC, 1), (OTHER, 0)]

    on_broker(scenario)


def test_offsets_of_topics_that_a_group_reads_are_not_deleted() -> None:
    async def scenario(wire: Wire) -> None:
        (member_id,) = await wire.stable(protocols=[("range", subscription(TOPIC))])
        offsets: dict[tuple[str, int], int | tuple[int, str]] = {(TOPIC, 0): 1, (OTHER, 0): 2}
        await wire.commit(offsets, member_id=member_id, generation=1)
        deleted = await wire.delete_offsets({TOPIC: [0], OTHER: [0]})
        assert deleted == (0, {(TOPIC, 0): 86, (OTHER, 0): 0})
        assert list((await wire.fetch())[1]) == [(TOPIC, 0)]

    on_broker(scenario)


def test_who_cannot_be_understood_may_read_any_topic() -> None:
    async def scenario(wire: Wire) -> None:
        (member_id,) = await wire.stable(protocols=[("range", b"?")])
        await wire.commit({(TOPIC, 0): 1}, member_id=member_id, generation=1)
        assert await wire.delete_offsets({TOPIC: [0]}) == (0, {(TOPIC, 0): 86})

    on_broker(scenario)


def test_the_errors_of_a_whole_request_to_delete_offsets() -> None:
    async def scenario(wire: Wire) -> None:
        assert await wire.delete_offsets({TOPIC: [0]}, "") == (24, {})
        assert await wire.delete_offsets({TOPIC: [0]}, "unknown") == (69, {})
        joined = await wire.join(3, group="connect", protocol_type="connect")
        assert joined.error_code == 0
        assert await wire.delete_offsets({TOPIC: [0]}, "connect") == (68, {})

    on_broker(scenario)


def test_a_commit_of_thousands_of_offsets_is_one_batch_and_other_groups_are_served_meanwhile() -> (
    None
):
    async def scenario(wire: Wire) -> None:
        other = await wire.connect()
        many = [
            {
                "partition_index": number % 3,
                "committed_offset": number,
                "committed_leader_epoch": -1,
                "committed_metadata": "",
            }
            for number in range(3_000)
        ]
        fields = {
            "group_id": GROUP,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": TOPIC, "partitions": many}],
        }
        committing = asyncio.ensure_future(wire.client.call(ApiKey.OFFSET_COMMIT, 9, fields))
        served = 0
        while not committing.done():
            found = {"key_type": 0, "coordinator_keys": ["other"]}
            await other.call(ApiKey.FIND_COORDINATOR, 4, found)
            served += 1
        answer = committing.result()
        assert [each.error_code for each in answer.topics[0].partitions] == [0, 0, 3] * 1_000
        assert served >= 1
        assert (await wire.fetch())[1] == {
            (TOPIC, 0): (2_997, -1, "", 0),
            (TOPIC, 1): (2_998, -1, "", 0),
        }
        assert wire.broker.broker is not None
        shard = wire.broker.broker.groups.runtime.shard_of(GROUP)
        assert shard.partition.log.end_offset == 2_000

    on_broker(scenario)
