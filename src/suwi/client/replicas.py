"""The state of every replica, from the brokers that have them (DescribeReplicas)."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from suwi.client.cluster import Cluster, PartitionInfo, TopicInfo
from suwi.client.connection import ConnectionLost
from suwi.client.errors import reason
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.wire.versions import CLIENT_JSON_BYTES_MAX, ApiKey

_States: TypeAlias = dict[tuple[str, int], dict[str, Any]]
"""By topic and partition."""
_TIMEOUT_S = 5.0
# Limit of the topic names in one request; the rest is for quotes and commas.
_NAMES_BYTES_MAX = CLIENT_JSON_BYTES_MAX // 2


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    topic: TopicInfo
    partition: PartitionInfo
    states: dict[NodeId, dict[str, Any]]
    """Each broker's state of its replica; the fields of `replica.description.ReplicaState`."""
    unavailable: dict[NodeId, str]
    """The reasons why brokers did not describe their replica."""


async def describe_replicas(
    cluster: Cluster, topics: Sequence[TopicInfo], partition: int | None = None
) -> list[PartitionReplicas]:
    """Ask all brokers concurrently, with a timeout for each; with `partition` only for that one of
    each topic."""
    wanted = [
        (topic, each)
        for topic in topics
        for each in topic.partitions
        if partition in (None, each.index)
    ]
    names = [topic.name for topic in topics]
    nodes = sorted({node for _, each in wanted for node in each.replicas})
    told = await asyncio.gather(*(_ask(cluster, node, names, partition) for node in nodes))
    answers = dict(zip(nodes, told, strict=True))
    return [_of_partition(topic, each, answers) for topic, each in wanted]


async def _ask(
    cluster: Cluster, node: NodeId, topics: Sequence[str], partition: int | None
) -> _States | str:
    states: _States = {}
    more = {} if partition is None else {"partition": partition}
    try:
        link = await cluster.link(node)
        for names in _chunks(topics):
            fields = {"topics": names, **more}
            told = await link.call_json(ApiKey.DESCRIBE_REPLICAS, fields, timeout_s=_TIMEOUT_S)
            states |= {(state["topic"], state["partition"]): state for state in told["replicas"]}
        return states
    except ConnectionLost as error:
        return f"{error}; only Suwi's brokers can describe their replicas"
    except (OSError, BrokerError) as error:
        return reason(error)


def _chunks(names: Sequence[str]) -> Iterator[list[str]]:
    """The names, split into requests of the allowed size."""
    chunk: list[str] = []
    size_bytes = 0
    for name in names:
        if chunk and size_bytes + len(name) > _NAMES_BYTES_MAX:
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(name)
        size_bytes += len(name) + len('"", ')
    yield chunk


def _of_partition(
    topic: TopicInfo,
    partition: PartitionInfo,
    answers: dict[NodeId, _States | str],
) -> PartitionReplicas:
    states: dict[NodeId, dict[str, Any]] = {}
    unavailable: dict[NodeId, str] = {}
    for node in partition.replicas:
        answer = answers[node]
        if isinstance(answer, str):
            unavailable[node] = answer
            continue
        state = answer.get((topic.name, partition.index))
        if state is not None:
            states[node] = state
        else:
            unavailable[node] = "has no such replica yet"
    return PartitionReplicas(topic, partition, states, unavailable)
