"""The pure machine of transactions, driven by hand: what it decides is replayed, and compared (H0).

After every event, a fresh machine that replays the log, and one that replays it with any prefix
compacted, must have the transactions of the live one.
"""

from random import Random
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call, Event
from suwi.coordinator.record import CoordinatorRecord
from suwi.model.ids import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from suwi.transaction.transaction_coordinator_shard import (
    TransactionConfig,
    TransactionCoordinatorShard,
)
from suwi.transaction.transaction_metadata import (
    OPEN,
    PREPARED,
    AddPartitionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    MarkersToSend,
    Producer,
    ProducerResponse,
)
from suwi.transaction.transaction_records import (
    TRANSACTION_RECORDS,
    TransactionLogKey,
    TransactionLogValue,
    TransactionState,
)
from tests.coordinator.machine_driver import MachineDriver

ID = "copier"
TIMEOUT_MS = 60_000
EXPIRATION_MS, ABORT_INTERVAL_MS, REMOVE_INTERVAL_MS = 1_000_000, 10_000, 100_000


def tp(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(partition))


class Driver(MachineDriver[TransactionCoordinatorShard]):
    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)
        self.to_send: list[MarkersToSend] = []
        self._next_id = 100
        super().__init__(TRANSACTION_RECORDS, now_ms=1_000_000)

    def _new_machine(self) -> TransactionCoordinatorShard:
        return TransactionCoordinatorShard(
            TransactionConfig(EXPIRATION_MS, ABORT_INTERVAL_MS, REMOVE_INTERVAL_MS)
        )

    @property
    def metadata(self) -> TransactionLogValue:
        return self.machine.transactions[ID]

    @property
    def state(self) -> TransactionState:
        return self.metadata.state

    @property
    def producer(self) -> Producer:
        return Producer(self.metadata.producer_id, self.metadata.producer_epoch)

    # -- events ----------------------------------------------------------------------------------

    def _notice(self, event: Event) -> None:
        assert not event.notices
        self.to_send += event.notices_when_committed

    def put(self, value: TransactionLogValue, transactional_id: str = ID) -> None:
        """As if it had been decided before this replica was elected."""
        self._append(CoordinatorRecord(TransactionLogKey(transactional_id), value))

    def new_id(self) -> ProducerId:
        self._next_id += 1
        return ProducerId(self._next_id)

    def start_init(
        self, expected: Producer | None = None, *, timeout_ms: int = TIMEOUT_MS, name: str = ID
    ) -> Call[Any]:
        """As the broker asks: with a new producer id only if one is needed."""
        for new_id in (None, self.new_id()):
            request = InitProducerIdRequest(name, timeout_ms, expected, new_id)
            call = self.ask(TransactionCoordinatorShard.init_producer_id, request)
            if call in self.waiting or not self.replies[call].needs_producer_id:
                break
        return call

    def init(self, expected: Producer | None = None, **how: Any) -> Producer:
        """The producer, whatever has to be ended before."""
        call = self.start_init(expected, **how)
        self.write_markers()
        self.run_due()
        reply = self.replies[call]
        if reply.needs_producer_id:
            return self.init(expected, **how)
        assert reply.error is ErrorCode.none, reply
        return Producer(*reply.producer)

    def add(
        self,
        *partitions: int,
        producer: Producer | None = None,
        version: int = 0,
        verify: bool = False,
        name: str = ID,
    ) -> ErrorCode | None:
        """The error of all partitions; None if the request waits."""
        call = self.start_add(
            *partitions, producer=producer, version=version, verify=verify, name=name
        )
        return self.error_of(call)

    def start_add(
        self,
        *partitions: int,
        producer: Producer | None = None,
        version: int = 0,
        verify: bool = False,
        name: str = ID,
        held_ms_max: int = 500,
    ) -> Call[Any]:
        added = tuple(map(tp, partitions))
        request = AddPartitionsRequest(
            name, producer or self.producer, added, version, verify, held_ms_max
        )
        return self.ask(TransactionCoordinatorShard.add_partitions, request)

    def error_of(self, call: Call[Any]) -> ErrorCode | None:
        reply = self.replies.get(call)
        if reply is None:
            return None
        if isinstance(reply, ProducerResponse):
            return reply.error
        errors = set(reply.values())
        assert len(errors) == 1, reply
        error: ErrorCode = errors.pop()
        return error

    def start_end(
        self,
        *,
        commit: bool = True,
        producer: Producer | None = None,
        version: int = 0,
        name: str = ID,
    ) -> Call[Any]:
        producer = producer or self.producer
        for new_id in (None, self.new_id()):
            request = EndTxnRequest(name, producer, commit, version, new_id)
            call = self.ask(TransactionCoordinatorShard.end_transaction, request)
            if call in self.waiting or not self.replies[call].needs_producer_id:
                break
        return call

    def end(self, **how: Any) -> ErrorCode | None:
        return self.error_of(self.start_end(**how))

    # -- markers ---------------------------------------------------------------------------------

    def write_markers(self) -> list[MarkersToSend]:
        """All that are to be sent are written."""
        sent, self.to_send = self.to_send, []
        for markers in sent:
            self.written(markers)
        self.run_due()
        return sent

    def written(self, markers: MarkersToSend) -> None:
        self.do(TransactionCoordinatorShard.markers_written, markers)

    def transaction(self, *, commit: bool = True, version: int = 0) -> Producer:
        """A whole one; the producer to go on with."""
        assert self.add(0, version=version) is ErrorCode.none
        call = self.start_end(commit=commit, version=version)
        self.write_markers()
        return Producer(*self.replies[call].producer)

    # -- time ------------------------------------------------------------------------------------

    def run_due(self) -> None:
        while True:
            due = [key for key, at_ms in self.timers.items() if at_ms <= self.now_ms]
            if not due:
                return
            del self.timers[due[0]]
            self.do(TransactionCoordinatorShard.expired, due[0])

    def sleep(self, duration_ms: int) -> None:
        until_ms = self.now_ms + duration_ms
        while True:
            next_ms = min(self.timers.values(), default=until_ms)
            self.now_ms = max(self.now_ms, min(next_ms, until_ms))
            self.run_due()
            if next_ms >= until_ms:
                return

    def _begin_again(self) -> None:
        self.to_send.clear()
        super()._begin_again()

    # -- H0 --------------------------------------------------------------------------------------

    def check(self) -> None:
        live = self.machine.transactions
        for compacted_to in (0, self._random.randint(0, len(self.log)), len(self.log)):
            replayed = self.replayed(compacted_to).transactions
            assert replayed == live, f"replay with the first {compacted_to} records compacted"
        for name, metadata in live.items():
            assert (metadata.state in OPEN) == (name in self.machine._open_since_ms)
            assert (metadata.state in PREPARED) == (name in self.machine._prepared)
            assert 0 <= metadata.producer_epoch <= 32767


def producer(producer_id: int, epoch: int) -> Producer:
    return Producer(ProducerId(producer_id), ProducerEpoch(epoch))
