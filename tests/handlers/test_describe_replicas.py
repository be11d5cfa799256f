"""DescribeReplicas with many replicas does not block the event loop."""

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from suwi.client.replicas import _chunks
from suwi.handlers import describe_replicas
from suwi.handlers.json_body import read_json
from suwi.model.ids import NodeId, PartitionIndex, TopicPartition
from suwi.net.answers import CloseConnection, Exclusive, Reply
from suwi.net.connection import ClientIdentity
from suwi.wire.versions import CLIENT_JSON_BYTES_MAX, SMALL_REQUEST_BYTES_MAX, ApiKey

_REPLICAS = 300
_DESCRIBE_S = 0.0005


def partition(number: int) -> Any:
    return SimpleNamespace(
        partition=TopicPartition("orders", PartitionIndex(number)), is_closed=False
    )


def slowly(partition: Any, node: int, now_s: float) -> Any:
    time.sleep(_DESCRIBE_S)
    return SimpleNamespace(as_json=lambda: {"partition": partition.partition.partition})


def request(body: bytes, *, is_peer: bool = False) -> Any:
    client = ClientIdentity("TEST", is_peer=is_peer)
    return SimpleNamespace(
        api_key=ApiKey.DESCRIBE_REPLICAS, body=memoryview(bytearray(body)), client=client
    )


def test_other_tasks_run_while_replicas_are_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(describe_replicas, "describe", slowly)
    replicas = [partition(number) for number in range(_REPLICAS)]
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            if turns == 5:
                replicas[-1].is_closed = True  # deleted in the meantime
            await asyncio.sleep(0)

    async def scenario() -> Reply:
        others = asyncio.ensure_future(count_turns())
        asked = request(b"{}")
        answer = describe_replicas.describe_replicas(replicas, NodeId(1), asked)  # type: ignore[arg-type]
        assert isinstance(answer, Exclusive)
        reply = await answer.reply
        others.cancel()
        assert isinstance(reply, Reply)
        return reply

    reply = asyncio.run(scenario())
    response = json.loads(b"".join(reply.chunks))  # type: ignore[arg-type]
    assert response == {"replicas": [{"partition": number} for number in range(_REPLICAS - 1)]}
    assert turns > 20


def test_a_broker_may_name_more_topics_than_a_client() -> None:
    body = json.dumps({"topics": ["x" * 200] * 1000}).encode()
    assert len(body) > CLIENT_JSON_BYTES_MAX
    assert len(read_json(request(body, is_peer=True))["topics"]) == 1000
    with pytest.raises(CloseConnection, match=f"a request of {len(body)} bytes"):
        read_json(request(body))
    with pytest.raises(CloseConnection):
        read_json(request(bytes(SMALL_REQUEST_BYTES_MAX + 1), is_peer=True))


@pytest.mark.parametrize("length", [1, 20, 249])
def test_our_client_splits_topics_into_requests_of_the_allowed_size(length: int) -> None:
    names = [f"{number:0{length}}"[:length] for number in range(20_000)]
    chunks = list(_chunks(names))
    assert [name for portion in chunks for name in portion] == names
    for portion in chunks:
        assert len(json.dumps({"topics": portion}).encode()) <= CLIENT_JSON_BYTES_MAX
    assert list(_chunks([])) == [[]]
