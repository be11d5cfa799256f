"""The groups and offsets of one partition of `__consumer_offsets`, as a pure machine.

`coordinator/shard.py` drives it: each method adds its decisions to an `Event`; `replay` is
the only way in which persisted state changes. Kafka's GroupCoordinatorShard.
Invariant (hazard H0): what is persisted of this state is what a replay of the log gives.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call, Event, TimerKey
from suwi.coordinator.record import Codec, CoordinatorRecord, RecordFacts
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.env.slices import Slices
from suwi.group.classic_coordinator import ClassicCoordinator, ClassicGroupConfig
from suwi.group.classic_group import (
    ClassicGroup,
    ClassicState,
    Committer,
    HeldBytes,
    JoinRequest,
    LeaveRequest,
    SyncRequest,
    SyncResponse,
)
from suwi.group.classic_group_records import CLASSIC_GROUP_RECORDS, GroupMetadataKey
from suwi.group.consumer_coordinator import ConsumerCoordinator
from suwi.group.consumer_group import ConsumerGroup, ConsumerGroupConfig, HeartbeatRequest
from suwi.group.consumer_group_records import CONSUMER_GROUP_RECORDS
from suwi.group.groups import Group, Groups
from suwi.group.history import Cause, Rebalance, Trigger
from suwi.group.offset_records import OFFSET_RECORDS, OffsetCommitKey
from suwi.group.offset_requests import EXPIRY, CommitRequest, OffsetDeleteRequest, OffsetRequests
from suwi.group.target_assignment import Job
from suwi.records.record import Marker

GROUP_RECORDS: Final = Codec({**OFFSET_RECORDS, **CLASSIC_GROUP_RECORDS, **CONSUMER_GROUP_RECORDS})
"""All records of `__consumer_offsets`, with Apache Kafka's schemas. Values are written in the
versions that Kafka 4.3 writes, and read in all that it reads."""


_JOB: Final = "job"
_COMPARE: Final = ("compare topics",)
_TOPICS_COMPARED_PER_EVENT: Final = 5_000


class GroupConfig(NamedTuple):
    classic: ClassicGroupConfig
    consumer_of: Callable[[str], ConsumerGroupConfig]
    """The settings of a group by its id."""
    offsets_retention_ms: int
    expiry_interval_ms: int


class GroupCoordinatorShard:
    def __init__(
        self,
        config: GroupConfig,
        new_id: Callable[[], str],
        held_by_all: Callable[[], int] | None = None,
    ) -> None:
        """`new_id` makes member ids. `held_by_all`: the sum of `held_beyond_records` of all shards
        of the broker."""
        self.held_beyond_records = HeldBytes()
        self.groups = Groups()
        self.offsets = self.groups.offsets
        self.offset_requests = OffsetRequests(
            self.groups, config.offsets_retention_ms, config.expiry_interval_ms
        )
        self.config = config
        self._classic = ClassicCoordinator(
            config.classic, new_id, held_by_all or (lambda: self.held_beyond_records.total)
        )
        self._consumer = ConsumerCoordinator(config.consumer_of, new_id)
        self._jobs: dict[TimerKey, Job] = {}
        """Long work by the timer that steps it: assignments, and the resolution of regular
        expressions."""
        self._to_compare: list[str] = []
        """Consumer groups that were not compared with the newest image yet."""

    def group(self, group_id: str) -> Group | None:
        return self.groups.get(group_id)

    def rebalance_under_way(self, group_id: str) -> Rebalance | None:
        return self._classic.rebalances.under_way(group_id)

    # -- the classic protocol --------------------------------------------------------------------

    def join(self, request: JoinRequest, event: Event) -> Slices[None] | None:
        group_id = request.group_id
        consumer = self.groups.consumer.get(group_id)
        if consumer is not None and not consumer.is_empty:
            return self._consumer.join(consumer, request, event)
        if consumer is not None:
            self._consumer.delete(consumer, event)
        group = self.groups.classic.get(group_id)
        if group is None:
            group = self._new_classic(group_id)
            group.state_since_ms = event.now_ms
        self._classic.join(group, request, event)
        if group.members or group.pending_members:
            self.groups.classic[group_id] = group
        return None

    def _new_classic(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, held_beyond_records=self.held_beyond_records)

    def sync(self, request: SyncRequest, event: Event) -> None:
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            event.reply(self._consumer.classic_members.sync(group, request, event))
        elif group is None:
            event.reply(SyncResponse(ErrorCode.unknown_member_id))
        else:
            self._classic.sync(group, request, event)

    def heartbeat(self, who: Committer, event: Event) -> None:
        group = self.groups.get(who.group_id)
        error = ErrorCode.unknown_member_id
        if group is not None:
            if isinstance(group, ConsumerGroup):
                error = self._consumer.classic_members.heartbeat(group, who, event)
            else:
                error = self._classic.heartbeat(group, who, event)
        event.reply(error)

    def leave(self, request: LeaveRequest, event: Event) -> Slices[None]:
        """The reply: an error for each member."""
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            errors = yield from self._consumer.leave(group, request.members, event)
            event.reply(errors)
        elif group is None:
            event.reply([ErrorCode.unknown_member_id] * len(request.members))
        else:
            errors = yield from self._classic.leave(group, request.members, event)
            event.reply(errors)
            self._drop_if_nothing(group)

    # -- the consumer protocol (KIP-848) ---------------------------------------------------------

    def consumer_heartbeat(self, request: HeartbeatRequest, event: Event) -> Slices[None]:
        classic = self.groups.classic.get(request.group_id)
        if classic is not None and classic.state is not ClassicState.EMPTY:
            response = yield from self._consumer.upgrade(classic, request, event)
        else:
            if classic is not None and request.member_epoch == 0:
                event.append(GroupMetadataKey(request.group_id), None)
            group = self.groups.consumer.get(request.group_id)
            response = yield from self._consumer.heartbeat(group, request, event)
        if response.error is not ErrorCode.none:
            event.records.clear()
        elif classic is not None:
            self._classic.rebalances.forget(request.group_id)
        event.reply(response)

    # -- offsets, deletion -----------------------------------------------------------------------

    def commit_offsets(self, request: CommitRequest, event: Event) -> Slices[None]:
        """The reply: an error for each of the offsets."""
        return self.offset_requests.commit(request.who, request.offsets(event.now_ms), event)

    def delete_offsets(self, request: OffsetDeleteRequest, event: Event) -> Slices[None]:
        """The reply: an error for the whole request, or one for each partition."""
        return self.offset_requests.delete_offsets(request, event)

    def delete_group(self, group_id: str, event: Event) -> Slices[None]:
        error = yield from self.offset_requests.delete_group(group_id, event)
        if error is ErrorCode.none:
            self._consumer.forget(group_id)
        event.reply(error)

    def topics_changed(self, deleted: frozenset[str], event: Event) -> Slices[None]:
        """There is a new image; these topics were deleted."""
        if deleted:
            yield from self.offset_requests.topics_deleted(deleted, event)
        self._to_compare = [group.group_id for group in self.groups.consumer]
        yield from self._compare_topics(event)

    def _compare_topics(self, event: Event) -> Slices[None]:
        """Compare some groups with a new image. The others follow in further events, or with their
        next heartbeat."""
        event.is_atomic = False
        left = _TOPICS_COMPARED_PER_EVENT
        while self._to_compare:
            if left <= 0:
                event.arm(_COMPARE, event.now_ms)
                return
            group = self.groups.consumer.get(self._to_compare.pop())
            if group is not None:
                left -= 1 + len(group.subscribers)
                yield from self._consumer.updates.topics_changed(group, event)

    # -- the runtime's side ----------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord, facts: RecordFacts) -> Slices[None] | None:
        key, value = record
        if isinstance(key, OffsetCommitKey):
            self.offsets.replay(key, value, facts)
        elif isinstance(key, GroupMetadataKey):
            if value is None:
                gone = self.groups.classic.pop(key.group_id, None)
                if gone is not None:
                    gone.release()
                self._classic.rebalances.forget(key.group_id)
                return None
            group = self.groups.classic.get(key.group_id)
            if group is None:
                group = self.groups.classic[key.group_id] = self._new_classic(key.group_id)
            group.apply(value)
        else:
            return self.groups.consumer.replay(record)
        return None

    def replaying_marker(self, marker: Marker, facts: RecordFacts) -> Slices[None]:
        return self.offsets.replaying_marker(marker, facts)

    def committed(self, end_offset: int) -> bool:
        return self.offsets.committed(end_offset)

    def elected(self, event: Event) -> Slices[None]:
        event.is_atomic = False
        for group in self.groups.classic.values():
            self._classic.loaded(group, event)
        for consumer in list(self.groups.consumer):
            yield from self._consumer.loaded(consumer, event)
        self.offset_requests.arm_expiry(event)

    def resigned(self) -> None:
        self.offset_requests.stop_expiry()
        self._jobs.clear()
        self._to_compare.clear()
        for consumer in self.groups.consumer:
            self._consumer.forget(consumer.group_id)
        for group_id, group in list(self.groups.classic.items()):
            if group.is_as_persisted:
                group.pending_sync.clear()
                continue
            self._classic.rebalances.forget(group_id)
            self.groups.classic.pop(group_id).release()
            if group.persisted is not None:
                self.groups.classic[group_id] = self._new_classic(group_id)
                self.groups.classic[group_id].apply(group.persisted)

    def only_replies(self, _key: TimerKey) -> bool:
        return False

    def expired(self, key: TimerKey, event: Event) -> Slices[None] | None:
        if key == EXPIRY:
            return self.offset_requests.expire(event)
        return self._expired(key, event)

    def _expired(self, key: TimerKey, event: Event) -> Slices[None]:
        assert isinstance(key, tuple)
        if key == _COMPARE:
            yield from self._compare_topics(event)
            return
        kind, group_id, *rest = key
        if kind == _JOB:
            yield from self._step(key, event)
            return
        consumer = self.groups.consumer.get(group_id)
        if consumer is not None:
            job = yield from self._consumer.timer_expired(consumer, key, event)
            if job is not None:
                step = (_JOB, group_id, kind)
                self._jobs[step] = job
                event.arm(step, event.now_ms)
            return
        group = self.groups.classic.get(group_id)
        if group is None:
            return
        if kind == "session":
            self._classic.session_timed_out(group, rest[0], event)
        elif kind == "join":
            self._classic.rebalances.join_timed_out(group, event)
        elif kind == "sync":
            self._classic.sync_timed_out(group, event)
        elif kind == "consumer-downgrade":
            self._classic.downgraded(group, Cause(Trigger.DOWNGRADE), event)
        self._drop_if_nothing(group)

    def _step(self, key: TimerKey, event: Event) -> Slices[None]:
        """Do the next step of long work."""
        job = self._jobs.get(key)
        group = self.groups.consumer.get(job.group_id) if job is not None else None
        if job is None or group is None:
            self._jobs.pop(key, None)
        elif job.step():
            del self._jobs[key]
            yield from self._consumer.job_done(group, job, event)
        else:
            event.arm(key, event.now_ms)

    def _drop_if_nothing(self, group: ClassicGroup) -> None:
        """Ids that were handed out and never used leave nothing behind (hazard G4)."""
        is_used = group.members or group.pending_members or group.persisted is not None
        if not is_used and group.state is ClassicState.EMPTY:
            group.release()
            self.groups.classic.pop(group.group_id, None)
            self._classic.rebalances.forget(group.group_id)


GroupCall: TypeAlias = Call[GroupCoordinatorShard]
GroupRuntime: TypeAlias = CoordinatorRuntime[GroupCoordinatorShard]
