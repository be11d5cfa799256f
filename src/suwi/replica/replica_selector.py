"""Selects the replica a consumer should read from (KIP-392): one in its rack, if it has enough."""

from suwi.model.ids import NO_OFFSET, NodeId, Offset
from suwi.replica.leader_state import LeaderState
from suwi.replica.peers import HasImage

RACK_AWARE = "RackAwareReplicaSelector"
"""The simple class name that Kafka's `replica.selector.class` accepts."""


class ReplicaSelector:
    """Called by a leader; the image has the brokers' racks."""

    def __init__(self, node_id: NodeId, metadata: HasImage) -> None:
        self._node_id = node_id
        self._metadata = metadata

    def choose(self, leader_state: LeaderState, offset: Offset, rack: str) -> NodeId | None:
        """The most advanced of the in-sync followers in `rack` that have `offset`.

        None if there is none, or the leader is in `rack`, or consumers come back from that replica
        again and again with the same offset: it cannot read its log there.
        """
        brokers = self._metadata.image.unfenced_brokers
        if self._node_id in brokers and brokers[self._node_id].rack == rack:
            return None
        near = [
            (follower.end_offset, -node)
            for node, follower in leader_state.followers.items()
            if node in leader_state.members
            and node in brokers
            and brokers[node].rack == rack
            and follower.end_offset != NO_OFFSET
            and follower.start_offset <= offset <= follower.end_offset
        ]
        if not near:
            return None
        chosen = NodeId(-max(near)[1])
        return None if leader_state.followers[chosen].redirects.are_many(offset) else chosen
