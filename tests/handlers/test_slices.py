"""Requests with thousands of partitions are handled in slices, one per event loop iteration."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from suwi.handlers.describe_producers import DescribeProducers
from suwi.handlers.list_offsets import ListOffsets
from suwi.handlers.offset_for_leader_epoch import OffsetForLeaderEpoch
from suwi.handlers.slices import SLICE_PARTITIONS
from suwi.metadata.image import PartitionState
from suwi.model.ids import LeaderEpoch
from suwi.net.answers import Reply
from suwi.wire.versions import ApiKey
from tests.handlers.requests import ManyReplicas, request, response_to
from tests.replica.alone import ONE, make_partition

TOPICS = [("a", 1000), ("b", 0), ("c", 1), ("d", 130), *((f"t{n}", 1) for n in range(300))]


def list_offsets(topics: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "timeout": 1000,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
                    for index in range(count)
                ],
            }
            for name, count in topics
        ],
    }


def offset_for_leader_epoch(topics: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "topics": [
            {
                "topic": name,
                "partitions": [
                    {"partition": index, "current_leader_epoch": -1, "leader_epoch": 0}
                    for index in range(count)
                ],
            }
            for name, count in topics
        ],
    }


def describe_producers(topics: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {
        "topics": [
            {"name": name, "partition_indexes": list(range(count))} for name, count in topics
        ]
    }


HANDLERS = pytest.mark.parametrize(
    ("handler", "api_key", "fields"),
    [
        (ListOffsets, ApiKey.LIST_OFFSETS, list_offsets),
        (OffsetForLeaderEpoch, ApiKey.OFFSET_FOR_LEADER_EPOCH, offset_for_leader_epoch),
        (DescribeProducers, ApiKey.DESCRIBE_PRODUCERS, describe_producers),
    ],
)
VERSIONS = {
    ApiKey.LIST_OFFSETS: (1, 5, 11),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.DESCRIBE_PRODUCERS: (0,),
}


def led() -> ManyReplicas:
    partition = make_partition()
    partition.make_leader(PartitionState(ONE, LeaderEpoch(0), 0, (ONE,), (ONE,)), 1)
    return ManyReplicas(partition)


@HANDLERS
def test_many_partitions_are_handled_in_slices(handler: Any, api_key: ApiKey, fields: Any) -> None:
    async def scenario() -> None:
        for version in VERSIONS[api_key]:
            replicas = led()
            asked = request(api_key, version, fields(TOPICS))
            answer = await response_to(asked, handler(replicas)(asked))
            replicas.stop()
            assert sum(replicas.by_turn.values()) == sum(count for _, count in TOPICS)
            assert max(replicas.by_turn.values()) <= SLICE_PARTITIONS
            found = [
                (
                    getattr(topic, "name", None) or topic.topic,
                    [
                        getattr(p, "partition_index", None) or getattr(p, "partition", 0)
                        for p in topic.partitions
                    ],
                )
                for topic in answer.topics
            ]
            assert found == [(name, list(range(count))) for name, count in TOPICS]
            assert {p.error_code for topic in answer.topics for p in topic.partitions} == {0}

    asyncio.run(scenario())


@pytest.mark.parametrize("handler", [OffsetForLeaderEpoch, DescribeProducers])
def test_few_partitions_are_answered_immediately(handler: Any) -> None:
    async def scenario() -> None:
        api_key, fields = {
            OffsetForLeaderEpoch: (ApiKey.OFFSET_FOR_LEADER_EPOCH, offset_for_leader_epoch),
            DescribeProducers: (ApiKey.DESCRIBE_PRODUCERS, describe_producers),
        }[handler]
        replicas = led()
        asked = request(api_key, VERSIONS[api_key][-1], fields([("a", 3), ("b", 2)]))
        assert isinstance(handler(replicas)(asked), Reply)
        replicas.stop()

    asyncio.run(scenario())
