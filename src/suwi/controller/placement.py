"""Where the replicas of a new topic go. Pure: chance comes as an argument."""

from collections.abc import Sequence

from suwi.model.errors import InvalidReplicationFactor
from suwi.model.ids import NodeId


def place(
    brokers: Sequence[NodeId],
    partitions: int,
    replication_factor: int,
    *,
    first_partition: int = 0,
    start: int = 0,
    shift: int = 0,
) -> list[tuple[NodeId, ...]]:
    """The replicas of each new partition; the first is the preferred leader.

    Leaders go round the brokers from `start` on; the others follow at a distance that grows with
    every round, so that the partitions of a lost leader spread over all that are left.
    """
    if replication_factor > len(brokers):
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor} is larger than the number of live brokers, "
            f"{len(brokers)}"
        )
    placed = []
    count = len(brokers)
    for index in range(first_partition, first_partition + partitions):
        leader = (index + start) % count
        distance = shift + (index + start) // count
        replicas = [brokers[leader]]
        for follower in range(replication_factor - 1):
            step = 1 + (distance + follower) % (count - 1)
            replicas.append(brokers[(leader + step) % count])
        placed.append(tuple(replicas))
    return placed
