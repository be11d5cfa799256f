"""One Fetch request to one broker, and its response for each partition.

`fetch_from` sends the request; `refusal` converts the error code of a partition to an exception
that a retrying caller can classify. `PartitionFetcher` repeats the request for one partition.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from suwi.client.cluster import Cluster, Place
from suwi.client.errors import check, error_from, is_transient
from suwi.client.retry import Retry
from suwi.model.errors import (
    BrokerError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from suwi.model.ids import NO_EPOCH, NO_OFFSET, NO_TOPIC_ID, NodeId, Offset, TopicId, TopicPartition
from suwi.wire.fetch_request import FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from suwi.wire.fetch_response import FetchedPartition, decode_fetch_response
from suwi.wire.versions import ApiKey

_TOPIC_IDS_FROM = 13
# The broker's metadata is stale: it does not know the topic yet. Other brokers may.
_UNKNOWN_TOPIC_CODES = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    max_wait_ms: int = 500
    """How long a leader waits for `min_bytes`."""
    min_bytes: int = 1
    max_bytes: int = 50 * 1024 * 1024
    partition_bytes_max: int = 1024 * 1024
    rack: str = ""
    """The client's rack: a leader may return a preferred read replica (KIP-392)."""
    committed_only: bool = False
    """Read only committed records: not those of aborted or open transactions."""


class TopicReplaced(UnknownTopicOrPartition):
    """The topic was deleted, and a new one has its name."""


class Wanted(NamedTuple):
    offset: Offset
    place: Place


class Answer(NamedTuple):
    partition: TopicPartition
    asked: Offset
    fetched: FetchedPartition


async def fetch_from(
    cluster: Cluster,
    leader: NodeId,
    wanted: Mapping[TopicPartition, Wanted],
    settings: ReadSettings,
) -> list[Answer]:
    """Raises `BrokerError` for an error of the whole response, and OSError; see also `refusal`."""
    link = await cluster.link(leader)
    has_ids = all(want.place.topic.id != NO_TOPIC_ID for want in wanted.values())
    version = link.version(ApiKey.FETCH, at_most=None if has_ids else _TOPIC_IDS_FROM - 1)
    timeout_s = settings.max_wait_ms / 1000 + cluster.settings.request_timeout_s
    body = [encode_fetch_request(version, _request(wanted, settings))]
    answer = await link.send(ApiKey.FETCH, version, body, timeout_s=timeout_s)
    response = decode_fetch_response(version, answer)
    check(response)
    names = {want.place.topic.id: want.place.topic.name for want in wanted.values()}
    answers = []
    for topic in response.topics:
        name = topic.name if topic.topic_id is None else names.get(TopicId(topic.topic_id))
        for fetched in topic.partitions:
            partition = TopicPartition(name or "", fetched.partition)  # type: ignore[arg-type]
            if partition in wanted:
                answers.append(Answer(partition, wanted[partition].offset, fetched))
    return answers


def _request(wanted: Mapping[TopicPartition, Wanted], settings: ReadSettings) -> FetchRequest:
    by_topic: dict[tuple[str, TopicId], list[FetchPartition]] = {}
    for partition, (offset, place) in wanted.items():
        by_topic.setdefault((partition.topic, place.topic.id), []).append(
            FetchPartition(
                partition.partition,
                place.partition.leader_epoch,
                offset,
                NO_EPOCH,
                NO_OFFSET,
                settings.partition_bytes_max,
            )
        )
    return FetchRequest(
        settings.max_wait_ms,
        settings.min_bytes,
        settings.max_bytes,
        [FetchTopic(name, id_, partitions) for (name, id_), partitions in by_topic.items()],
        isolation_level=int(settings.committed_only),
        rack_id=settings.rack,
    )


def refusal(answer: Answer) -> BrokerError:
    """The exception for a partition whose response has an error code."""
    code = answer.fetched.error_code
    if code == ErrorCode.offset_out_of_range:
        return OffsetOutOfRange(f"{answer.partition} has no offset {answer.asked}")
    if code in _UNKNOWN_TOPIC_CODES:
        return NotLeaderOrFollower(f"the broker has no {answer.partition}")
    return error_from(code)


class PartitionFetcher:
    """Fetches one partition's batches as bytes, for callers that decode in bulk.

    Retries while the leader changes or fails. The preferred read replica that the leader returns is
    used from then on, until it fails.
    Invariant: nothing is decoded or skipped here: the result is one broker's response to one
    request, always of the same topic id.
    """

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
