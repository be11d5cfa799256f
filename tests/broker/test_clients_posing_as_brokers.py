"""Clients that send requests of brokers without authentication as a broker: they are refused."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi import __version__
from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.model.ids import NodeId
from suwi.sim.cluster import PORT, SimCluster
from suwi.wire.fetch_request import FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from suwi.wire.fetch_response import decode_fetch_response
from suwi.wire.versions import ApiKey
from tests.broker.simulated import produce
from tests.broker.test_inter_broker_requests import alter_fields, heartbeat_fields, orders
from tests.broker.test_simulated_cluster import controller, image, run, state, until

B1 = NodeId(1)
REFUSED = ErrorCode.cluster_authorization_failed


async def unauthenticated(cluster: SimCluster, to: int | None = None) -> PeerConnection:
    return await PeerConnection.open(f"b{to or controller(cluster)}", PORT, client_id="client")


async def call_json(client: PeerConnection, api_key: int, body: Mapping[str, Any]) -> Any:
    return json.loads(bytes(await client.send(api_key, 0, [json.dumps(body).encode()])))


async def is_disconnected_by(client: PeerConnection, api_key: int, body: bytes) -> bool:
    try:
        await client.send(api_key, 0, [body])
    except ConnectionLost:
        return True
    return False


@pytest.mark.parametrize("version", [0, 1])
def test_a_client_cannot_fence_a_broker(version: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        epoch = image(cluster, 1).registered_brokers[B1].epoch
        client = await unauthenticated(cluster)
        answer = await client.call(ApiKey.BROKER_HEARTBEAT, version, heartbeat_fields(1, epoch))
        assert (answer.error_code, answer.should_shut_down) == (REFUSED, False)
        await asyncio.sleep(1)
        values = [change.values.get("live/1") or b"" for change in cluster.store.ledger.history]
        assert not any(b'"fenced":true' in value for value in values)

    run(scenario)


@pytest.mark.parametrize("version", [2, 3])
def test_a_client_cannot_change_an_isr(version: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await orders(cluster)
        fields = alter_fields(cluster, controller(cluster), 1, [1])
        client = await unauthenticated(cluster)
        answer = await client.call(ApiKey.ALTER_PARTITION, version, fields)
        assert (answer.error_code, answer.topics) == (REFUSED, ())
        assert state(cluster).isr == (1, 2, 3)

    run(scenario)


def test_a_client_cannot_report_a_loss() -> None:
    report = {"broker": 1, "partition": "orders-0", "ranges": [], "committed_below": 8}

    async def scenario(cluster: SimCluster) -> None:
        client = await unauthenticated(cluster)
        assert await is_disconnected_by(client, ApiKey.REPORT_LOSS, json.dumps(report).encode())
        assert image(cluster, controller(cluster)).events == {}

    run(scenario)


@pytest.mark.parametrize("version", [6, 12, 15, 18])
def test_a_client_that_fetches_as_a_replica_does_not_advance_the_high_watermark(
    version: int,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await orders(cluster)
        # The record stays uncommitted: the other two replicas are frozen.
        for number in (2, 3):
            cluster[number].freeze()
        leader = await unauthenticated(cluster, to=1)
        await produce(leader, "orders", [b"uncommitted"], acks=1)
        broker = cluster[1].broker
        assert broker is not None
        partition = broker.replicas.leader_of("orders", 0)
        assert (partition.high_watermark, partition.log.end_offset) == (0, 1)
        topic = image(cluster, 1).topics["orders"]
        for replica in (2, 3):
            asked = FetchRequest(
                0,
                1,
                1 << 20,
                [FetchTopic("orders", topic.id, [FetchPartition(0, 0, 1, -1, 0, 1 << 20)])],
                replica_id=replica,
                replica_epoch=image(cluster, 1).registered_brokers[NodeId(replica)].epoch,
            )
            body = encode_fetch_request(version, asked)
            answer = decode_fetch_response(
                version, await leader.send(ApiKey.FETCH, version, [body])
            )
            of_partitions = {p.error_code for topic in answer.topics for p in topic.partitions}
            assert {answer.error_code, *of_partitions} - {0} == {REFUSED}
        assert partition.high_watermark == 0

    run(scenario)


@pytest.mark.parametrize("version", [3, 4])
def test_a_client_with_a_replica_id_does_not_get_an_epoch_end_offset(version: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await orders(cluster)
        client = await unauthenticated(cluster, to=1)
        asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
        fields = {"replica_id": 2, "topics": [{"topic": "orders", "partitions": [asked]}]}
        answer = await client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, fields)
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.end_offset) == (REFUSED, -1)

    run(scenario)


def test_a_client_gets_the_broker_id_but_not_the_broker_epoch() -> None:
    async def scenario(cluster: SimCluster) -> None:
        client = await unauthenticated(cluster, to=2)
        told = await call_json(client, ApiKey.DESCRIBE_BROKER, {})
        assert isinstance(told.pop("now_ms"), int)
        assert len(told.pop("directories")) == 1
        assert told.pop("process")
        assert told.pop("access")["authorizer.class.name"] == ""
        assert told.pop("acls_sequence") == 0
        assert told == {
            "node": 2,
            "elections": [],
            "problems": [],
            "problems_count": 0,
            "stopping": False,
            "version": __version__,
            "store": "embedded",
            "store_state": "connected",
        }

    run(scenario)


def test_clients_may_describe_replicas_and_events() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await orders(cluster)
        client = await unauthenticated(cluster, to=1)
        for asked in ({}, {"topics": ["orders", "orders"]}):
            told = await call_json(client, ApiKey.DESCRIBE_REPLICAS, asked)
            assert [(r["topic"], r["partition"]) for r in told["replicas"]] == [("orders", 0)]
        assert await call_json(client, ApiKey.DESCRIBE_REPLICAS, {"topics": []}) == {"replicas": []}
        assert await call_json(client, ApiKey.DESCRIBE_EVENTS, {}) == {"events": []}

    run(scenario)


@pytest.mark.parametrize(
    "body",
    [
        b'{"topics":[' + b"[]," * 700_000 + b"[]]}",
        b'{"topics":[[]]}',
        b'{"topics":[1]}',
        b'{"topics":"orders"}',
        b"[]",
        b"[" * 100_000,
        b"\xff",
        b"",
    ],
    ids=lambda body: f"{len(body)} bytes {body[:15]!r}",
)
def test_json_that_is_too_long_or_malformed_closes_the_connection(body: bytes) -> None:
    async def scenario(cluster: SimCluster) -> None:
        client = await unauthenticated(cluster, to=1)
        assert await is_disconnected_by(client, ApiKey.DESCRIBE_REPLICAS, body)
        await until(lambda: len(image(cluster, 1).unfenced_brokers) == 3)

    run(scenario)
