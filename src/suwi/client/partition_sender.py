"""Sends the batches of one partition to its leader, in order, one at a time.

Records enter at `add`; a task sends the waiting batches and ends when there are none. While a batch
is in flight the next ones fill up, so a slow broker gets larger batches, not more requests.
Invariant: a batch of an idempotent producer is retried only with the same sequence, unless it is
certain that no attempt was stored.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from suwi.client.cluster import Cluster, Place
from suwi.client.delivery import Delivery, OutgoingBatch
from suwi.client.errors import error_from, is_transient
from suwi.client.identity import NO_IDENTITY, Identities, Identity
from suwi.client.retry import Retry
from suwi.env.tasks import cancel_and_wait, wait_for_event
from suwi.model.errors import (
    BrokerError,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    OutOfOrderSequence,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownProducerId,
)
from suwi.model.ids import NO_OFFSET, NO_SEQUENCE, NO_TIMESTAMP, NO_TOPIC_ID, TopicPartition
from suwi.records.batch import SEQUENCE_MAX
from suwi.records.builder import build_batch
from suwi.records.compression import Compression
from suwi.records.record import Record
from suwi.wire.produce import PartitionProduced, decode_produce_response, encode_produce_request
from suwi.wire.versions import ApiKey

_TOPIC_IDS_FROM = 13
_ACKS_NONE = 0
# These errors are raised before the append. Any other error may come after it: a leader that is
# deposed while a batch waits for its commit responds NOT_LEADER, and its successor may have the
# batch.
_NOT_STORED = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_record,
        ErrorCode.invalid_required_acks,
        ErrorCode.invalid_timestamp,
        ErrorCode.invalid_topic_exception,
        ErrorCode.message_too_large,
        ErrorCode.not_enough_replicas,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.record_list_too_large,
        ErrorCode.topic_authorization_failed,
        ErrorCode.unknown_producer_id,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unsupported_compression_type,
    }
)
# The broker has lost its state of this producer, or of its last batch.
_PRODUCER_STATE_LOST = (OutOfOrderSequence, UnknownProducerId, InvalidProducerEpoch)
# Raised before the append because of a record, so the sequence is not used.
_INVALID_RECORD = (MessageTooLarge, RecordListTooLarge, InvalidRecord, InvalidTimestamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    acks: int = -1
    """-1 is all; only then the producer is idempotent."""
    codec: Compression = Compression.NONE
    batch_bytes: int = 128 * 1024
    """A batch of this size is complete."""
    linger_s: float = 0
    """How long a batch waits for more records."""
    buffer_bytes: int = 32 * 1024 * 1024
    """`send` waits while more bytes than this are buffered."""
    delivery_timeout_s: float = 120
    """No attempt to send a batch begins later than this after its first record was added. The last
    one may end later, within the timeouts of connections and requests."""
    request_timeout_s: float = 30

    @property
    def is_idempotent(self) -> bool:
        return self.acks == -1


@dataclass(eq=False, repr=False)
class PartitionSender:
    _cluster: Cluster
    _identities: Identities
    _settings: ProducerSettings
    partition: TopicPartition
    _on_done: Callable[[OutgoingBatch], None]
    _waiting: deque[OutgoingBatch] = field(default_factory=deque)
    _batch_completed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a batch is complete, which ends the linger time."""
    _identity: Identity | None = None
    _used_up_identity: Identity | None = None
    _next_sequence: int = 0
    _task: asyncio.Task[None] | None = None

    def begins_batch_with(self, size_bytes: int) -> bool:
        """Whether a record of this size would start a new batch."""
        last = self._waiting[-1] if self._waiting else None
        if last is None or last.is_complete:
            return True
        return last.size_bytes + size_bytes > self._settings.batch_bytes

    def add(self, record: Record, size_bytes: int) -> tuple[Delivery, bool]:
        """Add a record to the last or a new batch. Also returns whether that batch is complete."""
        if self.begins_batch_with(size_bytes):
            if self._waiting:
                self._complete(self._waiting[-1])
            now_s = asyncio.get_running_loop().time()
            deadline_s = now_s + self._settings.delivery_timeout_s
            self._waiting.append(OutgoingBatch(self.partition, deadline_s))
        last = self._waiting[-1]
        delivery = last.add(record, size_bytes)
        if last.size_bytes >= self._settings.batch_bytes:
            self._complete(last)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._send_all()
            )  # owner: deliveries
        return delivery, last.is_complete

    def _complete(self, batch: OutgoingBatch) -> None:
        batch.is_complete = True
        self._batch_completed.set()

    async def finish(self) -> None:
        """Return when all batches are done; the linger time is cut short."""
        while self._task is not None and not self._task.done():
            for batch in self._waiting:
                self._complete(batch)
            await asyncio.wait([self._task])

    async def abort(self) -> None:
        """Fail all batches that are not done."""
        if self._task is not None and not self._task.done():
            await cancel_and_wait(self._task)

    async def _send_all(self) -> None:
        in_flight: OutgoingBatch | None = None
        try:
            while self._waiting:
                await self._linger()
                in_flight = self._waiting.popleft()
                in_flight.is_complete = True
                await self._deliver(in_flight)
                self._on_done(in_flight)
                in_flight = None
        finally:
            # Batches are left only if the task was cancelled.
            for batch in ([in_flight] if in_flight else []) + list(self._waiting):
                if not batch.done.is_set():
                    batch.fail(RequestTimedOut("the producer was closed before delivery"))
                self._on_done(batch)
            self._waiting.clear()

    async def _linger(self) -> None:
        if self._waiting[0].is_complete or self._settings.linger_s <= 0:
            return
        self._batch_completed.clear()
        await wait_for_event(self._batch_completed, self._settings.linger_s)

    # -- one batch -------------------------------------------------------------------------------

    async def _deliver(self, batch: OutgoingBatch) -> None:
        """Send a batch until it is stored, fails permanently, or times out."""
        left_s = batch.deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            # It was never sent, so it has no sequence.
            timeout_s = self._settings.delivery_timeout_s
            self._fail(batch, RequestTimedOut(f"not sent within {timeout_s:g} s"))
            return
        retry = Retry(self._cluster.settings, self._cluster.random, retry_timeout_s=left_s)
        while True:
            try:
                produced = await self._attempt(batch)
            except _INVALID_RECORD as error:
                if len(batch.records) == 1 or batch.may_be_stored:
                    self._fail(batch, error)
                else:
                    await self._deliver_halves(batch)
                return
            except Exception as error:
                try:
                    self._prepare_retry(batch, error)
                    await retry.pause_or_raise(error)
                except Exception as final:
                    self._fail(batch, final)
                    return
            else:
                self._next_sequence = (self._next_sequence + len(batch.records)) & SEQUENCE_MAX
                batch.finish(produced.base_offset, produced.log_append_time_ms)
                return

    async def _deliver_halves(self, batch: OutgoingBatch) -> None:
        """A record of the batch is invalid: split the batch so that the others are stored."""
        for half in batch.split():
            await self._deliver(half)
        batch.end()

    def _prepare_retry(self, batch: OutgoingBatch, error: Exception) -> None:
        """Prepare the next attempt. Raises the error if there must be none."""
        self._cluster.mark_stale(self.partition.topic)
        if (
            isinstance(error, _PRODUCER_STATE_LOST)
            and not batch.may_be_stored
            and self._identity is not None
            and self._identities.transactional_id is None
        ):
            # No attempt was stored: the batch may be sent with a new producer id and sequence.
            self._drop_identity()
            batch.encoded = None
        elif not is_transient(error):
            raise error

    def _fail(self, batch: OutgoingBatch, error: Exception) -> None:
        # If the broker may have used this sequence, the next one is unknown.
        is_sequence_known = not batch.may_be_stored or self._identity is None
        if not is_sequence_known:
            self._drop_identity()
        self._identities.failed(error, is_sequence_known=is_sequence_known)
        batch.fail(error)

    def _drop_identity(self) -> None:
        self._used_up_identity, self._identity = self._identity, None

    async def _attempt(self, batch: OutgoingBatch) -> PartitionProduced:
        """Send a batch once. Raises the leader's error or the connection's."""
        await self._identities.admit(self.partition)
        link, place = await self._cluster.leader(self.partition)
        if batch.encoded is None:
            await self._encode(batch)
        assert batch.encoded is not None
        at_most = self._identities.produce_version_max
        if at_most is None and place.topic.id == NO_TOPIC_ID:
            at_most = _TOPIC_IDS_FROM - 1
        version = link.version(ApiKey.PRODUCE, at_most=at_most)
        body = self._request(version, place, batch.encoded)
        if self._settings.acks == _ACKS_NONE:
            await link.send_unanswered(ApiKey.PRODUCE, version, body)
            return PartitionProduced(self.partition.partition)
        was_maybe_stored, batch.may_be_stored = batch.may_be_stored, True
        timeout_s = self._settings.request_timeout_s
        answer = await link.send(ApiKey.PRODUCE, version, body, timeout_s=timeout_s + 5)
        produced = decode_produce_response(version, answer).topics[0].partitions[0]
        code = produced.error_code
        if code == ErrorCode.duplicate_sequence_number:  # stored by an earlier attempt
            return produced._replace(base_offset=NO_OFFSET, log_append_time_ms=NO_TIMESTAMP)
        batch.may_be_stored = was_maybe_stored or (code != 0 and code not in _NOT_STORED)
        if code:
            raise self._refusal(produced)
        return produced

    def _refusal(self, produced: PartitionProduced) -> BrokerError:
        message = produced.error_message
        for record_error in produced.record_errors:
            message = record_error.message or message
        return error_from(produced.error_code, message)

    def _request(self, version: int, place: Place, encoded: bytearray) -> list[bytes | memoryview]:
        records = [(int(self.partition.partition), encoded)]
        return encode_produce_request(
            version,
            self._identities.transactional_id,
            self._settings.acks,
            int(self._settings.request_timeout_s * 1000),
            [(self.partition.topic, place.topic.id, records)],
        )

    async def _encode(self, batch: OutgoingBatch) -> None:
        identity, sequence = NO_IDENTITY, NO_SEQUENCE
        if self._settings.is_idempotent:
            if self._identity is None or self._identity != self._identities.current:
                self._identity = await self._identities.other_than(self._used_up_identity)
                self._next_sequence = 0
            identity, sequence = self._identity, self._next_sequence
        batch.encoded = build_batch(
            batch.records,
            codec=self._settings.codec,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            transactional=self._identities.transactional_id is not None,
        )
