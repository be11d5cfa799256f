"""Sends the markers of transactions that have been decided to the leaders of their partitions.

`send` takes them when the decision is committed; `written` is called when each partition has its
marker, or is gone. To other brokers they go in WriteTxnMarkers requests, one in flight to each
broker, and the next contains all that has come up meanwhile; on this broker they are appended
directly. Temporary errors are retried as long as the coordinator wants the markers (hazard T11).
Invariant: `written` is called at most once for each `MarkersToSend`, and never before every
partition has its marker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.env.tasks import Tasks, cancel_and_wait
from suwi.metadata.image import ClusterImage
from suwi.metadata.store import Unavailable
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId, PartitionIndex, TopicPartition
from suwi.replica.partition_transactions import TxnMarker
from suwi.replica.peers import Peers
from suwi.transaction.transaction_metadata import MarkersToSend
from suwi.transaction.transaction_records import in_order
from suwi.wire.errors import MalformedResponse
from suwi.wire.versions import ApiKey

log = logging.getLogger(__name__)

_VERSION: Final = 2
_RESPONSE_S_MAX: Final = 10.0
_RETRY_S_MIN: Final = 0.05
_RETRY_S_MAX: Final = 1.0
_SYNC_S_MAX: Final = 5.0
_PARTITIONS_PER_REQUEST: Final = 1_000
"""The limit for one transaction, and about the limit for a request. So responses come in time
however many transactions end at once, and no request takes long to encode or to decode."""

_DROPPED: Final = frozenset(
    {
        ErrorCode.invalid_producer_epoch,  # A later epoch has written there.
        ErrorCode.invalid_topic_exception,  # It cannot have transactions.
        ErrorCode.unsupported_for_message_format,
    }
)
"""The partition needs no marker, or can have none."""
_EXPECTED: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.kafka_storage_error,
        ErrorCode.network_exception,
    }
)
"""Usual, temporary errors. Others are logged before the next attempt."""

Errors = dict[TopicPartition, ErrorCode]


AppendMarkers: TypeAlias = Callable[
    [Iterable[tuple[TxnMarker, Iterable[TopicPartition]]]], Awaitable[list[Errors]]
]
"""Appends to partitions of this broker: `TxnMarkers.append_all`."""


class Metadata(Protocol):
    @property
    def image(self) -> ClusterImage: ...

    async def synced(self, within_s: float | None = None) -> None: ...


class _Unwritten:
    """Markers of one transaction, all or a part of them, and the partitions that have none yet."""

    __slots__ = ("attempts", "coordinator_epoch", "left", "markers", "parts")

    def __init__(
        self,
        markers: MarkersToSend,
        coordinator_epoch: LeaderEpoch,
        partitions: Iterable[TopicPartition],
        parts: "dict[_Unwritten, None]",
    ) -> None:
        """`parts`: all of this transaction that are not written."""
        self.markers = markers
        self.coordinator_epoch = coordinator_epoch
        self.left: dict[TopicPartition, None] = dict.fromkeys(partitions)
        self.attempts = 0
        self.parts = parts
        parts[self] = None

    def fields(self, partitions: Sequence[TopicPartition]) -> dict[str, Any]:
        """The fields of these markers in a request."""
        topics: dict[str, list[int]] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, []).append(tp.partition)
        return {
            "producer_id": self.markers.producer.id,
            "producer_epoch": self.markers.producer.epoch,
            "transaction_result": self.markers.is_commit,
            "topics": [
                {"name": name, "partition_indexes": indexes} for name, indexes in topics.items()
            ],
            "coordinator_epoch": self.coordinator_epoch,
            "transaction_version": self.markers.transaction_version,
        }


_Queue = dict[_Unwritten, list[TopicPartition]]
_Batch = list[tuple[_Unwritten, list[TopicPartition]]]


def _first_part(batch: _Batch) -> tuple[_Batch, _Batch]:
    """Returns what goes into one request, and the rest."""
    partitions = 0
    for number, (_, led) in enumerate(batch, start=1):
        partitions += len(led)
        if partitions >= _PARTITIONS_PER_REQUEST:
            return batch[:number], batch[number:]
    return batch, []


@dataclass(eq=False)
class TransactionMarkers:
    _node_id: NodeId
    _metadata: Metadata
    _peers: Peers
    _append_markers: AppendMarkers
    _tasks: Tasks
    _is_wanted: Callable[[MarkersToSend], bool]
    """Whether this broker still has to write them."""
    _written: Callable[[MarkersToSend], None]
    _queues: dict[NodeId, _Queue] = field(default_factory=dict)
    """By broker what is to be sent to it next; at `NO_NODE` partitions that the image does not
    have."""
    _workers: dict[NodeId, asyncio.Task[None]] = field(default_factory=dict)
    _connections: dict[NodeId, PeerConnection] = field(default_factory=dict)
    _attempts: dict[NodeId, asyncio.Timeout] = field(default_factory=dict)
    """The time limit of the request in flight to each broker."""
    _appends: dict[asyncio.Task[None], None] = field(default_factory=dict)
    _is_stopped: bool = False

    def send(self, markers: MarkersToSend, coordinator_epoch: LeaderEpoch) -> None:
        # Not at once, because the coordinator is still in the event.
        asyncio.get_running_loop().call_soon(self._go_on, self._send(markers, coordinator_epoch))

    def _go_on(self, slices: Iterator[None]) -> None:
        for _ in slices:
            asyncio.get_running_loop().call_soon(self._go_on, slices)
            break

    def _send(self, markers: MarkersToSend, coordinator_epoch: LeaderEpoch) -> Iterator[None]:
        """In parts that are small enough for a slice each."""
        topics = yield from in_order(markers.partitions)
        ordered = (
            TopicPartition(name, PartitionIndex(index)) for name, of in topics for index in of
        )
        parts: dict[_Unwritten, None] = {}
        while (some := list(islice(ordered, _PARTITIONS_PER_REQUEST))) or not parts:
            if parts:
                yield
            _Unwritten(markers, coordinator_epoch, some, parts)
        for number, unwritten in enumerate(list(parts)):
            if number:
                yield
            self._route(unwritten, list(unwritten.left))

    def apply_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """Do not wait for the response of a broker that is gone."""
        if old.unfenced_brokers is new.unfenced_brokers:
            return
        now_s = asyncio.get_running_loop().time()
        for node, attempt in self._attempts.items():
            before, after = old.unfenced_brokers.get(node), new.unfenced_brokers.get(node)
            is_gone = before is not None and (after is None or after.epoch != before.epoch)
            if is_gone and not attempt.expired():
                attempt.reschedule(now_s)

    async def stop(self) -> None:
        self._is_stopped = True
        for connection in self._connections.values():
            connection.abort()
        await cancel_and_wait(*self._workers.values(), *self._appends)

    def _route(self, unwritten: _Unwritten, partitions: Iterable[TopicPartition]) -> None:
        """Give each partition to the broker that leads it now."""
        if self._is_stopped or not self._is_wanted(unwritten.markers):
            return
        if not unwritten.left:
            if unwritten in unwritten.parts:
                del unwritten.parts[unwritten]
                if not unwritten.parts:
                    self._written(unwritten.markers)
            return
        image = self._metadata.image
        by_broker: dict[NodeId, list[TopicPartition]] = {}
        without_leader: list[TopicPartition] = []
        for tp in partitions:
            if tp not in unwritten.left:
                continue  # Written by an attempt that failed only afterwards.
            state = image.partition(tp)
            if state is None:
                by_broker.setdefault(NO_NODE, []).append(tp)
            elif state.leader == NO_NODE:
                without_leader.append(tp)
            else:
                by_broker.setdefault(state.leader, []).append(tp)
        for node, led in by_broker.items():
            if node == self._node_id:
                self._append_here(unwritten, led)
            else:
                self._queues.setdefault(node, {}).setdefault(unwritten, []).extend(led)
                self._start(node)
        if without_leader:
            self._retry(unwritten, without_leader)

    def _retry(self, unwritten: _Unwritten, partitions: list[TopicPartition]) -> None:
        delay_s = min(_RETRY_S_MIN * 2 ** min(unwritten.attempts, 10), _RETRY_S_MAX)
        unwritten.attempts += 1
        asyncio.get_running_loop().call_later(delay_s, self._route, unwritten, partitions)

    def _settle(
        self, unwritten: _Unwritten, partitions: Sequence[TopicPartition], errors: Errors
    ) -> None:
        """What became of the markers of these partitions."""
        to_retry = []
        for tp in partitions:
            error = errors.get(tp, ErrorCode.unknown_server_error)
            if error is ErrorCode.none:
                unwritten.left.pop(tp, None)
            elif error in _DROPPED:
                self._log("transaction marker not needed", unwritten, tp, error)
                unwritten.left.pop(tp, None)
            else:
                if error not in _EXPECTED:
                    self._log("transaction marker failed", unwritten, tp, error)
                to_retry.append(tp)
        if to_retry:
            self._retry(unwritten, to_retry)
        elif not unwritten.left:
            self._route(unwritten, ())

    def _log(
        self, message: str, unwritten: _Unwritten, tp: TopicPartition, error: ErrorCode
    ) -> None:
        log.warning(
            message,
            extra={
                "transactional_id": unwritten.markers.transactional_id,
                "partition": str(tp),
                "reason": error.name,
            },
        )

    # -- this broker -----------------------------------------------------------------------------

    def _append_here(self, unwritten: _Unwritten, partitions: list[TopicPartition]) -> None:
        async def append() -> None:
            markers = unwritten.markers
            marker = TxnMarker(
                *markers.producer,
                unwritten.coordinator_epoch,
                markers.is_commit,
                markers.transaction_version,
            )
            (errors,) = await self._append_markers([(marker, partitions)])
            self._settle(unwritten, partitions, errors)

        def failed(_error: Exception) -> None:
            self._retry(unwritten, partitions)

        task = self._tasks.start(append, name="transaction markers", on_failure=failed)
        self._appends[task] = None
        task.add_done_callback(lambda done: self._appends.pop(done, None))

    # -- other brokers ---------------------------------------------------------------------------

    def _start(self, node: NodeId) -> None:
        if node not in self._workers:

            async def work() -> None:
                await self._empty_queue(node)

            def failed(_error: Exception) -> None:
                del self._workers[node]
                if self._queues.get(node):
                    self._start(node)

            self._workers[node] = self._tasks.start(
                work, name="transaction markers", on_failure=failed
            )

    async def _empty_queue(self, node: NodeId) -> None:
        while queue := self._queues.pop(node, None):
            batch = [
                (unwritten, partitions)
                for unwritten, partitions in queue.items()
                if self._is_wanted(unwritten.markers)
            ]
            while batch:
                part, batch = _first_part(batch)
                try:
                    await self._write(node, part)
                except Exception:
                    for unwritten, partitions in [*part, *batch]:
                        self._retry(unwritten, partitions)
                    raise
        del self._workers[node]

    async def _write(self, node: NodeId, batch: _Batch) -> None:
        if node == NO_NODE:
            await self._drop_deleted(batch)
            return
        errors: dict[int, Errors] = {}
        try:
            async with asyncio.timeout(_RESPONSE_S_MAX) as self._attempts[node]:
                connection = await self._connect(node)
                fields = {"markers": [unwritten.fields(led) for unwritten, led in batch]}
                answer = await connection.call(ApiKey.WRITE_TXN_MARKERS, _VERSION, fields)
            for marker in answer.markers:
                of_producer = errors.setdefault(marker.producer_id, {})
                for topic in marker.topics:
                    for each in topic.partitions:
                        tp = TopicPartition(topic.name, PartitionIndex(each.partition_index))
                        of_producer[tp] = each.error_code
        except (OSError, MalformedResponse, BrokerError) as error:
            self._disconnect(node)
            log.info("transaction markers not sent", extra={"broker": node, "reason": str(error)})
            lost = ErrorCode.network_exception
            errors = {u.markers.producer.id: dict.fromkeys(led, lost) for u, led in batch}
        finally:
            del self._attempts[node]
        for unwritten, partitions in batch:
            found = errors.get(unwritten.markers.producer.id, {})
            self._settle(unwritten, partitions, found)

    async def _drop_deleted(self, batch: list[tuple[_Unwritten, list[TopicPartition]]]) -> None:
        """A topic that is missing even in the newest image has been deleted; an older image may
        not have it yet (KAFKA-9749)."""
        try:
            await self._metadata.synced(_SYNC_S_MAX)
        except Unavailable:
            image = None
        else:
            image = self._metadata.image
        for unwritten, partitions in batch:
            for tp in partitions:
                if image is not None and image.partition(tp) is None:
                    log.info("no transaction marker: topic deleted", extra={"partition": str(tp)})
                    unwritten.left.pop(tp, None)
            left = [tp for tp in partitions if tp in unwritten.left]
            if left:
                self._retry(unwritten, left)
            elif not unwritten.left:
                self._route(unwritten, ())

    async def _connect(self, node: NodeId) -> PeerConnection:
        connection = self._connections.get(node)
        if connection is None or not connection.is_open:
            connection = self._connections[node] = await self._peers.connect(node)
        return connection

    def _disconnect(self, node: NodeId) -> None:
        connection = self._connections.pop(node, None)
        if connection is not None:
            connection.abort()
