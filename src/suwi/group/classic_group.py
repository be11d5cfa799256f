"""One group of the classic protocol: members join, their leader assigns, all of them sync. Pure.

`ClassicGroup` is the state, with the changes that keep it consistent: who is a member, who waits
for a reply, which protocol all support, which generation is next. `classic_coordinator.py` decides
on it. Persistent state comes from `GroupMetadataValue` alone (`apply`); join phases, pending ids
and waiting calls do not survive a fail-over. The module also has the group's timers and the
requests of its members.
Invariants: `static` names members only; the leader is a member or None; a member waits for a join
or for a sync, never for both. Each join costs the same, however many members there are.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import AnyCall, Event, PausableTimerKey, TimerKey, TransactionalProducer
from suwi.group.classic_group_records import GroupMetadataValue, MemberMetadata
from suwi.group.consumer_group_records import Protocol
from suwi.wire.consumer_protocol import decode_assignment, decode_subscription
from suwi.wire.errors import MalformedMessage


class ClassicState(Enum):
    """Kafka's names, as DescribeGroups and ListGroups show them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, eq=False)
class HeldBytes:
    """How many bytes the members of many groups hold beyond their records, where the log sets no
    limit."""

    total: int = 0


class MemberSize(NamedTuple):
    """How many bytes a member takes, approximately."""

    held: int
    """In memory: its metadata for all protocols that it supports."""
    recorded: int
    """In the record of the group, at most: it has the metadata for one protocol."""


NO_SIZE: Final = MemberSize(0, 0)

PROTOCOLS_USUAL_MAX: Final = 4
"""Members hold their metadata for each protocol that they support; the record has one of them."""


def beyond_record(held: int, in_record: int) -> int:
    """The bytes of a member that its group's record does not account for."""
    return max(0, held - PROTOCOLS_USUAL_MAX * in_record)


def size_of(
    protocols: Sequence[Protocol], member_id: str, client_id: str, instance_id: str | None
) -> MemberSize:
    ids = len(member_id) + len(client_id) + len(instance_id or "")
    metadata = [len(protocol.metadata) for protocol in protocols]
    names = sum(len(protocol.name) for protocol in protocols)
    return MemberSize(ids + names + sum(metadata), ids + max(metadata, default=0))


@dataclass(slots=True)
class ClassicMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    """It has joined for the first time and has no reply yet, so it cannot send heartbeats."""
    awaiting_join: AnyCall | None = None
    awaiting_sync: AnyCall | None = None
    stands_still_since_ms: int | None = None
    """When it first joined in the current rebalance."""
    counted: MemberSize = NO_SIZE
    """Its size, as its group has counted it."""
    in_record: int = 0
    """Its bytes in the group's newest record."""

    def metadata_for(self, protocol: str) -> bytes:
        for supported in self.protocols:
            if supported.name == protocol:
                return supported.metadata
        return b""

    def supports(self, name: str) -> bool:
        return any(protocol.name == name for protocol in self.protocols)

    @property
    def size(self) -> MemberSize:
        return size_of(self.protocols, self.member_id, self.client_id, self.instance_id)

    @property
    def counted_beyond_record(self) -> int:
        return beyond_record(self.counted.held, self.in_record)

    def value(self, protocol: str, assignment: bytes) -> MemberMetadata:
        """As it is persisted, with this assignment."""
        return MemberMetadata(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata_for(protocol),
            assignment,
        )


