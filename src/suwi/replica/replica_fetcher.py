"""Fetches partitions from one leader, all of them in one request.

A fetch from an offset acknowledges everything before it, so the fetch offset is always the log end
offset.
Invariant: appended records were fetched under the partition's current leader epoch.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.env.problems import ProblemKind, Problems, because
from suwi.env.tasks import RESTART, Tasks, cancel_and_wait, wait_for_event
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import BrokerError, CorruptMessage, InvalidRecord, KafkaStorageError
from suwi.model.ids import LeaderEpoch, NodeId, Offset
from suwi.records.batch import end_of_batches
from suwi.replica.partition import Partition
from suwi.replica.peers import HasBrokerEpoch, Peers
from suwi.replica.replication_quota import ReplicationQuota
from suwi.wire.errors import MalformedResponse
from suwi.wire.fetch_request import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    encode_fetch_request,
)
from suwi.wire.fetch_response import FetchedPartition, FetchResponse, decode_fetch_response
from suwi.wire.versions import APIS, ApiKey

log = logging.getLogger(__name__)

_VERSION = APIS[ApiKey.FETCH].max_version
_PAUSE_S_MIN = 0.01
_DOUBLINGS_MAX = 20
TASK: Final = "replica fetcher"
# How much a follower appends before it yields the event loop.
_BATCHES_A_TURN = 256
_BYTES_A_TURN = 1 << 20
_COST_BYTES = 1 << 12
"""The cost of a partition with few or no records, as bytes."""
_THROTTLED_S_MAX = 1.0
"""How long a throttled partition waits before its quota, which may be changed, is read again."""
_DAMAGED_S = 0.1
"""How often it is checked whether a damaged log has been discarded and may be fetched."""
_WAIT_MS_MIN_FOR_OTHERS = 20
_WAIT_MS_PER_OTHER = 0.1
"""How long the leader may delay its response while other logs are still being prepared: these must
not wait long for their first fetch, but a fetch costs time for all partitions."""
_INITIAL_EPOCH = 0
_EPOCH_MAX = 2**31 - 1

Key = tuple[UUID, int]
"""A topic's id and a partition's index."""


class FetchSessionHandler:
    """The follower's side of a fetch session (KIP-227): only changed partitions are sent again."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = _INITIAL_EPOCH
        self._sent: Mapping[Key, FetchPartition] = {}

    def request(
        self, wanted: Mapping[Key, FetchPartition]
    ) -> tuple[list[FetchTopic], list[ForgottenTopic], int, int]:
        """Returns the topics to fetch and to forget, the session id and the session epoch."""
        if self._epoch == _INITIAL_EPOCH:
            changed, forgotten = dict(wanted), []
        else:
            sent = self._sent.get
            changed = {
                key: part
                for key, part in wanted.items()
                if (before := sent(key)) is not part and before != part
            }
            forgotten = [key for key in self._sent if key not in wanted]
        self._sent = wanted
        topics: dict[UUID, list[FetchPartition]] = {}
        for (topic_id, _), part in changed.items():
            topics.setdefault(topic_id, []).append(part)
        removed: dict[UUID, list[int]] = {}
        for topic_id, index in forgotten:
            removed.setdefault(topic_id, []).append(index)
        return (
            [FetchTopic(None, topic_id, parts) for topic_id, parts in topics.items()],
            [ForgottenTopic(None, topic_id, parts) for topic_id, parts in removed.items()],
            self._id,
            self._epoch,
        )

    def answered(self, response: FetchResponse) -> None:
        if response.error_code != ErrorCode.none:
            self.restart()
        elif response.session_id == 0:
            self._id, self._epoch = 0, _INITIAL_EPOCH  # The leader has no free session slot.
        else:
            self._id = response.session_id
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def restart(self) -> None:
        """Send a full request next time. The id is kept so that the leader can remove it."""
        self._epoch = _INITIAL_EPOCH
        self._sent = {}


@dataclass(slots=True)
class PartitionFetchState:
    partition: Partition
    epoch: LeaderEpoch
    """The leader epoch under which the partition was assigned to this fetcher."""
    pause_s: float = 0.0
    paused_until_s: float = float("-inf")
    is_caught_up: bool = False
    """Whether the last response reached the leader's high watermark; only known of partitions
    with a quota."""
    damage: str = ""
    """Where the leader's copy is damaged, as reported in the problems; empty if it is not."""
    must_sync: bool = False
    """A sync has failed: the next fetch, which would acknowledge what was not synced, waits."""
    asked: FetchPartition | None = None
    """What the last fetch asked for: mostly the next one asks for the same."""

    @property
    def is_current(self) -> bool:
        return self.partition.leader_epoch == self.epoch and not self.partition.is_closed

    def pause(self, now_s: float, pause_s_max: float) -> None:
        """Back off exponentially."""
        self.pause_s = min(max(2 * self.pause_s, _PAUSE_S_MIN), pause_s_max)
        self.paused_until_s = now_s + self.pause_s


