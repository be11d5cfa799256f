"""The shards of one coordinator on this broker, one for each partition of its internal topic.

The replica manager calls `on_leader` and `on_follower`; `shard_of` finds the shard of a group or
transactional id. Invariant: the topic has as many shards as partitions, whatever a setting says.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, Generic

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Asked, Call, Event, M
from suwi.coordinator.shard import Shard
from suwi.coordinator.shard_replica import ShardContext, Status
from suwi.env.slices import Slices
from suwi.metadata.image import ClusterImage
from suwi.model.errors import CoordinatorNotAvailable, NotCoordinator, error_of
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.replica.partition import Partition

_INT32: Final = 0xFFFFFFFF
_INT32_MIN: Final = 1 << 31
_CACHED_CHARS_MAX: Final = 256
# Errors of an append to an internal topic, and what the client is told: to try again here, or to
# look for the coordinator elsewhere.
_TOLD: Final = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}


def shard_index(key: str, partitions: int) -> int:
    """As Kafka: the absolute value of Java's String.hashCode."""
    is_short = len(key) <= _CACHED_CHARS_MAX
    return (_cached_hash(key) if is_short else _absolute_hash(key)) % partitions


def _absolute_hash(key: str) -> int:
    hash_code = 0
    for unit in memoryview(key.encode("utf-16-be", "surrogatepass")).cast("H"):
        hash_code = (31 * hash_code + ((unit & 0xFF) << 8 | unit >> 8)) & _INT32
    if hash_code == _INT32_MIN:
        return 0
    return hash_code if hash_code < _INT32_MIN else (1 << 32) - hash_code


_cached_hash: Final = lru_cache(maxsize=4096)(_absolute_hash)
"""Every heartbeat and commit asks for it."""


def coordinator_error(error: Exception) -> ErrorCode:
    code, _ = error_of(error)
    return _TOLD.get(code, code)


class CoordinatorRuntime(Generic[M]):
    def __init__(
        self, topic: str, image: Callable[[], ClusterImage], context: ShardContext[M]
    ) -> None:
        self.topic = topic
        self._image = image
        self._context = context
        self._shards: dict[int, Shard[M]] = {}
        self._loads_of_closed = 0

    def __iter__(self) -> Iterator[Shard[M]]:
        return iter(list(self._shards.values()))

    # -- the replica manager's side --------------------------------------------------------------

    def on_leader(self, partition: Partition) -> None:
        if partition.partition.topic == self.topic:
            self._shard(partition).lead(partition.leader_epoch)

    def on_follower(self, partition: Partition) -> None:
        if partition.partition.topic == self.topic:
            self._shard(partition).follow(partition.leader_epoch)

    def on_removed(self, partition: Partition) -> None:
        if partition.partition.topic == self.topic:
            shard = self._shards.get(partition.partition.partition)
            if shard is not None and shard.partition is partition:
                del self._shards[partition.partition.partition]
                self._close(shard)

    def stop(self) -> None:
        shards, self._shards = self._shards, {}
        for shard in shards.values():
            shard.close()

    def _shard(self, partition: Partition) -> Shard[M]:
        index = partition.partition.partition
        shard = self._shards.get(index)
        if shard is not None and shard.partition is partition:
            return shard
        if shard is not None:
            self._close(shard)
        shard = self._shards[index] = Shard(partition, self._context)
        return shard

    def _close(self, shard: Shard[M]) -> None:
        self._loads_of_closed += shard.loads
        shard.close()

    # -- requests --------------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """0 as long as the topic does not exist."""
        topic = self._image().topics.get(self.topic)
        return len(topic.partitions) if topic is not None else 0

    def partition_of(self, key: str) -> TopicPartition:
        """Raises CoordinatorNotAvailable."""
        return TopicPartition(self.topic, self._index_of(key))

    def _index_of(self, key: str) -> PartitionIndex:
        partitions = self.partitions
        if not partitions:
            raise CoordinatorNotAvailable(f"{self.topic} does not exist yet")
        return PartitionIndex(shard_index(key, partitions))

    def shard_of(self, key: str) -> Shard[M]:
        """Raises the error for clients that must look for the coordinator elsewhere, or try again
        later."""
        return self.shard_at(self._index_of(key))

    def shard_at(self, index: int) -> Shard[M]:
        """The shard of a partition. Raises as `shard_of`."""
        shard = self._shards.get(index)
        if shard is None:
            raise NotCoordinator(f"{self.topic}-{index} has no replica here")
        shard.check_active()
        return shard

    def shard_to_read(self, key: str) -> Slices[Shard[M]]:
        """As `shard_of`, for replies that no append confirms. In slices: see
        `Shard.until_readable`."""
        shard = self.shard_of(key)
        yield from shard.until_readable()
        return shard

    def active(self) -> list[Shard[M]]:
        return [shard for shard in self._shards.values() if shard.status is Status.ACTIVE]

    @property
    def is_loading(self) -> bool:
        return any(shard.status is Status.LOADING for shard in self._shards.values())

    @property
    def loads(self) -> int:
        """How often a shard has read its whole log, since the start."""
        return self._loads_of_closed + sum(shard.loads for shard in self._shards.values())

    def submit(self, call: Call[M]) -> Call[M]:
        """Give a call to the shard of its key. If it is refused, that is the call's error."""
        try:
            self.shard_of(call.key).submit(call)
        except Exception as error:
            call.fail(error)
        return call

    def tell_all(
        self, decide: Callable[[M, Asked, Event], Slices[None] | None], asked: Asked
    ) -> None:
        """An event of the cluster, for all shards that serve."""
        for shard in self.active():
            shard.tell(decide, asked)
