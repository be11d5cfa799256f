"""ListOffsets right after an election: the reported end offset never moves back (KIP-207)."""

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.handlers.list_offsets import ListOffsets
from suwi.metadata.image import PartitionState
from suwi.model.ids import LeaderEpoch, Offset
from suwi.records.batch import read_header
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica.partition import Partition
from suwi.wire.versions import ApiKey
from tests.handlers.requests import ManyReplicas, request, response_to
from tests.replica.alone import ONE, TWO, make_partition

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
BOTH = (ONE, TWO)


def elected() -> Partition:
    """A new leader with two records at times 10 and 20; only the first is known to be committed."""
    partition = make_partition()
    partition.make_leader(PartitionState(ONE, LeaderEpoch(0), 0, BOTH, BOTH), 1)
    for timestamp in (10, 20):
        batch = memoryview(build_batch([Record(value=b"x", timestamp=timestamp)]))
        partition.append(batch, read_header(batch), 20)
    partition.leader_replica.record_progress(TWO, Offset(1), Offset(0), 1)
    partition.make_leader(PartitionState(ONE, LeaderEpoch(1), 1, BOTH, BOTH), 1)
    assert partition.high_watermark == 1
    return partition


async def ask(
    partition: Partition, timestamp: int, version: int = 11, replica_id: int = -1
) -> tuple[int, int]:
    fields: dict[str, Any] = {
        "replica_id": replica_id,
        "isolation_level": 0,
        "timeout": 1000,
        "topics": [
            {
                "name": "orders",
                "partitions": [
                    {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
                ],
            }
        ],
    }
    asked = request(ApiKey.LIST_OFFSETS, version, fields)
    replicas: Any = ManyReplicas(partition)
    answer = await response_to(asked, ListOffsets(replicas)(asked))
    replicas.stop()
    (found,) = answer.topics[0].partitions
    return found.error_code, found.offset


NOT_YET = (ErrorCode.offset_not_available, -1)


@pytest.mark.parametrize(
    ("timestamp", "before", "after"),
    [
        (LATEST, NOT_YET, (0, 2)),
        (MAX_TIMESTAMP, NOT_YET, (0, 1)),
        (15, NOT_YET, (0, 1)),  # above the known high watermark
        (99, NOT_YET, (0, -1)),  # more records may be committed
        (5, (0, 0), (0, 0)),
        (EARLIEST, (0, 0), (0, 0)),
    ],
)
def test_a_new_leader_reports_no_offset_above_its_known_high_watermark(
    timestamp: int, before: tuple[int, int], after: tuple[int, int]
) -> None:
    async def scenario() -> None:
        partition = elected()
        assert await ask(partition, timestamp) == before
        partition.leader_replica.record_progress(TWO, Offset(2), Offset(0), 1)
        assert await ask(partition, timestamp) == after

    asyncio.run(scenario())


def test_old_clients_get_leader_not_available() -> None:
    async def scenario() -> None:
        assert await ask(elected(), LATEST, version=4) == (ErrorCode.leader_not_available, -1)

    asyncio.run(scenario())


def test_replicas_get_the_log_end_offset() -> None:
    async def scenario() -> None:
        assert await ask(elected(), LATEST, replica_id=2) == (0, 2)

    asyncio.run(scenario())
