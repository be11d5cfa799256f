"""Produce v3-v13. Responds after acks. v7: zstd. v8: record errors. v13: topic ids. v11:
TRANSACTION_ABORTABLE. v12: the first write adds its partition to the transaction (KIP-890).

A request is a list of batches, one for each partition (`Batch`). They are decoded, their partitions
are looked up, they are appended (`_append`), and the response waits for their commit. Each batch is
validated and appended separately (`_append_one`): an error of one does not affect the others. Every
error is noted in `refused_batches`, so that a producer's next batches do not overtake either.

Before its append a batch may have to wait: for its log to be opened, for a thread that converts it,
for the verification of its transaction. Such a request, and one that is large, is copied and takes
the same steps in pieces (`_append_pieces`): others run between two pieces, and leaders may change.
A piece waits for its commit from its append on, so that it notices a change. No further request of
the connection starts before all pieces are appended. They are appended even if the client
disconnects meanwhile: with acks=0 it may send and close.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.client.errors import error_from
from suwi.env import Clock
from suwi.env.slices import run_to_end
from suwi.env.tasks import loop_s
from suwi.handlers.authorization import on_transactional_id, refusal
from suwi.handlers.leader_hints import hinted_endpoints, leader_hint
from suwi.handlers.refused_batches import RefusedBatches
from suwi.handlers.slices import Sliced
from suwi.handlers.verification import PRODUCE_ADDS_FROM, produce_refusal
from suwi.metadata.image import ClusterImage
from suwi.model.errors import (
    BrokerError,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopic,
    InvalidTxnState,
    KafkaStorageError,
    NetworkException,
    RejectedRecords,
    TransactionalIdAuthorizationFailed,
    error_of,
)
from suwi.model.ids import Offset, TopicPartition
from suwi.model.topic_names import INTERNAL_TOPICS
from suwi.net.answers import (
    NO_REPLY,
    Answer,
    CloseConnection,
    Exclusive,
    Later,
    NoReply,
    Outcome,
    Promise,
    Reply,
)
from suwi.net.buffer_pool import KeptBytes
from suwi.net.dispatch import Request
from suwi.net.fair_turns import SliceTurns
from suwi.net.large_requests import items_of
from suwi.records.batch import FLAGS_AT, TRANSACTIONAL_BIT, BatchHeader, read_header
from suwi.replica.log_validator import (
    ValidationRules,
    convert,
    needs_records,
    stamped,
    takes_long,
    validate,
)
from suwi.replica.partition import Partition
from suwi.replica.partition_transactions import NOT_VERIFIED, VerificationGuard
from suwi.replica.replica_log import wait_until_ready
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import Operation, ResourceType
from suwi.security.authorizer import Authorizer
from suwi.transaction.transaction_verifier import TransactionVerifier
from suwi.wire.errors import MalformedRequest
from suwi.wire.leaders import CurrentLeader
from suwi.wire.produce import (
    SLICE_ITEMS,
    PartitionProduced,
    ProduceParts,
    ProduceTopic,
    RecordError,
    TopicProduced,
    decode_plain_request,
    decode_small_request,
    decoding_produce_request,
    encode_produce_response,
    encode_produced_one,
    throttle_at,
)

_ACKS_NONE = 0
_ACKS_ALL = -1
_COMPACT_FROM = 9
_LEADER_HINTS_FROM = 10
# Threads compete with the event loop for the CPU, and each may hold a large decompressed batch.
_CONVERSIONS_MAX = 2
_NO_TIME = -1
_THROTTLE_AT = throttle_at(_COMPACT_FROM)
_READY_TIMEOUT_S_MAX = 10.0
PIECE_BYTES = 4 * 1024 * 1024
"""A few milliseconds for the checksums and for writing them."""
_NO_TRANSACTION: Final = VerificationGuard(-1, -1, -1, is_implicit=False)
"""In place of a guard: the request has no transactional id."""
_NO_TRANSACTIONAL_ID: Final = "a transactional batch without a transactional id"


@dataclass(slots=True, eq=False, repr=False)
class Batch:
    """One partition's batch of a request, on its way to the log and to its answer."""

    topic: str | UUID
    """As the request names it."""
    index: int
    records: memoryview | None
    """A slice of the request, valid up to the append."""
    partition: Partition | None = None
    """As it was looked up last; None if there is a problem."""
    denied: BrokerError | None = None
    """Why its client may not write it."""
    problem: BrokerError | None = None
    """Why it cannot be appended, if that is known before the append."""
    converted: memoryview | BrokerError | None = None
    """What a thread has made of the records."""
    verified: VerificationGuard | BrokerError | None = _NO_TRANSACTION
    """Its guard, why it is refused, or None if its transaction is open already."""
    refusal: PartitionProduced | None = None
    """The answer if it is not appended or not committed."""
    header: BatchHeader = field(init=False)
    base_offset: Offset = field(init=False)
    end_offset: Offset = field(init=False)
    time_ms: int = field(init=False)
    """The log append time, -1 if the topic uses that of the producer."""
    start_offset: Offset = field(init=False)
    """The log start offset. These five are set when the batch is appended."""

    def produced(self) -> PartitionProduced:
        if self.refusal is not None:
            return self.refusal
        return PartitionProduced(self.index, 0, self.base_offset, self.time_ms, self.start_offset)