@dataclass(slots=True)
class ClassicGroup:
    group_id: str
    state: ClassicState = ClassicState.EMPTY
    state_since_ms: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    """By instance id the member that holds it."""
    pending_members: dict[str, None] = field(default_factory=dict)
    """Ids that were handed out and have not joined yet."""
    pending_sync: dict[str, None] = field(default_factory=dict)
    """Members of the current generation that have not asked for their assignment."""
    new_member_added: bool = False
    """Whether somebody joined during the delay of the first rebalance."""
    joined: int = 0
    """How many members wait for the end of the join phase."""
    persisted: GroupMetadataValue | None = None
    """What the log has of this group."""
    held_bytes: int = 0
    """Bytes held by members, and by ids that were handed out."""
    recorded_bytes: int = 0
    """The least size of the record of these members."""
    held_beyond_record: int = 0
    """The part of `held_bytes` that the record does not account for."""
    held_beyond_records: HeldBytes | None = None
    """The sum over many groups, to which `held_beyond_record` is added while the group exists."""
    _supported: Counter[str] = field(default_factory=Counter)
    """How many members support each protocol."""

    # -- looking ---------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    def is_in(self, *states: ClassicState) -> bool:
        return self.state in states

    def is_leader(self, member_id: str) -> bool:
        return self.leader_id == member_id

    @property
    def has_all_joined(self) -> bool:
        return not self.pending_members and self.joined == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a client with these protocols can be a member."""
        given = list(names)
        if not protocol_type or not given:
            return False
        if self.state is ClassicState.EMPTY or not self.members:
            return True
        if protocol_type != self.protocol_type:
            return False
        return any(self._supported[name] == len(self.members) for name in given)

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == PROTOCOL_TYPE

    @property
    def is_as_persisted(self) -> bool:
        """Whether a replay of the log would give this group."""
        is_settled = self.state in (ClassicState.EMPTY, ClassicState.STABLE)
        return self.persisted is not None and is_settled and not self.pending_members

    # -- members ---------------------------------------------------------------------------------

    def hand_out(self, member_id: str) -> None:
        """The id of a member that is to join."""
        self.pending_members[member_id] = None
        self._hold(len(member_id), 0, len(member_id))

    def _count(self, member: ClassicMember) -> None:
        before, beyond = member.counted, member.counted_beyond_record
        held, recorded = member.counted = member.size
        beyond = member.counted_beyond_record - beyond
        self._hold(held - before.held, recorded - before.recorded, beyond)

    def _hold(self, held: int, recorded: int, beyond: int) -> None:
        self.held_bytes += held
        self.recorded_bytes += recorded
        self.held_beyond_record += beyond
        if self.held_beyond_records is not None:
            self.held_beyond_records.total += beyond

    def take_back(self, member_id: str) -> None:
        if member_id in self.pending_members:
            del self.pending_members[member_id]
            self._hold(-len(member_id), 0, -len(member_id))

    def release(self) -> None:
        """The group is gone."""
        if self.held_beyond_records is not None:
            self.held_beyond_records.total -= self.held_beyond_record
            self.held_beyond_records = None

    def add(self, member: ClassicMember) -> None:
        self._count(member)
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._supported.update(protocol.name for protocol in member.protocols)
        self.joined += member.awaiting_join is not None
        self.take_back(member.member_id)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def update(
        self,
        member: ClassicMember,
        protocols: tuple[Protocol, ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        self._supported.subtract(protocol.name for protocol in member.protocols)
        self._supported.update(protocol.name for protocol in protocols)
        member.protocols = protocols
        self._count(member)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def await_join(self, member: ClassicMember, call: AnyCall | None) -> AnyCall | None:
        """Let a member wait with this call, or with none. Returns the one it waited with before."""
        before, member.awaiting_join = member.awaiting_join, call
        self.joined += (call is not None) - (before is not None)
        return before

    def remove(self, member_id: str) -> ClassicMember | None:
        """Returns the member that was removed, with the calls it waited with."""
        self.take_back(member_id)
        self.pending_sync.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        held, recorded = member.counted
        self._hold(-held, -recorded, -member.counted_beyond_record)
        if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]
        self._supported.subtract(protocol.name for protocol in member.protocols)
        self.joined -= member.awaiting_join is not None
        if self.is_leader(member_id):
            self.leader_id = next(iter(self.members), None)
        return member

    def replace_static(self, instance_id: str, member_id: str) -> ClassicMember:
        """A static member comes back under a new id, and keeps the calls it waited with."""
        old_id = self.static[instance_id]
        member = self.members.pop(old_id)
        member.member_id = member_id
        self._count(member)
        self.members[member_id] = member
        self.static[instance_id] = member_id
        if old_id in self.pending_sync:
            del self.pending_sync[old_id]
            self.pending_sync[member_id] = None
        if self.is_leader(old_id):
            self.leader_id = member_id
        return member

    # -- generations -----------------------------------------------------------------------------

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined. Returns whether there is such a member."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def begin_generation(self) -> None:
        """All members that are left have joined. Without members the group is empty."""
        self.generation += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol = self.select_protocol()
        else:
            self.protocol = self.leader_id = None

    def select_protocol(self) -> str:
        """Every member votes for the first of its protocols that all support."""
        everybody = len(self.members)
        candidates = {name for name, count in self._supported.items() if count == everybody}
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(p.name for p in member.protocols if p.name in candidates)] += 1
        return max(votes, key=lambda name: votes[name])

    # -- records ---------------------------------------------------------------------------------

    def value(self, assignments: dict[str, bytes] | None = None) -> GroupMetadataValue:
        """The group as it is persisted, with these assignments instead of the current ones."""
        if assignments is None:
            assignments = {each.member_id: each.assignment for each in self.members.values()}
        return GroupMetadataValue(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader_id,
            self.state_since_ms,
            tuple(
                member.value(self.protocol or "", assignments.get(member.member_id, b""))
                for member in self.members.values()
            ),
        )

    def value_with_replacements(self) -> GroupMetadataValue | None:
        """The generation that is persisted, with the ids of static members that were replaced
        since; None if there are none."""
        value = self.persisted
        if value is None:
            return None
        ids = {
            each.member_id: self.static[each.instance_id]
            for each in value.members
            if each.instance_id is not None and each.instance_id in self.static
        }
        if all(old == new for old, new in ids.items()):
            return None
        members = tuple(
            replace(each, member_id=ids.get(each.member_id, each.member_id))
            for each in value.members
        )
        leader = value.leader
        if leader is not None:
            leader = ids.get(leader, leader)
        return replace(value, leader=leader, members=members)

    def apply(self, value: GroupMetadataValue) -> None:
        """Apply a record of this group. A known member keeps the calls it waits with, and its other
        protocols: the record has only the one in use."""
        self.persisted = value
        is_completing = self.state is ClassicState.COMPLETING_REBALANCE
        if is_completing and value.generation != self.generation:
            return  # It is of the generation before: see `value_with_replacements`.
        known, self.members, self.static = self.members, {}, {}
        self.protocol_type = value.protocol_type or None
        self.generation = value.generation
        self.protocol = value.protocol
        self.leader_id = value.leader
        self.state_since_ms = value.state_timestamp_ms
        for persisted in value.members:
            member = _loaded(persisted, value.protocol_type, value.protocol or "")
            before = known.get(persisted.member_id)
            if before is not None:
                member.is_new = before.is_new
                member.awaiting_join = before.awaiting_join
                member.awaiting_sync = before.awaiting_sync
                if member.protocols[0] in before.protocols:
                    member.protocols = before.protocols
            self.members[member.member_id] = member
            if member.instance_id is not None:
                self.static[member.instance_id] = member.member_id
        self.joined = sum(m.awaiting_join is not None for m in self.members.values())
        self._supported = Counter(p.name for m in self.members.values() for p in m.protocols)
        pending = sum(map(len, self.pending_members))
        self._hold(
            pending - self.held_bytes, -self.recorded_bytes, pending - self.held_beyond_record
        )
        for member in self.members.values():
            self._count(member)
        # G15: only a whole generation is ever persisted with members.
        self.state = ClassicState.STABLE if self.members else ClassicState.EMPTY


def _loaded(persisted: MemberMetadata, protocol_type: str, protocol: str) -> ClassicMember:
    return ClassicMember(
        persisted.member_id,
        persisted.instance_id,
        persisted.client_id,
        persisted.client_host,
        persisted.rebalance_timeout_ms,
        persisted.session_timeout_ms,
        protocol_type,
        (Protocol(protocol, persisted.subscription),),
        persisted.assignment,
        in_record=len(persisted.subscription)
        + len(persisted.member_id)
        + len(persisted.client_id)
        + len(persisted.instance_id or ""),
    )


# -- timers: the session of a member, the time to join, the time to sync ---------------------------


def session_timer(group_id: str, member_id: str) -> TimerKey:
    return PausableTimerKey(("session", group_id, member_id))


def join_timer(group_id: str) -> TimerKey:
    return PausableTimerKey(("join", group_id))


def sync_timer(group_id: str) -> TimerKey:
    return PausableTimerKey(("sync", group_id))


def reset_session(group: ClassicGroup, member: ClassicMember, event: Event) -> None:
    key = session_timer(group.group_id, member.member_id)
    event.arm(key, event.now_ms + member.session_timeout_ms)


# -- what members ask and are told, independent of the version on the wire -------------------------

NO_GENERATION = -1
UNKNOWN_MEMBER = ""


NOT_FOUND_FROM = 9
"""The first version of OffsetCommit whose clients know GROUP_ID_NOT_FOUND."""


class Committer(NamedTuple):
    """Who sends a heartbeat or commits offsets. Without a member id it is an administrator, or a
    consumer that does not use group membership."""

    group_id: str
    member_id: str = UNKNOWN_MEMBER
    instance_id: str | None = None
    generation: int = NO_GENERATION
    """In the consumer protocol: the member's epoch."""
    version: int = NOT_FOUND_FROM
    """Of OffsetCommit."""
    producer: TransactionalProducer | None = None
    """Whose transaction the offsets are part of (TxnOffsetCommit)."""


