"""Requests about many partitions: grouped by topic, and sent to their leaders, with retries after
leader changes; and requests to all brokers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from suwi.client.cluster import Cluster, Place
from suwi.client.errors import is_transient, reason
from suwi.client.retry import Retry
from suwi.client.versioned_connection import VersionedConnection
from suwi.model.errors import BrokerError, KafkaStorageError, UnknownTopicOrPartition
from suwi.model.ids import NodeId, PartitionIndex, TopicPartition

_T = TypeVar("_T")

_BROKER_RETRY_S = 5.0

Ask: TypeAlias = Callable[
    [VersionedConnection, dict[TopicPartition, Place]],
    Awaitable[dict[TopicPartition, _T | BrokerError]],
]
"""Sends a request to one broker about the partitions it leads."""


def request_topics(partitions: Mapping[TopicPartition, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The topics of a request, with the fields of each partition."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), fields in partitions.items():
        topics.setdefault(topic, []).append({"partition_index": index, **fields})
    return [{"name": name, "partitions": asked} for name, asked in topics.items()]


def each_partition(topics: Iterable[Any]) -> Iterator[tuple[TopicPartition, Any]]:
    """The partitions of a response, each with what it says about them."""
    for topic in topics:
        for found in topic.partitions:
            yield TopicPartition(topic.name, PartitionIndex(found.partition_index)), found


async def ask_leaders(
    cluster: Cluster, partitions: Iterable[TopicPartition], ask: Ask[_T]
) -> dict[TopicPartition, _T | BrokerError]:
    """The result for each partition, or its error if a retry does not help.

    Only for idempotent requests. Raises OSError if no broker can be reached in time, and
    `UnknownTopicOrPartition`.
    """
    retry = Retry(cluster.settings, cluster.random)
    loop = asyncio.get_running_loop()
    storage_end_s = loop.time() + cluster.settings.storage_retry_timeout_s
    answers: dict[TopicPartition, _T | BrokerError] = {}
    left = list(dict.fromkeys(partitions))
    while left:
        attempt = await _ask_once(cluster, left, ask)
        left, last = [], None
        for partition, answer in attempt.items():
            if (
                isinstance(answer, KafkaStorageError)
                and loop.time() >= storage_end_s
                and cluster.has_one_replica(partition)
            ):
                answers[partition] = answer  # no other broker can lead it
            elif isinstance(answer, Exception) and is_transient(answer):
                cluster.mark_stale(partition.topic)
                left.append(partition)
                last = answer
            elif isinstance(answer, BrokerError):
                answers[partition] = answer
            elif isinstance(answer, Exception):
                raise answer
            else:
                answers[partition] = answer
        if last is not None:
            await retry.pause_or_raise(last)
    return answers


async def ask_all_brokers(
    cluster: Cluster,
    ask: Callable[[VersionedConnection, NodeId], Awaitable[_T]],
    *,
    timeout_s: float = _BROKER_RETRY_S,
    silent: Mapping[NodeId, str] = {},
) -> tuple[dict[NodeId, _T], dict[NodeId, str]]:
    """The result of each broker, and why the others have none. Only for idempotent requests.
    `silent`: brokers that have not responded before, with the reasons; they are not asked."""
    if not cluster.brokers:
        await cluster.refresh([])
    nodes = sorted(cluster.brokers.keys() - silent.keys())
    results = await asyncio.gather(*(_ask_broker(cluster, node, ask, timeout_s) for node in nodes))
    answers: dict[NodeId, _T] = {}
    reasons = dict(silent)
    for node, result in zip(nodes, results, strict=True):
        if isinstance(result, Exception):
            reasons[node] = reason(result)
        else:
            answers[node] = result
    return answers, reasons


async def _ask_broker(
    cluster: Cluster,
    node: NodeId,
    ask: Callable[[VersionedConnection, NodeId], Awaitable[_T]],
    timeout_s: float,
) -> _T | Exception:
    retry = Retry(cluster.settings, cluster.random, retry_timeout_s=timeout_s)
    while True:
        try:
            return await ask(await cluster.link(node), node)
        except (BrokerError, OSError) as error:
            if not is_transient(error):
                return error
            try:
                await retry.pause_or_raise(error)
            except (BrokerError, OSError) as last:
                return last


async def _ask_once(
    cluster: Cluster, partitions: Iterable[TopicPartition], ask: Ask[_T]
) -> dict[TopicPartition, _T | Exception]:
    answers: dict[TopicPartition, _T | Exception] = {}
    by_link: dict[VersionedConnection, dict[TopicPartition, Place]] = {}
    for partition in partitions:
        try:
            link, place = await cluster.leader(partition)
        except UnknownTopicOrPartition as error:
            raise error  # the metadata is fresh: it does not exist
        except Exception as error:
            answers[partition] = error
        else:
            by_link.setdefault(link, {})[partition] = place
    asked = list(by_link.items())
    results = await asyncio.gather(*(ask(*one) for one in asked), return_exceptions=True)
    for (_, led), result in zip(asked, results, strict=True):
        if isinstance(result, Exception):
            answers |= dict.fromkeys(led, result)
        elif isinstance(result, BaseException):
            raise result
        else:
            answers |= result
    return answers
