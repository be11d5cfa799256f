"""One group of the consumer protocol (KIP-848): its members, their target and current assignments.

State changes only in `ConsumerGroups.replay`; `consumer_coordinator.py` decides on it. Every field
comes from records, or is derived from fields that do. The module also has the requests of members,
the timers of a group, and functions that append its records.
Invariants: the state depends on the last record of each key alone, not on the order in which
records of different keys arrive (G14); a partition in `_owners` is assigned to its owner or waits
for the owner to revoke it (G17).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeAlias, TypeVar

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Event, PausableTimerKey, TimerKey
from suwi.coordinator.record import CoordinatorRecord
from suwi.env.slices import Pace, Slices, rest_of
from suwi.group.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartitions,
)
from suwi.model.ids import TopicId

Target: TypeAlias = Mapping[TopicId, tuple[int, ...]]
"""Partitions by topic, in ascending order."""
Owned: TypeAlias = Mapping[TopicId, Mapping[int, int]]
"""By topic and partition the epoch in which the member got it (KIP-1251)."""

_K = TypeVar("_K")

LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2
NO_ASSIGNMENT: Final[Target] = {}
NOTHING_OWNED: Final[Owned] = {}


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    """The settings `group.consumer.*` that apply to one group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    size_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    """The first is used by groups whose members name none."""
    regex_refresh_interval_ms: int = 600_000
    hides_topics: bool = False
    """Whether there is an authorizer: then regular expressions are resolved only for a member that
    has sent a heartbeat, with its rights."""
    upgrades: bool = True
    """`group.consumer.migration.policy` is `upgrade` or `bidirectional`."""
    downgrades: bool = True
    classic_size_max: int = 2**31 - 1
    classic_session_timeout_ms_range: tuple[int, int] = (6_000, 1_800_000)
    """`group.min.session.timeout.ms` and `group.max.session.timeout.ms`."""


# -- timers ----------------------------------------------------------------------------------------


def consumer_session_timer(group_id: str, member_id: str) -> TimerKey:
    return PausableTimerKey(("consumer-session", group_id, member_id))


def consumer_rebalance_timer(group_id: str, member_id: str) -> TimerKey:
    """A member that has to revoke partitions, or one of the classic protocol that has to join."""
    return PausableTimerKey(("consumer-rebalance", group_id, member_id))


def assignment_timer(group_id: str) -> TimerKey:
    return ("consumer-assignment", group_id)


def regex_timer(group_id: str) -> TimerKey:
    return ("consumer-regex", group_id)


# -- the state -------------------------------------------------------------------------------------


