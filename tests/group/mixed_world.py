"""Consumer groups with members of the classic protocol, and classic groups beside them."""

import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call, Event
from suwi.coordinator.record import CoordinatorRecord
from suwi.env.slices import run_to_end
from suwi.group.classic_group import (
    ClassicGroup,
    Committer,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    Protocol,
    SyncRequest,
    SyncResponse,
)
from suwi.group.classic_group_records import GroupMetadataKey
from suwi.group.group_coordinator_shard import GROUP_RECORDS
from suwi.wire.consumer_protocol import decode_assignment
from suwi.wire.primitives import legacy_string
from tests.group.consumer_world import GROUP, Client, World


def subscription(
    *topics: str, owned: Mapping[str, Sequence[int]] | None = None, version: int = 1
) -> bytes:
    out = [struct.pack(">hi", version, len(topics)), *map(legacy_string, topics), b"\xff" * 4]
    if version >= 1:
        out.append(struct.pack(">i", len(owned or {})))
        for topic, partitions in (owned or {}).items():
            out.append(legacy_string(topic))
            out.append(struct.pack(f">i{len(partitions)}i", len(partitions), *partitions))
    if version >= 2:
        out.append(struct.pack(">i", 7))
    if version >= 3:
        out.append(legacy_string("rack"))
    return b"".join(out)


class Mixed(World):
    """A world where classic groups are, too."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.classic: dict[str, ClassicGroup] = {}
        self.replies: dict[Call[Any], Any] = {}

    def carry_out(self, event: Event) -> list[CoordinatorRecord]:
        for record in event.records:
            if isinstance(record.key, GroupMetadataKey):
                decoded = GROUP_RECORDS.decode(*GROUP_RECORDS.encode(record))
                assert decoded == record
                self.classic.pop(GROUP, None)
                if record.value is not None:
                    self.classic[GROUP] = ClassicGroup(GROUP)
                    self.classic[GROUP].apply(record.value)
        rest = [r for r in event.records if not isinstance(r.key, GroupMetadataKey)]
        self.replies |= dict(event.replies)
        event.records = rest
        return super().carry_out(event)

    def upgrade(self, client: Client) -> Any:
        event = self.event()
        response = run_to_end(
            self.coordinator.upgrade(self.classic[GROUP], client.request(), event)
        )
        self.carry_out(event)
        if response.error is ErrorCode.none:
            client.epoch, client.must_send_all = response.member_epoch, False
            client.owned = dict(response.assignment or {})
        return response


class Consumer:
    """A consumer of the classic protocol with a cooperative assignor, or an eager one."""

    def __init__(self, world: Mixed, member_id: str = "", instance_id: str | None = None) -> None:
        self.world, self.member_id, self.instance_id = world, member_id, instance_id
        self.generation = -1
        self.owned: dict[str, Sequence[int]] = {}
        self.is_eager = False
        self.has_synced = False
        self.topics: tuple[str, ...] = ("a",)
        self.names = ["cooperative-sticky"]

    def join(self, **changes: Any) -> JoinResponse:
        owned = {} if self.is_eager else self.owned
        metadata = subscription(*self.topics, owned=owned)
        request = JoinRequest(
            GROUP,
            self.member_id,
            self.instance_id,
            "consumer",
            tuple(Protocol(name, metadata) for name in self.names),
            10_000,
            30_000,
            "client",
            "/h",
        )._replace(**changes)
        world, event = self.world, self.world.event()
        deque(world.coordinator.join(world.group, request, event), 0)
        world.carry_out(event)
        response: JoinResponse = world.replies[event.call]  # type: ignore[index]
        if response.error in (ErrorCode.none, ErrorCode.member_id_required):
            self.member_id, self.generation = response.member_id, response.generation
            self.has_synced = False
        return response

    def sync(self, **changes: Any) -> SyncResponse:
        request = SyncRequest(
            GROUP, self.member_id, self.instance_id, self.generation, "consumer", self.names[0], {}
        )._replace(**changes)
        world, event = self.world, self.world.event()
        response = world.coordinator.classic_members.sync(world.group, request, event)
        world.carry_out(event)
        if response.error is ErrorCode.none:
            self.owned = {}
            for topic, partition in decode_assignment(response.assignment).partitions:
                self.owned.setdefault(topic, []).append(partition)
            self.has_synced = True
        return response

    def beat(self, generation: int | None = None) -> ErrorCode:
        world, event = self.world, self.world.event()
        error = world.coordinator.classic_members.heartbeat(
            world.group,
            Committer(
                GROUP,
                self.member_id,
                self.instance_id,
                self.generation if generation is None else generation,
            ),
            event,
        )
        world.carry_out(event)
        return error

    def turn(self) -> None:
        must_join = self.generation < 0 or self.beat() is ErrorCode.rebalance_in_progress
        if must_join and self.join().error is ErrorCode.none:
            self.sync()

    def leave(self, member_id: str | None = None, instance_id: str | None = None) -> ErrorCode:
        world, event = self.world, self.world.event()
        leaving = LeavingMember(
            self.member_id if member_id is None else member_id, instance_id or self.instance_id
        )
        (error,) = run_to_end(world.coordinator.leave(world.group, [leaving], event))
        world.carry_out(event)
        return error

    @property
    def count(self) -> int:
        return sum(map(len, self.owned.values()))
