"""A writer with several idempotent produce requests in flight on one connection to each leader.

It behaves as librdkafka does. Failed batches are sent again with the same sequences, in order.
After OUT_OF_ORDER_SEQUENCE_NUMBER for a batch that follows a refused one it takes a new producer
identity for all partitions and sends everything unanswered again: what had been stored is then
stored twice.
So brokers must not answer OUT_OF_ORDER_SEQUENCE_NUMBER for a batch behind one that they refused:
the writer ends with an error if one did, also where nothing happened to be stored twice.
"""

import asyncio
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from simulation.history import ACKS_ALL, Write
from simulation.workload_context import WorkloadContext
from suwi.client.cluster import Cluster
from suwi.client.connection import PeerConnection
from suwi.client.errors import error_from, is_transient
from suwi.client.identity import Identities, Identity
from suwi.env import Env
from suwi.model.errors import BrokerError
from suwi.model.ids import TopicPartition
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.sim.random import SimRandom
from suwi.wire.produce import PartitionProduced, decode_produce_response, encode_produce_request
from suwi.wire.versions import APIS, ApiKey

_VERSION = APIS[ApiKey.PRODUCE].max_version
_IN_FLIGHT_MAX = 5
_REQUEST_S = 3.0
_PATIENCE_S = 20.0
_AGAIN_S = 0.1
_APART_S_MAX = 0.2
"""How much later than the one before a request is sent, at most: what refused that one may be over
by then."""
_STORED = (ErrorCode.none, ErrorCode.duplicate_sequence_number)


@dataclass(slots=True, eq=False)
class _Batch:
    write: Write
    sent_s: float
    data: bytearray | None = None
    """With producer identity and sequence; None before it has them."""


@dataclass(slots=True, eq=False)
class _Lane:
    """One partition's unanswered batches, in order."""

    partition: TopicPartition
    identity: Identity | None = None
    next_sequence: int = 0
    waiting: list[_Batch] = field(default_factory=list)
    connection: PeerConnection | None = None
    place: tuple[str, int] = ("", 0)


