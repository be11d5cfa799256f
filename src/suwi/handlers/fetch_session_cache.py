"""Incremental fetch sessions (KIP-227): the broker remembers which partitions a client fetches.

`FetchSessionCache.open` finds or creates the session of a request, `opening` that of a large one in
slices; `FetchSession.changed` tells which partitions a response must include. No I/O; the only
input beside the requests is the random ids.
Invariants: the partitions of all sessions together are at most `partitions_max`; nobody uses or
removes the session of somebody else by guessing its id.
"""

from collections import OrderedDict
from collections.abc import Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.env import Random
from suwi.env.slices import free_in_slices
from suwi.handlers.settled_partitions import SettledPartitions
from suwi.model.errors import BrokerError, FetchSessionIdNotFound, InvalidFetchSessionEpoch
from suwi.wire.fetch_request import FetchPartition, FetchRequest
from suwi.wire.fetch_response import FetchedPartition

NO_SESSION = 0
_FINAL_EPOCH = -1
_INITIAL_EPOCH = 0
_EPOCH_MAX = 2**31 - 1
_EVICTION_S = 120.0
# For all sessions together: each partition costs half a kilobyte for as long as its session exists.
_PARTITIONS_MAX = 250_000
UPDATED_AT_ONCE = 2_000
"""Partitions of a large request: about two milliseconds."""

TopicKey = str | UUID
PartitionKey = tuple[TopicKey, int]


class FetchSessionTopicIdError(BrokerError):
    code = ErrorCode.fetch_session_topic_id_error


