"""The producer against failing brokers: order, no loss, and exactly once if it is idempotent."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.client.addresses import Address
from suwi.client.cluster import Cluster
from suwi.client.connection import ConnectionLost
from suwi.client.delivery import Delivery
from suwi.client.fetching import ReadSettings
from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.client.partition_sender import ProducerSettings
from suwi.client.producer import Producer
from suwi.client.reader import Reader
from suwi.model.errors import MessageTooLarge, OutOfOrderSequence, UnknownTopicOrPartition
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.records.compression import Compression
from suwi.records.record import Record
from suwi.sim import Simulation
from tests.broker.simulated import PORT, SimBroker, create_topic
from tests.client.fakes import CLOSE, TOPIC, FakeCluster, always, header, on_fake_cluster


def cluster_of(simulation: Simulation) -> Cluster:
    return Cluster([Address("b1", PORT)], random=simulation.random.stream("client"))


async def read_all(cluster: Cluster, partitions: int = 1) -> list[Record]:
    places = [TopicPartition(TOPIC, PartitionIndex(i)) for i in range(partitions)]
    ends = await list_offsets(cluster, dict.fromkeys(places, LATEST))
    records: list[Record] = []
    async with Reader(cluster, dict.fromkeys(places, Offset(0))) as reader:
        while any(reader.positions[p] < ends[p].offset for p in places):
            for fetched in await reader.read():
                records += fetched.records
    return records


async def inject_faults(simulation: Simulation, broker: SimBroker, rounds: int) -> None:
    """Connection resets, restarts and short network cuts, one after another."""
    faults, network = simulation.faults, simulation.network
    for _ in range(rounds):
        await asyncio.sleep(faults.uniform(0, 0.3))
        match faults.below(3):
            case 0:
                network.reset("b1")
            case 1:
                broker.kill()
                await asyncio.sleep(faults.uniform(0, 2))
                await broker.start()
            case _:
                network.cut("b1", "outside")
                await asyncio.sleep(faults.uniform(0, 1))
                network.reset("b1")
                network.heal()


async def run_producer(
    simulation: Simulation, settings: ProducerSettings, count: int = 400
) -> list[Record]:
    """Produce while brokers fail. Returns what is stored in the end."""
    broker = SimBroker(simulation)
    await broker.start()
    await create_topic(await broker.connect(), TOPIC, segment_bytes="4096")
    trouble = asyncio.create_task(inject_faults(simulation, broker, 8))
    async with cluster_of(simulation) as cluster:
        async with Producer(cluster, broker.machine.clock, settings) as producer:
            deliveries: list[Delivery] = []
            for number in range(count):
                deliveries.append(await producer.send(TOPIC, b"%d" % number))
                if simulation.workload.chance(0.1):
                    await asyncio.sleep(simulation.workload.uniform(0, 0.1))
            await producer.flush()
            await trouble
        stored = await read_all(cluster)
        places = {record.offset: record.value for record in stored}
        for number, delivery in enumerate(deliveries):
            delivered = await delivery
            assert delivered.offset == -1 or places[delivered.offset] == b"%d" % number
        return stored


def run(simulation: Simulation, scenario: Coroutine[Any, Any, None]) -> None:
    simulation.run(scenario)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_an_idempotent_producer_stores_each_record_once_and_in_order(
    seed: int, codec: Compression
) -> None:
    simulation = Simulation(seed)
    settings = ProducerSettings(codec=codec, batch_bytes=300)

    async def scenario() -> None:
        stored = await run_producer(simulation, settings)
        assert [record.value for record in stored] == [b"%d" % n for n in range(400)]

    run(simulation, scenario())


@pytest.mark.parametrize("seed", range(6))
def test_with_acks_1_nothing_is_lost(seed: int) -> None:
    simulation = Simulation(seed)

    async def scenario() -> None:
        stored = await run_producer(simulation, ProducerSettings(acks=1, batch_bytes=300))
        assert {record.value for record in stored} == {b"%d" % n for n in range(400)}

    run(simulation, scenario())


def test_with_acks_0_records_arrive_but_their_offsets_are_unknown() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        await create_topic(await broker.connect(), TOPIC)
        async with cluster_of(simulation) as cluster:
            settings = ProducerSettings(acks=0)
            async with Producer(cluster, broker.machine.clock, settings) as producer:
                delivery = await producer.send(TOPIC, b"x")
            assert (await delivery).offset == -1
            partition = TopicPartition(TOPIC, PartitionIndex(0))
            async with Reader(cluster, {partition: Offset(0)}) as reader:
                (fetched,) = await reader.read()
                assert [record.value for record in fetched.records] == [b"x"]

    run(simulation, scenario())


def test_keys_headers_and_times_arrive_as_sent() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        await create_topic(await broker.connect(), TOPIC)
        async with cluster_of(simulation) as cluster:
            began_ms = broker.machine.clock.now_ms()
            async with Producer(cluster, broker.machine.clock) as producer:
                sent = await producer.send(
                    TOPIC, None, key=b"k", headers=(("h", b"1"), ("h", None)), timestamp=5_000
                )
                now = await producer.send(TOPIC, b"v")
            assert (await sent).timestamp == 5_000
            assert began_ms <= (await now).timestamp <= broker.machine.clock.now_ms()
            first, _ = await read_all(cluster)
            assert first == Record(0, 5_000, b"k", None, (("h", b"1"), ("h", None)))
            found = await list_offsets(
                cluster, {TopicPartition(TOPIC, PartitionIndex(0)): EARLIEST}
            )
            assert [f.offset for f in found.values()] == [0]

    run(simulation, scenario())


def test_a_refused_batch_does_not_block_the_next_one() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        await create_topic(await broker.connect(), TOPIC, max_message_bytes="1000")
        async with cluster_of(simulation) as cluster:
            settings = ProducerSettings(batch_bytes=1)
            async with Producer(cluster, broker.machine.clock, settings) as producer:
                good = [await producer.send(TOPIC, b"a")]
                large = await producer.send(TOPIC, bytes(2000))
                good.append(await producer.send(TOPIC, b"b"))
                with pytest.raises(MessageTooLarge):
                    await large
                assert [(await delivery).offset for delivery in good] == [0, 1]

    run(simulation, scenario())


def test_a_record_that_is_too_large_does_not_fail_the_rest_of_its_batch() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        await create_topic(await broker.connect(), TOPIC, max_message_bytes="300")
        async with cluster_of(simulation) as cluster:
            values = [b"%d" % n if n != 5 else bytes(2000) for n in range(50)]
            async with Producer(cluster, broker.machine.clock) as producer:
                deliveries = [await producer.send(TOPIC, value) for value in values]
            for value, delivery in zip(values, deliveries, strict=True):
                if len(value) == 2000:
                    with pytest.raises(MessageTooLarge):
                        await delivery
                else:
                    await delivery
            stored = await read_all(cluster)
            assert [record.value for record in stored] == [v for v in values if len(v) < 2000]

    run(simulation, scenario())


def test_an_unknown_topic_or_partition_is_raised_at_once() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster, Producer(cluster, fake.machines[0].clock) as producer:
            began_s = fake.simulation.loop.time()
            with pytest.raises(UnknownTopicOrPartition, match="'nothing' does not exist"):
                await producer.send("nothing", b"")
            with pytest.raises(UnknownTopicOrPartition, match="its partitions are 0 to 1"):
                await producer.send(TOPIC, b"", partition=2)
            assert fake.simulation.loop.time() - began_s < 1

    on_fake_cluster(scenario, partitions=2)


# -- injected responses ----------------------------------------------------------------------------


async def send_through(
    fake: FakeCluster, values: list[bytes], settings: ProducerSettings | None = None
) -> list[Delivery]:
    """Send each value in a batch of its own, and wait until all are done."""
    async with fake.client() as cluster:
        producer = Producer(cluster, fake.machines[0].clock, settings)
        async with producer:
            deliveries = []
            for value in values:
                deliveries.append(await producer.send(TOPIC, value, partition=0))
                await producer.flush()
    return deliveries


def values_of(fake: FakeCluster) -> list[bytes | None]:
    return [record.value for record in fake.logs[0].records]


def test_a_leader_that_moved_is_found() -> None:
    async def scenario(fake: FakeCluster) -> None:
        fake.obstacles.append(always(None))
        fake.obstacles.append(lambda _: fake.move_leader(2))
        await send_through(fake, [b"a", b"b"])
        assert fake.produced_at == [0, 0, 2]
        assert values_of(fake) == [b"a", b"b"]

    on_fake_cluster(scenario, brokers=3)


def test_with_acks_0_a_leader_that_moved_is_found_when_the_old_one_disconnects() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster:
            settings = ProducerSettings(acks=0)
            async with Producer(cluster, fake.machines[0].clock, settings) as producer:
                for value in (b"a", b"lost", b"b", b"c"):
                    if value == b"lost":
                        fake.move_leader(1)
                    await (await producer.send(TOPIC, value))
                    await asyncio.sleep(1)
        assert fake.produced_at == [0, 0, 1, 1]
        assert values_of(fake) == [b"a", b"b", b"c"]

    on_fake_cluster(scenario)


def test_after_a_leader_failure_the_new_leader_is_used() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster, Producer(cluster, fake.machines[1].clock) as producer:
            await (await producer.send(TOPIC, b"a"))
            fake.machines[0].power_off()
            fake.move_leader(1)
            assert (await (await producer.send(TOPIC, b"b"))).offset == 1

    on_fake_cluster(scenario)


@pytest.mark.parametrize(
    "answer",
    [
        CLOSE,
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas_after_append,
    ],
)
def test_a_batch_that_was_stored_without_a_response_is_stored_once(answer: int) -> None:
    async def scenario(fake: FakeCluster) -> None:
        fake.after_append.append(always(answer))
        deliveries = await send_through(fake, [b"a", b"b"])
        assert values_of(fake) == [b"a", b"b"]
        assert [(await d).offset for d in deliveries] == [0, 1]

    on_fake_cluster(scenario)


def test_a_duplicate_that_the_broker_reports_counts_as_stored() -> None:
    async def scenario(fake: FakeCluster) -> None:
        fake.after_append.append(always(CLOSE))
        fake.obstacles.append(always(None))
        fake.obstacles.append(always(ErrorCode.duplicate_sequence_number))
        deliveries = await send_through(fake, [b"a", b"b"])
        assert [(await d).offset for d in deliveries] == [-1, 1]

    on_fake_cluster(scenario)


@pytest.mark.parametrize(
    "answer",
    [
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_epoch,
    ],
)
def test_a_producer_whose_state_was_lost_continues_with_a_new_id(answer: int) -> None:
    async def scenario(fake: FakeCluster) -> None:
        fake.obstacles.append(always(None))
        fake.obstacles.append(always(answer))
        await send_through(fake, [b"a", b"b", b"c"])
        assert values_of(fake) == [b"a", b"b", b"c"]
        sent = [header(batch) for batch in fake.logs[0].batches]
        assert [h.producer_id - sent[0].producer_id for h in sent] == [0, 1, 1]
        assert [h.base_sequence for h in sent] == [0, 0, 1]

    on_fake_cluster(scenario)


def test_a_batch_that_may_be_stored_is_never_sent_with_another_id() -> None:
    async def scenario(fake: FakeCluster) -> None:
        fake.after_append.append(always(CLOSE))
        fake.obstacles.append(always(None))
        fake.obstacles.append(always(ErrorCode.out_of_order_sequence_number))
        in_doubt, following = await send_through(fake, [b"a", b"b"])
        with pytest.raises(OutOfOrderSequence):
            await in_doubt
        assert (await following).offset == 1
        assert values_of(fake) == [b"a", b"b"]

    on_fake_cluster(scenario)


def test_after_a_timed_out_batch_that_may_be_stored_the_next_has_a_new_id() -> None:
    async def scenario(fake: FakeCluster) -> None:
        for _ in range(20):
            fake.after_append.append(lambda batch: CLOSE if b"lost?" in batch else None)
            fake.obstacles.append(lambda batch: CLOSE if b"lost?" in batch else None)
        settings = ProducerSettings(delivery_timeout_s=1)
        lost, following = await send_through(fake, [b"lost?", b"b"], settings)
        with pytest.raises(ConnectionLost):
            await lost
        assert (await following).offset == 0
        assert [header(batch).base_sequence for batch in fake.logs[0].batches] == [0]

    on_fake_cluster(scenario)


@pytest.mark.parametrize(
    "answer", [ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error]
)
def test_a_batch_appended_by_a_leader_that_was_then_deposed_may_be_stored(answer: int) -> None:
    """The next batch must not be dropped as a duplicate of it."""

    async def scenario(fake: FakeCluster) -> None:
        for _ in range(20):
            fake.after_append.append(lambda batch: answer if b"stored?" in batch else None)
        settings = ProducerSettings(delivery_timeout_s=1)
        _, following = await send_through(fake, [b"stored?", b"b"], settings)
        assert (await following).offset == 1
        assert values_of(fake) == [b"stored?", b"b"]

    on_fake_cluster(scenario)


def test_a_refused_batch_does_not_consume_its_sequence() -> None:
    async def scenario(fake: FakeCluster) -> None:
        fake.obstacles.append(always(None))
        fake.obstacles.append(always(ErrorCode.message_too_large))
        first, refused, last = await send_through(fake, [b"a", b"b", b"c"])
        with pytest.raises(MessageTooLarge):
            await refused
        assert [header(batch).base_sequence for batch in fake.logs[0].batches] == [0, 1]
        assert [(await first).offset, (await last).offset] == [0, 1]

    on_fake_cluster(scenario)


def test_a_closed_producer_fails_what_it_could_not_deliver() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster:
            producer = Producer(cluster, fake.machines[1].clock)
            await (await producer.send(TOPIC, b"a"))
            fake.machines[0].power_off()
            delivery = await producer.send(TOPIC, b"b")
            await asyncio.sleep(1)
            assert not delivery.is_done
            await producer.close()
            with pytest.raises(Exception, match="closed"):
                await delivery

    on_fake_cluster(scenario)


def test_records_without_a_key_spread_over_the_partitions_batch_by_batch() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster:
            settings = ProducerSettings(batch_bytes=1000)
            async with Producer(cluster, fake.machines[0].clock, settings) as producer:
                for _ in range(1500):
                    await producer.send(TOPIC, bytes(84))
        counts = [len(log.records) for log in fake.logs]
        assert sum(counts) == 1500
        assert min(counts) > 300
        sizes = [header(batch).record_count for log in fake.logs for batch in log.batches]
        assert sizes.count(10) > 0.9 * len(sizes)

    on_fake_cluster(scenario, partitions=3)


def test_a_broker_that_reads_nothing_does_not_block_closing_a_client() -> None:
    async def scenario(fake: FakeCluster) -> None:
        cluster = fake.client()
        settings = ProducerSettings(acks=0, batch_bytes=1)
        producer = Producer(cluster, fake.machines[0].clock, settings)
        await (await producer.send(TOPIC, b"x"))
        fake.simulation.network.partition(["outside"], ["b0"])
        await producer.send(TOPIC, bytes(1 << 20))
        await asyncio.sleep(1)  # it is written by then, and stays in the socket buffer
        await producer.close()
        began_s = fake.simulation.loop.time()
        await cluster.close()
        assert fake.simulation.loop.time() - began_s < 10

    on_fake_cluster(scenario, brokers=1)


def test_send_waits_while_the_buffer_is_full() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster:
            settings = ProducerSettings(buffer_bytes=1000, batch_bytes=500)
            async with Producer(cluster, fake.machines[0].clock, settings) as producer:
                fake.simulation.network.slow("b0", 1000)
                deliveries = [await producer.send(TOPIC, bytes(400)) for _ in range(6)]
                assert [d.is_done for d in deliveries[:3]] == [True] * 3

    on_fake_cluster(scenario)


def test_records_within_the_linger_time_share_a_batch() -> None:
    async def scenario(fake: FakeCluster) -> None:
        async with fake.client() as cluster:
            settings = ProducerSettings(linger_s=1)
            async with Producer(cluster, fake.machines[0].clock, settings) as producer:
                for number in range(4):
                    await producer.send(TOPIC, b"%d" % number)
                    await asyncio.sleep(0.3)
                await asyncio.sleep(1)
                assert len(fake.logs[0].batches) == 1
                delivery = await producer.send(TOPIC, b"last")
                began_s = fake.simulation.loop.time()
                await producer.flush()
                assert delivery.is_done
                assert fake.simulation.loop.time() - began_s < 0.5

    on_fake_cluster(scenario)


def test_a_reader_that_waits_through_a_twin_holds_up_no_record() -> None:
    simulation = Simulation(5)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        await create_topic(await broker.connect(), TOPIC)
        start = {TopicPartition(TOPIC, PartitionIndex(0)): Offset(0)}
        patient = ReadSettings(max_wait_ms=20_000)
        async with (
            cluster_of(simulation) as cluster,
            cluster.twin() as other,
            Reader(other, start, patient) as reader,
            Producer(cluster, broker.machine.clock) as producer,
        ):
            reading = asyncio.create_task(reader.read())
            await asyncio.sleep(1)  # in virtual time, as the limit below
            async with asyncio.timeout(5):
                await (await producer.send(TOPIC, b"fig"))
                (fetched,) = await reading
            assert [record.value for record in fetched.records] == [b"fig"]

    run(simulation, scenario())
