"""How far a group is behind: in records, and in time.

The lag in time is the age of the first record that the group has not read. For that the batch it
lies in is fetched, for as many partitions in one request as their batches allow.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice

from suwi.client.cluster import Cluster
from suwi.client.fetching import ReadSettings, Wanted, fetch_from
from suwi.client.isolation_filter import visible_records
from suwi.client.offsets import EARLIEST, LATEST, find_offsets
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_TIMESTAMP, NodeId, Offset, TopicPartition

_ONE_BATCH = ReadSettings(max_wait_ms=0, min_bytes=0, partition_bytes_max=16 * 1024)
_TOPICS_AGE_S_MAX = 1.0
"""A caller that has just read all topics does not have them read again."""
_AGES_S_MAX = 10.0
"""The time limit for the timestamps of all partitions together."""
_PARTITIONS_AT_ONCE = 200
"""A request may bring the batch of its first partition only, so the others must not be too many."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of one partition; None means unknown."""

    committed: Offset | None
    """None: the group has committed nothing."""
    start: Offset | None
    end: Offset | None
    first_unread_ms: int | None = None
    """The timestamp of the first unread record; None also if there is none."""
    problem: str | None = None

    @property
    def records(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


async def find_lags(
    cluster: Cluster, committed: Mapping[TopicPartition, Offset | None], *, with_age: bool = True
) -> dict[TopicPartition, Lag]:
    """The lag of each partition. Raises OSError if no broker can be reached."""
    lags: dict[TopicPartition, Lag] = {}
    known = []
    names = dict.fromkeys(partition.topic for partition in committed)
    topics = await cluster.existing(names, age_s_max=_TOPICS_AGE_S_MAX)
    for partition, offset in committed.items():
        topic = topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            lags[partition] = Lag(offset, None, None, problem="does not exist any more")
        elif topic.partition(partition.partition).leader not in cluster.brokers:
            lags[partition] = Lag(offset, None, None, problem="has no leader")
        else:
            known.append(partition)
    starts = await find_offsets(cluster, dict.fromkeys(known, EARLIEST))
    ends = await find_offsets(cluster, dict.fromkeys(known, LATEST))
    unread: dict[TopicPartition, Offset] = {}
    for partition in known:
        offset, start, end = committed[partition], starts[partition], ends[partition]
        if isinstance(start, BrokerError) or isinstance(end, BrokerError):
            problem = start if isinstance(start, BrokerError) else end
            lags[partition] = Lag(offset, None, None, problem=str(problem))
            continue
        lags[partition] = Lag(offset, start.offset, end.offset)
        if offset is not None and offset < end.offset:
            unread[partition] = max(offset, start.offset)
    if with_age:
        for partition, timestamp in (await first_timestamps(cluster, unread)).items():
            lags[partition] = replace(lags[partition], first_unread_ms=timestamp)
    return {partition: lags[partition] for partition in committed}


async def first_timestamps(
    cluster: Cluster, positions: Mapping[TopicPartition, Offset]
) -> dict[TopicPartition, int]:
    """The timestamps of the first records from these offsets on, of those that can be read."""
    found: dict[TopicPartition, int] = {}
    by_leader: dict[NodeId, dict[TopicPartition, Wanted]] = {}
    for partition, offset in positions.items():
        try:
            place = await cluster.locate(partition)
        except (BrokerError, OSError):
            continue
        by_leader.setdefault(place.partition.leader, {})[partition] = Wanted(offset, place)
    try:
        async with asyncio.timeout(_AGES_S_MAX):
            await asyncio.gather(
                *(
                    _ask_leader(cluster, leader, wanted, found)
                    for leader, wanted in by_leader.items()
                )
            )
    except TimeoutError:
        pass
    return found


async def _ask_leader(
    cluster: Cluster,
    leader: NodeId,
    wanted: dict[TopicPartition, Wanted],
    found: dict[TopicPartition, int],
) -> None:
    """A leader always returns a batch of the first partition, and of others while they are small
    enough, so each request makes progress."""
    while wanted:
        before = dict(islice(wanted.items(), _PARTITIONS_AT_ONCE))
        try:
            answers = await fetch_from(cluster, leader, before, _ONE_BATCH)
        except (BrokerError, OSError):
            return
        for partition, asked, fetched in answers:
            data = fetched.records
            if fetched.error_code:
                del wanted[partition]
                continue
            if not data:
                continue
            assert isinstance(data, bytes | memoryview)
            try:
                records, position = visible_records(data, asked)
            except BrokerError:  # damaged: its age is not known
                del wanted[partition]
                continue
            if records:
                if records[0].timestamp != NO_TIMESTAMP:
                    found[partition] = records[0].timestamp
                del wanted[partition]
            else:
                wanted[partition] = wanted[partition]._replace(offset=position)
        if all(wanted.get(partition) == asked for partition, asked in before.items()):
            for partition in before:
                del wanted[partition]  # No records: it has none from this offset on.
