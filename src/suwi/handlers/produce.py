"""Produce v3-v13. Responds after acks. v7: zstd. v8: record errors. v13: topic ids. v11:
TRANSACTION_ABORTABLE. v12: the first write adds its partition to the transaction (KIP-890).

Each partition's batch is validated and appended separately (`_append_one`), whichever decoder read
the request; an error of one partition does not affect the others. The first batch of a transaction
in a partition waits for its verification, and no later request of the connection overtakes it.
Every error is noted in `refused_batches`, so that a producer's next batches do not overtake either.

A request that is large, or must wait before its append, is handled in pieces (`_append_pieces`),
each like a small request: others run between two pieces, and leaders may change. A piece waits for
its commit from its append on, so that it notices a change. No further request of the connection
starts before all pieces are appended. They are appended even if the client disconnects meanwhile:
with acks=0 it may send and close.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.env import Clock
from suwi.env.slices import run_to_end
from suwi.handlers.delayed_produce import DelayedProduce
from suwi.handlers.leader_hints import hinted_endpoints, leader_hint
from suwi.handlers.refused_batches import RefusedBatches
from suwi.handlers.slices import Sliced
from suwi.handlers.verification import Place, ProduceVerification, produce_refusal
from suwi.log.partition_log import Appended
from suwi.log.producer_state import ProducerStates
from suwi.metadata.image import ClusterImage
from suwi.model.errors import (
    BrokerError,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopic,
    InvalidTxnState,
    RejectedRecords,
    error_of,
)
from suwi.model.ids import Offset
from suwi.model.topic_names import INTERNAL_TOPICS
from suwi.net.answers import (
    NO_REPLY,
    Answer,
    CloseConnection,
    Exclusive,
    Later,
    NoReply,
    Promise,
    Reply,
)
from suwi.net.buffer_pool import KeptBytes
from suwi.net.dispatch import Request
from suwi.net.fair_turns import SliceTurns
from suwi.net.large_requests import items_of
from suwi.records.batch import BatchHeader, read_header
from suwi.replica.log_validator import (
    ValidationRules,
    convert,
    needs_records,
    stamped,
    takes_long,
    validate,
)
from suwi.replica.partition import Partition
from suwi.replica.partition_transactions import VerificationGuard
from suwi.replica.replica_log import LogNotReady, wait_until_ready
from suwi.replica.replica_manager import ReplicaManager
from suwi.transaction.transaction_verifier import TransactionVerifier
from suwi.wire.errors import MalformedRequest
from suwi.wire.leaders import CurrentLeader
from suwi.wire.produce import (
    SLICE_ITEMS,
    PartitionProduced,
    PlainRequest,
    ProducePartition,
    ProduceParts,
    ProduceRequest,
    ProduceTopic,
    RecordError,
    TopicProduced,
    decode_plain_request,
    decode_small_request,
    decoding_produce_request,
    encode_produce_response,
    encode_produced_one,
)

_ACKS_NONE = 0
_ACKS_ALL = -1
_ACKS_LEADER = 1
_COMPACT_FROM = 9
_LEADER_HINTS_FROM = 10
# Threads compete with the event loop for the CPU, and each may hold a large decompressed batch.
_CONVERSIONS_MAX = 2
_NO_TIME = -1
_READY_TIMEOUT_S_MAX = 10.0
PIECE_BYTES = 4 * 1024 * 1024
"""A few milliseconds for the checksums and for writing them."""


class _Waiting(NamedTuple):
    """A partition whose batch is appended but not committed yet."""

    topic: int
    position: int
    partition: Partition
    end_offset: Offset
    header: BatchHeader


class _Form(NamedTuple):
    """The version and listener of a request, which determine the form of its response."""

    version: int
    listener: str


class _Piece(NamedTuple):
    """A part of a large request that has been appended."""

    answers: list[TopicProduced]
    committed: Promise | None
    """Kept without a reply, when `answers` are final."""


_Pieces: TypeAlias = list[_Piece] | NoReply | CloseConnection
"""What is answered after the append."""
_Converted: TypeAlias = Mapping[Place, memoryview | BrokerError]
"""Batches that a thread has converted, by topic and partition position in the request."""
_Verified: TypeAlias = Mapping[Place, VerificationGuard | BrokerError | None]
_NO_TRANSACTION: Final = VerificationGuard(-1, -1, -1, is_implicit=False)
"""In place of a guard: the request has no transactional id."""


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
        version = request.version
        if version >= _COMPACT_FROM:
            plain = decode_plain_request(version, request.body)
            if plain is not None:
                answer = self._append_plain(plain, request)
                if answer is not None:
                    return answer
        asked = decode_small_request(version, request.body)
        if asked is None:
            return self._answer_in_pieces(request, has_many_items=True)
        if len(request.body) > PIECE_BYTES or self._any_must_wait(asked):
            return self._answer_in_pieces(request)
        verified: _Verified = {}
        if asked.transactional_id is not None and self._verifier is not None:
            verification = ProduceVerification(version, self._verifier)
            if verification.begin(asked, self._partition):
                return self._answer_in_pieces(request)
            verified = verification.verified
        return self._append(asked, _Form(version, request.client.listener), verified)

    def _append_plain(self, plain: PlainRequest, request: Request) -> Reply | Later | None:
        """The fast path: one batch, stored unchanged. Returns None if that does not apply."""
        acks, timeout_ms, name, topic_id, index, records = plain
        if acks != _ACKS_ALL and acks != _ACKS_LEADER:
            return None
        version = request.version
        topic = _named(name, topic_id)
        try:
            partition = self._partition(name, topic_id, index)
            if not partition.validation_rules.keeps_as_is:
                return None
            base_offset, end_offset, header = self._append_one(
                partition, topic, records, acks, version, self._clock.now_ms(), None
            )
        except LogNotReady:
            return None
        except Exception as error:
            form = _Form(version, request.client.listener)
            self._refused.note_error((topic, index), records, error, _now_s())
            return self._refuse(form, name, topic_id, index, error)
        start_offset = partition.log_as_it_is.start_offset
        body = encode_produced_one(version, topic, index, base_offset, start_offset)
        if partition.is_committed(end_offset) or not partition.must_wait(acks):
            return Reply([body])
        form = _Form(version, request.client.listener)  # the request is not valid later

        def answer(errors: Mapping[int, Exception]) -> Reply:
            if errors:
                self._refused.note((topic, index), header, _now_s())
                return self._refuse(form, name, topic_id, index, errors[0])
            return Reply([body])

        delayed = DelayedProduce(answer)
        return Later(
            delayed.promise_of(
                [(partition, end_offset)], timeout_ms / 1000, committed=acks == _ACKS_ALL
            )
        )

    def _append_one(
        self,
        partition: Partition,
        topic: str | UUID,
        records: memoryview | None,
        acks: int,
        version: int,
        now_ms: int,
        converted: memoryview | BrokerError | None,
        verified: VerificationGuard | BrokerError | None = _NO_TRANSACTION,
    ) -> tuple[Offset, Offset, BatchHeader]:
        """Validate and append one partition's batch. Returns its base and end offset, and header.

        All produce requests append through here. Raises a `BrokerError` if nothing was appended.
        """
        if acks == _ACKS_ALL:
            partition.check_enough_replicas()
        if not records:
            raise InvalidRecord("a produce request must have one batch for each partition")
        validation_rules = partition.validation_rules
        header = validate(validation_rules, records, now_ms=now_ms, produce_version=version)
        is_transactional = header.is_transactional
        if not validation_rules.keeps_as_is:
            records, header = _as_stored(validation_rules, records, header, now_ms, converted)
        place = topic, partition.partition.partition
        check = None
        if self._refused and self._refused.may_hold_back(place, header):
            check = partial(self._refused.check, place, header, _now_s())
        if is_transactional:
            base_offset, last_offset, _ = _append_transactional(
                partition, records, header, now_ms, version, verified, check
            )
        else:
            base_offset, last_offset, _ = partition.append(records, header, now_ms, check)
        return base_offset, Offset(last_offset + 1), header

    def _refuse(
        self, form: _Form, name: str | None, topic_id: UUID | None, index: int, error: Exception
    ) -> Reply:
        return self._reply(form, [TopicProduced(name, topic_id, [_refused(index, error)])])

    def _append(
        self, asked: ProduceRequest, form: _Form, verified: _Verified
    ) -> Reply | Later | NoReply:
        answers, waiting = self._append_batches(asked, form, {}, verified)
        if asked.acks == _ACKS_NONE:
            _close_where_refused(answers)
            return NO_REPLY
        if waiting:
            delayed = DelayedProduce(partial(self._committed, answers, waiting, form))
            return Later(_wait_for(delayed, waiting, asked))
        return self._reply(form, answers)

    def _append_batches(
        self, asked: ProduceRequest, form: _Form, converted: _Converted, verified: _Verified
    ) -> tuple[list[TopicProduced], list[_Waiting]]:
        answers: list[TopicProduced] = []
        waiting: list[_Waiting] = []
        acks = asked.acks
        version = form.version
        now_ms = self._clock.now_ms()
        for topic_number, (name, topic_id, partitions) in enumerate(asked.topics):
            produced: list[PartitionProduced] = []
            topic = _named(name, topic_id)
            for number, (index, records) in enumerate(partitions):
                try:
                    if acks not in (-1, 0, 1):
                        raise InvalidRequiredAcks(f"acks must be -1, 0 or 1, not {acks}")
                    partition = self._partition(name, topic_id, index)
                    converted_batch = converted.get((topic_number, number)) if converted else None
                    base_offset, end_offset, header = self._append_one(
                        partition,
                        topic,
                        records,
                        acks,
                        version,
                        now_ms,
                        converted_batch,
                        verified.get((topic_number, number), _NO_TRANSACTION)
                        if verified
                        else _NO_TRANSACTION,
                    )
                except Exception as error:
                    self._refused.note_error((topic, index), records, error, _now_s())
                    produced.append(_refused(index, error))
                    continue
                if not partition.is_committed(end_offset) and partition.must_wait(acks):
                    waiting.append(_Waiting(topic_number, number, partition, end_offset, header))
                time_ms = now_ms if partition.validation_rules.stamps else _NO_TIME
                produced.append(
                    PartitionProduced(index, 0, base_offset, time_ms, partition.log.start_offset)
                )
            answers.append(TopicProduced(name, topic_id, produced))
        return answers, waiting

    def _committed(
        self,
        answers: list[TopicProduced],
        waiting: list[_Waiting],
        form: _Form,
        errors: Mapping[int, Exception],
    ) -> Reply:
        """The reply after all batches are committed, have failed or have timed out."""
        self._note_uncommitted(answers, waiting, errors)
        return self._reply(form, answers)

    def _note_uncommitted(
        self,
        answers: list[TopicProduced],
        waiting: list[_Waiting],
        errors: Mapping[int, Exception],
    ) -> NoReply:
        for number, error in errors.items():
            topic, position, _, _, header = waiting[number]
            name, topic_id, produced = answers[topic]
            partitions = list(produced)
            index = partitions[position].partition
            self._refused.note((_named(name, topic_id), index), header, _now_s())
            partitions[position] = _refused(index, error)
            answers[topic] = answers[topic]._replace(partitions=partitions)
        return NO_REPLY

    def _reply(self, form: _Form, answers: list[TopicProduced]) -> Reply:
        if form.version < _LEADER_HINTS_FROM or not any(
            produced.error_code for topic in answers for produced in topic.partitions
        ):
            return Reply([encode_produce_response(form.version, answers)])
        return run_to_end(self._replying(form, [answers]))

    def _replying(self, form: _Form, answers: list[list[TopicProduced]]) -> Sliced:
        """The reply in slices, one for each part of the answers."""
        parts = ProduceParts(form.version)
        hints: set[CurrentLeader | None] = set()
        image = self._replicas.image
        answers.reverse()
        while answers:  # What is encoded is freed slice by slice, too.
            part = answers.pop()
            if form.version >= _LEADER_HINTS_FROM:
                part = [self._with_hints(image, topic, hints) for topic in part]
            parts.add(part)
            yield
        return Reply([parts.encode(hinted_endpoints(image, form.listener, hints))])

    def _with_hints(
        self, image: ClusterImage, topic: TopicProduced, hints: set[CurrentLeader | None]
    ) -> TopicProduced:
        if not any(produced.error_code for produced in topic.partitions):
            return topic
        name = self._name_of(topic)
        partitions = []
        for produced in topic.partitions:
            hint = leader_hint(image, name, produced.partition, produced.error_code)
            hints.add(hint)
            partitions.append(produced._replace(current_leader=hint))
        return topic._replace(partitions=partitions)

    def _name_of(self, topic: TopicProduced) -> str | None:
        if topic.name is not None:
            return topic.name
        assert topic.topic_id is not None
        found = self._replicas.image.topics_by_id.get(topic.topic_id)
        return found.name if found is not None else None

    def _partition(self, name: str | None, topic_id: UUID | None, index: int) -> Partition:
        if name is None:
            assert topic_id is not None
            name = self._replicas.topic_name(topic_id)
        if name in INTERNAL_TOPICS:
            raise InvalidTopic(f"clients must not write to the internal topic {name}")
        return self._replicas.leader_of(name, index)

    # -- in pieces: many partitions or bytes, logs that are not open, batches that take long to
    # convert, verification -----------------------------------------------------------------------

    def _any_must_wait(self, asked: ProduceRequest) -> bool:
        for topic in asked.topics:
            for partition in topic[2]:
                if not self._is_ready(topic, partition[0]) or self._takes_long(topic, partition):
                    return True
        return False

    def _is_ready(self, topic: ProduceTopic, index: int) -> bool:
        """Whether a batch can be appended or refused without waiting."""
        try:
            partition = self._partition(topic[0], topic[1], index)
            return partition.replica_log.prepare()
        except BrokerError:
            return True  # `_append` gets the same error and responds with it

    async def _wait_until_ready(self, asked: ProduceRequest) -> None:
        """Wait for logs that are being opened. A batch refused for that reason would leave the
        client's next batches out of order."""
        waiting = [
            self._partition(topic[0], topic[1], index).replica_log
            for topic in asked.topics
            for index, _ in topic[2]
            if not self._is_ready(topic, index)
        ]
        if waiting:
            await wait_until_ready(waiting, min(asked.timeout_ms / 1000, _READY_TIMEOUT_S_MAX))

    def _takes_long(self, topic: ProduceTopic, asked: ProducePartition) -> bool:
        name, topic_id, _ = topic
        index, records = asked
        if not records:
            return False
        try:
            validation_rules = self._partition(name, topic_id, index).validation_rules
            if not validation_rules.reads_records:
                return False
            header = read_header(records)
            return needs_records(validation_rules, header) and takes_long(len(records), header)
        except BrokerError:
            return False  # `_append` gets the same error and responds with it

    def _answer_in_pieces(self, request: Request, *, has_many_items: bool = False) -> Exclusive:
        loop, connection = asyncio.get_running_loop(), request.connection
        form = _Form(request.version, request.client.listener)
        kept = connection.keep(request.body)
        appended = loop.create_future()
        appending = loop.create_task(  # owner: this handler
            self._append_pieces(kept, form, connection.slices, appended, has_many_items)
        )
        self._appending.add(appending)
        appending.add_done_callback(self._appending.discard)
        appending.add_done_callback(lambda _: kept.release())  # also if it has not begun
        reply = self._reply_in_slices(appending, form, connection.slices, appended)
        return Exclusive(reply, until=appended)

    async def _append_pieces(
        self,
        kept: KeptBytes,
        form: _Form,
        slices: SliceTurns,
        appended: asyncio.Future[None],
        has_many_items: bool,
    ) -> _Pieces:
        items = items_of(len(kept.view)) if has_many_items else 0
        share = await slices.large_requests.acquire(items)
        try:
            asked = await slices.run(decoding_produce_request(form.version, kept.view))
            share.reduce(sum([1 + len(partitions) for _, _, partitions in asked.topics]))
            return await self._append_decoded(asked, form, slices, appended)
        except MalformedRequest as error:
            return CloseConnection(str(error))
        finally:
            share.release()

    async def _append_decoded(
        self,
        asked: ProduceRequest,
        form: _Form,
        slices: SliceTurns,
        appended: asyncio.Future[None],
    ) -> _Pieces:
        verification = None
        if asked.transactional_id is not None and self._verifier is not None:
            verification = ProduceVerification(form.version, self._verifier)
        pieces: list[_Piece] = []
        refusal: CloseConnection | None = None
        for piece in pieces_of(asked):
            if pieces:
                await slices.next()
            try:
                pieces.append(await self._append_piece(piece, form, verification))
            except CloseConnection as error:
                refusal = refusal or error
        if refusal is not None:
            return refusal
        if asked.acks == _ACKS_NONE:
            return NO_REPLY
        appended.set_result(None)  # The next request may start.
        return pieces

    async def _append_piece(
        self, asked: ProduceRequest, form: _Form, verification: ProduceVerification | None
    ) -> _Piece:
        await self._wait_until_ready(asked)
        converted = await self._convert(asked, form)
        verified: _Verified = {}
        if verification is not None:
            if verification.begin(asked, self._partition):
                await verification.finish(asked)
            verified = verification.verified
        try:
            answers, waiting = self._append_batches(asked, form, converted, verified)
        finally:
            # Breaks a reference cycle: the error's traceback holds the decompressed records.
            converted.clear()
        if asked.acks == _ACKS_NONE:
            _close_where_refused(answers)
        committed = None
        if waiting:
            delayed = DelayedProduce(partial(self._note_uncommitted, answers, waiting))
            committed = _wait_for(delayed, waiting, asked)
        return _Piece(answers, committed)

    async def _convert(
        self, asked: ProduceRequest, form: _Form
    ) -> dict[Place, memoryview | BrokerError]:
        """Convert in a thread what takes long."""
        loop = asyncio.get_running_loop()
        converted: dict[Place, memoryview | BrokerError] = {}
        for topic_number, topic in enumerate(asked.topics):
            name, topic_id, partitions = topic
            for number, (index, records) in enumerate(partitions):
                if records is None or not self._takes_long(topic, (index, records)):
                    continue
                validation_rules = self._partition(name, topic_id, index).validation_rules
                try:
                    header = validate(
                        validation_rules,
                        records,
                        now_ms=self._clock.now_ms(),
                        produce_version=form.version,
                    )
                    async with self._converting:
                        converted[topic_number, number] = await loop.run_in_executor(
                            None, convert, validation_rules, records, header
                        )
                except BrokerError as error:
                    converted[topic_number, number] = error
        return converted

    async def _reply_in_slices(
        self,
        appending: "asyncio.Task[_Pieces]",
        form: _Form,
        slices: SliceTurns,
        appended: "asyncio.Future[None]",
    ) -> Reply | NoReply:
        await asyncio.wait([appending])  # It goes on if this reply is cancelled.
        pieces = appending.result()
        if isinstance(pieces, CloseConnection):
            raise pieces
        if isinstance(pieces, NoReply):
            appended.set_result(None)
            return pieces
        waiting = [piece.committed for piece in pieces if piece.committed is not None]
        try:
            for committed in waiting:
                await committed
        except asyncio.CancelledError:
            for committed in waiting:
                committed.cancel()
            raise
        if len(pieces) == 1:
            return self._reply(form, pieces[0].answers)
        answers = [piece.answers for piece in pieces]
        pieces.clear()
        return await slices.run(self._replying(form, answers))