_Topics: TypeAlias = Sequence[tuple[str | None, UUID | None, int]]
"""The topics of a request, in order, with the number of their batches."""


class _Piece(NamedTuple):
    """A part of a large request that has been appended."""

    topics: _Topics
    batches: list[Batch]
    committed: Promise | None
    """Kept without a reply, when the answers of the batches are final."""


_Pieces: TypeAlias = list[_Piece] | CloseConnection
"""What is answered after the append."""


class Produce:
    def __init__(
        self, replicas: ReplicaManager, clock: Clock, verifier: TransactionVerifier | None = None
    ) -> None:
        """Without a verifier there are no transactions."""
        self._replicas = replicas
        self._clock = clock
        self._verifier = verifier
        self._converting = asyncio.Semaphore(_CONVERSIONS_MAX)
        self._refused = RefusedBatches()
        self._appending: set[asyncio.Task[_Pieces]] = set()

    def __call__(self, request: Request) -> Answer:
        version, body = request.version, request.body
        plain = decode_plain_request(version, body) if version >= _COMPACT_FROM else None
        if plain is not None:
            transactional_id = None
            acks, timeout_ms, name, topic_id, index, records = plain
            topics: _Topics = ((name, topic_id, 1),)
            batches = [Batch(_named(name, topic_id), index, records)]
        else:
            asked = decode_small_request(version, body)
            if asked is None:
                return self._answer_in_pieces(request, has_many_items=True)
            transactional_id, acks, timeout_ms, asked_topics = asked
            topics, batches = _batches_of(asked_topics)
        authorizer = request.authorizer
        if authorizer is not None:
            held = request.connection.writes_to
            if (
                plain is None
                or held.rules != authorizer.acls.number
                or batches[0].topic not in held.topics
            ):  # mostly it is known: no call
                self._authorize(request, authorizer, batches, transactional_id)
        if len(body) > PIECE_BYTES or self._must_wait(batches, version, transactional_id):
            return self._answer_in_pieces(request)
        waiting = self._append(batches, acks, timeout_ms, request)
        if acks == _ACKS_NONE:
            refusal = _refusal_with_acks_0(batches)
            if refusal is not None:
                raise refusal
            return NO_REPLY
        if not waiting:
            return self._reply(version, request.client.listener, topics, batches)
        answer = partial(self._reply, version, request.client.listener, topics, batches)
        return Later(self._delay(answer, waiting, acks, timeout_ms))

    # -- before the append ---------------------------------------------------------------------

    def _authorize(
        self,
        request: Request,
        authorizer: Authorizer,
        batches: list[Batch],
        transactional_id: str | None,
    ) -> None:
        """Note which batches the client may not write."""
        writes_to, acls = request.connection.writes_to, authorizer.acls
        refused: BrokerError | None = None
        # Without an id the append refuses what is transactional.
        if transactional_id is not None and any(map(_is_transactional, batches)):
            refused = on_transactional_id(request, Operation.WRITE, transactional_id)
        for batch in batches:
            name = batch.topic
            if refused is None and writes_to.have(name, acls):
                continue
            batch.denied = refused
            if isinstance(name, UUID):
                known = self._replicas.image.topics_by_id.get(name)
                if known is None:
                    continue  # UNKNOWN_TOPIC_ID
                name = known.name
            if refused is None:
                batch.denied = refusal(
                    request, Operation.WRITE, ResourceType.TOPIC, name, batch.topic
                )
                if batch.denied is None and name in self._replicas.image.topics:
                    writes_to.add(batch.topic, acls)

    def _must_wait(self, batches: list[Batch], version: int, transactional_id: str | None) -> bool:
        """Look up the partitions. Returns whether a batch must wait before its append."""
        for batch in batches:
            try:
                partition = batch.partition = self._partition(batch)
            except BrokerError as error:
                batch.problem = error
                continue
            if partition.replica_log.ready_log is None and not _is_ready(batch, partition):
                return True
            if partition.validation_rules.reads_records and _takes_long(batch, partition):
                return True
        if transactional_id is None:
            return False
        verification = self._verification(version, transactional_id)
        return verification is not None and verification.begin(batches)

    async def _wait(
        self,
        batches: list[Batch],
        version: int,
        timeout_ms: int,
        verification: "ProduceVerification | None",
    ) -> None:
        """Wait for everything that `_must_wait` asks about. Leaders may change meanwhile."""
        # A batch that is refused because its log is not open would leave the next ones out of
        # order.
        found = [(batch, self._find(batch)) for batch in batches]
        logs = [each.replica_log for batch, each in found if each and not _is_ready(batch, each)]
        if logs:
            await wait_until_ready(logs, min(timeout_ms / 1000, _READY_TIMEOUT_S_MAX))
        for batch in batches:
            partition = self._find(batch)
            if partition is not None and _takes_long(batch, partition):
                await self._convert(batch, partition.validation_rules, version)
        if verification is not None and verification.begin(batches):
            await verification.finish()
        for batch in batches:
            self._find(batch)

    def _find(self, batch: Batch) -> Partition | None:
        partition = batch.problem = None
        try:
            partition = self._partition(batch)
        except BrokerError as error:
            batch.problem = error
        batch.partition = partition
        return partition

    def _partition(self, batch: Batch) -> Partition:
        if batch.denied is not None:
            raise batch.denied
        name = batch.topic
        if isinstance(name, UUID):
            name = self._replicas.topic_name(name)
        if name in INTERNAL_TOPICS:
            raise InvalidTopic(f"clients must not write to the internal topic {name}")
        return self._replicas.leader_of(name, batch.index)

    def _verification(
        self, version: int, transactional_id: str | None
    ) -> "ProduceVerification | None":
        if transactional_id is None or self._verifier is None:
            return None
        return ProduceVerification(version, transactional_id, self._verifier, self._partition)

    async def _convert(self, batch: Batch, rules: ValidationRules, version: int) -> None:
        """Convert in a thread what takes long."""
        assert batch.records is not None
        records, now_ms = batch.records, self._clock.now_ms()
        try:
            header = validate(rules, records, now_ms=now_ms, produce_version=version)
            async with self._converting:
                batch.converted = await asyncio.get_running_loop().run_in_executor(
                    None, convert, rules, records, header
                )
        except BrokerError as error:
            batch.converted = error

    # -- the append ----------------------------------------------------------------------------

    def _append(
        self, batches: list[Batch], acks: int, timeout_ms: int, request: Request
    ) -> list[Batch]:
        """Append or refuse every batch. Returns those whose answer must wait."""
        now_ms, version = self._clock.now_ms(), request.version
        waiting: list[Batch] = []
        for batch in batches:
            try:
                if acks not in (-1, 0, 1):
                    raise InvalidRequiredAcks(f"acks must be -1, 0 or 1, not {acks}")
                partition = batch.partition
                if batch.problem is not None:
                    _resign_without_log(partition, batch.problem)
                    raise batch.problem
                assert partition is not None
                end_offset = self._append_one(batch, partition, acks, version, now_ms)
                if not partition.is_committed(end_offset) and partition.must_wait(acks):
                    waiting.append(batch)
                if partition.watched_by is not None:
                    wait_ms = timeout_ms if waiting and waiting[-1] is batch else None
                    partition.watched_by.sent(
                        request.client_id, acks, batch.base_offset, end_offset, wait_ms
                    )
            except Exception as error:
                if batch.partition is not None and batch.partition.watched_by is not None:
                    batch.partition.watched_by.refused(request.client_id, acks, error)
                if batch.denied is None:  # Nobody holds back what others may write.
                    place = batch.topic, batch.index
                    self._refused.note_error(place, batch.records, error, loop_s())
                batch.refusal = _refused(batch.index, error)
            # The bytes are not valid later; an error's traceback would hold them in a cycle.
            batch.records = batch.converted = batch.problem = None
        return waiting

    def _append_one(
        self, batch: Batch, partition: Partition, acks: int, version: int, now_ms: int
    ) -> Offset:
        """Validate and append one batch. Raises a `BrokerError` if nothing was appended."""
        if acks == _ACKS_ALL:
            partition.check_enough_replicas()
        records = batch.records
        if not records:
            raise InvalidRecord("a produce request must have one batch for each partition")
        rules = partition.validation_rules
        header = validate(rules, records, now_ms=now_ms, produce_version=version)
        is_transactional = header.attributes & TRANSACTIONAL_BIT
        if not rules.keeps_as_is:
            records, header = _as_stored(rules, records, header, now_ms, batch.converted)
        check = None
        if self._refused.by_producer:
            place = batch.topic, batch.index
            if self._refused.may_hold_back(place, header):
                check = partial(self._refused.check, place, header, loop_s())
        if not is_transactional:
            base_offset, last_offset, _ = partition.append(records, header, now_ms, check)
        elif isinstance(batch.verified, BrokerError):
            raise batch.verified
        elif batch.verified is _NO_TRANSACTION:
            raise TransactionalIdAuthorizationFailed(_NO_TRANSACTIONAL_ID)
        else:
            try:
                base_offset, last_offset, _ = partition.transactions.append(
                    records, header, now_ms, batch.verified, check
                )
            except InvalidTxnState as error:
                raise produce_refusal(error.code, version) from error
        batch.header = header
        batch.base_offset = base_offset
        batch.end_offset = end_offset = Offset(last_offset + 1)
        batch.time_ms = now_ms if rules.stamps else _NO_TIME
        batch.start_offset = partition.log_as_it_is.start_offset
        return end_offset

    # -- after the append ----------------------------------------------------------------------

    def _delay(
        self,
        answer: Callable[[], Reply | NoReply],
        waiting: list[Batch],
        acks: int,
        timeout_ms: int,
    ) -> Promise:
        delayed = DelayedProduce(answer, self._refuse_uncommitted)
        return delayed.promise_of(waiting, timeout_ms / 1000, committed=acks == _ACKS_ALL)

    def _refuse_uncommitted(self, batch: Batch, error: BrokerError) -> None:
        self._refused.note((batch.topic, batch.index), batch.header, loop_s())
        batch.refusal = _refused(batch.index, error)

    def _reply(self, version: int, listener: str, topics: _Topics, batches: list[Batch]) -> Reply:
        if len(batches) == 1 and version >= _COMPACT_FROM and batches[0].refusal is None:
            (one,) = batches
            body = encode_produced_one(
                one.topic, one.index, one.base_offset, one.time_ms, one.start_offset
            )
            return Reply([body], throttle_at=_THROTTLE_AT)
        if version < _LEADER_HINTS_FROM or not any(batch.refusal for batch in batches):
            body = encode_produce_response(version, _answers(topics, batches))
            return Reply([body], throttle_at=throttle_at(version))
        return run_to_end(self._replying(version, listener, [(topics, batches)]))

    def _replying(
        self, version: int, listener: str, pieces: list[tuple[_Topics, list[Batch]]]
    ) -> Sliced:
        """The reply in slices, one for each piece."""
        parts = ProduceParts(version)
        hints: set[CurrentLeader | None] = set()
        image = self._replicas.image
        pieces.reverse()
        while pieces:  # What is encoded is freed slice by slice, too.
            answers = _answers(*pieces.pop())
            if version >= _LEADER_HINTS_FROM:
                answers = [_with_hints(image, topic, hints) for topic in answers]
            parts.add(answers)
            yield
        endpoints = hinted_endpoints(image, listener, hints)
        return Reply([parts.encode(endpoints)], throttle_at=throttle_at(version, endpoints))

    # -- in pieces -----------------------------------------------------------------------------

    def _answer_in_pieces(self, request: Request, *, has_many_items: bool = False) -> Exclusive:
        loop, slices = asyncio.get_running_loop(), request.connection.slices
        kept = request.connection.keep(request.body)
        items = items_of(len(kept.view)) if has_many_items else 0
        appended = loop.create_future()
        appending = loop.create_task(  # owner: this handler
            self._append_pieces(kept, request, appended, items)
        )
        self._appending.add(appending)
        appending.add_done_callback(self._appending.discard)
        appending.add_done_callback(lambda _: kept.release())  # also if it has not begun
        form = request.version, request.client.listener
        return Exclusive(self._reply_in_slices(appending, form, slices, appended), until=appended)

    async def _append_pieces(
        self,
        kept: KeptBytes,
        request: Request,
        appended: asyncio.Future[None],
        items: int,
    ) -> _Pieces:
        """`items`: how many the request may have, if they are many. No pieces: acks=0."""
        version, slices = request.version, request.connection.slices
        pieces: list[_Piece] = []
        refusal: CloseConnection | None = None
        share = await slices.large_requests.acquire(items)
        try:
            asked = await slices.run(decoding_produce_request(version, kept.view))
            share.reduce(sum([1 + len(partitions) for _, _, partitions in asked.topics]))
            transactional_id, acks, timeout_ms, _ = asked
            verification = self._verification(version, transactional_id)
            for number, topics in enumerate(pieces_of(asked.topics)):
                if number:
                    await slices.next()
                sizes, batches = _batches_of(topics)
                if request.authorizer is not None:
                    self._authorize(request, request.authorizer, batches, transactional_id)
                await self._wait(batches, version, timeout_ms, verification)
                waiting = self._append(batches, acks, timeout_ms, request)
                if acks == _ACKS_NONE:
                    refusal = refusal or _refusal_with_acks_0(batches)
                    continue
                committed = None
                if waiting:
                    committed = self._delay(lambda: NO_REPLY, waiting, acks, timeout_ms)
                pieces.append(_Piece(sizes, batches, committed))
        except MalformedRequest as error:
            return CloseConnection(str(error))
        finally:
            share.release()
        if pieces:
            appended.set_result(None)  # The next request may start.
        return refusal or pieces

    async def _reply_in_slices(
        self,
        appending: "asyncio.Task[_Pieces]",
        form: tuple[int, str],
        slices: SliceTurns,
        appended: "asyncio.Future[None]",
    ) -> Reply | NoReply:
        """`form`: the version of the request and its listener."""
        await asyncio.wait([appending])  # It goes on if this reply is cancelled.
        pieces = appending.result()
        if isinstance(pieces, CloseConnection):
            raise pieces
        if not pieces:
            appended.set_result(None)
            return NO_REPLY
        waiting = [piece.committed for piece in pieces if piece.committed is not None]
        try:
            for committed in waiting:
                await committed
        except asyncio.CancelledError:
            for committed in waiting:
                committed.cancel()
            raise
        if len(pieces) == 1:
            return self._reply(*form, pieces[0].topics, pieces[0].batches)
        answers = [piece[:2] for piece in pieces]
        pieces.clear()
        return await slices.run(self._replying(*form, answers))


