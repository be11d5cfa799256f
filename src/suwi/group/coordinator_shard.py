"""The groups and offsets of one partition of `__consumer_offsets`, as a pure machine.

`coordinator/shard.py` drives it: each method takes one event and fills a `Decision`; `replay` is
the only way in which persisted state changes. Kafka's GroupCoordinatorShard.
Invariant (hazard H0): what is persisted of this state is what a replay of the log gives.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, TimerKey, Token
from suwi.coordinator.record import CoordinatorRecord
from suwi.coordinator.record_facts import RecordFacts
from suwi.group.classic_coordinator import ClassicCoordinator
from suwi.group.classic_group import ClassicGroup, ClassicState
from suwi.group.classic_group_records import GroupMetadataKey
from suwi.group.classic_join import ClassicGroupConfig, check_member
from suwi.group.classic_messages import (
    NO_GENERATION,
    UNKNOWN_MEMBER,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    SyncRequest,
    SyncResponse,
)
from suwi.group.classic_timers import reset_session
from suwi.group.consumer_protocol import subscribed_topics
from suwi.group.history import Rebalance
from suwi.group.offset_manager import EXPIRED_PER_EVENT, OffsetManager, OffsetToCommit
from suwi.group.offset_records import OffsetCommitKey, OffsetCommitValue
from suwi.group.offsets import Partition
from suwi.records.record import Marker

_EXPIRY: Final = ("expiry",)
_DEAD: Final = ClassicState.DEAD
_EMPTY: Final = ClassicState.EMPTY


class GroupConfig(NamedTuple):
    classic: ClassicGroupConfig
    offsets_retention_ms: int
    expiry_interval_ms: int


class Committer(NamedTuple):
    """Who commits offsets; without a member id an administrator or a consumer without a group."""

    group_id: str
    member_id: str = UNKNOWN_MEMBER
    instance_id: str | None = None
    generation: int = NO_GENERATION
    knows_group_not_found: bool = True
    """OffsetCommit from v9 on."""


class GroupCoordinatorShard:
    def __init__(self, config: GroupConfig, new_id: Callable[[], str]) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = OffsetManager()
        self._config = config
        self._classic = ClassicCoordinator(config.classic, new_id)
        self._expiring: Iterator[str] | None = None
        """The groups that a round of expiry has not looked at yet."""

    # -- looking ---------------------------------------------------------------------------------

    def group(self, group_id: str) -> ClassicGroup | None:
        """A group that has offsets and nothing else is an empty one, too."""
        group = self.groups.get(group_id)
        if group is None and group_id in self.offsets:
            group = ClassicGroup(group_id)
        return group

    def group_ids(self) -> Iterable[str]:
        return dict.fromkeys([*self.groups, *self.offsets.groups()])

    def rebalance_under_way(self, group_id: str) -> Rebalance | None:
        return self._classic.rebalance_under_way(group_id)

    def _group_or_dead(self, group_id: str) -> ClassicGroup:
        group = self.group(group_id)
        return group if group is not None else ClassicGroup(group_id, _DEAD)

    # -- membership ------------------------------------------------------------------------------

    def join(self, request: JoinRequest, token: Token, now_ms: int, decision: Decision) -> None:
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id != UNKNOWN_MEMBER and request.group_id not in self.offsets:
                decision.reply(token, JoinResponse(ErrorCode.unknown_member_id, request.member_id))
                return
            group = ClassicGroup(request.group_id, state_since_ms=now_ms)
        self._classic.join(group, request, token, now_ms, decision)
        if group.members or group.pending_members:
            self.groups[request.group_id] = group

    def sync(self, request: SyncRequest, token: Token, now_ms: int, decision: Decision) -> None:
        group = self.groups.get(request.group_id)
        if group is None:
            decision.reply(token, SyncResponse(ErrorCode.unknown_member_id))
            return
        self._classic.sync(group, request, token, now_ms, decision)

    def heartbeat(self, who: Committer, token: Token, now_ms: int, decision: Decision) -> None:
        group = self.groups.get(who.group_id)
        error = ErrorCode.unknown_member_id
        if group is not None:
            error = self._classic.heartbeat(
                group, who.member_id, who.instance_id, who.generation, now_ms, decision
            )
        decision.reply(token, error)

    def leave(
        self,
        group_id: str,
        leaving: Sequence[LeavingMember],
        token: Token,
        now_ms: int,
        decision: Decision,
    ) -> None:
        """The reply: an error for each member."""
        group = self.groups.get(group_id)
        if group is None:
            decision.reply(token, [ErrorCode.unknown_member_id] * len(leaving))
            return
        decision.reply(token, self._classic.leave(group, leaving, now_ms, decision))
        self._drop_if_nothing(group)

    # -- offsets ---------------------------------------------------------------------------------

    def commit_refusal(self, who: Committer) -> ErrorCode | None:
        """Hazards G1 and G2."""
        group = self.group(who.group_id)
        if group is None:
            if who.generation < 0:
                return None
            if who.knows_group_not_found:
                return ErrorCode.group_id_not_found
            return ErrorCode.illegal_generation
        if group.state is _DEAD:
            return ErrorCode.coordinator_not_available
        if who.generation < 0 and group.state is _EMPTY:
            return None
        if who.generation >= 0 or who.member_id != UNKNOWN_MEMBER or who.instance_id is not None:
            error = check_member(group, who.member_id, who.instance_id)
            if error is not None:
                return error
            if who.generation != group.generation:
                return ErrorCode.illegal_generation
        else:
            return ErrorCode.unknown_member_id
        if group.state is ClassicState.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return None

    def commit(
        self,
        who: Committer,
        offsets: Iterable[OffsetToCommit],
        token: Token,
        now_ms: int,
        decision: Decision,
    ) -> None:
        """The reply: one error for all of the offsets, or none."""
        error = self.commit_refusal(who)
        if error is None:
            group = self.groups.get(who.group_id)
            member = group.members.get(who.member_id) if group is not None else None
            if group is not None and member is not None:
                reset_session(group, member, now_ms, decision)
            self.offsets.commit(who.group_id, offsets, decision)
        decision.reply(token, error or ErrorCode.none)

    def fetch_refusal(self, group_id: str) -> ErrorCode | None:
        group = self.groups.get(group_id)
        dead = group is not None and group.state is _DEAD
        return ErrorCode.coordinator_not_available if dead else None

    def delete_offsets(
        self,
        group_id: str,
        partitions: Sequence[Partition],
        token: Token,
        decision: Decision,
    ) -> None:
        """The reply: an error for the whole request, or one for each partition."""
        group = self._group_or_dead(group_id)
        error = None
        if group.state is _DEAD:
            error = ErrorCode.group_id_not_found
        elif group.state is not _EMPTY and not group.uses_consumer_protocol:
            error = ErrorCode.non_empty_group
        if error is not None:
            decision.reply(token, error)
            return
        subscribed = subscribed_topics(group) or frozenset()
        errors = []
        for partition in partitions:
            if partition[0] in subscribed:
                errors.append(ErrorCode.group_subscribed_to_topic)
            else:
                self.offsets.delete(group_id, partition, decision)
                errors.append(ErrorCode.none)
        decision.reply(token, errors)

    def delete_group(self, group_id: str, token: Token, decision: Decision) -> None:
        group = self._group_or_dead(group_id)
        if group.state is _DEAD:
            decision.reply(token, ErrorCode.group_id_not_found)
        elif group.state is not _EMPTY:
            decision.reply(token, ErrorCode.non_empty_group)
        else:
            self.offsets.delete_all(group_id, decision)
            decision.append(GroupMetadataKey(group_id), None)
            decision.reply(token, ErrorCode.none)

    def topics_deleted(self, topics: frozenset[str], decision: Decision) -> None:
        """Offsets go with their topic (hazard G23)."""
        for group_id in list(self.offsets.groups()):
            offsets = self.offsets.of(group_id)
            for partition, _ in list(offsets.latest()) if offsets is not None else ():
                if partition[0] in topics:
                    self.offsets.delete(group_id, partition, decision)

    # -- expiry ----------------------------------------------------------------------------------

    def _expire(self, now_ms: int, decision: Decision) -> None:
        """One part of a round; the rest follows in events of its own."""
        if self._expiring is None:
            self._expiring = iter(list(self.group_ids()))
        for group_id in self._expiring:
            self._expire_group(group_id, now_ms, decision)
            if len(decision.records) >= EXPIRED_PER_EVENT:
                decision.arm(_EXPIRY, now_ms)
                return
        self._expiring = None
        decision.arm(_EXPIRY, now_ms + self._config.expiry_interval_ms)

    def _expire_group(self, group_id: str, now_ms: int, decision: Decision) -> None:
        group = self._group_or_dead(group_id)
        retention_ms = self._config.offsets_retention_ms
        subscribed = subscribed_topics(group)

        def is_expired(topic: str, value: OffsetCommitValue) -> bool:
            """Hazard G12."""
            if group.state is _EMPTY and group.protocol_type is not None:
                since_ms = group.state_since_ms if group.state_since_ms >= 0 else now_ms
                return now_ms - max(since_ms, value.commit_timestamp_ms) >= retention_ms
            if group.state is _EMPTY or (
                group.state is ClassicState.STABLE
                and subscribed is not None
                and topic not in subscribed
            ):
                return now_ms - value.commit_timestamp_ms >= retention_ms
            return False

        all_gone = self.offsets.expire(group_id, is_expired, now_ms, decision)
        if all_gone and group.state is _EMPTY and not group.pending_members:
            decision.append(GroupMetadataKey(group_id), None)

    # -- the runtime's side ----------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, facts: RecordFacts) -> None:
        key, value = record
        if isinstance(key, OffsetCommitKey):
            self.offsets.replay(key, value, facts)
        elif isinstance(key, GroupMetadataKey):
            if value is None:
                self.groups.pop(key.group_id, None)
                self._classic.forget(key.group_id)
                return
            group = self.groups.get(key.group_id)
            if group is None:
                group = self.groups[key.group_id] = ClassicGroup(key.group_id)
            group.apply(value)

    def replay_marker(self, marker: Marker, facts: RecordFacts) -> None:
        self.offsets.replay_marker(marker, facts)

    def committed(self, end_offset: int) -> None:
        self.offsets.committed(end_offset)

    def elected(self, now_ms: int, decision: Decision) -> None:
        for group in self.groups.values():
            self._classic.loaded(group, now_ms, decision)
        decision.arm(_EXPIRY, now_ms + self._config.expiry_interval_ms)

    def resigned(self) -> None:
        self._expiring = None
        for group_id, group in list(self.groups.items()):
            if group.is_as_persisted:
                continue
            self._classic.forget(group_id)
            persisted = group.persisted
            if persisted is None:
                del self.groups[group_id]
            else:
                self.groups[group_id] = ClassicGroup(group_id)
                self.groups[group_id].apply(persisted)

    def expired(self, key: TimerKey, now_ms: int, decision: Decision) -> None:
        assert isinstance(key, tuple)
        if key == _EXPIRY:
            self._expire(now_ms, decision)
            return
        kind, group_id, *rest = key
        group = self.groups.get(group_id)
        if group is None:
            return
        if kind == "session":
            self._classic.session_timed_out(group, rest[0], now_ms, decision)
        elif kind == "join":
            self._classic.join_timed_out(group, now_ms, decision)
        else:
            self._classic.sync_timed_out(group, now_ms, decision)
        self._drop_if_nothing(group)

    def _drop_if_nothing(self, group: ClassicGroup) -> None:
        """Ids that were handed out and never used leave nothing behind (hazard G4)."""
        is_used = group.members or group.pending_members or group.persisted is not None
        if not is_used and group.state is _EMPTY:
            self.groups.pop(group.group_id, None)
            self._classic.forget(group.group_id)
