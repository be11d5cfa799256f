"""A producer of a scenario, on a machine of its own, with the settings and defaults of Kafka's.

Each `send` is one batch. Batches leave in order, up to max.in.flight.requests.per.connection at a
time, and those that fail are sent again as the Java client does it: a plain batch goes to the front
of what waits, and may be overtaken by those in flight; an idempotent one keeps its sequence and its
place. With a transactional.id all of this is `TransactionalProducer`'s.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from suwi.client.cluster import Place
from suwi.client.errors import error_from, is_transient
from suwi.client.identity import NO_IDENTITY, Identities
from suwi.client.partition_sender import ProducerSettings
from suwi.client.settings import ClientSettings
from suwi.client.transactions import State, TransactionalProducer
from suwi.client.versioned_connection import VersionedConnection
from suwi.lab.client_settings import Settings, machine_of
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_SEQUENCE, PartitionIndex, TopicPartition
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.sim.cluster import SimCluster
from suwi.wire.produce import PartitionProduced, decode_produce_response, encode_produce_request
from suwi.wire.versions import ApiKey

DEFAULTS = {
    "acks": "all",
    "delivery.timeout.ms": "120000",
    "enable.idempotence": "true",
    "max.in.flight.requests.per.connection": "5",
    "request.timeout.ms": "30000",
    "retries": "2147483647",
    "retry.backoff.ms": "100",
    "transaction.timeout.ms": "60000",
    "transactional.id": "",
}
NO_ANSWER = "no answer"
UNACKNOWLEDGED = -1
"""The offset of what was sent with acks=0."""
_ACKS = {"0": 0, "1": 1, "all": -1}
_AT_MOST = 12
"""The last version of Produce that has topics by name."""


@dataclass(eq=False)
class _Batch:
    partition: TopicPartition
    values: Sequence[str]
    number: int
    sequence: int
    end_s: float
    """delivery.timeout.ms after it was added."""
    done: asyncio.Future[int | str]
    attempts: int = 0
    not_before_s: float = 0.0
    failures: list[str] = field(default_factory=list)
    """Without repetitions."""


class LabProducer:
    def __init__(
        self,
        cluster: SimCluster,
        name: str,
        given: Mapping[str, str],
        report: Callable[[str], None],
    ) -> None:
        """`report` is told why a batch is sent again. Raises `ValueError` for bad settings."""
        self.name = name
        self.settings = settings = Settings(DEFAULTS, given)
        self._is_idempotent = _is_idempotent(settings)
        self._report = report
        self.machine = machine_of(cluster, name)
        self.machine.start()
        timeouts = ClientSettings(client_id=name, connect_timeout_s=2)
        self._cluster = cluster.client(name, timeouts)
        self._identities = Identities(self._cluster)
        self._sequences: dict[TopicPartition, int] = {}
        self._waiting: list[_Batch] = []
        self._unanswered: list[_Batch] = []
        self._news = asyncio.Event()
        self._batches = 0
        self.transactions: TransactionalProducer | None = None
        if settings["transactional.id"]:
            self.transactions = TransactionalProducer(
                self._cluster,
                self.machine.clock,
                settings["transactional.id"],
                ProducerSettings(
                    delivery_timeout_s=settings.seconds("delivery.timeout.ms"),
                    request_timeout_s=settings.seconds("request.timeout.ms"),
                ),
                timeout_ms=int(settings["transaction.timeout.ms"]),
            )

    async def start(self, topic: str) -> None:
        """Connect to the topic's leader, and get a producer id if it is to have one. Raises
        `BrokerError` and OSError."""
        partition = TopicPartition(topic, PartitionIndex(0))
        with suppress(BrokerError, OSError):  # `send` looks for the leader again.
            await self.machine.spawn(self._cluster.leader(partition))
        if self.transactions is not None:
            await self.machine.spawn(self.transactions.init_transactions())
            return
        if self._is_idempotent:
            await self.machine.spawn(self._identities.other_than(None))
        self.machine.spawn(self._send_all())

    async def send(self, topic: str, values: Sequence[str]) -> int | str:
        """The offset, or why it failed. A transactional producer begins a transaction if needed."""
        if self.transactions is not None:
            return await self.machine.spawn(
                self._send_in_transaction(self.transactions, topic, values)
            )
        loop = asyncio.get_running_loop()
        partition = TopicPartition(topic, PartitionIndex(0))
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(values)
        self._batches += 1
        end_s = loop.time() + self.settings.seconds("delivery.timeout.ms")
        done: asyncio.Future[int | str] = loop.create_future()
        batch = _Batch(partition, values, self._batches, sequence, end_s, done)
        self._waiting.append(batch)
        self._news.set()
        return await done

    async def end(self, *, commit: bool) -> None:
        """Commit or abort the transaction. Raises `BrokerError`, OSError."""
        assert self.transactions is not None
        end = self.transactions.commit if commit else self.transactions.abort
        await self.machine.spawn(end())

    # -- transactions ----------------------------------------------------------------------------

    async def _send_in_transaction(
        self, transactions: TransactionalProducer, topic: str, values: Sequence[str]
    ) -> int | str:
        try:
            if transactions.state is State.READY:
                transactions.begin()
            sent = [await transactions.send(topic, value.encode()) for value in values]
            await transactions.flush()
            return (await sent[0]).offset
        except BrokerError as error:
            return error.code.name.upper()
        except OSError:
            return NO_ANSWER

    # -- batches ---------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        """The sender thread of the Java client."""
        loop = asyncio.get_running_loop()
        in_flight_max = int(self.settings["max.in.flight.requests.per.connection"])
        while True:
            self._news.clear()
            if not self._waiting or len(self._unanswered) >= in_flight_max:
                await self._news.wait()
                continue
            batch = self._waiting[0]
            pause_s = batch.not_before_s - loop.time()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
                continue  # Another one may be in front now.
            try:
                link, place = await self._cluster.leader(batch.partition)
            except (BrokerError, OSError):
                # Without a leader nothing is sent: this is no attempt.
                batch.not_before_s = loop.time() + self.settings.seconds("retry.backoff.ms")
                self._end_if_late(batch)
                continue
            if batch is self._waiting[0]:
                self._waiting.remove(batch)
                self._unanswered.append(batch)
                self.machine.spawn(self._attempt(batch, link, place))

    async def _attempt(self, batch: _Batch, link: VersionedConnection, place: Place) -> None:
        batch.attempts += 1
        try:
            produced = await self._produce(batch, link, place)
            code = ErrorCode(produced.error_code)
            offset = int(produced.base_offset)
        except OSError:
            code, offset = None, UNACKNOWLEDGED
        self._unanswered.remove(batch)
        self._news.set()
        if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            batch.done.set_result(offset)
            return
        failure = NO_ANSWER if code is None else code.name.upper()
        self._cluster.mark_stale(batch.partition.topic)
        if batch.attempts > int(self.settings["retries"]) or not self._may_retry(batch, code):
            batch.done.set_result(failure)
        else:
            self._again(batch, failure)

    def _may_retry(self, batch: _Batch, code: ErrorCode | None) -> bool:
        if code is ErrorCode.out_of_order_sequence_number:
            # It may be in front of one that failed.
            return any(other.number < batch.number for other in self._waiting + self._unanswered)
        return code is None or is_transient(error_from(code))

    def _again(self, batch: _Batch, failure: str) -> None:
        what = " ".join(f'"{value}"' for value in batch.values)
        if failure not in batch.failures:
            batch.failures.append(failure)
            why = "gets no answer" if failure == NO_ANSWER else f"is refused: {failure}"
            self._report(f"{self.name}: {what} {why}; it is sent again")
        now_s = asyncio.get_running_loop().time()
        batch.not_before_s = now_s + self.settings.seconds("retry.backoff.ms")
        self._waiting.insert(0, batch)
        if self._is_idempotent:
            self._waiting.sort(key=lambda each: each.number)
        self._end_if_late(batch)

    def _end_if_late(self, batch: _Batch) -> None:
        if asyncio.get_running_loop().time() >= batch.end_s:
            self._waiting.remove(batch)
            batch.done.set_result("delivery.timeout.ms is over")

    async def _produce(
        self, batch: _Batch, link: VersionedConnection, place: Place
    ) -> PartitionProduced:
        """Raises OSError."""
        now_ms = self.machine.clock.now_ms()
        records = [Record(value=value.encode(), timestamp=now_ms) for value in batch.values]
        identity, sequence = NO_IDENTITY, NO_SEQUENCE
        if self._is_idempotent:
            identity, sequence = await self._identities.other_than(None), batch.sequence
        encoded = build_batch(
            records,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
        )
        version = link.version(ApiKey.PRODUCE, at_most=_AT_MOST)
        acks = _ACKS[self.settings["acks"]]
        timeout_ms = int(self.settings["request.timeout.ms"])
        topics = [(place.topic.name, place.topic.id, [(0, memoryview(encoded))])]
        body = encode_produce_request(version, None, acks, timeout_ms, topics)
        if acks == 0:
            await link.send_unanswered(ApiKey.PRODUCE, version, body)
            return PartitionProduced(batch.partition.partition, base_offset=UNACKNOWLEDGED)
        answer = await link.send(ApiKey.PRODUCE, version, body, timeout_s=timeout_ms / 1000)
        return decode_produce_response(version, answer).topics[0].partitions[0]


def _is_idempotent(settings: Settings) -> bool:
    """As in Java: by default, unless another setting excludes it. Raises `ValueError`."""
    in_flight = "max.in.flight.requests.per.connection"
    allowed = {"acks": settings["acks"] == "all", "retries": settings["retries"] != "0"}
    allowed[in_flight] = int(settings[in_flight]) <= 5
    excluded = [f"{key}={settings[key]}" for key, is_allowed in allowed.items() if not is_allowed]
    if excluded and settings.is_given("enable.idempotence", "true"):
        raise ValueError(f"enable.idempotence=true excludes {excluded[0]}")
    is_idempotent = settings.is_on("enable.idempotence") and not excluded
    if settings["transactional.id"] and not is_idempotent:
        raise ValueError("a transactional.id needs enable.idempotence=true")
    return is_idempotent