def _batches_of(asked: list[ProduceTopic]) -> tuple[_Topics, list[Batch]]:
    topics, batches = [], []
    for name, topic_id, partitions in asked:
        topics.append((name, topic_id, len(partitions)))
        for index, records in partitions:
            batches.append(Batch(_named(name, topic_id), index, records))
    return topics, batches


def _named(name: str | None, topic_id: UUID | None) -> str | UUID:
    if name is not None:
        return name
    assert topic_id is not None
    return topic_id


def _answers(topics: _Topics, batches: list[Batch]) -> list[TopicProduced]:
    each = iter(batches)
    return [
        TopicProduced(name, topic_id, [batch.produced() for batch in islice(each, size)])
        for name, topic_id, size in topics
    ]


def pieces_of(asked: list[ProduceTopic]) -> Iterator[list[ProduceTopic]]:
    """The same topics in pieces of at most `SLICE_ITEMS` and, if they have several partitions, at
    most `PIECE_BYTES`. A topic may be continued in the next piece."""
    topics: list[ProduceTopic] = []
    items = size_bytes = 0
    for name, topic_id, partitions in asked:
        start = 0
        for number, (_, records) in enumerate(partitions):
            batch_bytes = len(records) if records is not None else 0
            if items >= SLICE_ITEMS or (items and size_bytes + batch_bytes > PIECE_BYTES):
                if number > start:
                    topics.append((name, topic_id, partitions[start:number]))
                yield topics
                topics, start = [], number
                items = size_bytes = 0
            items += 1
            size_bytes += batch_bytes
        topics.append((name, topic_id, partitions[start:]))
        items += 1
    yield topics


