"""Idempotent writes that two brokers refuse and append (hazard 23), batch by batch."""

import asyncio

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.testing import AsyncCluster, Cluster
from suwi.wire.produce import decode_produce_response, encode_produce_request
from suwi.wire.versions import ApiKey
from tests.testing.clients import read

TOPIC = "once"
SETTINGS = {"replica.lag.time.max.ms": 4_000}
PRODUCER_ID = 4_000
VERSION = 9


class Writer:
    def __init__(self, connection: PeerConnection, producer_id: int) -> None:
        self._connection = connection
        self._producer_id = producer_id

    async def send(self, *sequences: int) -> list[ErrorCode]:
        return [await self._send(sequence) for sequence in sequences]

    async def _send(self, sequence: int) -> ErrorCode:
        batch = build_batch(
            [Record(value=f"{self._producer_id}:{sequence}".encode(), timestamp=1)],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        topics = [(TOPIC, None, [(0, batch)])]
        body = encode_produce_request(VERSION, None, -1, 60_000, topics)
        answer = await self._connection.send(ApiKey.PRODUCE, VERSION, body)
        (topic,) = decode_produce_response(VERSION, answer).topics
        return ErrorCode(topic.partitions[0].error_code)


async def _writer(cluster: AsyncCluster, leader: int, producer_id: int) -> Writer:
    host, port = cluster.address(leader).rsplit(":", 1)
    return Writer(await PeerConnection.open(host, int(port)), producer_id)


def test_hazard_23_a_batch_that_was_appended_and_refused_does_not_hide_a_missing_one() -> None:
    async def run() -> None:
        async with Cluster(brokers=3, settings=SETTINGS, session_timeout_s=60) as cluster:
            await cluster.create_topic(TOPIC, configs={"min.insync.replicas": "3"})
            leader = await cluster.wait_leader(TOPIC)
            follower, *_ = set(cluster.brokers) - {leader, await cluster.controller()}
            await cluster.wait_isr(TOPIC, 0, cluster.brokers)
            writer = await _writer(cluster, leader, PRODUCER_ID)
            assert await writer.send(0) == [ErrorCode.none]
            await cluster.pause(follower)
            assert await writer.send(1) == [ErrorCode.not_enough_replicas_after_append]
            assert await writer.send(1, 2) == [ErrorCode.not_enough_replicas] * 2
            await cluster.resume(follower)
            await cluster.wait_isr(TOPIC, 0, cluster.brokers)
            assert await writer.send(3) == [ErrorCode.kafka_storage_error]
            assert await writer.send(1, 2, 3) == [ErrorCode.none] * 3
            servers = cluster.bootstrap_servers
            values = await asyncio.to_thread(read, servers, TOPIC, 4)
            assert values == [f"{PRODUCER_ID}:{sequence}" for sequence in range(4)]

    asyncio.run(run())
