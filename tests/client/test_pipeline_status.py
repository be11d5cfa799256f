"""What pipelines publish of themselves is read back; what else is in the topic is left out."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from suwi.client.addresses import parse_addresses
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.pipeline_status import (
    FAILED,
    SILENT,
    STATUS_TOPIC,
    WAITING,
    decode_status,
    is_suwi,
    publish_status,
    read_statuses,
)
from suwi.client.producer import Producer
from suwi.env import local_env
from suwi.testing import Cluster as Brokers
from tests.pipeline_status import QUERY, STATUS


def on_a_broker(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    env = local_env()

    async def run(servers: str) -> None:
        async with Cluster(parse_addresses(servers), random=env.random) as cluster:
            await scenario(cluster)

    with Brokers(brokers=1) as brokers:
        asyncio.run(run(brokers.bootstrap_servers))


def test_the_last_status_of_each_pipeline_is_read() -> None:
    async def scenario(cluster: Cluster) -> None:
        clock = local_env().clock
        assert await is_suwi(cluster)
        assert await read_statuses(cluster, 10_000) == []
        other = STATUS._replace(pipeline="clicks", state=FAILED, error="no", error_ms=7)
        for status in (STATUS._replace(restarts=1), other, STATUS):
            await publish_status(cluster, clock, status)
        policies = await Admin(cluster).topic_settings([STATUS_TOPIC], "cleanup.policy")
        assert policies == {STATUS_TOPIC: "compact"}
        assert await read_statuses(cluster, 10_000) == [other, STATUS]
        async with Producer(cluster, clock) as producer:
            await producer.send(STATUS_TOPIC, None, key=b"clicks")
            await producer.send(STATUS_TOPIC, b"<script>", key=b"strange")
        (left,) = await read_statuses(cluster, 100_000)
        assert left == STATUS._replace(state=SILENT)

    on_a_broker(scenario)


def test_a_pipeline_that_has_ended_is_not_silent() -> None:
    assert STATUS.seen_at(STATUS.published_ms + 35_000) == STATUS
    waiting = STATUS._replace(state=WAITING)
    assert waiting.seen_at(STATUS.published_ms + 90_000) == waiting
    assert waiting.seen_at(STATUS.published_ms + 100_000).state == SILENT
    ended = STATUS._replace(state=FAILED)
    assert ended.seen_at(10**9) == ended


@pytest.mark.parametrize(
    "change",
    [
        {"pipeline": 1},
        {"queries": None},
        {"queries": [1]},
        {"queries": [{**QUERY._asdict(), "rows_per_s": float("nan")}]},
        {"queries": [{**QUERY._asdict(), "rows": True}]},
        {"started_ms": 2**60},
        {"error": ["x"]},
    ],
)
def test_a_record_that_is_no_status_is_left_out(change: dict[str, Any]) -> None:
    fields = {**STATUS._asdict(), "queries": [QUERY._asdict()]}
    assert decode_status(json.dumps(fields).encode()) == STATUS
    assert decode_status(json.dumps({**fields, **change}).encode()) is None


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"[]", b"null", b"[" * 60_000, b" " * 100_000, b"1"]
)
def test_other_bytes_are_no_status(value: bytes) -> None:
    assert decode_status(value) is None