class DelayedProduce:
    """A reply that waits for batches: with acks=all for their commit, with acks=1 and
    flush.messages=1 for the sync of the leader. It has no task."""

    __slots__ = ("_answer", "_pending", "_promise", "_refuse")

    def __init__(
        self,
        answer: Callable[[], Reply | NoReply],
        refuse: Callable[[Batch, BrokerError], None],
    ) -> None:
        """`refuse` is called for each batch that fails; `answer` after the last of all."""
        self._answer = answer
        self._refuse = refuse
        self._pending: set[Batch] = set()
        self._promise = Promise(self._disconnected)

    def promise_of(self, batches: list[Batch], timeout_s: float, *, committed: bool) -> Promise:
        self._pending.update(batches)
        for batch in batches:
            partition = batch.partition
            assert partition is not None
            wait = partition.when_committed if committed else partition.replica_log.when_synced
            wait(batch.end_offset, partial(self._on_done, batch), timeout_s)
        return self._promise

    def _on_done(self, batch: Batch, error: BrokerError | None) -> None:
        if batch not in self._pending:
            return  # the client has disconnected
        self._pending.remove(batch)
        _tell_watch(batch, error)
        if error is not None:
            self._refuse(batch, error)
        if not self._pending:
            self._complete()

    def _disconnected(self) -> None:
        for batch in self._pending:
            _tell_watch(batch, NetworkException("the client has disconnected"))
        self._pending.clear()

    def _complete(self) -> None:
        outcome: Outcome
        try:
            outcome = self._answer()
        except Exception as error:
            outcome = error
        self._promise.keep(outcome)


