"""One Fetch request to one broker, and its response for each partition.

`fetch_from` sends the request; `refusal` converts the error code of a partition to an exception
that a retrying caller can classify.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from suwi.client.cluster import Cluster, Place
from suwi.client.errors import check, error_from
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
