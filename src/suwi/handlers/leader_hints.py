"""The current leader and its endpoint, for clients that asked the wrong broker (KIP-951)."""

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from suwi.metadata.image import ClusterImage
from suwi.model.ids import NodeId, PartitionIndex, TopicPartition
from suwi.wire.leaders import CurrentLeader, NodeEndpoint

_WRONG_LEADER_ERRORS = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


def leader_hint(
    image: ClusterImage, topic: str | None, partition: int, error_code: int
) -> CurrentLeader | None:
    """The current leader, for a response with an error about the leader; None if it is unknown."""
    if error_code not in _WRONG_LEADER_ERRORS or topic is None:
        return None
    state = image.partition(TopicPartition(topic, PartitionIndex(partition)))
    if state is None or state.leader not in image.unfenced_brokers:
        return None
    return CurrentLeader(state.leader, state.leader_epoch)


def hinted_endpoints(
    image: ClusterImage, listener: str, hints: Iterable[CurrentLeader | None]
) -> list[NodeEndpoint]:
    """The endpoints of the leaders in `hints` on a listener."""
    leaders = sorted({hint.leader_id for hint in hints if hint is not None})
    endpoints = []
    for node in leaders:
        broker = image.unfenced_brokers.get(NodeId(node))
        endpoint = broker.endpoint(listener) if broker is not None else None
        if broker is not None and endpoint is not None:
            endpoints.append(NodeEndpoint(node, endpoint.host, endpoint.port, broker.rack))
    return endpoints
