"""What replicas know, asked of the brokers that have them.

`QueryReplicaStates` is how the controller asks (`broker/replica_state_query.py`); `lost_at_least`
says what follows.
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
QueryReplicaStates: TypeAlias = Callable[[Asked, Mapping[NodeId, BrokerInfo]], Awaitable[Answers]]
"""Asks those of the brokers given about their replicas; who does not answer soon is left out."""


def lost_at_least(answers: Mapping[NodeId, ReplicaFacts], leader: NodeId) -> tuple[int, int] | None:
    """The committed records that a new leader does not have, as far as anyone who answered knows:
    the first, and the first that is not lost. None where nobody misses any."""
    facts = answers.get(leader)
    if facts is None:
        return None
    committed = max(other.high_watermark for other in answers.values())
    return (facts.end_offset, committed) if committed > facts.end_offset else None
