"""One fetch request in progress: reads its partitions, waits for more and builds the response.

`Job.read` reads all partitions at once, `is_enough` tells whether to respond now, and `reply`
builds the response; `DelayedFetch` waits until there is enough. A fetch of many partitions does the
same in slices, one per iteration of the event loop (`LargeFetch`).
Invariant: a fetch records a follower's progress in a partition once, at the first read for which
the log is ready, and only without a divergence.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.env.token_bucket import TokenBucket
from suwi.handlers.authorization import check_topic
from suwi.handlers.fetch_session_cache import FetchSession, PartitionKey, TopicKey
from suwi.handlers.leader_hints import hinted_endpoints, leader_hint
from suwi.handlers.settled_partitions import SettledPartitions
from suwi.log.batch_scan import scan_headers
from suwi.log.log_segments import LogSlice
from suwi.metadata.store import Unavailable
from suwi.model.errors import (
    BrokerError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StaleBrokerEpoch,
    UnsupportedCompressionType,
    error_of,
)
from suwi.model.ids import LeaderEpoch, NodeId, Offset
from suwi.net.answers import Outcome, Promise, Reply
from suwi.net.dispatch import Request
from suwi.records.compression import Compression
from suwi.replica.leader_state import Follower
from suwi.replica.partition import Partition
from suwi.replica.replica_log import LogNotReady, ReplicaLog, wait_until_ready
from suwi.replica.replica_manager import ReplicaManager
from suwi.replica.replica_selector import ReplicaSelector
from suwi.security.acls import Operation
from suwi.security.authorizer import NOTHING_GRANTED, Authorizer, GrantedTopics
from suwi.wire.fetch_request import FetchPartition, FetchRequest
from suwi.wire.fetch_response import (
    AbortedTransaction,
    Chunk,
    EpochEnd,
    FetchedPartition,
    FetchedTopic,
    FetchParts,
    encode_fetch_response,
    merged,
)
from suwi.wire.leaders import CurrentLeader

_READ: Final = Operation.READ  # to look up a member of an enumeration is slow
_FOLLOWER_FETCHING_FROM = 11
_ZSTD_FROM = 10
# Below v10 every batch header is scanned for zstd before the records are sent.
_SCANNED_BYTES_MAX = 1024 * 1024
_READ_COMMITTED = 1
# Timeout for fresh metadata that tells whether this broker still leads.
_SYNC_TIMEOUT_S = 5.0
NEWS_DELAY_S = 0.005
"""How long a high watermark waits for records that can be sent to the follower together with it:
otherwise each produce with acks=all causes a second fetch of every follower."""
# Timeout for logs to be opened.
_READY_TIMEOUT_S = 5.0
SLICE_COST = 256
"""About two milliseconds: a partition costs 1, one of a follower 4, and 8 more if it has
records."""
_FOLLOWER_COST = 4
_SETTLED_COST = 0.04
_RECORDS_COST = 8
_UNWATCHED_AT_ONCE = 4_000
_NEWS_DELAY_S_PER_PARTITION = 100e-6
"""About four times what the next fetch costs: while thousands of logs are opened each has a high
watermark to tell, and must not cause a fetch of all partitions."""


class _LeadershipUnconfirmed(NotLeaderOrFollower):
    """A consumer's offset is beyond this leader's log end: another broker may lead by now."""


@dataclass(frozen=True, slots=True)
class FetchSource:
    """The partitions that fetches read, and the check that a follower may fetch them."""

    replicas: ReplicaManager
    bytes_max: int
    synced: Callable[[float], Awaitable[None]]
    """Waits, with a timeout in seconds, until the image shows all earlier writes."""
    replica_selector: ReplicaSelector | None = None
    """Chooses the replica a consumer reads from; without it that is the leader."""
    end_session: Callable[[int], None] = lambda _: None
    """Forgets a fetch session."""

    def partition_of(self, key: PartitionKey, *, leader_only: bool) -> Partition:
        topic, index = key
        name = topic if isinstance(topic, str) else self.replicas.topic_name(topic)
        if leader_only:
            return self.replicas.leader_of(name, index)
        return self.replicas.replica_of(name, index)

    def check_follower(self, partition: Partition, node: NodeId, epoch: int) -> None:
        """Check that a broker has a replica of the partition, and has not registered again since.

        A newer epoch than that of the image is one that is not in the image yet: such a follower
        may read, but not join the ISR.
        """
        leader_state = partition.leader_state
        if leader_state is None or node not in leader_state.followers:
            raise NotLeaderOrFollower(f"broker {node} has no replica of {partition.partition}")
        registration = self.replicas.image.registered_brokers.get(node)
        if registration is not None and epoch < registration.epoch:
            raise StaleBrokerEpoch(f"broker {node} has registered again since epoch {epoch}")

    def name_of(self, topic_id: UUID) -> str | None:
        topic = self.replicas.image.topics_by_id.get(topic_id)
        return topic.name if topic is not None else None


class LogReadResult(NamedTuple):
    """What was read from one partition: the response without records, and the slice with them."""

    key: PartitionKey
    answer: FetchedPartition
    slice: LogSlice | None
    follower: Follower | None = None
    """The follower that fetches, if the read had no error."""

    @property
    def is_follower_behind(self) -> bool:
        """Whether the follower has not been sent the high watermark or log start offset yet."""
        answer, follower = self.answer, self.follower
        return follower is not None and (
            follower.watermark_sent < answer.high_watermark
            or follower.start_sent < answer.log_start_offset
        )

    def record_sent(self) -> None:
        """Remember the high watermark and log start offset that the follower is being sent."""
        answer, follower = self.answer, self.follower
        if follower is not None:
            follower.watermark_sent = Offset(answer.high_watermark)
            follower.start_sent = Offset(answer.log_start_offset)


@dataclass(slots=True)
class ReadPass:
    """One read of all partitions of a fetch."""

    left_bytes: int
    found: list[LogReadResult] = field(default_factory=list)
    size_bytes: int = 0
    is_complete: bool = False
    """Respond now: there is an error or a divergence."""
    has_news: bool = False
    """A follower has not been sent the high watermark or log start offset: respond soon."""
    needs_recheck: bool = False
    """An offset is beyond the log end of a leader that may be deposed, or a log is not open yet."""
    not_ready: list[ReplicaLog] | None = None
    enough_bytes: int = 0
    """With so many the response is sent: fetch.min.bytes, or what the response may have at most."""


@dataclass(slots=True)
class Job:
    """One fetch request in progress."""

    source: FetchSource
    version: int
    listener: str
    asked: FetchRequest
    session: FetchSession | None
    is_full: bool
    partitions: list[tuple[PartitionKey, FetchPartition]]
    is_first_pass: bool = True
    is_leadership_confirmed: bool = False
    """Whether the metadata has been refreshed since the request arrived."""
    awaited: set[PartitionKey] = field(default_factory=set)
    """Partitions that a follower fetches whose logs are not ready. They are read, and the progress
    is recorded, when they are; until then responses omit them, as if they had no records. With an
    error the follower would poll all its partitions while thousands of logs are opened."""
    request: Request | None = None
    """Whose client may have quotas; None if it is a broker."""
    fetch_quota: TokenBucket | None = None
    """None: the client has none."""
    authorizer: Authorizer | None = None
    """None: its client may read everything."""
    reads_from: GrantedTopics = NOTHING_GRANTED
    """What its connection remembers of its rights."""

    # -- reading -------------------------------------------------------------------------------

    def read(self) -> ReadPass:
        read_pass = self.begin_pass()
        for key, asked in self.partitions:
            read_pass.found.append(self.read_partition(read_pass, key, asked))
        self.is_first_pass = False
        return read_pass

    def begin_pass(self) -> ReadPass:
        bytes_max = min(self.asked.max_bytes, self.source.bytes_max)
        quota = self.fetch_quota
        if quota is not None and bytes_max > (burst := quota.rate * quota.burst_s):
            bytes_max = max(1, int(burst))  # unless the first batch is larger
        read_pass = ReadPass(bytes_max)
        read_pass.enough_bytes = min(self.asked.min_bytes, bytes_max)
        return read_pass

    def read_partition(
        self, read_pass: ReadPass, key: PartitionKey, asked: FetchPartition
    ) -> LogReadResult:
        """Read one partition as a part of this pass. Never raises."""
        try:
            found = self._read_partition(
                key, asked, read_pass.left_bytes, whole_batch=read_pass.size_bytes == 0
            )
        except Exception as error:
            self._failed(read_pass, key, error)
            return self.refuse(key, error)
        if found.slice is not None:
            read_pass.size_bytes += found.slice.size_bytes
            read_pass.left_bytes = max(0, read_pass.left_bytes - found.slice.size_bytes)
        answer = found.answer
        if (
            answer.error_code != 0
            or answer.diverging_epoch is not None
            or answer.preferred_read_replica >= 0
        ):
            read_pass.is_complete = True
        elif found.follower is not None and found.is_follower_behind:
            read_pass.has_news = True
        return found

    def _failed(self, read_pass: ReadPass, key: PartitionKey, error: Exception) -> None:
        """Whether the error is sent now, or the partition is read again."""
        is_follower = self.asked.replica_id >= 0
        if is_follower and isinstance(error, LogNotReady) and not error.follows_failure:
            self.awaited.add(key)
            return
        self.awaited.discard(key)
        read_pass.is_complete = True
        if isinstance(error, _LeadershipUnconfirmed):
            read_pass.needs_recheck = True
        elif isinstance(error, LogNotReady) and not is_follower:
            read_pass.needs_recheck = True
            read_pass.not_ready = read_pass.not_ready or []
            read_pass.not_ready.append(error.replica_log)

    def partition(self, key: PartitionKey) -> Partition:
        authorizer = self.authorizer
        if authorizer is not None:  # also when a delayed fetch reads again
            held = self.reads_from
            if held.rules != authorizer.acls.number or key[0] not in held.topics:
                self._check_may_read(key[0], authorizer)
        leader_only = self.asked.replica_id >= 0 or self.version < _FOLLOWER_FETCHING_FROM
        return self.source.partition_of(key, leader_only=leader_only)

    def _check_may_read(self, topic: TopicKey, authorizer: Authorizer) -> None:
        request, replicas = self.request, self.source.replicas
        assert request is not None
        name = topic if isinstance(topic, str) else replicas.topic_name(topic)
        check_topic(request, _READ, name)
        if name in replicas.image.topics:
            self.reads_from.add(topic, authorizer.acls)

    def _read_partition(
        self, key: PartitionKey, asked: FetchPartition, left: int, *, whole_batch: bool
    ) -> LogReadResult:
        partition = self.partition(key)
        partition.check_epoch(asked.current_leader_epoch)
        bytes_max = min(asked.max_bytes, left)
        diverging = _divergence(partition, asked)
        if self.asked.replica_id >= 0:
            return self._read_for_follower(key, partition, asked, diverging, bytes_max, whole_batch)
        if diverging is not None:
            return LogReadResult(key, _answer(partition, asked, diverging_epoch=diverging), None)
        preferred = self._preferred_read_replica(partition, asked)
        if preferred is not None:
            return LogReadResult(
                key, _answer(partition, asked, preferred_read_replica=preferred), None
            )
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
            return LogReadResult(key, _answer(partition, asked), found)
        aborted: list[AbortedTransaction] = []
        if found is not None:
            ended = partition.log.aborted_between(first, partition.last_stable_offset, found)
            aborted = [AbortedTransaction(txn.producer_id, txn.first_offset) for txn in ended]
        return LogReadResult(key, _answer(partition, asked, aborted=aborted), found)

    def _check_leads(self, partition: Partition, epoch: int) -> None:
        """Only the current leader may report an offset beyond its log end: consumers reset on that.

        A leader that was paused for longer than its session may not know its successor yet. A
        consumer that sends a follower's current epoch returns to the leader by itself.
        """
        leader_state = partition.leader_state
        if leader_state is None:
            if epoch != partition.leader_epoch:
                raise NotLeaderOrFollower(f"{partition.partition} is led by another broker")
        elif leader_state.followers and not self.is_leadership_confirmed:
            raise _LeadershipUnconfirmed(f"{partition.partition} may be led by another broker")

    def _read_for_follower(
        self,
        key: PartitionKey,
        partition: Partition,
        asked: FetchPartition,
        diverging: EpochEnd | None,
        bytes_max: int,
        whole_batch: bool,
    ) -> LogReadResult:
        is_first_read = self.is_first_pass
        if self.awaited and key in self.awaited:
            self.awaited.discard(key)
            is_first_read = True
        node = NodeId(self.asked.replica_id)
        self.source.check_follower(partition, node, self.asked.replica_epoch)
        if diverging is not None:
            # Hazard 5: a diverging fetch is not progress.
            return LogReadResult(key, _answer(partition, asked, diverging_epoch=diverging), None)
        offset = Offset(asked.fetch_offset)
        in_range = partition.log.start_offset <= offset <= partition.log.end_offset
        if not in_range or _has_unverifiable_records(partition, asked, node):
            # The follower restarts at the log start offset of this log.
            code = OffsetOutOfRange.code
            return LogReadResult(key, _answer(partition, asked, error_code=code), None)
        if is_first_read:
            leader = partition.leader_replica
            assert leader is not None
            leader.record_progress(
                node, offset, Offset(asked.log_start_offset), self.asked.replica_epoch
            )
        leader_state = partition.leader_state
        assert leader_state is not None
        follower = leader_state.followers[node]
        quota = partition.quotas.leader
        if quota is None or node in leader_state.members:
            found = partition.read_for_follower(offset, bytes_max, whole_batch=whole_batch)
        elif quota.wait_s() > 0:
            found = None  # It fetches again, at the latest after its own max.wait.
        else:
            found = partition.read_for_follower(offset, bytes_max, whole_batch=whole_batch)
            quota.record(found.size_bytes if found is not None else 0)
        return LogReadResult(key, _answer(partition, asked), found, follower)

    def _preferred_read_replica(self, partition: Partition, asked: FetchPartition) -> NodeId | None:
        """The preferred read replica (KIP-392), if it is not this one, the leader."""
        selector = self.source.replica_selector
        if selector is None or not self.asked.rack_id or partition.leader_state is None:
            return None
        return selector.choose(
            partition.leader_state, Offset(asked.fetch_offset), self.asked.rack_id
        )

    def is_enough(self, read_pass: ReadPass) -> bool:
        return (
            read_pass.is_complete
            or read_pass.size_bytes >= read_pass.enough_bytes
            or not self.partitions
            or self.asked.max_wait_ms <= 0
        )

    async def recheck_and_reply(self, read_pass: ReadPass) -> Reply:
        await self.recheck(read_pass)
        return self.reply(self.read())

    async def recheck(self, read_pass: ReadPass) -> None:
        """Wait until logs are open, or else until the metadata is fresh. If the metadata store is
        unavailable, `is_leadership_confirmed` stays false."""
        if read_pass.not_ready is not None:
            await wait_until_ready(read_pass.not_ready, _READY_TIMEOUT_S)
            return
        with contextlib.suppress(Unavailable):
            await self.source.synced(_SYNC_TIMEOUT_S)
            self.is_leadership_confirmed = True

    def watched(self) -> list[Partition]:
        """The partitions that may have more records later."""
        watched: list[Partition] = []
        for key, _ in self.partitions:
            with contextlib.suppress(BrokerError):  # its error completes the fetch
                watched.append(self.partition(key))
        return watched

    # -- responding ----------------------------------------------------------------------------

    def reply(self, read_pass: ReadPass) -> Reply:
        throttled = self.throttled(read_pass)
        if throttled is not None:
            return throttled
        releases: list[Callable[[], None]] = []
        try:
            body = self._encode(read_pass, releases)
        except BaseException:
            release_all(releases)
            raise
        return Reply(body, partial(release_all, releases) if releases else None)

    def throttled(self, read_pass: ReadPass) -> Reply | None:
        """The reply to a client that has used more than its quota: without partitions, and without
        progress of its session. A client that asked for a new session asks again."""
        quota = self.fetch_quota
        if quota is None:
            return None
        request = self.request
        assert request is not None
        if quota.left >= 0:
            quota.record(read_pass.size_bytes, request.connection.time_s())
            return None
        assert request.quota is not None
        if not request.quota.throttles_fetch(read_pass.size_bytes):
            return None
        session_id = 0 if self.session is None else self.session.id
        if self.is_full and session_id:
            self.source.end_session(session_id)
            session_id = 0
        return Reply(encode_fetch_response(self.version, [], session_id=session_id))

    def _encode(self, read_pass: ReadPass, releases: list[Callable[[], None]]) -> list[Chunk]:
        """The response in chunks. The caller must call all `releases`, which unpin file chunks."""
        topics: dict[TopicKey, list[FetchedPartition]] = {}
        for result in read_pass.found:
            key, answer, found, follower = result
            if self.awaited and key in self.awaited:
                continue
            if follower is not None:
                result.record_sent()
            if found is not None:
                try:
                    region, release = found.pin()
                except KafkaStorageError as error:
                    answer, found = self.refuse(key, error).answer, None
                else:
                    releases.append(release)
                    answer = answer._replace(records=region)
            if self.session is not None:
                is_changed = self.session.changed(key, answer, has_records=found is not None)
                if not is_changed and not self.is_full:
                    continue
            topics.setdefault(key[0], []).append(answer)
        hints = (
            [found.answer.current_leader for found in read_pass.found]
            if read_pass.is_complete
            else ()
        )
        return encode_fetch_response(
            self.version,
            [
                FetchedTopic(None, topic, partitions)
                if isinstance(topic, UUID)
                else FetchedTopic(topic, None, partitions)
                for topic, partitions in topics.items()
            ],
            session_id=self.session.id if self.session is not None else 0,
            node_endpoints=hinted_endpoints(self.source.replicas.image, self.listener, hints),
        )

    def refuse(self, key: PartitionKey, error: Exception) -> LogReadResult:
        code: ErrorCode = error_of(error)[0]
        topic, index = key
        name = topic if isinstance(topic, str) else self.source.name_of(topic)
        hint = leader_hint(self.source.replicas.image, name, index, code)
        return LogReadResult(key, FetchedPartition(index, code, current_leader=hint), None)


class DelayedFetch:
    """Reads again whenever a partition changes, until there is enough or the wait time is over.

    It needs no task. It reads in the next iteration of the event loop, so that one response carries
    everything that is appended in this one.
    """

    __slots__ = ("_has_news", "_job", "_planned", "_timer", "_watched", "promise")

    def __init__(self, job: Job, max_wait_s: float, *, has_news: bool = False) -> None:
        """`job` has just read its partitions and found too little."""
        self.promise = Promise(self._end)
        self._job = job
        self._planned: asyncio.Handle | None = None
        self._watched = job.watched()
        for partition in self._watched:
            partition.watch(self._on_change, also_uncommitted=job.asked.replica_id >= 0)
        self._has_news = has_news
        wait_s = min(max_wait_s, NEWS_DELAY_S) if has_news else max_wait_s
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._read, True)

    def _on_change(self) -> None:
        if self._planned is None:
            self._planned = asyncio.get_running_loop().call_soon(self._read, False)

    def _read(self, is_timed_out: bool) -> None:
        if self._planned is not None:
            self._planned.cancel()  # this read may complete the fetch
            self._planned = None
        outcome: Outcome
        try:
            read_pass = self._job.read()
            if not is_timed_out and not self._job.is_enough(read_pass):
                if read_pass.has_news and not self._has_news:
                    self._respond_soon()
                return
            outcome = self._job.reply(read_pass)
        except Exception as error:
            outcome = error
        self._end()
        self.promise.keep(outcome)

    def _respond_soon(self) -> None:
        self._has_news = True
        loop = asyncio.get_running_loop()
        if self._timer.when() > loop.time() + NEWS_DELAY_S:
            self._timer.cancel()
            self._timer = loop.call_later(NEWS_DELAY_S, self._read, True)

    def _end(self) -> None:
        self._timer.cancel()
        if self._planned is not None:
            self._planned.cancel()
        for partition in self._watched:
            partition.unwatch(self._on_change)


class Patience:
    """Whether a fetch may wait; `end` makes one that waits respond with what there is."""

    def __init__(self) -> None:
        self.is_over = False
        self.on_end: Callable[[], None] = lambda: None

    def end(self) -> None:
        self.is_over = True
        self.on_end()


class LargeFetch:
    """A fetch of many partitions: read and encoded one slice per iteration of the event loop.

    It reads all partitions once, but for those of a follower that are settled, waits until there is
    enough, and reads only the changed partitions again. The state and the pinned records of one
    partition are consistent; two partitions may be read at different times.
    Invariant: every pin is released exactly once, by the reply or, if there is none, in `answer`.
    """

    def __init__(self, job: Job, max_wait_s: float, patience: Patience) -> None:
        self._job = job
        self._patience = patience
        self._max_wait_s = max_wait_s
        self._pass: ReadPass = job.begin_pass()
        self._found: dict[int, LogReadResult] = {}
        """By position in the request. Without the partitions that an incremental response omits."""
        self._pins: dict[int, tuple[Chunk, Callable[[], None]]] = {}
        self._watched: list[tuple[Partition, Callable[[], None]]] = []
        self._changed: dict[int, None] = {}
        """The positions of the partitions that have changed since they were read."""
        self._wakeup = asyncio.Event()
        self._is_timed_out = False
        self._cost = 0.0
        self._settled: SettledPartitions | None = None
        if job.session is not None and job.asked.replica_id >= 0:
            self._settled = job.session.settled
        self._positions: dict[PartitionKey, int] = {}
        """Filled when it is needed."""

    async def answer(self) -> Reply:
        try:
            if self._settled is not None:
                self._settled.on_change = self._on_unsettled
            await self._read_all()
            if self._pass.needs_recheck:
                read_pass = self._pass
                self._reset()
                await self._job.recheck(read_pass)
                await self._read_all()
            elif not self._job.is_enough(self._pass):
                await self._wait()
            return await self._reply()
        except BaseException:
            self._release()
            raise
        finally:
            if self._settled is not None and self._settled.on_change == self._on_unsettled:
                self._settled.on_change = None
            self._unwatch()

    # -- reading -------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        settled = self._settled
        if settled is not None:
            now_s = asyncio.get_running_loop().time()
            if settled.must_read_all(self._job.asked.replica_epoch, now_s):
                settled = None
        await self._read(range(len(self._job.partitions)), left_out=settled)
        self._job.is_first_pass = False

    async def _read(
        self, positions: Iterable[int], left_out: SettledPartitions | None = None
    ) -> None:
        job = self._job
        must_watch = job.is_first_pass and self._max_wait_s > 0
        for position in positions:
            if self._cost >= SLICE_COST:
                await self._yield_to_loop()
            if left_out is not None and job.partitions[position][0] in left_out:
                self._cost += _SETTLED_COST
                continue
            is_settled = self._read_one(position)
            if must_watch and not is_settled and not job.is_enough(self._pass):
                self._watch(position)

    async def _yield_to_loop(self) -> None:
        self._cost = 0
        await asyncio.sleep(0)

    def _read_one(self, position: int) -> bool:
        """Returns whether the partition is settled. Must not await: the records are pinned before
        they can be deleted."""
        job = self._job
        self._cost += _FOLLOWER_COST if job.asked.replica_id >= 0 else 1
        key, asked = job.partitions[position]
        found = job.read_partition(self._pass, key, asked)
        if found.slice is not None:
            self._cost += _RECORDS_COST
            try:
                self._pins[position] = found.slice.pin()
            except Exception as error:  # the segment file cannot be opened
                self._pass.is_complete = True
                self._pass.size_bytes -= found.slice.size_bytes
                found = job.refuse(key, error)
        is_in_response = self._is_in_response(found)
        if is_in_response:
            self._found[position] = found
        else:
            self._found.pop(position, None)
        settled = self._settled
        if settled is None:
            return False
        if not is_in_response and found.follower is not None:
            node = NodeId(job.asked.replica_id)
            if settled.settle(key, job.partition(key), node, asked):
                return True
        settled.drop(key)
        return False

    def _is_in_response(self, found: LogReadResult) -> bool:
        session, awaited = self._job.session, self._job.awaited
        if awaited and found.key in awaited:
            return False
        return (
            session is None
            or self._job.is_full
            or found.slice is not None
            or found.is_follower_behind
            or session.would_change(found.key, found.answer)
        )

    # -- waiting -------------------------------------------------------------------------------

    def _watch(self, position: int) -> None:
        """Called without an await after the read, so that no change is missed."""
        try:
            partition = self._job.partition(self._job.partitions[position][0])
        except BrokerError:
            return  # Its error completes the fetch.
        on_change = partial(self._on_change, position)
        partition.watch(on_change, also_uncommitted=self._job.asked.replica_id >= 0)
        self._watched.append((partition, on_change))

    def _on_unsettled(self, key: PartitionKey) -> None:
        if not self._positions:
            keys = (key for key, _ in self._job.partitions)
            self._positions = {key: position for position, key in enumerate(keys)}
        position = self._positions[key]
        self._watch(position)
        self._on_change(position)

    def _unwatch(self) -> None:
        """Also in slices, but without an await: the client may have disconnected."""
        for partition, on_change in self._watched[-_UNWATCHED_AT_ONCE:]:
            partition.unwatch(on_change)
        del self._watched[-_UNWATCHED_AT_ONCE:]
        if self._watched:
            asyncio.get_running_loop().call_soon(self._unwatch)

    def _on_change(self, position: int) -> None:
        self._changed[position] = None
        self._wakeup.set()

    def _on_timeout(self) -> None:
        self._is_timed_out = True
        self._wakeup.set()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(self._max_wait_s, self._on_timeout)]
        self._patience.on_end = self._on_timeout
        self._is_timed_out = self._patience.is_over
        try:
            while not (self._is_timed_out or self._job.is_enough(self._pass)):
                if self._pass.has_news and len(timers) == 1:
                    timers.append(loop.call_later(self._news_delay_s(), self._on_timeout))
                self._begin_next_pass()
                await self._wakeup.wait()
                self._wakeup.clear()
                changed, self._changed = sorted(self._changed), {}
                await self._read(changed)
        finally:
            for timer in timers:
                timer.cancel()

    def _news_delay_s(self) -> float:
        if not self._job.awaited:
            return NEWS_DELAY_S
        return max(NEWS_DELAY_S, len(self._job.partitions) * _NEWS_DELAY_S_PER_PARTITION)

    def _begin_next_pass(self) -> None:
        """Too little was found: release the pins, and read those partitions again in a new pass."""
        self._changed |= dict.fromkeys(self._pins)
        self._release()
        self._pass = self._job.begin_pass()

    def _reset(self) -> None:
        self._release()
        self._found.clear()
        self._pass = self._job.begin_pass()

    def _release(self) -> None:
        pins, self._pins = self._pins, {}
        for _, release in pins.values():
            release()

    # -- responding ----------------------------------------------------------------------------

    async def _reply(self) -> Reply:
        job = self._job
        throttled = job.throttled(self._pass)
        if throttled is not None:
            self._release()
            return throttled
        parts = FetchParts(job.version)
        slice_: dict[TopicKey, list[FetchedPartition]] = {}
        hints: set[CurrentLeader | None] = set()
        for position in sorted(self._found):
            if self._cost >= SLICE_COST:
                _encode(parts, slice_)
                slice_ = {}
                await self._yield_to_loop()
            self._add_to_response(position, slice_, hints)
        _encode(parts, slice_)
        chunks: list[Chunk] = [parts.start(job.session.id if job.session is not None else 0)]
        for topic in parts.topics():
            if self._cost >= SLICE_COST:
                await self._yield_to_loop()
            self._cost += 1
            chunks += topic
        chunks.append(parts.end(hinted_endpoints(job.source.replicas.image, job.listener, hints)))
        if len(chunks) > SLICE_COST:
            await self._yield_to_loop()
        releases = [release for _, release in self._pins.values()]
        return Reply(merged(chunks), partial(release_all, releases) if releases else None)

    def _add_to_response(
        self,
        position: int,
        slice_: dict[TopicKey, list[FetchedPartition]],
        hints: set[CurrentLeader | None],
    ) -> None:
        self._cost += 1
        found, session = self._found.pop(position), self._job.session
        key, answer = found.key, found.answer
        hints.add(answer.current_leader)
        found.record_sent()
        if session is not None:
            is_changed = session.changed(key, answer, has_records=found.slice is not None)
            if not is_changed and not self._job.is_full:
                return
        if found.slice is not None:
            answer = answer._replace(records=self._pins[position][0])
        slice_.setdefault(key[0], []).append(answer)


def _encode(parts: FetchParts, slice_: dict[TopicKey, list[FetchedPartition]]) -> None:
    for topic, partitions in slice_.items():
        parts.add(topic, partitions)


def _answer(
    partition: Partition, asked: FetchPartition, error_code: int = 0, **facts: Any
) -> FetchedPartition:
    """A partition's state in the response, without records. No await: it is read at one moment."""
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


