"""Fetches one partition's batches as bytes, for callers that decode in bulk.

`fetch` fetches from an offset on, with retries while the leader changes or fails. The preferred
read replica that the leader returns is used from then on, until it fails.
Invariant: nothing is decoded or skipped here: the result is one broker's response to one request,
always of the same topic id.
"""

from dataclasses import replace

from suwi.client.cluster import Cluster
from suwi.client.errors import is_transient
from suwi.client.fetching import ReadSettings, TopicReplaced, Wanted, fetch_from, refusal
from suwi.client.retry import Retry
from suwi.model.errors import NotLeaderOrFollower, UnknownTopicOrPartition
from suwi.model.ids import NodeId, Offset, TopicId, TopicPartition
from suwi.wire.fetch_response import FetchedPartition


class PartitionFetcher:
    def __init__(
        self, cluster: Cluster, partition: TopicPartition, settings: ReadSettings | None = None
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._settings = settings or ReadSettings()
        self._topic_id: TopicId | None = None
        self._preferred: NodeId | None = None

    async def fetch(self, offset: Offset, *, bytes_max: int | None = None) -> FetchedPartition:
        """The records from an offset on; empty if there are none within `max_wait_ms`.

        Raises `OffsetOutOfRange`, `UnknownTopicOrPartition` if the topic was deleted or replaced,
        other `BrokerError`s, and OSError after the retry timeout.
        """
        settings = self._settings
        if bytes_max is not None:
            settings = replace(settings, partition_bytes_max=bytes_max)
        retry = Retry(self._cluster.settings, self._cluster.random)
        while True:
            try:
                return await self._fetch_once(offset, settings)
            except UnknownTopicOrPartition:
                raise  # the metadata is fresh: it does not exist
            except Exception as error:
                if not is_transient(error):
                    raise
                self._cluster.mark_stale(self._partition.topic)
                await retry.pause_or_raise(error)
                # Without a rack: the leader may still return a preferred replica that has failed.
                settings = replace(settings, rack="")

    async def _fetch_once(self, offset: Offset, settings: ReadSettings) -> FetchedPartition:
        place = await self._cluster.locate(self._partition)
        if self._topic_id is None:
            self._topic_id = place.topic.id
        elif self._topic_id != place.topic.id:
            raise TopicReplaced(f"topic {place.topic.name!r} was deleted and created again")
        chosen, self._preferred = self._preferred, None  # set again below if the fetch succeeds
        node = place.partition.leader if chosen is None else chosen
        wanted = {self._partition: Wanted(offset, place)}
        for answer in await fetch_from(self._cluster, node, wanted, settings):
            fetched = answer.fetched
            if fetched.error_code:
                if chosen is not None:  # it may lag behind: ask the leader
                    return await self._fetch_once(offset, replace(settings, rack=""))
                raise refusal(answer)
            preferred = NodeId(fetched.preferred_read_replica)
            if chosen is None and preferred in self._cluster.brokers and preferred != node:
                self._preferred = preferred
                return await self._fetch_once(offset, settings)
            self._preferred = chosen
            return fetched
        raise NotLeaderOrFollower(f"the response has no entry for {self._partition}")
