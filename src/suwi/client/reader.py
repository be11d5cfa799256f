"""Reads partitions from given offsets on, without a consumer group.

`read` waits for the next response of any leader, returns its records and advances the positions.
Leader changes and lost connections are retried until a timeout, without delaying the records of
other leaders. The preferred read replica that a leader returns is used until it fails.
Invariant: every record from a partition's position on is returned once, in order.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from suwi.client.cluster import Cluster, Place
from suwi.client.errors import is_transient
from suwi.client.fetching import Answer, ReadSettings, TopicReplaced, Wanted, fetch_from, refusal
from suwi.client.isolation_filter import visible_records
from suwi.client.retry import Retry
from suwi.env.tasks import cancel_and_wait
from suwi.model.errors import KafkaStorageError, UnknownTopicOrPartition
from suwi.model.ids import NO_NODE, NodeId, Offset, TopicId, TopicPartition
from suwi.records.record import Record

__all__ = ["Fetched", "ReadSettings", "Reader", "TopicReplaced"]


class Fetched(NamedTuple):
    """The result for one partition; it may have no records, but it has the end offset."""

    partition: TopicPartition
    records: list[Record]
    next_offset: Offset
    end_offset: Offset
    """The end of the readable records: the high watermark, or the last stable offset."""


class Reader:
    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, Offset],
        settings: ReadSettings | None = None,
    ) -> None:
        self.positions = dict(positions)
        """The next offset of each partition. Remove a partition to stop reading it."""
        self._cluster = cluster
        self._settings = settings or ReadSettings()
        self._topic_ids: dict[str, TopicId] = {}
        self._tasks: dict[asyncio.Task[list[Answer]], Sequence[TopicPartition]] = {}
        """Fetches in flight and pauses before retries, with their partitions."""
        self._retries: dict[TopicPartition, Retry] = {}
        """For the partitions that cannot be read at the moment."""
        self._preferred: dict[TopicPartition, NodeId] = {}
        """The preferred read replicas (KIP-392); other partitions are read from their leaders."""
        self._without_rack: set[TopicPartition] = set()
        """The leader may still return a preferred replica that has failed."""

    async def __aenter__(self) -> "Reader":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        tasks, self._tasks = list(self._tasks), {}
        await cancel_and_wait(*tasks)

    async def read(self) -> list[Fetched]:
        """The next results; if there are no errors, at the latest after `max_wait_ms`.

        Raises `OffsetOutOfRange`, `UnknownTopicOrPartition` if the topic was deleted, other
        `BrokerError`s, and OSError after the retry timeout.
        """
        while self.positions:
            await self._start_fetches()
            fetched = await self._next_answers()
            if fetched:
                return fetched
        return []

    # -- requests --------------------------------------------------------------------------------

    async def _start_fetches(self) -> None:
        """Start a fetch at each broker for the partitions that have no fetch or pause."""
        busy = {partition for partitions in self._tasks.values() for partition in partitions}
        by_source: dict[tuple[NodeId, str], dict[TopicPartition, Place]] = {}
        for partition in self.positions:
            if partition in busy:
                continue
            try:
                place = await self._cluster.locate(partition)
            except UnknownTopicOrPartition:
                raise  # the metadata is fresh: it does not exist
            except Exception as error:
                self._retry_later([partition], error)
                continue
            self._check_same_topic(place)
            node = self._preferred.get(partition, place.partition.leader)
            rack = "" if partition in self._without_rack else self._settings.rack
            by_source.setdefault((node, rack), {})[partition] = place
        for (node, rack), places in by_source.items():
            self._start(self._fetch(node, rack, places), list(places))

    def _check_same_topic(self, place: Place) -> None:
        topic = place.topic
        if self._topic_ids.setdefault(topic.name, topic.id) != topic.id:
            raise TopicReplaced(f"topic {topic.name!r} was deleted and created again")

    def _start(
        self, work: Coroutine[Any, Any, list[Answer]], partitions: Sequence[TopicPartition]
    ) -> None:
        task = asyncio.get_running_loop().create_task(work)  # owner: `_next_answers`
        self._tasks[task] = partitions

    def _retry_later(self, partitions: Sequence[TopicPartition], error: Exception) -> None:
        """Raises the error if a retry would not help."""
        if not is_transient(error):
            raise error
        for partition in partitions:
            self._cluster.mark_stale(partition.topic)
            retry = self._retries.get(partition)
            if retry is None:
                retry = self._retries[partition] = self._retry(partition, error)
            self._start(_pause(retry.next_pause_s(error)), [partition])

    def _retry(self, partition: TopicPartition, error: Exception) -> Retry:
        settings = self._cluster.settings
        retry_timeout_s = settings.retry_timeout_s
        if isinstance(error, KafkaStorageError) and self._cluster.has_one_replica(partition):
            retry_timeout_s = settings.storage_retry_timeout_s
        return Retry(settings, self._cluster.random, retry_timeout_s=retry_timeout_s)

    async def _fetch(
        self, node: NodeId, rack: str, places: Mapping[TopicPartition, Place]
    ) -> list[Answer]:
        wanted = {
            partition: Wanted(self.positions[partition], place)
            for partition, place in places.items()
        }
        return await fetch_from(self._cluster, node, wanted, replace(self._settings, rack=rack))

    # -- responses -------------------------------------------------------------------------------

    async def _next_answers(self) -> list[Fetched]:
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finished = [(task, self._tasks.pop(task)) for task in list(self._tasks) if task in done]
        fetched = []
        for task, partitions in finished:
            error = task.exception()
            if isinstance(error, Exception):
                for partition in partitions:
                    self._return_to_leader(partition)
                self._retry_later([p for p in partitions if p in self.positions], error)
                continue
            for answer in task.result():
                if answer.partition not in self.positions:
                    continue
                if answer.fetched.error_code:
                    # A replica may lag behind: ask the leader at once.
                    if not self._return_to_leader(answer.partition):
                        self._retry_later([answer.partition], refusal(answer))
                elif not self._is_redirected(answer):
                    fetched.append(self._accept(answer))
        return fetched

    def _return_to_leader(self, partition: TopicPartition) -> bool:
        """After a failure. Returns whether the partition was read from a preferred replica."""
        if self._preferred.pop(partition, None) is None:
            return False
        self._without_rack.add(partition)
        return True

    def _is_redirected(self, answer: Answer) -> bool:
        """Whether the leader returned a preferred read replica, and therefore no records."""
        partition, preferred = answer.partition, NodeId(answer.fetched.preferred_read_replica)
        if preferred in (NO_NODE, self._preferred.get(partition)):
            return False
        if preferred in self._cluster.brokers:
            self._preferred[partition] = preferred
        else:
            self._without_rack.add(partition)
            self._cluster.mark_stale(partition.topic)
        return True

    def _accept(self, answer: Answer) -> Fetched:
        partition, fetched = answer.partition, answer.fetched
        self._retries.pop(partition, None)
        self._without_rack.discard(partition)
        data = fetched.records
        assert data is None or isinstance(data, bytes | memoryview)
        records, position = visible_records(data or b"", answer.asked, fetched.aborted)
        # Move the partition to the end, because a leader fills its response from the front.
        del self.positions[partition]
        self.positions[partition] = position
        end = fetched.high_watermark
        if self._settings.committed_only:
            end = fetched.last_stable_offset
        return Fetched(partition, records, position, Offset(end))


async def _pause(pause_s: float) -> list[Answer]:
    await asyncio.sleep(pause_s)
    return []