class JoinRequest(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str
    client_host: str
    reason: str = ""
    must_know_its_id: bool = True
    """v4: a client that joins without an id is given one, and joins again with it (KIP-394)."""
    can_skip_assignment: bool = True
    """v9: a static leader that comes back can be told not to assign (KIP-814)."""


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResponse(NamedTuple):
    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = UNKNOWN_MEMBER
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


class SyncRequest(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]


class SyncResponse(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class LeavingMember(NamedTuple):
    member_id: str
    instance_id: str | None
    reason: str = ""


class LeaveRequest(NamedTuple):
    group_id: str
    members: Sequence[LeavingMember]


# -- what the coordinator reads of the protocol "consumer" -----------------------------------------

PROTOCOL_TYPE: Final = "consumer"


def read_topics(data: bytes) -> frozenset[str] | None:
    """The topics of a subscription; None if it cannot be read."""
    try:
        return frozenset(decode_subscription(data).topics)
    except MalformedMessage:
        return None


def is_revoking(subscription: bytes, assignment: bytes) -> bool:
    """Whether a cooperative member had to give up partitions, and then to join again."""
    try:
        kept = decode_assignment(assignment).partitions
        return not set(decode_subscription(subscription).owned).issubset(kept)
    except MalformedMessage:
        return False


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """The topics that any member subscribes to; None if that is not known (hazard G12)."""
    if not group.members:
        return frozenset()
    if group.protocol_type != PROTOCOL_TYPE or group.protocol is None:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        wanted = read_topics(member.metadata_for(group.protocol))
        if wanted is None:
            return None
        topics |= wanted
    return frozenset(topics)