class GroupState(Enum):
    """Kafka's names, as ConsumerGroupDescribe and ListGroups show them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127
    """Written by a later version."""


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """What a member owns, and how far it has followed the group."""

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Owned
    pending_revocation: Owned

    def value(self) -> Slices[ConsumerGroupCurrentMemberAssignmentValue]:
        assigned = yield from _topic_partitions(self.assigned)
        pending_revocation = yield from _topic_partitions(self.pending_revocation)
        return ConsumerGroupCurrentMemberAssignmentValue(
            self.epoch, self.previous_epoch, self.state, assigned, pending_revocation
        )

    @staticmethod
    def of(value: ConsumerGroupCurrentMemberAssignmentValue) -> "Slices[CurrentAssignment]":
        known = value.state in MemberState._value2member_map_
        return CurrentAssignment(
            value.member_epoch,
            value.previous_member_epoch,
            MemberState(value.state) if known else MemberState.UNKNOWN,
            (yield from _owned(value.assigned, value.member_epoch)),
            (yield from _owned(value.pending_revocation, value.member_epoch)),
        )


NEW_ASSIGNMENT: Final = CurrentAssignment(0, 0, MemberState.STABLE, NOTHING_OWNED, NOTHING_OWNED)


def _topic_partitions(owned: Owned) -> Slices[tuple[TopicPartitions, ...]]:
    pace, found = Pace(), []
    for topic_id, epochs in owned.items():
        found.append(TopicPartitions(topic_id, tuple(epochs), tuple(epochs.values())))
        if pace.is_over(2 + len(epochs) // 16):
            yield
    return tuple(found)


def _owned(topics: Iterable[TopicPartitions], member_epoch: int) -> Slices[Owned]:
    """Before KIP-1251 no epochs were written. The member's epoch is used then."""
    pace, owned = Pace(), {}
    for topic in topics:
        epochs = topic.assignment_epochs or [member_epoch] * len(topic.partitions)
        owned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=False))
        if pace.is_over(1 + len(epochs) // 8):
            yield
    return owned


def partitions_of(owned: Owned) -> Slices[Target]:
    pace, target = Pace(), {}
    for topic_id, epochs in owned.items():
        target[topic_id] = tuple(sorted(epochs))
        if pace.is_over(1 + len(epochs) // 8):
            yield
    return target


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember:
    """A member as its two records describe it; one of them may be missing for a while."""

    member_id: str
    subscription: ConsumerGroupMemberMetadataValue | None = None
    current: CurrentAssignment = NEW_ASSIGNMENT

    @property
    def epoch(self) -> int:
        return self.current.epoch

    @property
    def instance_id(self) -> str | None:
        return self.subscription.instance_id if self.subscription is not None else None

    @property
    def topic_names(self) -> tuple[str, ...]:
        return self.subscription.topic_names if self.subscription is not None else ()

    @property
    def topic_regex(self) -> str | None:
        return (self.subscription.topic_regex or None) if self.subscription is not None else None

    @property
    def uses_classic_protocol(self) -> bool:
        return self.subscription is not None and self.subscription.classic is not None

    @property
    def rebalance_timeout_ms(self) -> int:
        return self.subscription.rebalance_timeout_ms if self.subscription is not None else -1

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.current.state is MemberState.STABLE and self.epoch == assignment_epoch

    def partition_epoch(self, topic_id: TopicId, partition: int) -> int | None:
        """In which epoch it got this partition; None if it does not have it."""
        current = self.current
        for owned in (current.assigned, current.pending_revocation):
            epoch = owned.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


@dataclass(slots=True)
class ConsumerGroup:
    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    assignment_timestamp_ms: int = 0
    members: dict[str, ConsumerGroupMember] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    regexes: dict[str, ConsumerGroupRegularExpressionValue] = field(default_factory=dict)
    """What each regular expression was resolved to."""
    static: dict[str, str] = field(default_factory=dict)
    """By instance id the member that holds it."""
    subscribers: Counter[str] = field(default_factory=Counter)
    """How many members name each topic."""
    regex_subscribers: Counter[str] = field(default_factory=Counter)
    assignors: Counter[str] = field(default_factory=Counter)
    classic_protocols: Counter[str] = field(default_factory=Counter)
    classic_members: int = 0
    _stable_at: Counter[int] = field(default_factory=Counter)
    """By epoch how many members are stable in it."""
    _owners: dict[TopicId, dict[int, str]] = field(default_factory=dict)

    # -- looking ---------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        stable = self._stable_at[self.assignment_epoch] == len(self.members)
        return GroupState.STABLE if stable else GroupState.RECONCILING

    def are_others_reconciled(self, member_id: str) -> bool:
        """Whether every other member has reached the target."""
        member = self.members.get(member_id)
        own = member is not None and member.is_reconciled_to(self.assignment_epoch)
        others = len(self.members) - (member is not None)
        return self._stable_at[self.assignment_epoch] - own == others

    def owner(self, topic_id: TopicId, partition: int) -> str | None:
        """The member that has this partition, also if it must still revoke it."""
        return self._owners.get(topic_id, {}).get(partition)

    def static_member(self, instance_id: str) -> ConsumerGroupMember | None:
        return self.members.get(self.static.get(instance_id, ""))

    def subscribed_topics(self) -> Iterator[str]:
        """The names of topics that are subscribed to by name or by regular expression. A name may
        come twice."""
        yield from self.subscribers
        for regex, resolved in self.regexes.items():
            if regex in self.regex_subscribers:
                yield from resolved.topics

    # -- replay ----------------------------------------------------------------------------------

    @property
    def has_state(self) -> bool:
        return bool(
            self.epoch
            or self.members
            or self.targets
            or self.regexes
            or self.assignment_epoch
            or self.metadata_hash
        )

    def apply_epoch(self, value: ConsumerGroupMetadataValue) -> None:
        self.epoch, self.metadata_hash = value.epoch, value.metadata_hash

    def apply_subscription(
        self, member_id: str, value: ConsumerGroupMemberMetadataValue | None
    ) -> Slices[None]:
        before = self.members.get(member_id) or ConsumerGroupMember(member_id)
        after = ConsumerGroupMember(member_id, value, before.current)
        yield from self._count_subscription(before, -1)
        if before.instance_id is not None and self.static.get(before.instance_id) == member_id:
            del self.static[before.instance_id]
        yield from self._count_subscription(after, 1)
        if after.instance_id is not None:
            self.static[after.instance_id] = member_id
        self._put(after)

    def apply_current(
        self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> Slices[None]:
        """Only these records change who owns what. The last one of a member counts."""
        before, pace = self.members.get(member_id), Pace()
        current = NEW_ASSIGNMENT
        if value is not None:
            current = yield from CurrentAssignment.of(value)
        if before is not None:
            yield from self._release(before)
        for owned in (current.assigned, current.pending_revocation):
            for topic_id, partitions in owned.items():
                owners = self._owners.setdefault(topic_id, {})
                owners.update(dict.fromkeys(partitions, member_id))
                if pace.is_over(1 + len(partitions) // 8):
                    yield
        subscription = before.subscription if before is not None else None
        self._put(ConsumerGroupMember(member_id, subscription, current))

    def apply_target(
        self, member_id: str, value: ConsumerGroupTargetAssignmentMemberValue | None
    ) -> Slices[None]:
        if value is None:
            self.targets.pop(member_id, None)
            return
        pace, target = Pace(), {}
        for topic in value.partitions:
            target[topic.topic_id] = tuple(sorted(topic.partitions))
            if pace.is_over(1 + len(topic.partitions) // 8):
                yield
        self.targets[member_id] = target

    def apply_target_epoch(self, value: ConsumerGroupTargetAssignmentMetadataValue | None) -> None:
        self.assignment_epoch = value.assignment_epoch if value is not None else 0
        self.assignment_timestamp_ms = value.assignment_timestamp_ms if value is not None else 0

    def apply_regex(self, regex: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        if value is None:
            self.regexes.pop(regex, None)
        else:
            self.regexes[regex] = value

    def _put(self, member: ConsumerGroupMember) -> None:
        before = self.members.get(member.member_id)
        if before is not None and before.current.state is MemberState.STABLE:
            _add(self._stable_at, before.epoch, -1)
        if member.subscription is None and member.current is NEW_ASSIGNMENT:
            self.members.pop(member.member_id, None)
            return
        self.members[member.member_id] = member
        if member.current.state is MemberState.STABLE:
            _add(self._stable_at, member.epoch, 1)

    def _release(self, member: ConsumerGroupMember) -> Slices[None]:
        """Only the partitions that this member still owns: another one may have some of them by
        now."""
        pace = Pace()
        for owned in (member.current.assigned, member.current.pending_revocation):
            for topic_id, partitions in owned.items():
                owners = self._owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self._owners.pop(topic_id, None)
                if pace.is_over(1 + len(partitions) // 4):
                    yield

    def _count_subscription(self, member: ConsumerGroupMember, by: int) -> Slices[None]:
        value, pace = member.subscription, Pace()
        if value is None:
            return
        for topic in value.topic_names:
            _add(self.subscribers, topic, by)
            if pace.is_over(1):
                yield
        if value.topic_regex:
            _add(self.regex_subscribers, value.topic_regex, by)
        if value.server_assignor is not None:
            _add(self.assignors, value.server_assignor, by)
        if value.classic is not None:
            self.classic_members += by
            for protocol in value.classic.protocols:
                _add(self.classic_protocols, protocol.name, by)


def _add(counts: Counter[_K], key: _K, by: int) -> None:
    counts[key] += by
    if not counts[key]:
        del counts[key]


class ConsumerGroups:
    """The consumer groups of a shard. A group exists while any record of it does."""

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup] = {}

    def __iter__(self) -> Iterator[ConsumerGroup]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self._groups.get(group_id)

    def replay(self, record: CoordinatorRecord) -> Slices[None] | None:
        """Raises for no order of records (G14). Returns the rest of a large record, to be run in
        slices."""
        return rest_of(self._replaying(record))

    def _replaying(self, record: CoordinatorRecord) -> Slices[None]:
        key, value = record
        group_id = getattr(key, "group_id", "")
        group = self._groups.get(group_id)
        if group is None:
            group = ConsumerGroup(group_id)
        match key:
            case ConsumerGroupMetadataKey():
                # The tombstone of the group's own record deletes all that is left of it.
                group.apply_epoch(value or ConsumerGroupMetadataValue(0))
                if value is None:
                    self._groups.pop(group_id, None)
                    return
            case ConsumerGroupMemberMetadataKey():
                yield from group.apply_subscription(key.member_id, value)
            case ConsumerGroupCurrentMemberAssignmentKey():
                yield from group.apply_current(key.member_id, value)
            case ConsumerGroupTargetAssignmentMemberKey():
                yield from group.apply_target(key.member_id, value)
            case ConsumerGroupTargetAssignmentMetadataKey():
                group.apply_target_epoch(value)
            case ConsumerGroupRegularExpressionKey():
                group.apply_regex(key.regular_expression, value)
            case _:
                return
        if group.has_state:
            self._groups[group_id] = group
        else:
            self._groups.pop(group_id, None)


OwnedPartitions: TypeAlias = Mapping[TopicId, Sequence[int]]


# -- what members ask and are told, independent of the version on the wire -------------------------


class HeartbeatRequest(NamedTuple):
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: OwnedPartitions | None = None
    client_id: str = ""
    client_host: str = ""
    must_bring_its_id: bool = True
    """v1: the client makes the member id (KIP-1082)."""
    may_see: Callable[[str], bool] | None = None
    """Whether the member may describe a topic that its regular expression matches; None: all."""

    @property
    def is_full(self) -> bool:
        """Whether it has all fields, as when joining and after an error. The member needs its
        assignment then."""
        return self.member_epoch == 0 or (
            self.rebalance_timeout_ms != -1
            and (self.topic_names is not None or self.topic_regex is not None)
            and self.owned is not None
        )


class HeartbeatResponse(NamedTuple):
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Target | None = None
    """None if it has not changed."""


# -- the records that an event appends -------------------------------------------------------------


def append_epoch(event: Event, group_id: str, epoch: int, metadata_hash: int) -> None:
    value = ConsumerGroupMetadataValue(epoch, metadata_hash)
    event.append(ConsumerGroupMetadataKey(group_id), value)


def append_subscription(
    event: Event, group_id: str, member_id: str, value: ConsumerGroupMemberMetadataValue
) -> None:
    event.append(ConsumerGroupMemberMetadataKey(group_id, member_id), value)


def append_current(
    event: Event, group_id: str, member_id: str, current: CurrentAssignment
) -> Slices[None]:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id)
    event.append(key, (yield from current.value()))


def append_target(event: Event, group_id: str, member_id: str, target: Target) -> Slices[None]:
    pace, partitions = Pace(), []
    for topic_id, found in target.items():
        partitions.append(TopicPartitions(topic_id, found))
        if pace.is_over(2):
            yield
    event.append(
        ConsumerGroupTargetAssignmentMemberKey(group_id, member_id),
        ConsumerGroupTargetAssignmentMemberValue(tuple(partitions)),
    )


def append_assignment_epoch(event: Event, group_id: str, epoch: int, timestamp_ms: int) -> None:
    event.append(
        ConsumerGroupTargetAssignmentMetadataKey(group_id),
        ConsumerGroupTargetAssignmentMetadataValue(epoch, timestamp_ms),
    )


def append_assignment(
    event: Event,
    group_id: str,
    assignment: Mapping[str, Target],
    targets: Mapping[str, Target],
    epoch: int,
) -> Slices[None]:
    """Appends only targets that differ from the current ones."""
    pace = Pace()
    for member_id, target in assignment.items():
        if targets.get(member_id) != target:
            yield from append_target(event, group_id, member_id, target)
        if pace.is_over(len(target) + 1):
            yield
    append_assignment_epoch(event, group_id, epoch, event.now_ms)


def append_regex(
    event: Event, group_id: str, regex: str, value: ConsumerGroupRegularExpressionValue | None
) -> None:
    event.append(ConsumerGroupRegularExpressionKey(group_id, regex), value)


def append_member_tombstones(event: Event, group_id: str, member_ids: Iterable[str]) -> None:
    for member_id in member_ids:
        event.append(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None)
        event.append(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None)
        event.append(ConsumerGroupMemberMetadataKey(group_id, member_id), None)


def append_group_tombstones(event: Event, group: ConsumerGroup) -> None:
    """Tombstones for all records of this group; its own record comes last."""
    member_ids = {**group.members, **group.targets}
    append_member_tombstones(event, group.group_id, member_ids)
    event.append(ConsumerGroupTargetAssignmentMetadataKey(group.group_id), None)
    for regex in group.regexes:
        append_regex(event, group.group_id, regex, None)
    event.append(ConsumerGroupPartitionMetadataKey(group.group_id), None)
    event.append(ConsumerGroupMetadataKey(group.group_id), None)
