"""Limits of the bytes per second that throttled replicas copy (KIP-73).

A reassignment lists the replicas to be throttled in the topic's configuration
(`leader.replication.throttled.replicas` on the side of the leader, `follower.…` on the other) and
sets the rates of brokers. A replica that is in sync is never throttled, so no producer waits.
Invariant: a partition that is not throttled has no quota, and its fetches cost nothing more.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from suwi.env.token_bucket import TokenBucket
from suwi.metadata.dynamic_broker_config import DynamicBrokerConfig
from suwi.model.ids import NodeId, TopicPartition
from suwi.model.topic_config import ALL_THROTTLED, TopicConfig

_BURST_S = 1.0
_WAIT_S_MIN = 0.01


class ReplicationQuota:
    def __init__(self, bytes_per_s: Callable[[], int]) -> None:
        """`bytes_per_s` is read at each use: it can be changed at any time."""
        self._bytes_per_s = bytes_per_s
        self._bucket = TokenBucket(bytes_per_s(), _BURST_S)

    def wait_s(self) -> float:
        """How long until more may be copied; 0 if it may be now, else not too short a time."""
        self._bucket.rate = self._bytes_per_s()
        wait_s = self._bucket.wait_s(asyncio.get_running_loop().time())
        return max(wait_s, _WAIT_S_MIN) if wait_s else 0.0

    def record(self, copied_bytes: int) -> None:
        self._bucket.rate = self._bytes_per_s()
        self._bucket.record(copied_bytes, asyncio.get_running_loop().time())


class PartitionQuotas(NamedTuple):
    leader: ReplicationQuota | None = None
    follower: ReplicationQuota | None = None


_NONE = PartitionQuotas()


class ReplicationQuotas:
    """The two quotas of a broker, and the partitions that they apply to."""

    def __init__(self, node_id: NodeId, config: DynamicBrokerConfig) -> None:
        self._node_id = node_id
        self._leader = ReplicationQuota(lambda: config.current.leader_throttled_rate)
        self._follower = ReplicationQuota(lambda: config.current.follower_throttled_rate)

    def of(self, partition: TopicPartition, config: TopicConfig) -> PartitionQuotas:
        if not config.leader_throttled_replicas and not config.follower_throttled_replicas:
            return _NONE
        replica = {f"{partition.partition}:{self._node_id}", ALL_THROTTLED}
        return PartitionQuotas(
            None if replica.isdisjoint(config.leader_throttled_replicas) else self._leader,
            None if replica.isdisjoint(config.follower_throttled_replicas) else self._follower,
        )
