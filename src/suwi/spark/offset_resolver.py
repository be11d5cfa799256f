"""Asks the brokers, on the driver, for the partitions and offsets of a query.

`partitions` says what a query reads; `earliest`, `latest` and `resolve` turn bounds into
offsets. A question that fails is asked again for a while.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TypeVar

from suwi.client.cluster import Cluster
from suwi.client.errors import is_transient, reason
from suwi.client.offsets import EARLIEST as EARLIEST_TIME
from suwi.client.offsets import LATEST as LATEST_TIME
from suwi.client.offsets import list_offsets
from suwi.client.retry import Retry
from suwi.model.errors import BrokerError, UnknownTopicOrPartition
from suwi.model.ids import NO_OFFSET, NO_TOPIC_ID, TopicPartition
from suwi.spark.offsets import (
    EARLIEST,
    LATEST,
    AtTime,
    BadOffsets,
    Bound,
    ByPartition,
    Everywhere,
    Offsets,
    describe,
)
from suwi.spark.options import Assigned, Matching, Selection, SourceOptions, Subscribed

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class OffsetResolver:
    def __init__(self, cluster: Cluster, options: SourceOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._asked_s = float("-inf")
        self._left_out: frozenset[str] = frozenset()
        """Topics that the query had begun to read, and that were missing since."""
        self.topic_ids: dict[str, str] = {}
        """Of the topics that were found last, where brokers have ids."""

    async def partitions(
        self, *, fresh: bool = True, may_be_missing: Collection[str] = ()
    ) -> frozenset[TopicPartition]:
        """What the query reads now. Raises `UnknownTopicOrPartition`, `Unreachable`.

        may_be_missing: topics that are left out, now and later, where they are not there.
        """
        now_s = asyncio.get_running_loop().time()
        age_ms = (now_s - self._asked_s) * 1000
        if fresh or age_ms > self._options.partitions_age_ms_max:
            try:
                found = await self._find_again(self._left_out)
            except UnknownTopicOrPartition:
                if not may_be_missing:
                    raise
                found = await self._find_again(self._left_out.union(may_be_missing))
            self._partitions, self._asked_s = frozenset(found), now_s
        return self._partitions

    async def _find_again(self, may_be_missing: frozenset[str]) -> list[TopicPartition]:
        return await self._insist(lambda: self._find(self._options.selection, may_be_missing))

    async def _find(
        self, selection: Selection, may_be_missing: frozenset[str]
    ) -> list[TopicPartition]:
        match selection:
            case Subscribed(topics):
                return await self._all_of(topics, may_be_missing)
            case Matching(pattern):
                found = re.compile(pattern)
                return await self._all_of(
                    topic.name
                    for topic in await self._cluster.topics()
                    if not topic.is_internal and found.search(topic.name)
                )
            case Assigned(partitions):
                names = dict.fromkeys(tp.topic for tp in partitions)
                there = set(await self._all_of(names, may_be_missing))
                return [tp for tp in partitions if tp in there]

    async def _all_of(
        self, names: Iterable[str], may_be_missing: frozenset[str] = frozenset()
    ) -> list[TopicPartition]:
        topics, missing = [], set()
        for name in names:
            try:
                topics.append(await self._cluster.topic(name, fresh=True))
            except UnknownTopicOrPartition:
                if name not in may_be_missing:
                    raise
                missing.add(name)
        self._left_out = frozenset(missing)
        self.topic_ids = {topic.name: str(topic.id) for topic in topics if topic.id != NO_TOPIC_ID}
        return [
            TopicPartition(topic.name, partition.index)
            for topic in topics
            for partition in topic.partitions
        ]

    async def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return await self.at_times(dict.fromkeys(partitions, EARLIEST_TIME))

    async def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return await self.at_times(dict.fromkeys(partitions, LATEST_TIME))

    async def latest_beyond(self, known: Offsets) -> Offsets:
        """The end of every partition of the query.

        A broker that lags behind may name an end that lies before what was read: it is asked
        again a few times, and then believed, since a topic may have been created anew.
        A topic of `known` that is missing as often has no end: `check_continuity` reports it.
        """
        found: Offsets = {}
        for attempt in range(self._options.offset_attempts):
            if attempt:
                await asyncio.sleep(self._options.offset_retry_ms / 1000)
            try:
                found = await self.latest(await self.partitions(fresh=attempt > 0))
            except UnknownTopicOrPartition:
                if attempt + 1 < self._options.offset_attempts:
                    continue  # It was deleted a moment ago; perhaps only one of several.
                topics = {tp.topic for tp in known}
                return await self.latest(await self.partitions(may_be_missing=topics))
            if all(known.get(tp, 0) <= end for tp, end in found.items()):
                break
        return found

    async def resolve(self, bound: Bound) -> Offsets:
        """The offset of every partition of the query. Raises `BadOffsets`."""
        return await self.settle(await self.bind(bound))

    async def settle(self, offsets: Mapping[TopicPartition, int]) -> Offsets:
        """EARLIEST and LATEST become offsets."""
        earliest = await self.earliest(tp for tp, offset in offsets.items() if offset == EARLIEST)
        latest = await self.latest(tp for tp, offset in offsets.items() if offset == LATEST)
        return {**offsets, **earliest, **latest}  # type: ignore[dict-item]

    async def bind(self, bound: Bound) -> Offsets:
        """The same, with EARLIEST and LATEST left as they are given. Raises `BadOffsets`."""
        partitions = await self.partitions()
        match bound:
            case Everywhere(offset):
                return dict.fromkeys(partitions, offset)
            case ByPartition(offsets):
                _check_same(offsets.keys(), partitions)
                return dict(offsets)
            case AtTime():
                return await self._at_time(bound, partitions)

    async def _at_time(self, bound: AtTime, partitions: Iterable[TopicPartition]) -> Offsets:
        if not isinstance(bound.times_ms, int):
            _check_same(bound.times_ms.keys(), partitions)
        times = {partition: bound.time_ms(partition) for partition in partitions}
        found = await self.at_times(times)
        for partition, offset in found.items():
            if offset == NO_OFFSET:
                if not bound.or_latest:
                    raise BadOffsets(
                        f"{partition} has no record from {times[partition]} on: set "
                        'startingOffsetsByTimestampStrategy to "latest" to start at its end'
                    )
                found[partition] = LATEST
        return await self.settle(found)

    async def at_times(self, times: Mapping[TopicPartition, int]) -> Offsets:
        """The first offset at or after a time; NO_OFFSET where no record is that new."""
        if not times:
            return {}
        committed = self._options.read.committed_only
        found = await list_offsets(self._cluster, times, committed_only=committed)
        return {partition: each.offset for partition, each in found.items()}

    async def _insist(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Retries while brokers are unreachable; a topic must be missing several times in a row."""
        retry = Retry(self._cluster.settings, self._cluster.random)
        is_said = False
        attempts_left = self._options.offset_attempts
        while True:
            try:
                return await ask()
            except UnknownTopicOrPartition:
                attempts_left -= 1
                if attempts_left <= 0:
                    raise
                await asyncio.sleep(self._options.offset_retry_ms / 1000)
            except (BrokerError, OSError) as error:
                if not is_transient(error):
                    raise
                pause_s = retry.next_pause_s(error)
                if not is_said:
                    log.warning("trying again for a while: %s", reason(error))
                    is_said = True
                await asyncio.sleep(pause_s)


def may_name(selection: Selection, topic: str) -> bool:
    """Whether a query with this selection can have read the topic."""
    match selection:
        case Subscribed(topics):
            return topic in topics
        case Matching(pattern):
            return re.search(pattern, topic) is not None
        case Assigned(partitions):
            return any(partition.topic == topic for partition in partitions)


def _check_same(given: Iterable[TopicPartition], found: Iterable[TopicPartition]) -> None:
    given, found = set(given), set(found)
    if given != found:
        raise BadOffsets(
            "offsets must name every partition that is read (-1 is latest, -2 earliest): "
            f"missing: {describe(found - given)}; not read: {describe(given - found)}"
        )