@dataclass(slots=True)
class _CachedPartition:
    """What was last requested from and sent for a partition of a session."""

    asked: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchSession:
    """The partitions of one fetcher; those that were sent records last come last."""

    id: int
    uses_topic_ids: bool
    is_follower: bool = False
    owner: Hashable = None
    """Who opened it."""
    epoch: int = _INITIAL_EPOCH
    used_at_s: float = 0.0
    partitions: OrderedDict[PartitionKey, _CachedPartition] = field(default_factory=OrderedDict)
    large_fetches: int = 0
    """Requests in slices that use it now; it may be removed meanwhile."""
    settled: SettledPartitions = field(default_factory=SettledPartitions)
    """Of a follower's session: those that its next large fetch need not read."""

    def add(self, asked_partitions: "Iterable[tuple[PartitionKey, FetchPartition]]") -> None:
        """Apply what a request adds and changes."""
        for key, asked in asked_partitions:
            cached = self.partitions.get(key)
            if cached is None:
                self.partitions[key] = _CachedPartition(asked)
            else:
                cached.asked = asked
                self.settled.drop(key)

    def forget(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            self.partitions.pop(key, None)
            self.settled.drop(key)

    def asked(self) -> Iterator[tuple[PartitionKey, FetchPartition]]:
        """All partitions. Raises RuntimeError if the session changes before the last is taken."""
        return ((key, cached.asked) for key, cached in self.partitions.items())

    def changed(self, key: PartitionKey, fetched: FetchedPartition, *, has_records: bool) -> bool:
        """Whether the response must include this partition; remembers what is sent."""
        cached = self.partitions.get(key)
        if cached is None:
            return True
        is_changed = has_records or _differs(cached, fetched)
        cached.high_watermark = fetched.high_watermark
        cached.log_start_offset = fetched.log_start_offset
        if fetched.error_code != 0 or fetched.diverging_epoch is not None:
            # So that the next response includes it: the client must see the recovery, and a
            # follower that has to truncate ignores the high watermark sent along.
            cached.high_watermark = -1
        if has_records:
            self.partitions.move_to_end(key)  # fairness: the next response starts with another
        return is_changed

    def would_change(self, key: PartitionKey, fetched: FetchedPartition) -> bool:
        """Whether the response would include this partition if it had no records."""
        cached = self.partitions.get(key)
        return cached is None or _differs(cached, fetched)


def _differs(cached: _CachedPartition, fetched: FetchedPartition) -> bool:
    return (
        fetched.error_code != 0
        or fetched.high_watermark != cached.high_watermark
        or fetched.log_start_offset != cached.log_start_offset
        or fetched.diverging_epoch is not None
        or fetched.preferred_read_replica >= 0
    )


class FetchSessionCache:
    def __init__(
        self, slots_max: int, random: Random, *, partitions_max: int = _PARTITIONS_MAX
    ) -> None:
        self._slots_max = slots_max
        self._partitions_max = partitions_max
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self,
        request: FetchRequest,
        *,
        uses_topic_ids: bool,
        now_s: float,
        owner: Hashable = None,
    ) -> tuple[FetchSession | None, bool]:
        """The request's session, if it has one, and whether the response is a full one.

        Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError.
        """
        session, is_full = self._begin(request, uses_topic_ids, now_s, owner)
        if session is not None:
            self._update(session, asked_partitions(request), _forgotten(request))
        return session, is_full

    def opening(
        self,
        request: FetchRequest,
        *,
        uses_topic_ids: bool,
        now_s: float,
        owner: Hashable = None,
    ) -> Generator[None, None, tuple[FetchSession | None, bool]]:
        """The same in slices: a generator that yields after each."""
        session, is_full = self._begin(request, uses_topic_ids, now_s, owner)
        if session is None:
            return session, is_full
        asked, forgotten = asked_partitions(request), _forgotten(request)
        session.large_fetches += 1
        try:
            while some := list(islice(asked, UPDATED_AT_ONCE)):
                self._update(session, some, ())
                yield
            while keys := list(islice(forgotten, UPDATED_AT_ONCE)):
                self._update(session, (), keys)
                yield
        except FetchSessionIdNotFound:
            if not is_full:
                raise
            return None, True  # as if there had been no room for it
        finally:
            session.large_fetches -= 1
        return session, is_full

    def _begin(
        self, request: FetchRequest, uses_topic_ids: bool, now_s: float, owner: Hashable
    ) -> tuple[FetchSession | None, bool]:
        session_id, epoch = request.session_id, request.session_epoch
        session = self._sessions.get(session_id)
        if session is not None and session.owner != owner:
            session = None
        if epoch in (_FINAL_EPOCH, _INITIAL_EPOCH):
            if session is not None:
                self.remove(session_id)
            if epoch == _FINAL_EPOCH:
                return None, True
            return self._create(request, uses_topic_ids, now_s, owner), True
        if session is None:
            raise FetchSessionIdNotFound(f"there is no fetch session {session_id}")
        if session.epoch != epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {session_id} is at epoch {session.epoch}, not {epoch}"
            )
        if session.uses_topic_ids != uses_topic_ids:
            raise FetchSessionTopicIdError("the fetch session mixes topic names and topic ids")
        self._use(session, now_s)
        return session, False

    def _update(
        self,
        session: FetchSession,
        asked: Iterable[tuple[PartitionKey, FetchPartition]],
        forgotten: Iterable[PartitionKey],
    ) -> None:
        before = len(session.partitions)
        session.add(asked)
        session.forget(forgotten)
        if self._sessions.get(session.id) is not session:
            return  # It has been removed between two slices.
        self._partitions += len(session.partitions) - before
        if self._partitions > self._partitions_max:
            self.remove(session.id)
            raise FetchSessionIdNotFound("the limit of partitions in fetch sessions is reached")

    def _create(
        self, request: FetchRequest, uses_topic_ids: bool, now_s: float, owner: Hashable
    ) -> FetchSession | None:
        partitions = sum(len(topic.partitions) for topic in request.topics)
        is_follower = request.replica_id >= 0
        if not request.topics or not self._make_room(partitions, now_s, for_follower=is_follower):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = 1 + self._random.below(2**31 - 1)
        session = FetchSession(session_id, uses_topic_ids, is_follower, owner)
        self._sessions[session_id] = session
        self._use(session, now_s)
        return session

    def _use(self, session: FetchSession, now_s: float) -> None:
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.used_at_s = now_s
        self._sessions.move_to_end(session.id)

    def _make_room(self, partitions: int, now_s: float, *, for_follower: bool) -> bool:
        """Evict sessions that are unused for long. Returns whether one more session fits.

        Without a session a follower asks for all its partitions in every fetch, so consumers make
        way for it.
        """
        while (
            len(self._sessions) >= self._slots_max
            or self._partitions + partitions > self._partitions_max
        ):
            if not self._sessions:
                return False
            evicted = next(iter(self._sessions.values()))
            if now_s - evicted.used_at_s < _EVICTION_S:
                if not for_follower:
                    return False
                consumers = (each for each in self._sessions.values() if not each.is_follower)
                oldest = next(consumers, None)
                if oldest is None:
                    return False
                evicted = oldest
            self.remove(evicted.id)
        return True

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)
            session.settled.close()
            if not session.large_fetches:
                free_in_slices(session.partitions)


def asked_partitions(request: FetchRequest) -> Iterator[tuple[PartitionKey, FetchPartition]]:
    for topic in request.topics:
        key = _topic_key(topic.name, topic.topic_id)
        for asked in topic.partitions:
            yield (key, asked.partition), asked


def _forgotten(request: FetchRequest) -> Iterator[PartitionKey]:
    for topic in request.forgotten:
        key = _topic_key(topic.name, topic.topic_id)
        for index in topic.partitions:
            yield key, index


def _topic_key(name: str | None, topic_id: UUID | None) -> TopicKey:
    if name is not None:
        return name
    assert topic_id is not None
    return topic_id