class PipelinedWriter:
    def __init__(self, workload: WorkloadContext, name: str, env: Env, random: SimRandom) -> None:
        self._workload = workload
        self._name = name
        self._env = env
        self._random = random
        self._client: Cluster = workload.client(name)
        self._identities = Identities(self._client)
        self._used_up: Identity | None = None
        self._lanes = [_Lane(partition) for partition in workload.partitions]
        self._number = 0
        self._misled = 0

    async def run(self) -> None:
        """Runs until the workload stops, and then until everything is answered or given up."""
        while not await self._workload.stopped_within(self._pause_s()):
            lane = self._random.choice(self._lanes)
            for _ in range(self._random.between(1, _IN_FLIGHT_MAX)):
                self._add(lane)
            await self._deliver(lane)
        for lane in self._lanes:
            while lane.waiting:
                await self._deliver(lane)
            if lane.connection is not None:
                lane.connection.abort()
        await self._client.close()
        assert not self._misled, "out of order after a refusal"

    def _pause_s(self) -> float:
        """Failed batches are soon sent again."""
        fails = any(lane.waiting for lane in self._lanes)
        return self._random.uniform(0, _AGAIN_S if fails else 1.0)

    def _add(self, lane: _Lane) -> None:
        if len(lane.waiting) >= _IN_FLIGHT_MAX:
            return
        value = f"{self._name}:{self._number}".encode()
        self._number += 1
        write = self._workload.history.send(
            self._name, str(lane.partition), value, acks=ACKS_ALL, idempotent=True
        )
        lane.waiting.append(_Batch(write, asyncio.get_running_loop().time()))

    async def _deliver(self, lane: _Lane) -> None:
        """Send all waiting batches at once; failed ones wait for the next call."""
        if asyncio.get_running_loop().time() - lane.waiting[0].sent_s > _PATIENCE_S:
            self._give_up(lane)
            return
        try:
            await self._encode(lane)
            answers = await self._send(lane)
        except (BrokerError, OSError):
            self._disconnect(lane)
            await asyncio.sleep(_AGAIN_S)
            return
        self._handle_responses(lane, answers)
        if lane.waiting:
            await asyncio.sleep(_AGAIN_S)

    async def _encode(self, lane: _Lane) -> None:
        if lane.identity is None:
            lane.identity = await self._identities.other_than(self._used_up)
            lane.next_sequence = 0
        for batch in lane.waiting:
            if batch.data is None:
                batch.data = build_batch(
                    [Record(timestamp=self._env.clock.now_ms(), value=batch.write.value)],
                    producer_id=lane.identity.producer_id,
                    producer_epoch=lane.identity.epoch,
                    base_sequence=lane.next_sequence,
                )
                lane.next_sequence += 1

    async def _send(self, lane: _Lane) -> list[PartitionProduced]:
        place = await self._client.locate(lane.partition)
        address = self._client.brokers[place.partition.leader].address
        if lane.connection is None or lane.place != address or not lane.connection.is_open:
            self._disconnect(lane)
            lane.connection = await PeerConnection.open(address.host, address.port)
            lane.place = address
        sent: list[asyncio.Future[memoryview]] = []
        apart_s = self._random.choice((0.0, _APART_S_MAX))
        for batch in lane.waiting:
            assert batch.data is not None
            if sent and apart_s:
                await asyncio.sleep(self._random.uniform(0, apart_s))
            records = [(int(lane.partition.partition), batch.data)]
            topic = (lane.partition.topic, place.topic.id, records)
            body = encode_produce_request(_VERSION, None, ACKS_ALL, 2000, [topic])
            sent.append(lane.connection.send(ApiKey.PRODUCE, _VERSION, body))
        answers: list[PartitionProduced] = []
        try:
            async with asyncio.timeout(_REQUEST_S):
                for answer in sent:
                    body_read = decode_produce_response(_VERSION, await answer)
                    answers.append(body_read.topics[0].partitions[0])
        except (OSError, TimeoutError):
            self._disconnect(lane)
            for answer in sent:
                answer.cancel()
        return answers

    def _disconnect(self, lane: _Lane) -> None:
        if lane.connection is not None:
            lane.connection.abort()
            lane.connection = None
        self._client.mark_stale(lane.partition.topic)

    def _handle_responses(self, lane: _Lane, answers: list[PartitionProduced]) -> None:
        """Remove stored batches; failed ones are sent again or given up."""
        answered = zip(lane.waiting, answers, strict=False)
        failed = [batch for batch, answer in answered if not self._is_stored(batch, answer)]
        failed += lane.waiting[len(answers) :]
        refused = bumps = ends = False
        for number, answer in enumerate(answers):
            code = ErrorCode(answer.error_code)
            if code is ErrorCode.out_of_order_sequence_number:
                if not refused:
                    ends = True  # An unclean election has lost what it follows.
                # After a restart the snapshot has only the last batch, as Kafka's: what is before
                # it is in the log, too.
                ends |= any(later.error_code in _STORED for later in answers[number:])
                bumps |= not ends
            elif code not in _STORED:
                refused = True
                ends |= not is_transient(error_from(code))
        lane.waiting = failed
        if failed:
            self._disconnect(lane)
        if bumps:
            self._misled += 1
            self._renew_identity()
        elif ends:
            self._give_up(lane)

    def _is_stored(self, batch: _Batch, answer: PartitionProduced) -> bool:
        if answer.error_code not in _STORED:
            return False
        is_told = answer.error_code == ErrorCode.none and answer.base_offset >= 0
        batch.write.acked(answer.base_offset if is_told else None)
        return True

    def _renew_identity(self) -> None:
        """Take a new identity for all partitions: sequences of unanswered batches start at 0."""
        for lane in self._lanes:
            self._used_up, lane.identity = lane.identity or self._used_up, None
            for batch in lane.waiting:
                batch.data = None

    def _give_up(self, lane: _Lane) -> None:
        """Waiting batches may be stored or not; the next sequence cannot follow them."""
        lane.waiting.clear()
        self._used_up, lane.identity = lane.identity or self._used_up, None
        self._disconnect(lane)
