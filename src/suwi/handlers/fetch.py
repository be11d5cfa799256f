"""Fetch v4-v18. Waits until there is enough to read, or the client's patience ends.

v5: log start offset. v7: sessions. v9: epoch check. v11: reading from followers (KIP-392).
v12: diverging epochs. v13: topic ids. v15: the epoch of a follower that asks (KIP-903).
Followers fetch like consumers do, but up to the end; where they fetch from is what they have. They
are brokers that have proven to be some.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import error_of
from suwi.handlers.fetch_in_slices import LargeFetch
from suwi.handlers.fetch_sessions import (
    FetchSession,
    FetchSessions,
    PartitionKey,
    TopicKey,
    asked_partitions,
)
from suwi.handlers.leader_hints import hinted_endpoints, leader_hint
from suwi.log.batch_scan import scan_headers
from suwi.log.log_slice import LogSlice
from suwi.metadata.image import ClusterImage
from suwi.metadata.store import Unavailable
from suwi.model.errors import (
    BrokerError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StaleBrokerEpoch,
    UnsupportedCompressionType,
)
from suwi.model.ids import LeaderEpoch, NodeId, Offset
from suwi.net.answers import Answer, Exclusive, Outcome, Promise, Reply
from suwi.net.dispatch import Request
from suwi.records.compression import Compression
from suwi.replica.leadership import Follower
from suwi.replica.nearest import NearestReplica
from suwi.replica.partition import LogNotReady, Partition, wait_until_ready
from suwi.replica.replicas import Replicas
from suwi.wire.fetch import (
    AbortedTransaction,
    Chunk,
    EpochEnd,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    decode_fetch_request,
    encode_fetch_response,
)

_TOPIC_IDS_FROM = 13
_FROM_FOLLOWERS_FROM = 11
_ERROR_OF_REQUEST_FROM = 7
_ZSTD_FROM = 10
# A client that asked for more patience asks again; one that is gone, with requests still waiting
# behind this one, is found out by then.
_WAIT_MS_MAX = 300_000
# Below v10 every batch header is looked at before it is sent.
_SCANNED_BYTES_MAX = 1024 * 1024
_READ_COMMITTED = 1
LARGE_PARTITIONS = 128
"""With more a fetch goes in slices: `fetch_in_slices.py`."""


# So long the metadata may take to say whether this broker still leads.
_SURE_S = 5.0
# And so long logs may take to be opened.
_READY_S = 5.0


class _NotSure(NotLeaderOrFollower):
    """A consumer knows of more than this leader: perhaps another leads by now."""


class Found(NamedTuple):
    """What there is for one partition: an answer without records, and where they lie."""

    key: PartitionKey
    answer: FetchedPartition
    slice: LogSlice | None
    follower: Follower | None = None
    """Who asks, if it is a replica that has got an answer without an error."""

    @property
    def is_behind(self) -> bool:
        """Whether a follower has yet to hear of a watermark, or of where the log starts."""
        answer, follower = self.answer, self.follower
        return follower is not None and (
            follower.watermark_told < answer.high_watermark
            or follower.start_told < answer.log_start_offset
        )

    def told(self) -> None:
        """The answer is on its way to a follower."""
        answer, follower = self.answer, self.follower
        if follower is not None:
            follower.watermark_told = Offset(answer.high_watermark)
            follower.start_told = Offset(answer.log_start_offset)


@dataclass(slots=True)
class Look:
    """One look at all partitions of a fetch."""

    left_bytes: int
    found: list[Found] = field(default_factory=list)
    size_bytes: int = 0
    has_news: bool = False
    """An error, a divergence, a watermark to tell a follower of: not worth waiting on."""
    is_in_doubt: bool = False
    """A leader was asked for more than it has, and may lead no more; or a log is not ready yet."""
    not_ready: list[Partition] | None = None


class Fetch:
    def __init__(
        self,
        replicas: Replicas,
        sessions: FetchSessions,
        bytes_max: int,
        synced: Callable[[float], Awaitable[None]],
        nearest: NearestReplica | None = None,
    ) -> None:
        """`synced` waits, for so long at most, until the image shows all that was written before.

        `nearest` chooses whom a consumer reads from; without it that is the leader.
        """
        self._replicas = replicas
        self._sessions = sessions
        self._bytes_max = bytes_max
        self.synced = synced
        self.nearest = nearest

    def __call__(self, request: Request) -> Answer:
        version = request.version
        asked = decode_fetch_request(version, request.body)
        if asked.replica_id >= 0 and not request.client.is_peer:
            return _refuse_stranger(version, asked)
        loop = asyncio.get_running_loop()
        try:
            session, is_full = self._sessions.open(
                asked, uses_topic_ids=version >= _TOPIC_IDS_FROM, now_s=loop.time()
            )
        except BrokerError as error:
            return Reply(encode_fetch_response(version, [], error_code=error.code))
        partitions = session.asked() if session is not None else list(asked_partitions(asked))
        listener = request.client.listener
        job = Job(self, version, listener, asked, session, is_full, partitions)
        if len(partitions) > LARGE_PARTITIONS:
            return Exclusive(LargeFetch(job, min(asked.max_wait_ms, _WAIT_MS_MAX) / 1000).answer())
        look = job.look()
        if look.is_in_doubt:
            return Exclusive(job.look_again_and_reply(look))
        if job.is_enough(look):
            return job.reply(look)
        wait_ms = min(asked.max_wait_ms, _WAIT_MS_MAX)
        return Exclusive(_Wait(job, wait_ms / 1000).promise)

    def partition_of(self, key: PartitionKey, *, leader_only: bool) -> Partition:
        topic, index = key
        name = topic if isinstance(topic, str) else self._replicas.topic_name(topic)
        if leader_only:
            return self._replicas.leader_of(name, index)
        return self._replicas.replica_of(name, index)

    def check_follower(self, partition: Partition, node: NodeId, epoch: int) -> None:
        """Whether a broker has a replica of this, and is in the life that the controller knows."""
        leadership = partition.leadership
        if leadership is None or node not in leadership.followers:
            raise NotLeaderOrFollower(f"broker {node} has no replica of {partition.partition}")
        journaled = self._replicas.image.registered.get(node)
        if journaled is None or journaled.epoch != epoch:
            raise StaleBrokerEpoch(f"broker {node} is not known with epoch {epoch}")

    @property
    def image(self) -> ClusterImage:
        return self._replicas.image

    def name_of(self, topic_id: UUID) -> str | None:
        topic = self._replicas.image.topics_by_id.get(topic_id)
        return topic.name if topic is not None else None

    @property
    def bytes_max(self) -> int:
        return self._bytes_max


@dataclass(slots=True)
class Job:
    """One fetch request on its way."""

    fetch: Fetch
    version: int
    listener: str
    asked: FetchRequest
    session: FetchSession | None
    is_full: bool
    partitions: list[tuple[PartitionKey, FetchPartition]]
    is_first_look: bool = True
    is_sure: bool = False
    """Whether who leads was read anew since the request came."""

    # -- looking -------------------------------------------------------------------------------

    def look(self) -> Look:
        look = self.begin_look()
        for key, asked in self.partitions:
            look.found.append(self.examine(look, key, asked))
        self.is_first_look = False
        return look

    def begin_look(self) -> Look:
        return Look(min(self.asked.max_bytes, self.fetch.bytes_max))

    def examine(self, look: Look, key: PartitionKey, asked: FetchPartition) -> Found:
        """Look at one partition, as a part of this look. Never raises."""
        try:
            found = self._look_at(key, asked, look.left_bytes, whole_batch=look.size_bytes == 0)
        except Exception as error:
            look.has_news = True
            if isinstance(error, _NotSure):
                look.is_in_doubt = True
            elif isinstance(error, LogNotReady) and self.asked.replica_id < 0:
                # A consumer waits; to a follower the other partitions matter more.
                look.is_in_doubt = True
                look.not_ready = [*(look.not_ready or ()), error.partition]
            return self.refuse(key, error)
        if found.slice is not None:
            look.size_bytes += found.slice.size_bytes
            look.left_bytes = max(0, look.left_bytes - found.slice.size_bytes)
        answer = found.answer
        if (
            answer.error_code != 0
            or answer.diverging_epoch is not None
            or answer.preferred_read_replica >= 0
            or (found.follower is not None and found.is_behind)
        ):
            look.has_news = True
        return found

    def partition(self, key: PartitionKey) -> Partition:
        leader_only = self.asked.replica_id >= 0 or self.version < _FROM_FOLLOWERS_FROM
        return self.fetch.partition_of(key, leader_only=leader_only)

    def _look_at(
        self, key: PartitionKey, asked: FetchPartition, left: int, *, whole_batch: bool
    ) -> Found:
        partition = self.partition(key)
        partition.check_epoch(asked.current_leader_epoch)
        bytes_max = min(asked.max_bytes, left)
        diverging = _divergence(partition, asked)
        if self.asked.replica_id >= 0:
            return self._look_for_follower(key, partition, asked, diverging, bytes_max, whole_batch)
        if diverging is not None:
            return Found(key, _answer(partition, asked, diverging_epoch=diverging), None)
        nearest = self._nearest(partition, asked)
        if nearest is not None:
            return Found(key, _answer(partition, asked, preferred_read_replica=nearest), None)
        if self.version < _ZSTD_FROM:
            bytes_max = min(bytes_max, _SCANNED_BYTES_MAX)
        committed_only = self.asked.isolation_level == _READ_COMMITTED
        first = Offset(asked.fetch_offset)
        if first > partition.log.end_offset:
            self._check_leads(partition, asked.current_leader_epoch)
        found = partition.read(
            first, bytes_max, committed_only=committed_only, whole_batch=whole_batch
        )
        if found is not None and self.version < _ZSTD_FROM:
            _refuse_zstd(found)
        if not committed_only:
            return Found(key, _answer(partition, asked), found)
        stable = partition.last_stable_offset
        aborted = [
            AbortedTransaction(txn.producer_id, txn.first_offset)
            for txn in (partition.log.aborted_between(first, stable) if found is not None else ())
        ]
        return Found(key, _answer(partition, asked, aborted=aborted), found)

    def _check_leads(self, partition: Partition, epoch: int) -> None:
        """Only the leader knows that an offset does not exist: consumers reset their position.

        It may have slept for longer than its session, and not have heard of its successor yet. A
        consumer that knows the epoch knows a follower: it goes back to the leader by itself.
        """
        leadership = partition.leadership
        if leadership is None:
            if epoch != partition.leader_epoch:
                raise NotLeaderOrFollower(f"{partition.partition} is led by another broker")
        elif leadership.followers and not self.is_sure:
            raise _NotSure(f"{partition.partition} may be led by another broker")

    def _look_for_follower(
        self,
        key: PartitionKey,
        partition: Partition,
        asked: FetchPartition,
        diverging: EpochEnd | None,
        bytes_max: int,
        whole_batch: bool,
    ) -> Found:
        node = NodeId(self.asked.replica_id)
        self.fetch.check_follower(partition, node, self.asked.replica_epoch)
        if diverging is not None:
            # Hazard 5: what diverges is no progress.
            return Found(key, _answer(partition, asked, diverging_epoch=diverging), None)
        offset = Offset(asked.fetch_offset)
        in_range = partition.log.start_offset <= offset <= partition.log.end_offset
        if not in_range or _is_strange(partition, asked, node):
            # The follower goes on where this log starts.
            code = OffsetOutOfRange.code
            return Found(key, _answer(partition, asked, error_code=code), None)
        if self.is_first_look:
            partition.record_progress(
                node, offset, Offset(asked.log_start_offset), self.asked.replica_epoch
            )
        found = partition.read_for_follower(offset, bytes_max, whole_batch=whole_batch)
        assert partition.leadership is not None
        follower = partition.leadership.followers[node]
        return Found(key, _answer(partition, asked), found, follower)

    def _nearest(self, partition: Partition, asked: FetchPartition) -> NodeId | None:
        """A replica that is nearer to the consumer than this one, the leader."""
        nearest = self.fetch.nearest
        if nearest is None or not self.asked.rack_id or partition.leadership is None:
            return None
        return nearest.choose(partition.leadership, Offset(asked.fetch_offset), self.asked.rack_id)

    def is_enough(self, look: Look) -> bool:
        return (
            look.has_news
            or look.size_bytes >= self.asked.min_bytes
            or not self.partitions
            or self.asked.max_wait_ms <= 0
        )

    async def look_again_and_reply(self, look: Look) -> Reply:
        await self.make_sure(look)
        return self.reply(self.look())

    async def make_sure(self, look: Look) -> None:
        """Wait until logs are ready, or else until the metadata is fresh; where it is not to be
        had, nothing is sure."""
        if look.not_ready is not None:
            await wait_until_ready(look.not_ready, _READY_S)
            return
        with contextlib.suppress(Unavailable):
            await self.fetch.synced(_SURE_S)
            self.is_sure = True

    def watched(self) -> list[Partition]:
        """The partitions that may have more to read later."""
        watched: list[Partition] = []
        for key, _ in self.partitions:
            with contextlib.suppress(BrokerError):  # Then it was refused, which is news.
                watched.append(self.partition(key))
        return watched

    # -- answering -----------------------------------------------------------------------------

    def reply(self, look: Look) -> Reply:
        releases: list[Callable[[], None]] = []
        try:
            body = self._encode(look, releases)
        except BaseException:
            _release_all(releases)
            raise
        return Reply(body, partial(_release_all, releases) if releases else None)

    def _encode(self, look: Look, releases: list[Callable[[], None]]) -> list[Chunk]:
        """The answer in pieces; of files those whose `releases` the caller has to see to."""
        topics: dict[TopicKey, list[FetchedPartition]] = {}
        for one in look.found:
            key, answer, found, follower = one
            if follower is not None:
                one.told()
            if found is not None:
                try:
                    region, release = found.pin()
                except KafkaStorageError as error:
                    answer, found = self.refuse(key, error).answer, None
                else:
                    releases.append(release)
                    answer = answer._replace(records=region)
            if self.session is not None:
                news = self.session.changed(key, answer, has_records=found is not None)
                if not news and not self.is_full:
                    continue
            topics.setdefault(key[0], []).append(answer)
        hints = [found.answer.current_leader for found in look.found] if look.has_news else ()
        return encode_fetch_response(
            self.version,
            [_fetched_topic(topic, partitions) for topic, partitions in topics.items()],
            session_id=self.session.id if self.session is not None else 0,
            node_endpoints=hinted_endpoints(self.fetch.image, self.listener, hints),
        )

    def refuse(self, key: PartitionKey, error: Exception) -> Found:
        code: ErrorCode = error_of(error)[0]
        topic, index = key
        name = topic if isinstance(topic, str) else self.fetch.name_of(topic)
        hint = leader_hint(self.fetch.image, name, index, code)
        return Found(key, FetchedPartition(index, code, current_leader=hint), None)


def _refuse_stranger(version: int, asked: FetchRequest) -> Reply:
    """A client that fetches as a replica: its fetch would count as a replica's progress."""
    code = ErrorCode.cluster_authorization_failed
    if version >= _ERROR_OF_REQUEST_FROM:
        return Reply(encode_fetch_response(version, [], error_code=code))
    topics = [
        FetchedTopic(name, topic_id, [FetchedPartition(p.partition, code) for p in partitions])
        for name, topic_id, partitions in asked.topics
    ]
    return Reply(encode_fetch_response(version, topics))