def pieces_of(asked: ProduceRequest) -> Iterator[ProduceRequest]:
    """The same request in pieces of at most `SLICE_ITEMS` and, if they have several partitions, at
    most `PIECE_BYTES`. A topic may be continued in the next piece."""
    topics: list[ProduceTopic] = []
    items = size_bytes = 0
    for name, topic_id, partitions in asked.topics:
        start = 0
        for number, (_, records) in enumerate(partitions):
            batch_bytes = len(records) if records is not None else 0
            if items >= SLICE_ITEMS or (items and size_bytes + batch_bytes > PIECE_BYTES):
                if number > start:
                    topics.append((name, topic_id, partitions[start:number]))
                yield asked._replace(topics=topics)
                topics, start = [], number
                items = size_bytes = 0
            items += 1
            size_bytes += batch_bytes
        topics.append((name, topic_id, partitions[start:]))
        items += 1
    yield asked._replace(topics=topics)


def _wait_for(delayed: DelayedProduce, waiting: list[_Waiting], asked: ProduceRequest) -> Promise:
    return delayed.promise_of(
        [each[2:4] for each in waiting],
        asked.timeout_ms / 1000,
        committed=asked.acks == _ACKS_ALL,
    )


def _as_stored(
    validation_rules: ValidationRules,
    records: memoryview,
    header: BatchHeader,
    now_ms: int,
    converted: memoryview | BrokerError | None,
) -> tuple[memoryview, BatchHeader]:
    """The batch in the form in which it is stored, with its header. Raises a `BrokerError`."""
    if validation_rules.reads_records and needs_records(validation_rules, header):
        if isinstance(converted, BrokerError):
            raise converted
        records = converted or convert(validation_rules, records, header)
        header = read_header(records)
    if validation_rules.stamps:
        header = stamped(records, now_ms)
    return records, header


