"""Where fetches read: the partitions of this broker, and who may read them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from suwi.handlers.fetch_sessions import PartitionKey
from suwi.metadata.image import ClusterImage
from suwi.model.errors import NotLeaderOrFollower, StaleBrokerEpoch
from suwi.model.ids import NodeId
from suwi.replica.partition import Partition
from suwi.replica.replica_manager import ReplicaManager
from suwi.replica.replica_selector import ReplicaSelector


@dataclass(frozen=True, slots=True)
class FetchSource:
    replicas: ReplicaManager
    bytes_max: int
    synced: Callable[[float], Awaitable[None]]
    """Waits, for so long at most, until the image shows all that was written before."""
    nearest: ReplicaSelector | None = None
    """Chooses whom a consumer reads from; without it that is the leader."""

    def partition_of(self, key: PartitionKey, *, leader_only: bool) -> Partition:
        topic, index = key
        name = topic if isinstance(topic, str) else self.replicas.topic_name(topic)
        if leader_only:
            return self.replicas.leader_of(name, index)
        return self.replicas.replica_of(name, index)

    def check_follower(self, partition: Partition, node: NodeId, epoch: int) -> None:
        """Whether a broker has a replica of this, and is in the life that the controller knows."""
        leader_state = partition.leader_state
        if leader_state is None or node not in leader_state.followers:
            raise NotLeaderOrFollower(f"broker {node} has no replica of {partition.partition}")
        journaled = self.replicas.image.registered_brokers.get(node)
        if journaled is None or journaled.epoch != epoch:
            raise StaleBrokerEpoch(f"broker {node} is not known with epoch {epoch}")

    @property
    def image(self) -> ClusterImage:
        return self.replicas.image

    def name_of(self, topic_id: UUID) -> str | None:
        topic = self.replicas.image.topics_by_id.get(topic_id)
        return topic.name if topic is not None else None