def _tell_watch(batch: Batch, error: BrokerError | None) -> None:
    partition = batch.partition
    if partition is not None and partition.watched_by is not None:
        partition.watched_by.answered(batch.base_offset, batch.end_offset, error)


class ProduceVerification:
    """The verification of one request's transactional batches (KIP-890, hazards T1-T3).

    `begin` takes a guard for each batch that opens a transaction in its partition; `finish` asks
    the transaction coordinator about all of them at once. A request in pieces does so for each.
    Invariant: a guard is taken before the coordinator is asked, and the append compares it.
    """

    def __init__(
        self,
        version: int,
        transactional_id: str,
        verifier: TransactionVerifier,
        find: Callable[[Batch], Partition],
    ) -> None:
        self._version = version
        self._transactional_id = transactional_id
        self._verifier = verifier
        self._find = find
        self._adds = version >= PRODUCE_ADDS_FROM
        self._producer: tuple[int, int] | None = None
        """Id and epoch: all batches have the same."""
        self._unverified: list[tuple[Batch, TopicPartition]] = []

    def begin(self, batches: Sequence[Batch]) -> bool:
        """Returns whether the coordinator must be asked.

        A malformed batch is found by the append; a partition that is not led here now is refused,
        even if it is by then.
        """
        self._unverified = []
        for batch in batches:
            try:
                header = read_header(batch.records or b"")
            except BrokerError:
                continue
            if not header.is_transactional:
                continue
            try:
                batch.verified = self._begin_one(batch, self._find(batch), header)
            except BrokerError as error:
                batch.verified = error
        return bool(self._unverified)

    def _begin_one(
        self, batch: Batch, partition: Partition, header: BatchHeader
    ) -> VerificationGuard | None:
        producer = header.producer_id, header.producer_epoch
        self._producer = self._producer or producer
        if producer != self._producer:
            raise error_from(
                ErrorCode.invalid_producer_id_mapping, "a transaction has one producer"
            )
        if not self._adds and not self._verifier.is_enabled:
            return NOT_VERIFIED
        guard = partition.transactions.begin_verification(
            *producer, header.base_sequence, is_implicit=self._adds
        )
        if guard is not None:
            self._unverified.append((batch, partition.partition))
        return guard

    async def finish(self) -> None:
        assert self._producer is not None
        errors = await self._verifier.verify(
            self._transactional_id,
            *self._producer,
            list(dict.fromkeys(tp for _, tp in self._unverified)),
            adds=self._adds,
        )
        for batch, tp in self._unverified:
            if errors[tp] is not ErrorCode.none:
                batch.verified = produce_refusal(errors[tp], self._version)


