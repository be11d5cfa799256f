"""The partitions that this broker has a replica of, kept in step with the cluster image.

`apply_image` takes in each new image; handlers look partitions up with `leader_of` and
`replica_of`; coordinators hear of roles in their topics with `subscribe`.
Invariants: a partition is led here only in a life of this broker that the controller has journaled.
What fails for one partition in a way nobody foresaw leaves the others alone: it is out of service
here, in `failed`, and is tried again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol
from uuid import UUID

from suwi.env import Clock
from suwi.env.tasks import RESTART, Tasks, cancel_and_wait
from suwi.log.log_directories import LogDirectories
from suwi.metadata.dynamic_broker_config import DynamicBrokerConfig
from suwi.metadata.image import ClusterImage, PartitionState, Topic, partitions_of
from suwi.model.errors import (
    BrokerError,
    KafkaStorageError,
    NotLeaderOrFollower,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from suwi.model.ids import (
    NO_NODE,
    NodeId,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from suwi.model.topic_config import TopicConfig, parse_topic_config
from suwi.replica.alter_partition_manager import AlterPartitionManager
from suwi.replica.leader_state import UNKNOWN_EPOCH, Proposal
from suwi.replica.loss import Loss
from suwi.replica.partition import Partition
from suwi.replica.partition_storage import PartitionStorage
from suwi.replica.preparation import Turns
from suwi.replica.replica_fetcher_manager import ReplicaFetcherManager
from suwi.replica.replica_log import PartitionContext
from suwi.replica.stats import ReplicationStats

log = logging.getLogger(__name__)

_PARTITIONS_PER_SLICE: Final = 32
"""So many change their roles before others get the event loop again."""
_ISR_SHRINK: Final = "isr shrink"
_ISR_CHECKS_PER_SLICE: Final = 256
_RETRY_S_MIN: Final = 1.0
_RETRY_S_MAX: Final = 60.0
TASK: Final = "change of role"


class RoleListener(Protocol):
    """Told what becomes of each partition here, in order; an error in it stays with it."""

    def on_leader(self, partition: Partition) -> None:
        """This broker leads from `partition.leader_epoch` on."""

    def on_follower(self, partition: Partition) -> None:
        """Another broker leads, or nobody does."""

    def on_gone(self, partition: Partition) -> None:
        """Deleted, or moved away."""


class ReplicaManager:
    def __init__(
        self,
        node_id: NodeId,
        directories: LogDirectories,
        clock: Clock,
        config: DynamicBrokerConfig,
        tasks: Tasks,
        on_marked_for_deletion: Callable[[str], None],
        on_loss: Callable[[Loss], None] = lambda _: None,
    ) -> None:
        """`on_marked_for_deletion` is told the path of a directory that may be removed."""
        self.image = ClusterImage()
        self.broker_epoch = UNKNOWN_EPOCH
        """This broker's own, while it is registered."""
        self._fetchers: ReplicaFetcherManager | None = None
        self._alter_partitions: AlterPartitionManager | None = None
        self._isr_shrink: asyncio.Task[None] | None = None
        self.stats = ReplicationStats()
        self.directories = directories
        self.failed: dict[TopicPartition, str] = {}
        """Partitions that are out of service here for a reason that nobody foresaw."""
        self._node_id = node_id
        self._config = config
        self._tasks = tasks
        self._on_marked_for_deletion = on_marked_for_deletion
        self._listeners: list[RoleListener] = []
        self._applying = asyncio.Lock()
        self._retrying: asyncio.Task[None] | None = None
        # By topic and index: a plain tuple finds too, and is made faster than a `TopicPartition`.
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._led: dict[tuple[str, int], Partition] = {}
        self._touched: list[Partition] = []
        self._state_of = self._partition_state
        """Made once: every partition keeps it."""
        self._context = PartitionContext(
            node_id,
            clock,
            Turns(),
            config.static.replica_lag_time_max_ms / 1000,
            self._is_live,
            tasks,
            self._touched.append,
            self._propose,
            self.stats.isr_changed,
            on_loss,
        )

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    # -- looking up ----------------------------------------------------------------------------

    def leader_of(self, topic: str, partition: int) -> Partition:
        """The partition, led by this broker; else the error a client is answered with."""
        found = self._led.get((topic, partition))
        if found is not None:
            return found
        tp = TopicPartition(topic, PartitionIndex(partition))
        if self.image.partition(tp) is None:
            raise UnknownTopicOrPartition(f"{topic}-{partition} does not exist")
        if tp in self.failed:
            raise KafkaStorageError(f"{tp} is out of service here: {self.failed[tp]}")
        raise NotLeaderOrFollower(f"{topic}-{partition} is led by another broker")

    def replica_of(self, topic: str, partition: int) -> Partition:
        """The partition, whether led here or copied from another broker."""
        found = self._partitions.get((topic, partition))
        return found if found is not None else self.leader_of(topic, partition)

    def is_current(self, partition: Partition) -> bool:
        """Whether this is still what this broker has of a partition of that name."""
        return self._partitions.get(partition.partition) is partition

    def topic_name(self, topic_id: UUID) -> str:
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        return topic.name

    def take_dirty_partitions(self) -> list[Partition]:
        """The partitions that were appended to since the last call. Idle ones cost nothing."""
        taken = self._touched[:]
        self._touched.clear()
        for partition in taken:
            partition.replica_log.dirty = False
        return taken

    def led(self) -> list[Partition]:
        return list(self._led.values())

    def _is_live(self, node: NodeId, epoch: int) -> bool:
        broker = self.image.unfenced_brokers.get(node)
        return broker is not None and epoch in (UNKNOWN_EPOCH, broker.epoch)

    def _propose(self, partition: Partition, proposal: Proposal) -> None:
        if self._alter_partitions is not None:
            self._alter_partitions.propose(partition, proposal)

    # -- applying images -----------------------------------------------------------------------

    def subscribe(self, listener: RoleListener) -> None:
        self._listeners.append(listener)

    @property
    def paused(self) -> asyncio.Lock:
        """While it is held no image is applied: nothing is deleted under whoever opens logs in a
        thread."""
        return self._applying

    async def apply_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """Take in the next image, in slices: begin, change and end what differs from the last."""
        async with self._applying:
            await self._apply_image(old, new)

    async def _apply_image(self, old: ClusterImage, new: ClusterImage) -> None:
        self.image = new
        for number, step in enumerate(self._steps(old, new), start=1):
            self._isolated(*step)
            if number % _PARTITIONS_PER_SLICE == 0:
                await asyncio.sleep(0)
        self._fetch_added()
        if self.failed and (self._retrying is None or self._retrying.done()):
            self._retrying = self._tasks.start(
                self._retry_failed, name="retry of failed partitions", on_failure=RESTART
            )

    def _steps(
        self, old: ClusterImage, new: ClusterImage
    ) -> Iterator[tuple[TopicPartition, Callable[[], None]]]:
        """What is to be done, partition by partition."""
        for name, topic in old.topics.items():
            successor = new.topics.get(name)
            if successor is None or successor.id != topic.id:
                for tp, _ in partitions_of(topic):
                    yield tp, partial(self._delete, tp, topic.id)
        # What this broker may do depends on its own journaled life, what a topic's configuration is
        # on the defaults.
        all_anew = old.registered_brokers.get(self._node_id) != new.registered_brokers.get(
            self._node_id
        )
        all_anew |= old.broker_configs != new.broker_configs
        for name, topic in new.topics.items():
            if all_anew or old.topics.get(name) is not topic:
                # What exists when the broker starts may have its data anywhere.
                yield from self._topic_steps(topic, is_new=old.sequence > 0)
        if old.unfenced_brokers != new.unfenced_brokers:
            # A broker came or went: leaders may have waited for one that was about to join.
            for partition in list(self._led.values()):
                yield partition.partition, partition.live_brokers_changed

    def _topic_steps(
        self, topic: Topic, *, is_new: bool
    ) -> Iterator[tuple[TopicPartition, Callable[[], None]]]:
        config = parse_topic_config(topic.configs, self._config.current.topic)
        for tp, state in partitions_of(topic):
            yield tp, partial(self._apply_state, tp, topic.id, state, config, is_new=is_new)

    def _isolated(self, tp: TopicPartition, step: Callable[[], None]) -> None:
        """What one partition's data or state brings about must not stop the others."""
        try:
            step()
            self.failed.pop(tp, None)
        except Exception as error:
            self.fail(tp, error)

    def fail(self, tp: TopicPartition, error: Exception) -> None:
        """Take a partition out of service until a retry works. Never raises."""
        self._tasks.count(TASK, error)
        log.error("partition failed", extra={"partition": str(tp), "reason": repr(error)})
        self.failed[tp] = repr(error)
        self._led.pop(tp, None)
        partition = self._partitions.get(tp)
        if partition is not None:
            try:
                self._stop_fetching(partition)
                partition.stop_leading()
            except Exception as further:
                self._tasks.count(TASK, further)

    async def _retry_failed(self) -> None:
        pause_s = _RETRY_S_MIN
        while self.failed:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_S_MAX)
            for tp in list(self.failed):
                topic = self.image.topics.get(tp.topic)
                if topic is None or tp.partition >= len(topic.partitions):
                    self.failed.pop(tp, None)  # Deleted: its directory is found at the next start.
                    continue
                for other, step in self._topic_steps(topic, is_new=False):
                    if other == tp:
                        self._isolated(tp, step)
            self._fetch_added()

    async def stop(self) -> None:
        await cancel_and_wait(self._retrying)

    # -- replication -----------------------------------------------------------------------------

    def start_replication(
        self, fetchers: ReplicaFetcherManager, alter_partitions: AlterPartitionManager
    ) -> None:
        """Before this nothing is fetched; the registration then assigns everything."""
        self._fetchers = fetchers
        self._alter_partitions = alter_partitions
        self._isr_shrink = self._tasks.start(
            self._shrink_isrs, name=_ISR_SHRINK, on_failure=RESTART
        )

    async def stop_replication(self) -> None:
        await cancel_and_wait(self._isr_shrink)
        if self._alter_partitions is not None:
            await self._alter_partitions.stop()
        if self._fetchers is not None:
            await self._fetchers.stop()

    async def _shrink_isrs(self) -> None:
        period_s = self._config.static.replica_lag_time_max_ms / 2000
        while True:
            await asyncio.sleep(period_s)
            for number, partition in enumerate(self.led(), start=1):
                try:
                    partition.maybe_shrink_isr()
                except Exception as error:
                    self._tasks.count(_ISR_SHRINK, error)  # The others go on.
                if number % _ISR_CHECKS_PER_SLICE == 0:
                    await asyncio.sleep(0)

    def _fetch_added(self) -> None:
        if self._fetchers is not None:
            self._fetchers.partitions_added()

    def _stop_fetching(self, partition: Partition) -> None:
        if self._fetchers is not None:
            self._fetchers.remove_fetcher_for(partition)

    # -- registration ----------------------------------------------------------------------------

    def live_as(self, broker_epoch: int) -> None:
        """This broker is registered, or (UNKNOWN_EPOCH) no longer so and may lead nothing."""
        self.broker_epoch = broker_epoch
        for topic in self.image.topics.values():
            for step in self._topic_steps(topic, is_new=False):
                self._isolated(*step)
        self._fetch_added()

    @property
    def _may_lead(self) -> bool:
        journaled = self.image.registered_brokers.get(self._node_id)
        return (
            self.broker_epoch != UNKNOWN_EPOCH
            and journaled is not None
            and journaled.epoch == self.broker_epoch
        )

    def _apply_state(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        state: PartitionState,
        config: TopicConfig,
        *,
        is_new: bool,
    ) -> None:
        known = self._partitions.get(tp)
        if known is not None and known.topic_id != topic_id:
            self._delete(tp, known.topic_id)
            known = None
        if self._node_id not in state.replicas:
            self._drop(tp)
            return
        if known is None:
            storage = PartitionStorage(
                self.directories, tp, topic_id, self._state_of, is_new=is_new
            )
            known = self._partitions[tp] = Partition(tp, topic_id, config, storage, self._context)
        elif known.config != config:
            known.configure(config)
        self._take_role(known, state)

    def _take_role(self, partition: Partition, state: PartitionState) -> None:
        before = partition.leader_epoch, partition.is_leader
        if state.leader == self._node_id and self._may_lead:
            self._stop_fetching(partition)
            partition.make_leader(state, self.broker_epoch)
            self._led[partition.partition] = partition
            if (partition.leader_epoch, True) != before:
                self._tell_role(lambda listener: listener.on_leader(partition))
            return
        self._led.pop(partition.partition, None)
        if state.leader == self._node_id:
            # Of an earlier life of this broker: the controller has not spoken yet.
            self._stop_fetching(partition)
            partition.stop_leading()
        else:
            self._follow_leader(partition, state)
        if (partition.leader_epoch, False) != before:
            self._tell_role(lambda listener: listener.on_follower(partition))

    def _follow_leader(self, partition: Partition, state: PartitionState) -> None:
        is_same = partition.leader == state.leader and partition.leader_epoch == state.leader_epoch
        partition.make_follower(state)
        if state.leader == NO_NODE:
            self._stop_fetching(partition)
        elif self._fetchers is not None and not (is_same and self._fetchers.has(partition)):
            # Hazard 22: at every change of the epoch the logs are compared, even if the leader is
            # the same: with the next fetch, which names the last epoch it follows on.
            self._fetchers.add_fetcher_for(partition)

    def _tell_role(self, tell: Callable[[RoleListener], None]) -> None:
        for listener in self._listeners:
            try:
                tell(listener)
            except Exception as error:
                self._tasks.count("role listener", error)

    def _drop(self, tp: TopicPartition, reason: BrokerError | None = None) -> None:
        known = self._partitions.pop(tp, None)
        self._led.pop(tp, None)
        if known is not None:
            self._stop_fetching(known)
            known.close(reason)
            self._tell_role(lambda listener: listener.on_gone(known))

    def _partition_state(self, tp: TopicPartition) -> PartitionState | None:
        return self.image.partition(tp)

    def _delete(self, tp: TopicPartition, topic_id: TopicId) -> None:
        known = self._partitions.get(tp)
        if known is not None and known.topic_id != topic_id:
            return  # Another topic has its name by now.
        self._drop(tp, UnknownTopicOrPartition(f"{tp} was deleted"))
        for directory in self.directories.usable():
            try:
                gone = directory.mark_for_deletion(tp)
            except OSError as error:
                # Of use to nobody: the next start names it as a directory of an unknown topic.
                log.error("cannot set aside", extra={"partition": str(tp), "reason": str(error)})
                directory.state.failed(error)
                continue
            if gone is not None:
                self._on_marked_for_deletion(gone)
        self.directories.forget(tp)
