"""The replica states that the controller queries from brokers, and what can be concluded.

`QueryReplicaStates` is the query (implemented in `broker/replica_state_query.py`); `lost_at_least`
computes the records that an election has lost.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

from suwi.controller.elections import Position
from suwi.metadata.image import BrokerInfo
from suwi.model.ids import LeaderEpoch, NodeId, Offset, TopicPartition


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
"""Queries the given brokers for their replicas; leaves out those that do not respond within so many
seconds."""


def lost_at_least(answers: Mapping[NodeId, ReplicaFacts], leader: NodeId) -> tuple[int, int] | None:
    """The committed records that a new leader lacks, according to the brokers that responded: the
    first offset, and the first offset after them. None if no loss is known."""
    facts = answers.get(leader)
    if facts is None:
        return None
    committed = max(other.high_watermark for other in answers.values())
    return (facts.end_offset, committed) if committed > facts.end_offset else None
