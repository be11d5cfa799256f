"""The replica states that the controller queries from brokers, and what can be concluded.

`query_replica_states` asks the brokers (DescribeReplicas); `lost_at_least` computes the records
that an election has lost.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeAlias

from suwi.controller.elections import Position
from suwi.env.problems import because
from suwi.metadata.image import BrokerInfo
from suwi.model.ids import LeaderEpoch, NodeId, Offset, PartitionIndex, TopicPartition
from suwi.replica.peers import Peers
from suwi.wire.versions import ApiKey

log = logging.getLogger(__name__)


class ReplicaFacts(NamedTuple):
    last_epoch: LeaderEpoch
    end_offset: Offset
    high_watermark: Offset
    recovery_point: Offset

    @property
    def position(self) -> Position:
        return Position(self.last_epoch, self.end_offset)


Answers: TypeAlias = Mapping[TopicPartition, Mapping[NodeId, ReplicaFacts]]
Asked: TypeAlias = Mapping[TopicPartition, Collection[NodeId]]
QueryReplicaStates: TypeAlias = Callable[
    [Asked, Mapping[NodeId, BrokerInfo], float], Awaitable[Answers]
]
"""`query_replica_states`, with the connections of this broker."""


def lost_at_least(answers: Mapping[NodeId, ReplicaFacts], leader: NodeId) -> tuple[int, int] | None:
    """The committed records that a new leader lacks, according to the brokers that responded: the
    first offset, and the first offset after them. None if no loss is known."""
    facts = answers.get(leader)
    if facts is None:
        return None
    committed = max(other.high_watermark for other in answers.values())
    return (facts.end_offset, committed) if committed > facts.end_offset else None


async def query_replica_states(
    peers: Peers, asked: Asked, brokers: Mapping[NodeId, BrokerInfo], timeout_s: float
) -> Answers:
    """The states of these partitions' replicas on these brokers; without those of brokers that do
    not respond within the timeout."""
    topics: dict[NodeId, dict[str, None]] = {}
    for tp, nodes in asked.items():
        for node in sorted(brokers.keys() & set(nodes)):
            topics.setdefault(node, {})[tp.topic] = None
    answers: dict[TopicPartition, dict[NodeId, ReplicaFacts]] = {tp: {} for tp in asked}
    responses = await asyncio.gather(
        *(_query(peers, brokers[node], list(names), timeout_s) for node, names in topics.items())
    )
    for node, facts in zip(topics, responses, strict=True):
        for tp, state in facts.items():
            if tp in asked and node in asked[tp]:
                answers[tp][node] = state
    return answers


async def _query(
    peers: Peers, broker: BrokerInfo, topics: list[str], timeout_s: float
) -> dict[TopicPartition, ReplicaFacts]:
    try:
        async with asyncio.timeout(timeout_s):
            connection = await peers.connect_to(broker)
            try:
                body = json.dumps({"topics": topics}).encode()
                response = await connection.send(ApiKey.DESCRIBE_REPLICAS, 0, [body])
            finally:
                connection.abort()
        replicas = json.loads(bytes(response))["replicas"]
        return dict(_facts(replica) for replica in replicas if replica["problem"] is None)
    except (OSError, ValueError, KeyError) as error:
        log.info("replica state query failed", extra=because(error, broker=broker.id))
        return {}


def _facts(replica: dict[str, Any]) -> tuple[TopicPartition, ReplicaFacts]:
    tp = TopicPartition(replica["topic"], PartitionIndex(replica["partition"]))
    epochs = replica["epochs"]
    return tp, ReplicaFacts(
        LeaderEpoch(epochs[-1][0] if epochs else -1),
        Offset(replica["log_end"]),
        Offset(replica["high_watermark"]),
        Offset(replica["recovery_point"]),
    )
