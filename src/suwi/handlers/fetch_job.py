"""One fetch request on its way: what there is to read in each of its partitions, and its answer.

`look` reads all partitions in one go, `is_enough` says whether that is worth an answer, `reply`
makes it. A fetch of many partitions goes through `begin_look` and `examine` instead.
Invariant: only a follower's first look counts as its progress, and never one that diverges.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import error_of
from suwi.handlers.fetch_sessions import FetchSession, PartitionKey, TopicKey
from suwi.handlers.fetch_source import FetchSource
from suwi.handlers.leader_hints import hinted_endpoints, leader_hint
from suwi.log.batch_scan import scan_headers
from suwi.log.log_slice import LogSlice
from suwi.metadata.store import Unavailable
from suwi.model.errors import (
    BrokerError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnsupportedCompressionType,
)
from suwi.model.ids import LeaderEpoch, NodeId, Offset
from suwi.net.answers import Reply
from suwi.records.compression import Compression
from suwi.replica.leader_state import Follower
from suwi.replica.partition import Partition, wait_until_ready
from suwi.replica.replica_log import LogNotReady
from suwi.wire.fetch_request import FetchPartition, FetchRequest
from suwi.wire.fetch_response import (
    AbortedTransaction,
    Chunk,
    EpochEnd,
    FetchedPartition,
    FetchedTopic,
    encode_fetch_response,
)

_FROM_FOLLOWERS_FROM = 11
_ZSTD_FROM = 10
# Below v10 every batch header is looked at before it is sent.
_SCANNED_BYTES_MAX = 1024 * 1024
_READ_COMMITTED = 1
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
            follower.watermark_sent < answer.high_watermark
            or follower.start_sent < answer.log_start_offset
        )

    def told(self) -> None:
        """The answer is on its way to a follower."""
        answer, follower = self.answer, self.follower
        if follower is not None:
            follower.watermark_sent = Offset(answer.high_watermark)
            follower.start_sent = Offset(answer.log_start_offset)


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


@dataclass(slots=True)
class Job:
    """One fetch request on its way."""

    source: FetchSource
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
        return Look(min(self.asked.max_bytes, self.source.bytes_max))

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
        return self.source.partition_of(key, leader_only=leader_only)

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
        leader_state = partition.leader_state
        if leader_state is None:
            if epoch != partition.leader_epoch:
                raise NotLeaderOrFollower(f"{partition.partition} is led by another broker")
        elif leader_state.followers and not self.is_sure:
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
        self.source.check_follower(partition, node, self.asked.replica_epoch)
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
            leader = partition.leader_replica
            assert leader is not None
            leader.record_progress(
                node, offset, Offset(asked.log_start_offset), self.asked.replica_epoch
            )
        found = partition.read_for_follower(offset, bytes_max, whole_batch=whole_batch)
        assert partition.leader_state is not None
        follower = partition.leader_state.followers[node]
        return Found(key, _answer(partition, asked), found, follower)

    def _nearest(self, partition: Partition, asked: FetchPartition) -> NodeId | None:
        """A replica that is nearer to the consumer than this one, the leader."""
        nearest = self.source.nearest
        if nearest is None or not self.asked.rack_id or partition.leader_state is None:
            return None
        return nearest.choose(
            partition.leader_state, Offset(asked.fetch_offset), self.asked.rack_id
        )

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
            await self.source.synced(_SURE_S)
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
            release_all(releases)
            raise
        return Reply(body, partial(release_all, releases) if releases else None)

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
            node_endpoints=hinted_endpoints(self.source.image, self.listener, hints),
        )

    def refuse(self, key: PartitionKey, error: Exception) -> Found:
        code: ErrorCode = error_of(error)[0]
        topic, index = key
        name = topic if isinstance(topic, str) else self.source.name_of(topic)
        hint = leader_hint(self.source.image, name, index, code)
        return Found(key, FetchedPartition(index, code, current_leader=hint), None)


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


def release_all(releases: list[Callable[[], None]]) -> None:
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
    log, leader_state = partition.log, partition.leader_state
    assert leader_state is not None
    return (
        asked.fetch_offset == log.start_offset
        and asked.last_fetched_epoch >= 0
        and node not in leader_state.members
        and log.epochs.all_newer_than(LeaderEpoch(asked.last_fetched_epoch))
    )


def _refuse_zstd(found: LogSlice) -> None:
    """Clients of these versions do not know zstd."""
    file = found.directory.files.get(found.path)
    for _, header in scan_headers(file, found.position, found.position + found.size_bytes):
        if header.codec is Compression.ZSTD:
            raise UnsupportedCompressionType(f"zstd needs Fetch v{_ZSTD_FROM}")