def _is_transactional(batch: Batch) -> bool:
    records = batch.records
    if not records or len(records) <= FLAGS_AT or not records[FLAGS_AT] & TRANSACTIONAL_BIT:
        return False  # as most are: their headers are read once, for the append
    try:
        return read_header(records).is_transactional
    except BrokerError:
        return False  # The append gets the same error and refuses the batch.


def _is_ready(batch: Batch, partition: Partition) -> bool:
    """Whether a batch can be appended or refused now. Otherwise the log is being opened."""
    try:
        return partition.replica_log.prepare()
    except BrokerError as error:
        batch.problem = error
        return True


def _resign_without_log(partition: Partition | None, problem: BrokerError) -> None:
    """If the log of a leader cannot be opened, another replica shall lead."""
    leader = partition.leader_replica if partition is not None else None
    if leader is not None and isinstance(problem, KafkaStorageError):
        leader.resign()


def _takes_long(batch: Batch, partition: Partition) -> bool:
    """Whether reading the records may block the event loop."""
    rules = partition.validation_rules
    if not rules.reads_records or not batch.records:
        return False
    try:
        header = read_header(batch.records)
        return needs_records(rules, header) and takes_long(len(batch.records), header)
    except BrokerError:
        return False  # The append gets the same error and refuses the batch.


