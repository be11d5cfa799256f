"""The partitions that fetches read, and the check that a follower may fetch them."""

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
    """Waits, with a timeout in seconds, until the image shows all earlier writes."""
    replica_selector: ReplicaSelector | None = None
    """Chooses the replica a consumer reads from; without it that is the leader."""

    def partition_of(self, key: PartitionKey, *, leader_only: bool) -> Partition:
        topic, index = key
        name = topic if isinstance(topic, str) else self.replicas.topic_name(topic)
        if leader_only:
            return self.replicas.leader_of(name, index)
        return self.replicas.replica_of(name, index)

    def check_follower(self, partition: Partition, node: NodeId, epoch: int) -> None:
        """Check that a broker has a replica of the partition, and has not registered again since.

        A newer epoch than that of the image is one that is not in the image yet: such a follower
        may read, but not join the ISR.
        """
        leader_state = partition.leader_state
        if leader_state is None or node not in leader_state.followers:
            raise NotLeaderOrFollower(f"broker {node} has no replica of {partition.partition}")
        registration = self.replicas.image.registered_brokers.get(node)
        if registration is not None and epoch < registration.epoch:
            raise StaleBrokerEpoch(f"broker {node} has registered again since epoch {epoch}")

    @property
    def image(self) -> ClusterImage:
        return self.replicas.image

    def name_of(self, topic_id: UUID) -> str | None:
        topic = self.replicas.image.topics_by_id.get(topic_id)
        return topic.name if topic is not None else None