class _Wait:
    """A fetch that waits: it looks again whenever a partition has more, until it is enough or time
    is up. Without a task, and in the loop's next turn: what is appended in this one comes along."""

    __slots__ = ("_job", "_planned", "_timer", "_watched", "promise")

    def __init__(self, job: Job, patience_s: float) -> None:
        """The job has just looked, and there was too little."""
        self.promise = Promise(self._end)
        self._job = job
        self._planned: asyncio.Handle | None = None
        self._watched = job.watched()
        for partition in self._watched:
            partition.watch(self._ring, also_uncommitted=job.asked.replica_id >= 0)
        self._timer = asyncio.get_running_loop().call_later(patience_s, self._look, True)

    def _ring(self) -> None:
        if self._planned is None:
            self._planned = asyncio.get_running_loop().call_soon(self._look, False)

    def _look(self, is_late: bool) -> None:
        if self._planned is not None:
            self._planned.cancel()  # This one may be the last.
            self._planned = None
        outcome: Outcome
        try:
            look = self._job.look()
            if not is_late and not self._job.is_enough(look):
                return
            outcome = self._job.reply(look)
        except Exception as error:
            outcome = error
        self._end()
        self.promise.keep(outcome)

    def _end(self) -> None:
        self._timer.cancel()
        if self._planned is not None:
            self._planned.cancel()
        for partition in self._watched:
            partition.unwatch(self._ring)