def _divergence(partition: Partition, asked: FetchPartition) -> EpochEnd | None:
    """Where the reader's log diverges from the leader's, if it does (KIP-595)."""
    if asked.last_fetched_epoch < 0 or not partition.is_leader:
        return None  # a follower's log may just be shorter
    log = partition.log
    try:
        found = log.epochs.divergence(
            LeaderEpoch(asked.last_fetched_epoch), Offset(asked.fetch_offset), log.end_offset
        )
    except KeyError as error:
        raise OffsetOutOfRange(f"leader epoch {error} is unknown to this log") from None
    return EpochEnd(*found) if found is not None else None


def _has_unverifiable_records(partition: Partition, asked: FetchPartition, node: NodeId) -> bool:
    """Whether a returning follower has records, but none that this log still has.

    It cannot be checked whether they belong to the same history, so the follower must delete all of
    them: otherwise a crash that moves its log start back would expose them. An in-sync replica has
    already been checked. A log that ends at offset 0 never had records; it may have the epoch in
    which its replica led.
    """
    log, leader_state = partition.log, partition.leader_state
    assert leader_state is not None
    return (
        asked.fetch_offset == log.start_offset > 0
        and asked.last_fetched_epoch >= 0
        and node not in leader_state.members
        and log.epochs.all_newer_than(LeaderEpoch(asked.last_fetched_epoch))
    )


def _refuse_zstd(found: LogSlice) -> None:
    """Raise if the slice has zstd batches: clients below v10 cannot decompress them."""
    file = found.directory.files.get(found.path)
    for _, header in scan_headers(file, found.position, found.position + found.size_bytes):
        if header.codec is Compression.ZSTD:
            raise UnsupportedCompressionType(f"zstd needs Fetch v{_ZSTD_FROM}")
