"""The pure machine of groups, driven by hand: what it decides is replayed, and compared (H0).

After every event, a fresh machine that replays the log, and one that replays it with any prefix
compacted, must have what is persisted of the live one.
"""

import struct
from collections.abc import Iterable
from itertools import count
from random import Random
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call, Event, TimerKey
from suwi.group.classic_coordinator import ClassicGroupConfig
from suwi.group.classic_group import (
    ClassicGroup,
    ClassicState,
    Committer,
    JoinRequest,
    LeaveRequest,
    LeavingMember,
    Protocol,
    SyncRequest,
    beyond_record,
)
from suwi.group.consumer_group import ConsumerGroupConfig
from suwi.group.group_coordinator_shard import GROUP_RECORDS, GroupConfig, GroupCoordinatorShard
from suwi.group.offset_manager import OffsetToCommit
from suwi.group.offset_records import OffsetCommitValue
from tests.coordinator.machine_driver import MachineDriver

GROUP = "g"
SESSION_MS, REBALANCE_MS = 10_000, 30_000
RETENTION_MS, EXPIRY_INTERVAL_MS = 1_000_000, 60_000


class Driver(MachineDriver[GroupCoordinatorShard]):
    def __init__(self, *, delay_ms: int = 0, size_max: int = 100, seed: int = 0) -> None:
        self._config = GroupConfig(
            ClassicGroupConfig(delay_ms, 6_000, 1_800_000, size_max),
            lambda _group_id: ConsumerGroupConfig(),
            RETENTION_MS,
            EXPIRY_INTERVAL_MS,
        )
        self._ids = count(1)
        self._random = Random(seed)
        self.notices: list[Any] = []
        self.is_checked = True
        super().__init__(GROUP_RECORDS, now_ms=1_000)

    def _new_machine(self) -> GroupCoordinatorShard:
        return GroupCoordinatorShard(self._config, lambda: str(next(self._ids)))

    @property
    def group(self) -> ClassicGroup:
        return self.machine.groups.classic[GROUP]

    @property
    def state(self) -> ClassicState:
        return self.group.state

    # -- events ----------------------------------------------------------------------------------

    def _notice(self, event: Event) -> None:
        self.notices += event.notices

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: Iterable[tuple[str, bytes]] = (("range", b"s"),),
        group: str = GROUP,
        known_id: bool = False,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        skips: bool = True,
        protocol_type: str = "consumer",
    ) -> Call[Any]:
        """`known_id`: of a version in which members are given an id first."""
        request = JoinRequest(
            group,
            member_id,
            instance,
            protocol_type,
            tuple(Protocol(name, metadata) for name, metadata in protocols),
            session_ms,
            rebalance_ms,
            "client",
            "/127.0.0.1",
            must_know_its_id=known_id,
            can_skip_assignment=skips,
        )
        return self.ask(GroupCoordinatorShard.join, request)

    def sync(
        self,
        member_id: str,
        assignments: dict[str, bytes] | None = None,
        *,
        generation: int | None = None,
        instance: str | None = None,
        group: str = GROUP,
    ) -> Call[Any]:
        found = self.machine.groups.classic.get(group)
        number = generation if generation is not None else found.generation if found else 1
        request = SyncRequest(group, member_id, instance, number, None, None, assignments or {})
        return self.ask(GroupCoordinatorShard.sync, request)

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance: str | None = None
    ) -> ErrorCode:
        found = self.machine.groups.classic.get(GROUP)
        number = generation if generation is not None else found.generation if found else 1
        who = Committer(GROUP, member_id, instance, number)
        error: ErrorCode = self.reply_to(GroupCoordinatorShard.heartbeat, who)
        return error

    def leave(self, *members: str, instance: str | None = None, group: str = GROUP) -> list[Any]:
        request = LeaveRequest(group, [LeavingMember(each, instance) for each in members])
        errors: list[Any] = self.reply_to(GroupCoordinatorShard.leave, request)
        return errors

    def commit(
        self,
        offset: int,
        *,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        group: str = GROUP,
        topic: str = "t",
        expire_ms: int = -1,
    ) -> ErrorCode:
        who = Committer(group, member_id, instance, generation)
        value = OffsetCommitValue(offset, -1, "", self.now_ms, expire_ms)
        offsets = [OffsetToCommit(topic, 0, value)]
        errors: list[ErrorCode] = self.reply_to(
            lambda m, offsets, event: m.offset_requests.commit(who, offsets, event), offsets
        )
        return errors[0]

    def offset(self, group: str = GROUP, topic: str = "t") -> int | None:
        offsets = self.machine.offsets.of(group)
        value = offsets.get((topic, 0)) if offsets is not None else None
        return value.offset if value is not None else None

    def delete_group(self, group: str = GROUP) -> ErrorCode:
        error: ErrorCode = self.reply_to(GroupCoordinatorShard.delete_group, group)
        return error

    # -- members ---------------------------------------------------------------------------------

    def id_of(self, joined: Call[Any]) -> str:
        reply = self.replies[joined]
        assert reply.error == ErrorCode.none, reply
        member_id: str = reply.member_id
        return member_id

    def stable(self, members: int = 1, *, instances: Iterable[str] = (), **how: Any) -> list[str]:
        """Members of one generation, each with its own id for an assignment; the leader first."""
        waiting = [self.join(**how) for _ in range(members if not instances else 0)]
        waiting += [self.join(instance=each, **how) for each in instances]
        while any(call in self.waiting for call in waiting):
            for member in list(self.group.members.values()):
                if member.awaiting_join is None:
                    self.join(member.member_id, instance=member.instance_id, **how)
        self.assign()
        ids = list(self.group.members)
        return sorted(ids, key=lambda each: not self.group.is_leader(each))

    def assign(self) -> None:
        """All members sync."""
        ids = list(self.group.members)
        for member_id in ids:
            instance = self.group.members[member_id].instance_id
            self.sync(member_id, {each: each.encode() for each in ids}, instance=instance)
        assert self.state is ClassicState.STABLE

    # -- time ------------------------------------------------------------------------------------

    def sleep(self, duration_ms: int, *alive: str) -> None:
        """Timers expire; these members send heartbeats."""
        until_ms = self.now_ms + duration_ms
        next_beat_ms = self.now_ms + 3_000
        while True:
            due_ms = min(self.timers.values(), default=until_ms + 1)
            step_ms = min(due_ms, next_beat_ms, until_ms)
            self.now_ms = max(self.now_ms, step_ms)
            if due_ms <= step_ms:
                key = next(key for key, at_ms in self.timers.items() if at_ms == due_ms)
                del self.timers[key]
                self.expire(key)
            elif next_beat_ms <= step_ms < until_ms:
                next_beat_ms += 3_000
                for member_id in alive:
                    self.heartbeat(member_id)
            else:
                return

    def expire(self, key: TimerKey) -> None:
        self.do(GroupCoordinatorShard.expired, key)

    # -- H0 --------------------------------------------------------------------------------------

    def check(self) -> None:
        if not self.is_checked:
            return
        live = persisted(self.machine)
        for compacted_to in (0, self._random.randint(0, len(self.log)), len(self.log)):
            replayed = persisted(self.replayed(compacted_to))
            assert replayed == live, f"replay with the first {compacted_to} records compacted"
        groups = self.machine.groups.classic.values()
        for group in groups:
            check_group(group, self.timers)
        assert self.machine.held_beyond_records.total == sum(
            group.held_beyond_record for group in groups
        )


