"""The transactional producer: what it asks, in which order, and what follows each error."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.client.cluster import Cluster
from suwi.client.group_offsets import Membership
from suwi.client.identity import Identity
from suwi.client.partition_sender import ProducerSettings
from suwi.client.transactions import State, TransactionalProducer, end_transaction
from suwi.model.errors import BrokerError, InvalidTxnState, TransactionAbortable
from suwi.model.ids import Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from suwi.sim import ManualClock, Simulation
from suwi.wire.versions import ApiKey
from tests.client.fakes import CLOSE, TOPIC, always, header
from tests.client.transaction_fakes import LOST, FakeTransactions

RETRIED = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
)
Scenario = Callable[[FakeTransactions, TransactionalProducer], Awaitable[None]]


def run(scenario: Scenario, *, tv: int = 1, partitions: int = 1, **settings: Any) -> None:
    simulation = Simulation(0)

    async def main() -> None:
        fake = FakeTransactions(simulation, tv=tv, partitions=partitions)
        await fake.start()
        async with fake.client(retry_timeout_s=5, **settings) as cluster:
            producer = new_producer(cluster)
            await producer.init_transactions()
            fake.transcript.clear()
            await scenario(fake, producer)
            await producer.close()

    simulation.run(main())


def new_producer(cluster: Cluster) -> TransactionalProducer:
    settings = ProducerSettings(delivery_timeout_s=5)
    return TransactionalProducer(cluster, ManualClock(), "copier", settings)


def partition(index: int = 0) -> TopicPartition:
    return TopicPartition(TOPIC, PartitionIndex(index))


def stored(fake: FakeTransactions) -> list[tuple[int, int, int, bool]]:
    heads = [header(batch) for log in fake.logs for batch in log.batches]
    return [(h.producer_id, h.producer_epoch, h.base_sequence, h.is_transactional) for h in heads]


def test_tv1_registers_partitions_and_groups_before_it_writes_to_them() -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        for _ in range(2):
            producer.begin()
            await (await producer.send(TOPIC, b"x"))
            offsets = {partition(): Offset(5)}
            await producer.send_offsets("g", offsets, Membership("m", 3))
            await producer.commit()
        once = [
            "ADD_PARTITIONS_TO_TXN v3 orders-0",
            "PRODUCE v11",
            "ADD_OFFSETS_TO_TXN v4 g",
            "TXN_OFFSET_COMMIT v4 g generation=3",
            "END_TXN v4 commit epoch=1",
        ]
        assert fake.transcript == once * 2
        assert fake.offsets == {"orders-0": 5}
        assert stored(fake) == [(7, 1, 0, True), (7, 1, 1, True)]

    run(scenario)


def test_tv2_registers_nothing_and_has_an_epoch_for_each_transaction() -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        for commit in (True, False):
            producer.begin()
            await (await producer.send(TOPIC, b"x"))
            await producer.send_offsets("g", {partition(): Offset(5)})
            await (producer.commit() if commit else producer.abort())
        assert fake.transcript == [
            "PRODUCE v13",
            "TXN_OFFSET_COMMIT v5 g generation=-1",
            "END_TXN v5 commit epoch=1",
            "PRODUCE v13",
            "TXN_OFFSET_COMMIT v5 g generation=-1",
            "END_TXN v5 abort epoch=2",
        ]
        assert stored(fake) == [(7, 1, 0, True), (7, 2, 0, True)]
        assert producer.identity == Identity(ProducerId(7), ProducerEpoch(3))

    run(scenario, tv=2)


def test_partitions_that_are_new_together_are_registered_together() -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        producer.begin()
        for index in range(4):
            await producer.send(TOPIC, b"x", partition=index)
        await producer.commit()
        added = [line for line in fake.transcript if line.startswith("ADD_PARTITIONS")]
        assert sum(line.count("orders-") for line in added) == 4
        assert len(added) <= 2

    run(scenario, partitions=4)


def test_an_empty_transaction_asks_nothing() -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        producer.begin()
        await producer.commit()
        producer.begin()
        await producer.abort()
        assert fake.transcript == []

    run(scenario)


@pytest.mark.parametrize(
    ("api", "errors"),
    [
        ("ADD_PARTITIONS_TO_TXN", (*RETRIED, ErrorCode.unknown_topic_or_partition)),
        ("ADD_OFFSETS_TO_TXN", RETRIED),
        ("TXN_OFFSET_COMMIT", (*RETRIED, ErrorCode.unknown_topic_or_partition)),
        ("END_TXN", RETRIED),
        ("INIT_PRODUCER_ID", RETRIED),
    ],
)
def test_errors_that_may_pass_are_retried(api: str, errors: tuple[ErrorCode, ...]) -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        fake.errors[ApiKey[api]].extend(errors)
        await producer.init_transactions()
        producer.begin()
        await (await producer.send(TOPIC, b"x"))
        await producer.send_offsets("g", {partition(): Offset(5)})
        await producer.commit()
        assert sum(line.startswith(api) for line in fake.transcript) == len(errors) + 1

    run(scenario)


@pytest.mark.parametrize("tv", [1, 2])
def test_a_coordinator_that_moves_at_any_time_is_found_again(tv: int) -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        def move() -> None:
            fake.coordinator = 1 - fake.coordinator

        move()
        await producer.init_transactions()
        move()
        producer.begin()
        await (await producer.send(TOPIC, b"x"))
        move()
        await producer.send_offsets("g", {partition(): Offset(5)})
        move()
        await producer.commit()
        refused = [line.split()[0] for line in fake.transcript if line.endswith(" 16")]
        assert refused[0] == "INIT_PRODUCER_ID"
        assert len(refused) == len(set(refused))

    run(scenario, tv=tv)


@pytest.mark.parametrize("tv", [1, 2])
@pytest.mark.parametrize("fenced", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch])
def test_a_fenced_producer_does_nothing_any_more(tv: int, fenced: ErrorCode) -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        producer.begin()
        await (await producer.send(TOPIC, b"x"))
        fake.errors[ApiKey.END_TXN].append(fenced)
        with pytest.raises(BrokerError):
            await producer.commit()
        assert producer.state is State.FATAL_ERROR
        asked = list(fake.transcript)
        for attempt in (producer.commit, producer.abort, producer.init_transactions):
            with pytest.raises(BrokerError) as raised:
                await attempt()
            assert raised.value.code is fenced
        with pytest.raises(BrokerError):
            producer.begin()
        assert fake.transcript == asked

    run(scenario, tv=tv)


@pytest.mark.parametrize("tv", [1, 2])
def test_after_a_failed_write_the_transaction_can_only_be_aborted(tv: int) -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        producer.begin()
        fake.obstacles.append(always(ErrorCode.transaction_abortable))
        delivery = await producer.send(TOPIC, b"x")
        with pytest.raises(TransactionAbortable):
            await delivery
        with pytest.raises(TransactionAbortable):
            await producer.commit()
        with pytest.raises(TransactionAbortable):
            await producer.send(TOPIC, b"y")
        with pytest.raises(TransactionAbortable):
            await producer.send_offsets("g", {partition(): Offset(5)})
        await producer.abort()
        # TV1 asks for a new epoch itself: the next sequence may be unknown.
        ended = ["END_TXN v4 abort epoch=1", "INIT_PRODUCER_ID v5 epoch=1"]
        assert (
            fake.transcript[-2:] == ended
            if tv == 1
            else ["PRODUCE v13", "END_TXN v5 abort epoch=1"]
        )
        producer.begin()
        await (await producer.send(TOPIC, b"z"))
        await producer.commit()
        assert stored(fake) == [(7, 2, 0, True)]

    run(scenario, tv=tv)


@pytest.mark.parametrize("code", [22, 25, 82])
def test_offsets_of_a_member_that_was_replaced_abort_the_transaction(code: int) -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        producer.begin()
        fake.errors[ApiKey.TXN_OFFSET_COMMIT].append(code)
        with pytest.raises(BrokerError):
            await producer.send_offsets("g", {partition(): Offset(5)}, Membership("m", 3))
        assert producer.state is State.ABORTABLE_ERROR
        await producer.abort()
        assert producer.state is State.READY

    run(scenario)


def test_an_abort_drops_what_was_not_sent_and_keeps_the_sequence() -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        producer.begin()
        await (await producer.send(TOPIC, b"x"))
        dropped = await producer.send(TOPIC, b"y")
        await producer.abort()
        with pytest.raises(TransactionAbortable):
            await dropped
        producer.begin()
        await (await producer.send(TOPIC, b"z"))
        await producer.commit()
        assert stored(fake) == [(7, 1, 0, True), (7, 1, 1, True)]
        assert [record.value for record in fake.logs[0].records] == [b"x", b"z"]

    run(scenario)


def test_a_write_without_an_answer_is_sent_again_in_the_same_transaction() -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        producer.begin()
        fake.after_append.append(always(CLOSE))
        await (await producer.send(TOPIC, b"x"))
        await producer.commit()
        assert stored(fake) == [(7, 1, 0, True)]

    run(scenario)


@pytest.mark.parametrize("tv", [1, 2])
def test_an_end_without_an_answer_is_asked_for_again(tv: int) -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        producer.begin()
        await (await producer.send(TOPIC, b"x"))
        fake.errors[ApiKey.END_TXN].append(LOST)
        await producer.commit()
        ends = [line for line in fake.transcript if line.startswith("END_TXN")]
        assert len(ends) == 2
        assert all("commit epoch=1" in line for line in ends)

    run(scenario, tv=tv)


def test_an_end_of_unknown_outcome_can_be_repeated_in_its_direction_only() -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        producer.begin()
        await (await producer.send(TOPIC, b"x"))
        fake.errors[ApiKey.END_TXN].extend([ErrorCode.concurrent_transactions] * 1000)
        with pytest.raises(BrokerError):
            await producer.commit()
        fake.errors.clear()
        with pytest.raises(InvalidTxnState):
            await producer.abort()
        await producer.commit()
        producer.begin()

    run(scenario)


@pytest.mark.parametrize("tv", [1, 2])
def test_another_process_ends_a_transaction_by_its_producer_id_and_epoch(tv: int) -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        producer.begin()
        await (await producer.send(TOPIC, b"x"))
        identity = producer.identity
        await producer.close()
        async with fake.client() as other:
            for _ in range(2):
                await end_transaction(other, "copier", identity, commit=True)
        version = {1: 4, 2: 5}[tv]
        assert fake.transcript[-2:] == [f"END_TXN v{version} commit epoch=1"] * 2

    run(scenario, tv=tv)


@pytest.mark.parametrize("tv", [1, 2])
def test_another_process_writes_as_the_producer_that_was_initialized(tv: int) -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        async with fake.client() as other:
            task = new_producer(other)
            await task.resume(producer.identity)
            task.begin()
            await (await task.send(TOPIC, b"x"))
            await task.commit()
            await task.close()
        assert not [line for line in fake.transcript if line.startswith("INIT_PRODUCER_ID")]
        assert stored(fake) == [(*producer.identity, 0, True)]

    run(scenario, tv=tv)


def test_nothing_is_sent_outside_a_transaction() -> None:
    async def scenario(fake: FakeTransactions, producer: TransactionalProducer) -> None:
        with pytest.raises(InvalidTxnState):
            await producer.send(TOPIC, b"x")
        with pytest.raises(InvalidTxnState):
            await producer.commit()
        with pytest.raises(InvalidTxnState):
            await producer.abort()
        producer.begin()
        with pytest.raises(InvalidTxnState):
            producer.begin()
        await asyncio.sleep(0)
        assert fake.transcript == []

    run(scenario)
