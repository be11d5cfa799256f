"""Produce v3-v13. Answers after acks. v7: zstd. v8: record errors. v13: topic ids.

Each partition is judged and appended by itself; one that fails does not keep the others back.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from suwi.controller.topic_names import INTERNAL_TOPICS
from suwi.env import Clock
from suwi.handlers.errors import error_of
from suwi.model.errors import (
    BrokerError,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopic,
    InvalidTxnState,
    RequestTimedOut,
    TransactionAbortable,
)
from suwi.model.ids import Offset
from suwi.net.answers import NO_REPLY, Answer, CloseConnection, Exclusive, Later, NoReply, Reply
from suwi.net.dispatch import Request
from suwi.records.batch import BatchHeader, read_header
from suwi.replica.intake import convert, judge, needs_records
from suwi.replica.partition import Partition
from suwi.replica.replicas import Replicas
from suwi.wire.produce import (
    PartitionProduced,
    ProduceRequest,
    TopicProduced,
    decode_produce_request,
    encode_produce_response,
)

_ACKS_ALL, _ACKS_NONE = -1, 0
_TOPIC_IDS_FROM = 13
_TRANSACTION_ABORTABLE_FROM = 11
_IN_THREAD_BYTES_MIN = 64 * 1024
_NO_TIME = -1


class _Waiting(NamedTuple):
    """A partition whose batch is appended but not committed yet."""

    topic: int
    place: int
    partition: Partition
    end_offset: Offset


class Produce:
    def __init__(self, replicas: Replicas, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock

    def __call__(self, request: Request) -> Answer:
        asked = decode_produce_request(request.version, request.body)
        if self._takes_long(asked):
            # The request outlives this call, its bytes in the receive buffer do not.
            asked = decode_produce_request(request.version, memoryview(bytearray(request.body)))
            return Exclusive(self._convert_and_append(asked, request.version))
        return self._append(asked, request.version, self._convert_here)

    def _append(
        self, asked: ProduceRequest, version: int, converted: "_Convert"
    ) -> Reply | Later | NoReply:
        answers: list[TopicProduced] = []
        waiting: list[_Waiting] = []
        acks = asked.acks
        for topic in asked.topics:
            produced: list[PartitionProduced] = []
            for index, records in topic.partitions:
                try:
                    name = topic.name or self._name_of(topic.topic_id)
                    partition = self._replicas.leader_of(name, index)
                    self._check(asked, name)
                    batch, header = self._admit(partition, records, version, converted)
                    appended = partition.append(batch, header)
                except Exception as error:
                    if acks == _ACKS_NONE:
                        code, message = error_of(error)
                        raise CloseConnection(f"{code.name} with acks=0: {message}") from error
                    produced.append(_refused(index, error))
                    continue
                end_offset = Offset(appended.last_offset + 1)
                if acks and not partition.is_committed(end_offset):
                    if acks == _ACKS_ALL or partition.config.flush_messages == 1:
                        waiting.append(_Waiting(len(answers), len(produced), partition, end_offset))
                time_ms = self._clock.now_ms() if partition.intake.stamps else _NO_TIME
                produced.append(
                    PartitionProduced(
                        index, 0, appended.base_offset, time_ms, partition.log.start_offset
                    )
                )
            answers.append(TopicProduced(topic.name, topic.topic_id, produced))
        if acks == _ACKS_NONE:
            return NO_REPLY
        if waiting:
            return Later(_when_committed(answers, waiting, version, asked.timeout_ms / 1000))
        return Reply([encode_produce_response(version, answers)])

    def _name_of(self, topic_id: UUID | None) -> str:
        assert topic_id is not None
        return self._replicas.topic_name(topic_id)

    def _check(self, asked: ProduceRequest, name: str) -> None:
        if asked.acks not in (-1, 0, 1):
            raise InvalidRequiredAcks(f"acks must be -1, 0 or 1, not {asked.acks}")
        if name in INTERNAL_TOPICS:
            raise InvalidTopic(f"clients must not write to the internal topic {name}")

    def _admit(
        self,
        partition: Partition,
        records: memoryview | None,
        version: int,
        converted: "_Convert",
    ) -> tuple[memoryview, BatchHeader]:
        if not records:
            raise InvalidRecord("a produce request needs one batch for each partition")
        header = judge(
            partition.intake, records, now_ms=self._clock.now_ms(), produce_version=version
        )
        if header.is_transactional:
            refusal = (
                InvalidTxnState if version < _TRANSACTION_ABORTABLE_FROM else TransactionAbortable
            )
            raise refusal("transactions are not supported yet")
        if needs_records(partition.intake, header):
            records = converted(partition, records, header)
            header = read_header(records)
        return records, header

    def _convert_here(
        self, partition: Partition, records: memoryview, header: BatchHeader
    ) -> memoryview:
        return convert(partition.intake, records, header)

    # -- batches whose records must be read, where that takes long -------------------------------

    def _takes_long(self, asked: ProduceRequest) -> bool:
        for topic in asked.topics:
            for index, records in topic.partitions:
                if records is not None and len(records) > _IN_THREAD_BYTES_MIN:
                    try:
                        name = topic.name or self._name_of(topic.topic_id)
                        intake = self._replicas.leader_of(name, index).intake
                        if needs_records(intake, read_header(records)):
                            return True
                    except BrokerError:
                        pass  # `_append` meets the same error and answers it.
        return False

    async def _convert_and_append(self, asked: ProduceRequest, version: int) -> Reply | NoReply:
        loop = asyncio.get_running_loop()
        results: dict[int, memoryview | Exception] = {}
        for topic in asked.topics:
            for index, records in topic.partitions:
                if records is None or len(records) <= _IN_THREAD_BYTES_MIN:
                    continue
                try:
                    name = topic.name or self._name_of(topic.topic_id)
                    intake = self._replicas.leader_of(name, index).intake
                    header = judge(
                        intake, records, now_ms=self._clock.now_ms(), produce_version=version
                    )
                    if needs_records(intake, header):
                        results[id(records)] = await loop.run_in_executor(
                            None, convert, intake, records, header
                        )
                except BrokerError as error:
                    results[id(records)] = error

        def converted(partition: Partition, records: memoryview, header: BatchHeader) -> memoryview:
            result = results.get(id(records))
            if result is None:
                return convert(partition.intake, records, header)
            if isinstance(result, Exception):
                raise result
            return result

        answer = self._append(asked, version, converted)
        return await answer.reply if isinstance(answer, Later) else answer


_Convert = Callable[[Partition, memoryview, BatchHeader], memoryview]


async def _when_committed(
    answers: list[TopicProduced], waiting: list[_Waiting], version: int, timeout_s: float
) -> Reply:
    """Wait for each partition's commit; those that fail or take too long answer with an error."""
    commits = [w.partition.committed(w.end_offset) for w in waiting]
    await asyncio.wait(commits, timeout=timeout_s)
    for commit, (topic, place, _, _) in zip(commits, waiting, strict=True):
        error: BaseException | None = None
        if not commit.done():
            commit.cancel()
            error = RequestTimedOut("the batch was not committed in time")
        else:
            error = commit.exception()
        if error is not None:
            partitions = answers[topic].partitions
            assert isinstance(partitions, list) and isinstance(error, Exception)
            partitions[place] = _refused(partitions[place].partition, error)
    return Reply([encode_produce_response(version, answers)])


def _refused(index: int, error: Exception) -> PartitionProduced:
    code, message = error_of(error)
    return PartitionProduced(index, code, error_message=message)