def persisted(machine: GroupCoordinatorShard) -> dict[str, Any]:
    """What a replay must give; of a group that is not in the midst of a rebalance all there is."""
    state: dict[str, Any] = {}
    for group_id, group in machine.groups.classic.items():
        if group.persisted is not None:
            state[group_id] = group.persisted
            if group.is_as_persisted:
                assert group.value() == group.persisted, "the live group is not what is persisted"
    for group_id, offsets in machine.offsets.persisted():
        state[f"offsets of {group_id}"] = dict(offsets.latest())
    return state


def check_group(group: ClassicGroup, timers: dict[TimerKey, int]) -> None:
    """The invariants of a group, and that whatever it waits for has an end."""
    members = group.members
    assert all(member_id == member.member_id for member_id, member in members.items())
    assert group.static == {m.instance_id: m.member_id for m in members.values() if m.instance_id}
    assert group.joined == sum(member.awaiting_join is not None for member in members.values())
    assert group.leader_id is None or group.leader_id in members or not members
    assert set(group.pending_sync) <= set(members)
    assert not set(group.pending_members) & set(members)
    sizes = [member.size for member in members.values()]
    assert group.held_bytes == sum(s.held for s in sizes) + sum(map(len, group.pending_members))
    assert group.recorded_bytes == sum(size.recorded for size in sizes)
    assert group.held_beyond_record == sum(map(len, group.pending_members)) + sum(
        beyond_record(member.size.held, member.in_record) for member in members.values()
    )
    for member in members.values():
        assert member.awaiting_join is None or member.awaiting_sync is None
        assert ("session", group.group_id, member.member_id) in timers
    for member_id in group.pending_members:
        assert ("session", group.group_id, member_id) in timers
    state = group.state
    assert (state is ClassicState.PREPARING_REBALANCE) == (("join", group.group_id) in timers)
    if state is ClassicState.EMPTY:
        assert not members
    if state is ClassicState.COMPLETING_REBALANCE:
        assert ("sync", group.group_id) in timers
        assert all(
            member_id in group.pending_sync or member.awaiting_sync is not None
            for member_id, member in members.items()
        )
    if state is ClassicState.STABLE:
        assert members
        assert not group.pending_sync or ("sync", group.group_id) in timers
        assert all(m.awaiting_join is None and m.awaiting_sync is None for m in members.values())


def subscription(*topics: str, user_data: bytes = b"") -> bytes:
    named = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    rest = struct.pack(">i", len(user_data)) + user_data + struct.pack(">i", 0)
    return struct.pack(">hi", 1, len(topics)) + named + rest