def _named(name: str | None, topic_id: UUID | None) -> str | UUID:
    """A topic as the request names it."""
    if name is not None:
        return name
    assert topic_id is not None
    return topic_id


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _append_transactional(
    partition: Partition,
    records: memoryview,
    header: BatchHeader,
    now_ms: int,
    version: int,
    verified: VerificationGuard | BrokerError | None,
    check: Callable[[ProducerStates], None] | None,
) -> Appended:
    if isinstance(verified, BrokerError):
        raise verified
    try:
        if verified is _NO_TRANSACTION:
            raise InvalidTxnState("a transactional batch without a transactional id")
        return partition.transactions.append(records, header, now_ms, verified, check)
    except InvalidTxnState as error:
        raise produce_refusal(error.code, version) from error


def _refused(index: int, error: Exception) -> PartitionProduced:
    code, message = error_of(error)
    reasons = error.reasons if isinstance(error, RejectedRecords) else {}
    record_errors = [RecordError(number, reason) for number, reason in reasons.items()]
    return PartitionProduced(index, code, record_errors=record_errors, error_message=message)


def _close_where_refused(answers: list[TopicProduced]) -> None:
    """With acks=0 closing the connection is the only way to report an error."""
    for topic in answers:
        for produced in topic.partitions:
            if produced.error_code:
                name = ErrorCode(produced.error_code).name
                raise CloseConnection(f"{name} with acks=0: {produced.error_message}")
