"""One partition's batches as its leader has them: bytes, for those who decode in bulk.

`fetch` asks for what lies at an offset; a leader that moved or died is followed for a while. A
replica that the leader names as nearer is asked from then on, until it fails.
Invariant: nothing is decoded here, and nothing is skipped: the answer is that of one leader to
one request, and always of the same topic.
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
        self._nearest: NodeId | None = None

    async def fetch(self, offset: Offset, *, bytes_max: int | None = None) -> FetchedPartition:
        """What the leader has from an offset on; empty where nothing came within `max_wait_ms`.

        Raises `OffsetOutOfRange`, `UnknownTopicOrPartition` where the topic is gone or another has
        its name, other `BrokerError`s, and OSError when patience ends.
        """
        settings = self._settings
        if bytes_max is not None:
            settings = replace(settings, partition_bytes_max=bytes_max)
        retry = Retry(self._cluster.settings, self._cluster.random)
        while True:
            try:
                return await self._fetch_once(offset, settings)
            except UnknownTopicOrPartition:
                raise  # Freshly asked: it does not exist.
            except Exception as error:
                if not is_transient(error):
                    raise
                self._cluster.mark_stale(self._partition.topic)
                await retry.pause_or_raise(error)
                # A leader may go on naming a replica that is gone: this time it answers itself.
                settings = replace(settings, rack="")

    async def _fetch_once(self, offset: Offset, settings: ReadSettings) -> FetchedPartition:
        place = await self._cluster.locate(self._partition)
        if self._topic_id is None:
            self._topic_id = place.topic.id
        elif self._topic_id != place.topic.id:
            raise TopicReplaced(f"topic {place.topic.name!r} was deleted and created again")
        near, self._nearest = self._nearest, None  # Forgotten, unless all goes well.
        asked = place.partition.leader if near is None else near
        wanted = {self._partition: Wanted(offset, place)}
        for answer in await fetch_from(self._cluster, asked, wanted, settings):
            fetched = answer.fetched
            if fetched.error_code:
                if near is not None:  # It may lag behind; the leader knows.
                    return await self._fetch_once(offset, replace(settings, rack=""))
                raise refusal(answer)
            preferred = NodeId(fetched.preferred_read_replica)
            if near is None and preferred in self._cluster.brokers and preferred != asked:
                self._nearest = preferred
                return await self._fetch_once(offset, settings)
            self._nearest = near
            return fetched
        raise NotLeaderOrFollower(f"the broker said nothing about {self._partition}")