@dataclass(slots=True)
class _SentFetch:
    """The contents of the request in flight."""

    partitions: dict[Key, PartitionFetchState] = field(default_factory=dict)
    wanted: dict[Key, FetchPartition] = field(default_factory=dict)
    preparing: int = 0
    """The number of other logs that are being opened or truncated."""
    to_sync: list[PartitionFetchState] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class ReplicaFetcher:
    _leader: NodeId
    _node_id: NodeId
    _peers: Peers
    _config: BrokerConfig
    _owner: HasBrokerEpoch
    _tasks: Tasks
    _partitions: dict[Key, PartitionFetchState] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _connection: PeerConnection | None = None
    _session: FetchSessionHandler = field(default_factory=FetchSessionHandler)
    _answer: asyncio.Future[memoryview] | None = None
    """The response to the request in flight."""
    _has_new: bool = False
    """Whether partitions were added that the request in flight does not contain."""
    _task: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self._task = self._tasks.start(self._run, name=TASK, on_failure=RESTART)

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, partition: Partition) -> None:
        key = (partition.topic_id, int(partition.partition.partition))
        self._partitions[key] = PartitionFetchState(partition, partition.leader_epoch)
        self._has_new = True

    def added(self) -> None:
        """All partitions of an image have been added. Called once for all of them, because a new
        connection may need a SASL login."""
        if not self._has_new:
            return
        self._changed.set()
        if self._connection is not None and self._answer is not None and not self._answer.done():
            # The leader may delay its response for half a second, and producers wait for the new
            # partitions: disconnect and send a request that contains them. After a response that
            # has arrived the next request contains them anyway.
            self._connection.abort()

    def remove(self, partition: Partition) -> None:
        key = (partition.topic_id, int(partition.partition.partition))
        removed = self._partitions.pop(key, None)
        if removed is not None:
            self._resolve_damage(removed)

    async def stop(self) -> None:
        await cancel_and_wait(self._task)

    # -- requests ------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        try:
            while True:
                await self._until_there_is_work()
                try:
                    if self._connection is None or not self._connection.is_open:
                        self._session.restart()
                        self._connection = await self._connect()
                    await self._fetch(self._connection)
                    failures = 0
                except (OSError, MalformedResponse, TimeoutError) as error:
                    failures += 1
                    await self._after_failure(error, failures)
        finally:
            if self._connection is not None:
                self._connection.abort()
                self._connection = None

    async def _connect(self) -> PeerConnection:
        async with asyncio.timeout(self._config.replica_socket_timeout_ms / 1000):
            return await self._peers.connect(self._leader)

    async def _until_there_is_work(self) -> None:
        """Wait while there are no partitions, or all of them are backing off."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            now_s = loop.time()
            ends = []
            for state in self._partitions.values():
                if state.partition.replica_log.is_preparing:
                    state.partition.replica_log.when_ready(self._changed.set)
                elif state.is_current:
                    ends.append(state.paused_until_s)
            if any(end <= now_s for end in ends):
                return
            try:
                async with asyncio.timeout_at(min(ends) if ends else None):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _after_failure(self, error: Exception, failures: int) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        if self._changed.is_set():
            return  # Disconnected by `added`.
        log.info(
            "replica fetch failed", extra=because(error, leader=self._leader, failures=failures)
        )
        pause_s = min(
            _PAUSE_S_MIN * 2 ** min(failures, _DOUBLINGS_MAX),
            self._config.replica_fetch_backoff_ms / 1000,
        )
        await wait_for_event(self._changed, pause_s)

    async def _fetch(self, connection: PeerConnection) -> None:
        sent = self._build_fetch()
        self._has_new = False
        for unsynced in sent.to_sync:
            await self._sync(unsynced)
        if not sent.wanted:
            return  # All are backing off or not ready yet.
        request = encode_fetch_request(_VERSION, self._request(sent))
        try:
            async with asyncio.timeout(self._config.replica_socket_timeout_ms / 1000):
                self._answer = connection.send(ApiKey.FETCH, _VERSION, [request])
                body = await self._answer
        finally:
            self._answer = None
        response = decode_fetch_response(_VERSION, body)
        self._session.answered(response)
        synced: list[PartitionFetchState] = []
        processed_bytes = 0
        for topic in response.topics:
            assert topic.topic_id is not None
            for fetched in topic.partitions:
                key = (topic.topic_id, fetched.partition)
                state = sent.partitions.get(key)
                if state is None or self._partitions.get(key) is not state or not state.is_current:
                    is_applied = False
                else:
                    is_applied = await self._process_in_slices(state, sent.wanted[key], fetched)
                    processed_bytes += _COST_BYTES + len(_records(fetched))
                    ready_log = state.partition.replica_log.ready_log
                    if ready_log is not None and ready_log.must_sync_first:
                        synced.append(state)
                if not is_applied:
                    # The leader assumes that this follower received its high watermark: a full
                    # request makes it send all partitions again.
                    self._session.restart()
                if processed_bytes >= _BYTES_A_TURN:
                    processed_bytes = 0
                    await asyncio.sleep(0)
        for appended in synced:
            await self._sync(appended)

    def _request(self, sent: _SentFetch) -> FetchRequest:
        config = self._config
        wait_ms_max = config.replica_fetch_wait_max_ms
        if sent.preparing:
            wait_for_others_ms = round(sent.preparing * _WAIT_MS_PER_OTHER)
            wait_ms_max = min(wait_ms_max, max(_WAIT_MS_MIN_FOR_OTHERS, wait_for_others_ms))
        topics, forgotten, session_id, session_epoch = self._session.request(sent.wanted)
        return FetchRequest(
            wait_ms_max,
            config.replica_fetch_min_bytes,
            config.replica_fetch_response_max_bytes,
            topics,
            session_id=session_id,
            session_epoch=session_epoch,
            forgotten=forgotten,
            replica_id=self._node_id,
            replica_epoch=self._owner.broker_epoch,
        )

    def _build_fetch(self) -> _SentFetch:
        """The partitions to fetch: all that are not backing off and whose log is ready."""
        sent = _SentFetch()
        now_s = asyncio.get_running_loop().time()
        for key, state in list(self._partitions.items()):
            if not state.is_current:
                del self._partitions[key]
                self._resolve_damage(state)
                continue
            if state.paused_until_s > now_s:
                continue
            quota = state.partition.quotas.follower
            if quota is not None and not state.is_caught_up and (wait_s := quota.wait_s()) > 0:
                state.paused_until_s = now_s + min(wait_s, _THROTTLED_S_MAX)
                continue
            try:
                if not state.partition.replica_log.prepare():
                    sent.preparing += 1
                    continue
                partition_log = state.partition.log
                partition_log.check()
                if not _may_fetch(state.partition):
                    state.paused_until_s = now_s + _DAMAGED_S
                    continue
                if state.must_sync:
                    sent.to_sync.append(state)
                    continue
            except BrokerError as error:
                self._pause(state, error)
                continue
            except Exception as error:
                self._fail(state, error)
                continue
            asked, end_offset = state.asked, partition_log.end_offset
            if (
                asked is None
                or asked.fetch_offset != end_offset
                or asked.last_fetched_epoch != partition_log.epochs.latest
                or asked.log_start_offset != partition_log.start_offset
            ):
                asked = state.asked = FetchPartition(
                    key[1],
                    state.epoch,
                    end_offset,
                    partition_log.epochs.latest,
                    partition_log.start_offset,
                    self._config.replica_fetch_max_bytes,
                )
            sent.partitions[key] = state
            sent.wanted[key] = asked
            if state.partition.watched_by is not None:
                state.partition.watched_by.fetch(self._leader, asked)
        return sent

    # -- responses -----------------------------------------------------------------------------

    async def _process_in_slices(
        self, state: PartitionFetchState, sent: FetchPartition, fetched: FetchedPartition
    ) -> bool:
        """As `_process_partition`, but appends many small batches in slices."""
        records = _records(fetched)
        end = end_of_batches(records, _BATCHES_A_TURN)
        if end == len(records):
            return self._process_partition(state, sent, fetched)
        while self._process_partition(state, sent, fetched._replace(records=records[:end])):
            records = records[end:]
            reached = state.partition.log_as_it_is.end_offset
            if (
                not records
                or state.partition.replica_log.is_preparing
                or reached <= sent.fetch_offset
            ):
                return True
            sent = sent._replace(fetch_offset=reached)
            await asyncio.sleep(0)
            if not state.is_current:
                break
            end = end_of_batches(records, _BATCHES_A_TURN)
        return False

    def _process_partition(
        self, state: PartitionFetchState, sent: FetchPartition, fetched: FetchedPartition
    ) -> bool:
        """Apply the leader's response to the log. Returns False if that failed."""
        partition = state.partition
        try:
            if partition.watched_by is not None:
                size_bytes = len(_records(fetched))
                partition.watched_by.fetch_answer(self._leader, sent, fetched, size_bytes)
            if fetched.error_code == ErrorCode.offset_out_of_range:
                partition.follower.truncate_fully_and_start_at(Offset(fetched.log_start_offset))
            elif fetched.error_code != ErrorCode.none:
                self._pause(state, ErrorCode(fetched.error_code).name)
                return True
            elif fetched.diverging_epoch is not None:
                # Hazard 6: the high watermark is meaningless before the truncation.
                epoch, end_offset = fetched.diverging_epoch
                partition.follower.truncate_to_divergence(LeaderEpoch(epoch), Offset(end_offset))
            elif partition.log.end_offset == sent.fetch_offset:
                partition.follower.append_fetched(
                    _records(fetched),
                    state.epoch,
                    Offset(fetched.high_watermark),
                    Offset(fetched.log_start_offset),
                )
            state.pause_s = 0.0
            self._resolve_damage(state)
            if partition.quotas.follower is not None:
                _count_copied(state, partition.quotas.follower, fetched)
        except BrokerError as error:
            if isinstance(error, CorruptMessage | InvalidRecord):
                self._report_damage(state, error)
            self._pause(state, error)
            return False
        except Exception as error:
            self._fail(state, error)
            return False
        return True

    def _report_damage(self, state: PartitionFetchState, error: BrokerError) -> None:
        """The leader sends its files unread: only those who read them find damage."""
        state.damage = f"{state.partition.partition} on broker {self._leader}"
        reason = f"found by a follower at {state.partition.log_as_it_is.end_offset}: {error}"
        self._problems_of(state).report(ProblemKind.DAMAGED_BATCH, state.damage, reason)

    def _resolve_damage(self, state: PartitionFetchState) -> None:
        if state.damage:
            self._problems_of(state).resolve(ProblemKind.DAMAGED_BATCH, state.damage)
            state.damage = ""

    def _problems_of(self, state: PartitionFetchState) -> Problems:
        return state.partition.replica_log.context.problems

    def _fail(self, state: PartitionFetchState, error: Exception) -> None:
        """An unexpected error of one partition must not stop the others; the fetch is retried."""
        self._tasks.count(TASK, error)
        self._pause(state, repr(error))

    def _pause(self, state: PartitionFetchState, reason: object) -> None:
        if isinstance(reason, KafkaStorageError):
            replica_log = state.partition.replica_log
            replica_log.context.leave_isr(replica_log)
        first = state.pause_s == 0.0
        state.pause(asyncio.get_running_loop().time(), self._config.replica_fetch_backoff_ms / 1000)
        if first:
            log.info(
                "replica fetch backing off",
                extra=because(reason, partition=state.partition.partition, leader=self._leader),
            )

    async def _sync(self, state: PartitionFetchState) -> None:
        """Sync before the next fetch acknowledges the end offset; see `must_sync_first`."""
        partition = state.partition
        state.must_sync = True
        try:
            await partition.syncer.sync_once(partition.log)
            state.must_sync = False
        except BrokerError as error:
            log.error("log sync failed", extra=because(error, partition=partition.partition))
            self._pause(state, error)
        except Exception as error:
            self._tasks.count(TASK, error)
            self._pause(state, error)


def _may_fetch(partition: Partition) -> bool:
    """Not while a damaged replica leaves the ISR: the leader would propose its return."""
    if partition.replica_log.fetch_stopped_in is not None:
        if partition.log_as_it_is.damages:
            return False
        partition.replica_log.fetch_stopped_in = None
    return True


def _count_copied(
    state: PartitionFetchState, quota: ReplicationQuota, fetched: FetchedPartition
) -> None:
    if not state.is_caught_up:
        quota.record(len(_records(fetched)))
    state.is_caught_up = (
        fetched.error_code == ErrorCode.none
        and fetched.diverging_epoch is None
        and state.partition.log_as_it_is.end_offset >= fetched.high_watermark
    )


def _records(fetched: FetchedPartition) -> memoryview:
    return memoryview(fetched.records or b"")  # type: ignore[arg-type]
