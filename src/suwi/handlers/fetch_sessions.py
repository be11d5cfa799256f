"""Incremental fetch sessions (KIP-227): the broker remembers what a client reads.

`open` finds or makes the session a request belongs to; `answer` leaves out of a response what did
not change. A pure machine but for the random ids.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.env import Random
from suwi.model.errors import BrokerError, FetchSessionIdNotFound, InvalidFetchSessionEpoch
from suwi.wire.fetch_request import FetchPartition, FetchRequest
from suwi.wire.fetch_response import FetchedPartition

NO_SESSION = 0
_FINAL_EPOCH = -1
_INITIAL_EPOCH = 0
_EPOCH_MAX = 2**31 - 1
_EVICTION_S = 120.0
# Of all sessions together: each costs half a kilobyte, named once and kept for as long.
_PARTITIONS_MAX = 250_000

TopicKey = str | UUID
PartitionKey = tuple[TopicKey, int]


class FetchSessionTopicIdError(BrokerError):
    code = ErrorCode.fetch_session_topic_id_error


@dataclass(slots=True)
class _Remembered:
    """What a session last heard of a partition."""

    asked: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchSession:
    """The partitions of one fetcher, those that have waited longest first."""

    id: int
    uses_topic_ids: bool
    epoch: int = _INITIAL_EPOCH
    used_at_s: float = 0.0
    partitions: OrderedDict[PartitionKey, _Remembered] = field(default_factory=OrderedDict)

    def update(self, request: FetchRequest) -> int:
        """Take in what a request adds, changes and forgets; how many partitions that makes more."""
        before = len(self.partitions)
        for key, asked in asked_partitions(request):
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = _Remembered(asked)
            else:
                known.asked = asked
        for topic in request.forgotten:
            topic_key = _topic_key(topic.name, topic.topic_id)
            for index in topic.partitions:
                self.partitions.pop((topic_key, index), None)
        return len(self.partitions) - before

    def asked(self) -> list[tuple[PartitionKey, FetchPartition]]:
        return [(key, remembered.asked) for key, remembered in self.partitions.items()]

    def changed(self, key: PartitionKey, fetched: FetchedPartition, *, has_records: bool) -> bool:
        """Whether the client must hear of this partition; remembers what it hears."""
        known = self.partitions.get(key)
        if known is None:
            return True
        news = has_records or _differs(known, fetched)
        known.high_watermark = fetched.high_watermark
        known.log_start_offset = fetched.log_start_offset
        if fetched.error_code != 0 or fetched.diverging_epoch is not None:
            # So that its recovery is told. A follower that has to truncate listens to nothing else.
            known.high_watermark = -1
        if has_records:
            self.partitions.move_to_end(key)  # The next response begins with another.
        return news

    def would_change(self, key: PartitionKey, fetched: FetchedPartition) -> bool:
        """Whether the client would hear of this partition, records apart."""
        known = self.partitions.get(key)
        return known is None or _differs(known, fetched)


def _differs(known: _Remembered, fetched: FetchedPartition) -> bool:
    return (
        fetched.error_code != 0
        or fetched.high_watermark != known.high_watermark
        or fetched.log_start_offset != known.log_start_offset
        or fetched.diverging_epoch is not None
        or fetched.preferred_read_replica >= 0
    )


class FetchSessions:
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
        self, request: FetchRequest, *, uses_topic_ids: bool, now_s: float
    ) -> tuple[FetchSession | None, bool]:
        """The request's session, if it has one, and whether its answer is to be a full one.

        Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError.
        """
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (_FINAL_EPOCH, _INITIAL_EPOCH):
            self._forget(session_id)
            if epoch == _FINAL_EPOCH:
                return None, True
            return self._create(request, uses_topic_ids, now_s), True
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionIdNotFound(f"there is no fetch session {session_id}")
        if session.epoch != epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {session_id} is at epoch {session.epoch}, not {epoch}"
            )
        if session.uses_topic_ids != uses_topic_ids:
            raise FetchSessionTopicIdError("a fetch session names topics in one way only")
        self._partitions += session.update(request)
        if self._partitions > self._partitions_max:
            self._forget(session_id)
            raise FetchSessionIdNotFound("there is no room for more partitions in fetch sessions")
        self._use(session, now_s)
        return session, False

    def _create(
        self, request: FetchRequest, uses_topic_ids: bool, now_s: float
    ) -> FetchSession | None:
        partitions = sum(len(topic.partitions) for topic in request.topics)
        if not request.topics or not self._make_room(partitions, now_s):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = 1 + self._random.below(2**31 - 1)
        session = FetchSession(session_id, uses_topic_ids)
        self._partitions += session.update(request)
        self._sessions[session_id] = session
        self._use(session, now_s)
        return session

    def _use(self, session: FetchSession, now_s: float) -> None:
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.used_at_s = now_s
        self._sessions.move_to_end(session.id)

    def _make_room(self, partitions: int, now_s: float) -> bool:
        """Whether there is room for one more, which those give that were not used for long."""
        while (
            len(self._sessions) >= self._slots_max
            or self._partitions + partitions > self._partitions_max
        ):
            if not self._sessions:
                return False
            oldest = next(iter(self._sessions.values()))
            if now_s - oldest.used_at_s < _EVICTION_S:
                return False
            self._forget(oldest.id)
        return True

    def _forget(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)


def asked_partitions(request: FetchRequest) -> Iterator[tuple[PartitionKey, FetchPartition]]:
    for topic in request.topics:
        key = _topic_key(topic.name, topic.topic_id)
        for asked in topic.partitions:
            yield (key, asked.partition), asked


def _topic_key(name: str | None, topic_id: UUID | None) -> TopicKey:
    if name is not None:
        return name
    assert topic_id is not None
    return topic_id