def _answer(
    partition: Partition, asked: FetchPartition, error_code: int = 0, **facts: Any
) -> FetchedPartition:
    """What there is to say of a partition beside its records: one look at it, no await."""
    return FetchedPartition(
        asked.partition,
        error_code,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_as_it_is.start_offset,
        **facts,
    )


def _release_all(releases: list[Callable[[], None]]) -> None:
    for release in releases:
        release()


def _fetched_topic(topic: TopicKey, partitions: list[FetchedPartition]) -> FetchedTopic:
    if isinstance(topic, UUID):
        return FetchedTopic(None, topic, partitions)
    return FetchedTopic(topic, None, partitions)


def _divergence(partition: Partition, asked: FetchPartition) -> EpochEnd | None:
    """Where the reader's log parts from the leader's, if it does (KIP-595)."""
    if asked.last_fetched_epoch < 0 or not partition.is_leader:
        return None  # A follower may simply have less.
    log = partition.log
    try:
        found = log.epochs.divergence(
            LeaderEpoch(asked.last_fetched_epoch), Offset(asked.fetch_offset), log.end_offset
        )
    except KeyError as error:
        raise OffsetOutOfRange(f"epoch {error} is not known here") from None
    return EpochEnd(*found) if found is not None else None


def _is_strange(partition: Partition, asked: FetchPartition, node: NodeId) -> bool:
    """Whether a follower that comes back has records, but none that this log still has.

    Whether they are of the same history nobody can say: all of them have to go, or a crash that
    moves the follower's start back would show them. Who is in sync has shown that they are.
    """
    log, leadership = partition.log, partition.leadership
    assert leadership is not None
    return (
        asked.fetch_offset == log.start_offset
        and asked.last_fetched_epoch >= 0
        and node not in leadership.members
        and log.epochs.all_newer_than(LeaderEpoch(asked.last_fetched_epoch))
    )


def _refuse_zstd(found: LogSlice) -> None:
    """Clients of these versions do not know zstd."""
    file = found.directory.files.get(found.path)
    for _, header in scan_headers(file, found.position, found.position + found.size_bytes):
        if header.codec is Compression.ZSTD:
            raise UnsupportedCompressionType(f"zstd needs Fetch v{_ZSTD_FROM}")
