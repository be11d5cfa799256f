"""Requests of groups over the wire to a broker of production code, under simulated time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from suwi.client.connection import PeerConnection
from suwi.group.group_coordinator_shard import GroupCoordinatorShard
from suwi.sim import Simulation
from suwi.wire.versions import ApiKey
from tests.broker.simulated import PORT, SimBroker, create_topic, delete_topic

TOPIC, OTHER = "orders", "payments"
"""Two topics with two partitions each."""
GROUP = "g"
RANGE = (("range", b"sub"),)
Protocols = Sequence[tuple[str, bytes]]


class Wire:
    """A broker, and connections to it."""

    def __init__(self, broker: SimBroker) -> None:
        self.broker = broker
        self.topic_ids: dict[str, UUID] = {}
        self.client: PeerConnection

    async def begin(self) -> None:
        await self.broker.start()
        self.client = await self.connect()
        for name in (TOPIC, OTHER):
            self.topic_ids[name] = await self.create_topic(name)
        await self.find(GROUP)

    async def connect(self, client_id: str = "raw") -> PeerConnection:
        return await PeerConnection.open(self.broker.machine.name, PORT, client_id=client_id)

    async def create_topic(self, name: str) -> UUID:
        return await create_topic(self.client, name, partitions=2)

    async def delete_topic(self, name: str) -> None:
        await delete_topic(self.client, name)

    async def find(self, *keys: str, version: int = 6, key_type: int = 0) -> Any:
        """Until its coordinator serves."""
        fields = {"key": keys[0], "key_type": key_type, "coordinator_keys": keys}
        return await self.client.call(ApiKey.FIND_COORDINATOR, version, fields)

    def machine(self, group_id: str = GROUP) -> GroupCoordinatorShard:
        """The state of the shard of a group."""
        assert self.broker.broker is not None
        machine: GroupCoordinatorShard = self.broker.broker.groups.runtime.shard_of(
            group_id
        ).machine
        return machine

    # -- members ---------------------------------------------------------------------------------

    async def join(
        self, version: int = 9, *, client: PeerConnection | None = None, **how: Any
    ) -> Any:
        client = client or await self.connect()
        return await client.call(ApiKey.JOIN_GROUP, version, join_fields(**how))

    def joining(self, version: int = 9, **how: Any) -> asyncio.Task[Any]:
        """A join that is answered later."""
        return asyncio.ensure_future(self.join(version, **how))

    async def member(self, version: int = 9, **how: Any) -> str:
        """The id of one that joined and waits for nothing but its second JoinGroup."""
        answer = await self.join(version, **how)
        assert answer.error_code == 79, answer
        member_id: str = answer.member_id
        return member_id

    async def stable(
        self,
        group: str = GROUP,
        *,
        count: int = 1,
        instances: Sequence[str | None] = (),
        **how: Any,
    ) -> "list[str]":
        """The members of a group, the leader first; each has its own id for an assignment."""
        instances = instances or [None] * count
        last = await self.member(group=group, **how)  # The phase waits for it.
        ids = ["" if each else await self.member(group=group, **how) for each in instances]
        joins = [
            self.joining(group=group, member_id=member_id, instance=instance, **how)
            for member_id, instance in zip(ids, instances, strict=True)
        ]
        await asyncio.sleep(0.1)
        await self.leave(group, (last, None))
        joined = [await join for join in joins]
        assert [each.error_code for each in joined] == [0] * len(joined), joined
        leader = joined[0].leader
        members = sorted((each.member_id for each in joined), key=lambda each: each != leader)
        assignments = {each: each.encode() for each in members}
        generation = joined[0].generation_id
        instance_of = {
            each.member_id: instance for each, instance in zip(joined, instances, strict=True)
        }
        for member_id in members:
            answer = await self.sync(
                group,
                member_id,
                generation,
                assignments=assignments,
                instance=instance_of[member_id],
            )
            assert (answer.error_code, answer.assignment) == (0, member_id.encode())
        return members

    async def sync(
        self,
        group: str,
        member_id: str,
        generation: int,
        version: int = 5,
        *,
        assignments: Mapping[str, bytes] | None = None,
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
    ) -> Any:
        client = await self.connect()
        fields = {
            "group_id": group,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": instance,
            "protocol_type": protocol_type,
            "protocol_name": protocol,
            "assignments": [
                {"member_id": each, "assignment": data}
                for each, data in (assignments or {}).items()
            ],
        }
        return await client.call(ApiKey.SYNC_GROUP, version, fields)

    async def heartbeat(
        self,
        group: str,
        member_id: str,
        generation: int,
        version: int = 4,
        *,
        instance: str | None = None,
    ) -> int:
        fields = {
            "group_id": group,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": instance,
        }
        answer = await self.client.call(ApiKey.HEARTBEAT, version, fields)
        return int(answer.error_code)

    async def leave(
        self, group: str, *members: tuple[str, str | None], version: int = 5
    ) -> tuple[int, list[int]]:
        """The error of all, and one for each (from v3 on)."""
        fields = {
            "group_id": group,
            "member_id": members[0][0] if members else "",
            "members": [
                {"member_id": member_id, "group_instance_id": instance, "reason": "done"}
                for member_id, instance in members
            ],
        }
        answer = await self.client.call(ApiKey.LEAVE_GROUP, version, fields)
        each = [int(one.error_code) for one in answer.members] if version >= 3 else []
        return int(answer.error_code), each

    # -- offsets ---------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[tuple[str, int], int | tuple[int, str]],
        group: str = GROUP,
        *,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        version: int = 9,
        retention_ms: int = -1,
        epoch: int = -1,
    ) -> dict[tuple[str, int], int]:
        """The error of each partition."""
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), value in offsets.items():
            offset, metadata = value if isinstance(value, tuple) else (value, "")
            by_topic.setdefault(topic, []).append(
                {
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_leader_epoch": epoch,
                    "committed_metadata": metadata,
                }
            )
        ids = {**self.topic_ids, "unknown": UUID(int=77)}
        fields = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member_id,
            "group_instance_id": instance,
            "retention_time": retention_ms,
            "topics": [
                {
                    **({"topic_id": ids[name]} if version >= 10 else {"name": name}),
                    "partitions": partitions,
                }
                for name, partitions in by_topic.items()
            ],
        }
        answer = await self.client.call(ApiKey.OFFSET_COMMIT, version, fields)
        names = {topic_id: name for name, topic_id in ids.items()}
        return {
            (names[topic.topic_id] if version >= 10 else topic.name, each.partition_index): int(
                each.error_code
            )
            for topic in answer.topics
            for each in topic.partitions
        }

    async def fetch(
        self,
        group: str = GROUP,
        topics: Mapping[str, Sequence[int]] | None = None,
        *,
        version: int = 9,
        stable: bool = False,
    ) -> tuple[int, dict[tuple[str, int], tuple[int, int, str, int]]]:
        """The error of all; of each partition offset, leader epoch, metadata and error."""
        ids = {**self.topic_ids, "unknown": UUID(int=77)}
        asked = None
        if topics is not None:
            asked = [
                {
                    **({"topic_id": ids[name]} if version >= 10 else {"name": name}),
                    "partition_indexes": list(indexes),
                }
                for name, indexes in topics.items()
            ]
        if version < 8:
            fields: dict[str, Any] = {"group_id": group, "topics": asked}
        else:
            fields = {
                "groups": [
                    {"group_id": group, "member_id": None, "member_epoch": -1, "topics": asked}
                ]
            }
        fields["require_stable"] = stable
        answer = await self.client.call(ApiKey.OFFSET_FETCH, version, fields)
        of_group = answer if version < 8 else answer.groups[0]
        error = int(of_group.error_code) if version >= 2 else 0
        names = {topic_id: name for name, topic_id in ids.items()}
        found = {}
        for topic in of_group.topics:
            name = names[topic.topic_id] if version >= 10 else topic.name
            for each in topic.partitions:
                epoch = each.committed_leader_epoch if version >= 5 else -1
                found[name, each.partition_index] = (
                    int(each.committed_offset),
                    int(epoch),
                    each.metadata,
                    int(each.error_code),
                )
        return error, found

    async def delete_offsets(
        self, topics: Mapping[str, Sequence[int]], group: str = GROUP
    ) -> tuple[int, dict[tuple[str, int], int]]:
        fields = {
            "group_id": group,
            "topics": [
                {"name": name, "partitions": [{"partition_index": each} for each in indexes]}
                for name, indexes in topics.items()
            ],
        }
        answer = await self.client.call(ApiKey.OFFSET_DELETE, 0, fields)
        each = {
            (topic.name, one.partition_index): int(one.error_code)
            for topic in answer.topics
            for one in topic.partitions
        }
        return int(answer.error_code), each

    # -- groups ----------------------------------------------------------------------------------

    async def describe(self, *groups: str, version: int = 6, operations: bool = False) -> Any:
        fields = {"groups": groups, "include_authorized_operations": operations}
        answer = await self.client.call(ApiKey.DESCRIBE_GROUPS, version, fields)
        return answer.groups

    async def state_of(self, group: str = GROUP) -> str:
        (described,) = await self.describe(group, version=5)
        state: str = described.group_state
        return state

    async def list(
        self, version: int = 5, *, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> dict[str, Any]:
        """The groups by their ids."""
        fields = {"states_filter": states, "types_filter": types}
        answer = await self.client.call(ApiKey.LIST_GROUPS, version, fields)
        assert answer.error_code == 0
        return {group.group_id: group for group in answer.groups}

    async def delete_groups(self, *groups: str, version: int = 2) -> dict[str, int]:
        fields = {"groups_names": groups}
        answer = await self.client.call(ApiKey.DELETE_GROUPS, version, fields)
        assert len(answer.results) == len({each.group_id for each in answer.results})
        return {each.group_id: int(each.error_code) for each in answer.results}


def join_fields(
    group: str = GROUP,
    member_id: str = "",
    instance: str | None = None,
    protocols: Protocols = RANGE,
    protocol_type: str = "consumer",
    session_ms: int = 10_000,
    rebalance_ms: int = 30_000,
    reason: str | None = None,
) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": session_ms,
        "rebalance_timeout": rebalance_ms,
        "member_id": member_id,
        "group_instance_id": instance,
        "protocol_type": protocol_type,
        "protocols": [{"name": name, "metadata": data} for name, data in protocols],
        "reason": reason,
    }


def on_broker(scenario: Callable[[Wire], Awaitable[None]], **settings: str) -> None:
    """Run that against a broker whose internal topic has one partition, unless said otherwise."""
    simulation = Simulation(0)
    settings = {
        "offsets_topic_num_partitions": "1",
        "offsets_topic_replication_factor": "1",
        "group_initial_rebalance_delay_ms": "0",
        **settings,
    }
    wire = Wire(SimBroker(simulation, **settings))

    async def run() -> None:
        await wire.begin()
        await scenario(wire)
        # Whatever was asked: the shard serves on.
        assert await wire.commit({(TOPIC, 0): 1}, "still there") == {(TOPIC, 0): 0}

    simulation.run(run())
