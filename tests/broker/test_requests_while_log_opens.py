"""Requests for a log that is being opened: they wait, and are neither refused nor reordered."""

from collections.abc import Awaitable

import pytest

from suwi.client.connection import PeerConnection
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica.log_preparation import Turns
from suwi.sim import Simulation
from suwi.wire.produce import decode_produce_response, encode_produce_request
from suwi.wire.versions import ApiKey
from tests.broker.simulated import SimBroker, create_topic, fetch, produce

TOPIC = "orders"
VERSION = 9


class NoRoom(Turns):
    """Never allows opening a log synchronously, so that it is opened in the background."""

    def take(self) -> bool:
        return False


def send(client: PeerConnection, sequence: int) -> Awaitable[memoryview]:
    batch = build_batch(
        [Record(value=b"%d" % sequence, timestamp=1)],
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
    )
    topics = [(TOPIC, None, [(0, batch)])]
    return client.send(
        ApiKey.PRODUCE, VERSION, encode_produce_request(VERSION, None, -1, 9000, topics)
    )


@pytest.mark.parametrize("seed", range(5))
def test_produce_requests_wait_while_the_log_is_opened(seed: int) -> None:
    simulation = Simulation(seed)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, TOPIC)
        assert (await produce(client, TOPIC, [b"0"], producer=(7, 0, 0))).error_code == 0
        await broker.stop()
        await broker.start()
        assert broker.broker is not None
        replicas = broker.broker.replicas
        for partition in replicas:
            replica_log = partition.replica_log
            replica_log.context = replica_log.context._replace(turns=NoRoom())
        client, reader = await broker.connect(), await broker.connect()
        # Pipelined as by an idempotent producer, before the log is open.
        sent = [send(client, n) for n in range(1, 6)]
        assert (await fetch(reader, TOPIC, 0))[0].value == b"0"
        for n, answer in enumerate(sent, start=1):
            produced = decode_produce_response(VERSION, await answer).topics[0].partitions[0]
            assert (produced.error_code, produced.base_offset) == (0, n)

    simulation.run(scenario())


def test_list_offsets_waits_while_the_log_is_opened() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, TOPIC)
        await produce(client, TOPIC, [b"0"])
        await broker.stop()
        await broker.start()
        assert broker.broker is not None
        for partition in broker.broker.replicas:
            replica_log = partition.replica_log
            replica_log.context = replica_log.context._replace(turns=NoRoom())
        client = await broker.connect()
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
        fields = {
            "replica_id": -1,
            "isolation_level": 0,
            "timeout": 1000,
            "topics": [{"name": TOPIC, "partitions": [asked]}],
        }
        answer = await client.call(ApiKey.LIST_OFFSETS, 5, fields)
        (found,) = answer.topics[0].partitions
        assert (found.error_code, found.offset) == (0, 1)

    simulation.run(scenario())
