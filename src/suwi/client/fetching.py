"""One Fetch request to one leader, and what its answer says about each partition.

`fetch_from` asks for partitions that a broker leads; `refusal` turns a partition's error code into
the exception that whoever retries can judge.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from suwi.client.cluster import Cluster, Place
from suwi.client.errors import error_from
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
# A broker that has not heard of a topic yet, or of its leadership: others know better.
_NOT_HERE = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    max_wait_ms: int = 500
    """How long a leader waits until it has `min_bytes`."""
    min_bytes: int = 1
    max_bytes: int = 50 * 1024 * 1024
    partition_bytes_max: int = 1024 * 1024
    rack: str = ""
    """Where we are: a leader may name a replica that is nearer (KIP-392)."""
    committed_only: bool = False
    """Leave out transactions that were aborted, and what comes after those still open."""


class TopicReplaced(UnknownTopicOrPartition):
    """The topic was deleted; another has its name now."""


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
    """Raises `BrokerError` for the answer as a whole, and OSError; see `refusal` for the parts."""
    link = await cluster.link(leader)
    has_ids = all(want.place.topic.id != NO_TOPIC_ID for want in wanted.values())
    version = link.version(ApiKey.FETCH, at_most=None if has_ids else _TOPIC_IDS_FROM - 1)
    timeout_s = settings.max_wait_ms / 1000 + cluster.settings.request_timeout_s
    body = [encode_fetch_request(version, _request(wanted, settings))]
    answer = await link.send(ApiKey.FETCH, version, body, timeout_s=timeout_s)
    response = decode_fetch_response(version, answer)
    if response.error_code:
        raise error_from(response.error_code)
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
    """The error of a partition whose answer has one."""
    code = answer.fetched.error_code
    if code == ErrorCode.offset_out_of_range:
        return OffsetOutOfRange(f"{answer.partition} has no offset {answer.asked}")
    if code in _NOT_HERE:
        return NotLeaderOrFollower(f"the broker has no {answer.partition}")
    return error_from(code)
