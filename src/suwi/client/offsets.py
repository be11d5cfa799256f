"""ListOffsets: the earliest, latest and by-timestamp offsets of partitions."""

from collections.abc import Mapping
from typing import NamedTuple

from suwi.client.cluster import Cluster, Place
from suwi.client.errors import error_from
from suwi.client.routing import ask_leaders, each_partition, request_topics
from suwi.client.versioned_connection import VersionedConnection
from suwi.model.errors import BrokerError
from suwi.model.ids import LeaderEpoch, Offset, TopicPartition
from suwi.wire.versions import ApiKey

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3

_CONSUMER = -1


class FoundOffset(NamedTuple):
    offset: Offset
    """NO_OFFSET if no record has this timestamp or a later one."""
    timestamp: int
    leader_epoch: LeaderEpoch


async def list_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], *, committed_only: bool = False
) -> dict[TopicPartition, FoundOffset]:
    """The first offset at or after a timestamp in milliseconds, or at EARLIEST, LATEST.

    Raises a `BrokerError` for the first partition that has one, and OSError.
    """
    found: dict[TopicPartition, FoundOffset] = {}
    answers = await find_offsets(cluster, times, committed_only=committed_only)
    for partition, answer in answers.items():
        if isinstance(answer, BrokerError):
            raise error_from(answer.code, f"{partition}: {answer}") from answer
        found[partition] = answer
    return found


async def find_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], *, committed_only: bool = False
) -> dict[TopicPartition, FoundOffset | BrokerError]:
    """As `list_offsets`, with an error for each partition that has one. Raises OSError."""

    async def ask(
        link: VersionedConnection, led: dict[TopicPartition, Place]
    ) -> dict[TopicPartition, FoundOffset | BrokerError]:
        asked = {
            partition: {
                "current_leader_epoch": place.partition.leader_epoch,
                "timestamp": times[partition],
            }
            for partition, place in led.items()
        }
        answer = await link.call(
            ApiKey.LIST_OFFSETS,
            {
                "replica_id": _CONSUMER,
                "isolation_level": int(committed_only),
                "topics": request_topics(asked),
                "timeout": 30_000,
            },
        )
        return {
            partition: (
                error_from(found.error_code)
                if found.error_code
                else FoundOffset(
                    Offset(found.offset),
                    int(found.timestamp),
                    LeaderEpoch(getattr(found, "leader_epoch", -1)),
                )
            )
            for partition, found in each_partition(answer.topics)
        }

    return await ask_leaders(cluster, times, ask)
