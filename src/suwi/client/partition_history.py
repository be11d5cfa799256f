"""Changes of in-sync sets and leaders, as the brokers saw them (DescribePartitionHistory)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from suwi.client.cluster import Cluster
from suwi.client.own_apis import ask_broker, ask_brokers
from suwi.model.ids import NodeId
from suwi.wire.versions import ApiKey


@dataclass(frozen=True, slots=True)
class MissingReplica:
    topic: str
    partition: int
    node: NodeId
    since_ms: int
    is_exact: bool
    """False: it was missing before, when the broker that tells it started."""
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionEvent:
    at_ms: int
    topic: str
    partition: int
    leader: NodeId
    """NO_NODE if there is none."""
    leader_epoch: int
    isr: tuple[NodeId, ...]
    left: Mapping[NodeId, str]
    """Who left the in-sync set, and why."""
    joined: tuple[NodeId, ...]
    election: str
    """Why the leader is another one; empty if it is not."""


@dataclass(frozen=True, slots=True)
class PartitionHistory:
    """What one broker has seen, by its own clock."""

    complete_from_ms: int
    missing: tuple[MissingReplica, ...]
    missing_left_off: int
    """How many more are missing."""
    events: tuple[PartitionEvent, ...]
    """The newest first."""


async def describe_partition_history(
    cluster: Cluster, node: NodeId, topic: str | None = None, *, events_max: int = 0
) -> PartitionHistory:
    """Of one topic, or of all; at most 200 events and 500 missing replicas are told.

    Raises OSError, of those ConnectionLost if the broker is not Suwi's, and BrokerError.
    """
    fields = {"events_max": events_max, "topic": topic}
    return _history(await ask_broker(cluster, node, ApiKey.DESCRIBE_PARTITION_HISTORY, fields))


async def partition_histories(
    cluster: Cluster, topic: str | None = None, *, events_max: int = 0
) -> dict[NodeId, PartitionHistory]:
    """From all brokers that answer, concurrently; empty if none of them is Suwi's.

    Raises OSError if no broker is known and none can be reached.
    """
    fields = {"events_max": events_max, "topic": topic}
    answers = await ask_brokers(cluster, ApiKey.DESCRIBE_PARTITION_HISTORY, fields)
    return {node: _history(told) for node, told in answers.items() if isinstance(told, dict)}


def _history(told: Mapping[str, Any]) -> PartitionHistory:
    return PartitionHistory(
        told["complete_from_ms"],
        tuple(MissingReplica(**one) for one in told["missing"]),
        told["missing_left_off"],
        tuple(map(_event, told["events"])),
    )


def _event(told: Mapping[str, Any]) -> PartitionEvent:
    return PartitionEvent(
        **{
            **told,
            "isr": tuple(told["isr"]),
            "left": {one["node"]: one["reason"] for one in told["left"]},
            "joined": tuple(told["joined"]),
        }
    )
