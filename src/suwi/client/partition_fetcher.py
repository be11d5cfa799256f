"""One partition's batches as its leader has them: bytes, for those who decode in bulk.

`fetch` asks for what lies at an offset; a leader that moved or died is followed for a while.
Invariant: nothing is decoded here, and nothing is skipped: the answer is that of one leader to
one request, and always of the same topic.
"""

from dataclasses import replace

from suwi.client.cluster import Cluster
from suwi.client.errors import is_transient
from suwi.client.fetching import ReadSettings, TopicReplaced, Wanted, fetch_from, refusal
from suwi.client.retry import Retry
from suwi.model.errors import NotLeaderOrFollower, UnknownTopicOrPartition
from suwi.model.ids import Offset, TopicId, TopicPartition
from suwi.wire.fetch import FetchedPartition


class PartitionFetcher:
    def __init__(
        self, cluster: Cluster, partition: TopicPartition, settings: ReadSettings | None = None
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._settings = settings or ReadSettings()
        self._topic_id: TopicId | None = None

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

    async def _fetch_once(self, offset: Offset, settings: ReadSettings) -> FetchedPartition:
        place = await self._cluster.locate(self._partition)
        if self._topic_id is None:
            self._topic_id = place.topic.id
        elif self._topic_id != place.topic.id:
            raise TopicReplaced(f"topic {place.topic.name!r} was deleted and created again")
        wanted = {self._partition: Wanted(offset, place)}
        for answer in await fetch_from(self._cluster, place.partition.leader, wanted, settings):
            if answer.fetched.error_code:
                raise refusal(answer)
            return answer.fetched
        raise NotLeaderOrFollower(f"the broker said nothing about {self._partition}")