def _as_stored(
    rules: ValidationRules,
    records: memoryview,
    header: BatchHeader,
    now_ms: int,
    converted: memoryview | BrokerError | None,
) -> tuple[memoryview, BatchHeader]:
    """The batch in the form in which it is stored, with its header. Raises a `BrokerError`."""
    if rules.reads_records and needs_records(rules, header):
        if isinstance(converted, BrokerError):
            raise converted
        records = converted or convert(rules, records, header)
        header = read_header(records)
    if rules.stamps:
        header = stamped(records, now_ms)
    return records, header


def _refused(index: int, error: Exception) -> PartitionProduced:
    code, message = error_of(error)
    reasons = error.reasons if isinstance(error, RejectedRecords) else {}
    record_errors = [RecordError(number, reason) for number, reason in reasons.items()]
    return PartitionProduced(index, code, record_errors=record_errors, error_message=message)


def _refusal_with_acks_0(batches: list[Batch]) -> CloseConnection | None:
    """With acks=0 closing the connection is the only way to report an error."""
    for batch in batches:
        if batch.refusal is not None:
            name = ErrorCode(batch.refusal.error_code).name
            return CloseConnection(f"{name} with acks=0: {batch.refusal.error_message}")
    return None


def _with_hints(
    image: ClusterImage, topic: TopicProduced, hints: set[CurrentLeader | None]
) -> TopicProduced:
    """The topic with the current leader of each partition that this broker does not lead."""
    if not any(produced.error_code for produced in topic.partitions):
        return topic
    name = topic.name
    if name is None:
        assert topic.topic_id is not None
        found = image.topics_by_id.get(topic.topic_id)
        name = found.name if found is not None else None
    partitions = []
    for produced in topic.partitions:
        hint = leader_hint(image, name, produced.partition, produced.error_code)
        hints.add(hint)
        partitions.append(produced._replace(current_leader=hint))
    return topic._replace(partitions=partitions)
