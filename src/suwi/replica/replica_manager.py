"""The replicas on this broker, kept in step with the metadata image.

`apply_image` applies each new image; handlers look partitions up with `leader_of` and `replica_of`;
coordinators learn of role changes with `subscribe`.
Invariants: this broker leads a partition only if the image has its current broker epoch registered.
An unexpected error of one partition does not affect the others: that partition is out of service
here, listed in `failed`, and retried.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol
from uuid import UUID

from suwi.env import Clock
from suwi.env.problems import ProblemKind
from suwi.env.slices import in_slices
from suwi.env.tasks import RESTART, Tasks, cancel_and_wait
from suwi.log.log_directories import LogDirectories
from suwi.metadata.dynamic_broker_config import DynamicBrokerConfig, topic_config_of
from suwi.metadata.image import ClusterImage, PartitionState, Topic, partitions_of
from suwi.model.errors import (
    BrokerError,
    KafkaStorageError,
    NotLeaderOrFollower,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from suwi.model.ids import NO_NODE, NodeId, PartitionIndex, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.replica.alter_partition_manager import AlterPartitionManager
from suwi.replica.leader_state import UNKNOWN_EPOCH, Proposal
from suwi.replica.log_preparation import Turns
from suwi.replica.loss import Loss
from suwi.replica.partition import Partition
from suwi.replica.partition_watch import PartitionWatches
from suwi.replica.replica_fetcher_manager import ReplicaFetcherManager
from suwi.replica.replica_log import OwnReplica, PartitionContext, PartitionStorage, ReplicaLog
from suwi.replica.replication_quota import ReplicationQuotas

log = logging.getLogger(__name__)

_PARTITIONS_PER_SLICE: Final = 32
"""How many partitions change roles before the event loop is yielded."""
_ISR_SHRINK: Final = "isr shrink"
_ISR_CHECKS_PER_SLICE: Final = 256
_RETRY_S_MIN: Final = 1.0
_RETRY_S_MAX: Final = 60.0
TASK: Final = "change of role"


@dataclass(slots=True)
class ReplicationStats:
    """Counts of ISR changes in the partitions led here, for metrics."""

    isr_shrinks: int = 0
    isr_expands: int = 0

    def isr_changed(self, before: frozenset[NodeId], after: frozenset[NodeId]) -> None:
        self.isr_shrinks += bool(before - after)
        self.isr_expands += bool(after - before)


class RoleListener(Protocol):
    """Called for each role change, in order; an exception is counted and ignored."""

    def on_leader(self, partition: Partition) -> None:
        """This broker leads the partition, under `partition.leader_epoch`."""

    def on_follower(self, partition: Partition) -> None:
        """Another broker leads, the partition has no leader, or it has failed here."""

    def on_removed(self, partition: Partition) -> None:
        """The partition was deleted or moved to other brokers."""


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
        """`on_marked_for_deletion` gets the path of a directory that may be removed."""
        self.image = ClusterImage()
        self.broker_epoch = UNKNOWN_EPOCH
        """This broker's epoch while it is registered."""
        self._fetchers: ReplicaFetcherManager | None = None
        self._alter_partitions: AlterPartitionManager | None = None
        self._isr_shrink: asyncio.Task[None] | None = None
        self.stats = ReplicationStats()
        self.watches = PartitionWatches(clock)
        self.directories = directories
        self.failed: dict[TopicPartition, str] = {}
        """Partitions out of service here because of an unexpected error."""
        self._node_id = node_id
        self._config = config
        self._tasks = tasks
        self._on_marked_for_deletion = on_marked_for_deletion
        self._listeners: list[RoleListener] = []
        self.applying = asyncio.Lock()
        """While it is held no image is applied, so nothing is deleted while a thread opens logs."""
        self._retrying: asyncio.Task[None] | None = None
        # Keyed by topic and index: a plain tuple also matches, and is cheaper than a
        # `TopicPartition`.
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._led: dict[tuple[str, int], Partition] = {}
        self._dirty: list[ReplicaLog] = []
        self._state_of = self._own_replica
        """Bound once: every partition keeps a reference."""
        self._context = PartitionContext(
            node_id,
            clock,
            Turns(),
            config.static.replica_lag_time_max_ms / 1000,
            self._is_live,
            tasks,
            directories.problems,
            ReplicationQuotas(node_id, config).of,
            self._dirty.append,
            self._propose,
            self._leave_isr,
            self.stats.isr_changed,
            on_loss,
            self.watches.truncated,
        )

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    # -- lookup --------------------------------------------------------------------------------

    def leader_of(self, topic: str, partition: int) -> Partition:
        """The partition if this broker leads it. Raises the error for the client otherwise."""
        found = self._led.get((topic, partition))
        if found is not None:
            return found
        tp = TopicPartition(topic, PartitionIndex(partition))
        if self.image.partition(tp) is None:
            raise UnknownTopicOrPartition(f"{topic}-{partition} does not exist")
        if tp in self.failed:
            raise KafkaStorageError(f"{tp} is out of service on this broker: {self.failed[tp]}")
        raise NotLeaderOrFollower(f"{topic}-{partition} is not led by this broker")

    def replica_of(self, topic: str, partition: int) -> Partition:
        """The partition if this broker has a replica, as leader or follower."""
        found = self._partitions.get((topic, partition))
        return found if found is not None else self.leader_of(topic, partition)

    def of_topic(self, name: str, partition: int | None = None) -> Iterator[Partition]:
        """This broker's replicas of a topic; with `partition` of that one."""
        topic = self.image.topics.get(name)
        count = 0 if topic is None else len(topic.partitions)
        for index in range(count) if partition is None else (partition,):
            found = self._partitions.get((name, index))
            if found is not None:
                yield found

    def is_current(self, partition: Partition) -> bool:
        """Whether this object is still this broker's replica of the partition."""
        return self._partitions.get(partition.partition) is partition

    def topic_name(self, topic_id: UUID) -> str:
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        return topic.name

    def take_dirty_partitions(self) -> list[Partition]:
        """The partitions that changed since the last call. Idle partitions cost nothing."""
        taken = self._dirty[:]
        self._dirty.clear()
        for replica_log in taken:
            replica_log.dirty = False
        return [found for each in taken if (found := self._owner_of(each)) is not None]

    def _owner_of(self, replica_log: ReplicaLog) -> Partition | None:
        """None if the replica was removed; another one may have its name."""
        found = self._partitions.get(replica_log.partition)
        return found if found is not None and found.replica_log is replica_log else None

    def led(self) -> list[Partition]:
        return list(self._led.values())

    def _is_live(self, node: NodeId, epoch: int) -> bool:
        broker = self.image.unfenced_brokers.get(node)
        return broker is not None and epoch in (UNKNOWN_EPOCH, broker.epoch)

    def _propose(self, replica_log: ReplicaLog, proposal: Proposal) -> None:
        partition = self._owner_of(replica_log)
        if self._alter_partitions is not None and partition is not None:
            self._alter_partitions.propose(partition, proposal)

    def _leave_isr(self, replica_log: ReplicaLog) -> None:
        state = self.image.partition(replica_log.partition)
        if state is not None and state.leader_epoch == replica_log.leader_epoch:
            proposal = _proposal_to_leave(state, self._node_id)
            if proposal is not None:
                extra = {"partition": str(replica_log.partition)}
                log.warning("log not writable, leaving the isr", extra=extra)
                self._propose(replica_log, proposal)

    # -- applying images -----------------------------------------------------------------------

    def subscribe(self, listener: RoleListener) -> None:
        self._listeners.append(listener)

    async def apply_image(self, old: ClusterImage, new: ClusterImage) -> None:
        """Apply the differences between two images, in slices."""
        async with self.applying:
            self.image = new
            await self._run_in_slices(self._steps(old, new))

    async def _run_in_slices(
        self, steps: Iterable[tuple[TopicPartition, Callable[[], None]]]
    ) -> None:
        async for step in in_slices(steps, _PARTITIONS_PER_SLICE):
            self._isolated(*step)
        self._fetch_added()

    def _steps(
        self, old: ClusterImage, new: ClusterImage
    ) -> Iterator[tuple[TopicPartition, Callable[[], None]]]:
        """The changes to make, one step for each partition."""
        for name, topic in old.topics.items():
            successor = new.topics.get(name)
            if successor is None or successor.id != topic.id:
                for tp, _ in partitions_of(topic):
                    yield tp, partial(self._delete, tp, topic.id)
        apply_all = _affects_all_partitions(old, new, self._node_id)
        for name, topic in new.topics.items():
            if apply_all or old.topics.get(name) is not topic:
                applied = () if apply_all else _applied_states(old, topic)
                yield from self._topic_steps(topic, _first_new(old, topic), applied)
        if old.unfenced_brokers != new.unfenced_brokers:
            # A high watermark may have waited for a joining follower that is no longer live.
            for partition in list(self._led.values()):
                yield partition.partition, partition.live_brokers_changed

    def _topic_steps(
        self, topic: Topic, first_new: int | None = None, applied: Sequence[PartitionState] = ()
    ) -> Iterator[tuple[TopicPartition, Callable[[], None]]]:
        config = topic_config_of(topic, self._config.current.topic)
        for tp, state in partitions_of(topic):
            index = tp.partition
            if index < len(applied) and state == applied[index] and tp not in self.failed:
                continue
            is_new = first_new is not None and tp.partition >= first_new
            yield tp, partial(self._apply_state, tp, topic.id, state, config, is_new=is_new)

    def _isolated(self, tp: TopicPartition, step: Callable[[], None]) -> None:
        """An unexpected error of one partition must not affect the others."""
        try:
            step()
            self._recovered(tp)
        except Exception as error:
            self.fail(tp, error)

    def fail(self, tp: TopicPartition, error: Exception) -> None:
        """Take a partition out of service until a retry succeeds. Never raises."""
        self._tasks.count(TASK, error, is_reported=True)
        self.failed[tp] = repr(error)
        self.directories.problems.report(ProblemKind.PARTITION_FAILED, str(tp), repr(error))
        if self._retrying is None or self._retrying.done():
            self._retrying = self._tasks.start(
                self._retry_failed, name="retry of failed partitions", on_failure=RESTART
            )
        led = self._led.pop(tp, None)
        partition = self._partitions.get(tp)
        if partition is not None:
            was_leader = led is not None or partition.is_leader
            try:
                self._stop_fetching(partition)
                partition.stop_leading()
                if was_leader:
                    self._notify_role(lambda listener: listener.on_follower(partition))
            except Exception as further:
                self._tasks.count(TASK, further)

    def _recovered(self, tp: TopicPartition) -> None:
        if self.failed.pop(tp, None) is not None:
            self.directories.problems.resolve(ProblemKind.PARTITION_FAILED, str(tp))

    async def _retry_failed(self) -> None:
        pause_s = _RETRY_S_MIN
        while self.failed:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_S_MAX)
            for tp in list(self.failed):
                topic = self.image.topics.get(tp.topic)
                if topic is None or tp.partition >= len(topic.partitions):
                    self._recovered(tp)  # Deleted: the next start finds its directory.
                    continue
                for other, step in self._topic_steps(topic):
                    if other == tp:
                        self._isolated(tp, step)
            self._fetch_added()

    async def stop(self) -> None:
        self.watches.close()
        await cancel_and_wait(self._retrying)

    # -- replication -----------------------------------------------------------------------------

    def start_replication(
        self, fetchers: ReplicaFetcherManager, alter_partitions: AlterPartitionManager
    ) -> None:
        """Nothing is fetched before this call; the registration then assigns all roles."""
        self._fetchers = fetchers
        self._alter_partitions = alter_partitions
        self._isr_shrink = self._tasks.start(
            self._shrink_isrs, name=_ISR_SHRINK, on_failure=RESTART
        )

    async def _shrink_isrs(self) -> None:
        while True:
            await asyncio.sleep(self._config.static.replica_lag_time_max_ms / 2000)
            async for partition in in_slices(self.led(), _ISR_CHECKS_PER_SLICE):
                try:
                    partition.maybe_shrink_isr()
                except Exception as error:
                    self._tasks.count(_ISR_SHRINK, error)  # Continue with the others.

    async def stop_replication(self) -> None:
        await cancel_and_wait(self._isr_shrink)
        if self._alter_partitions is not None:
            await self._alter_partitions.stop()
        if self._fetchers is not None:
            await self._fetchers.stop()

    def _fetch_added(self) -> None:
        if self._fetchers is not None:
            self._fetchers.partitions_added()

    def _stop_fetching(self, partition: Partition) -> None:
        if self._fetchers is not None:
            self._fetchers.remove_fetcher_for(partition)

    # -- registration ----------------------------------------------------------------------------

    async def set_broker_epoch(self, broker_epoch: int) -> None:
        """Set after registration, or to UNKNOWN_EPOCH when it is lost: then nothing may lead.

        In slices (ADR 15). From the first call on nothing is found that this broker leads, and no
        role that an image assigns uses the old epoch. What already waits for a partition continues
        until its slice, as it did until the loss was noticed: a leader without a registration
        commits nothing that its in-sync replicas do not have (hazard 9). Images wait meanwhile, so
        the states that are applied stay those of the newest image.
        """
        self.broker_epoch = broker_epoch
        self._led.clear()
        async with self.applying:
            topics = list(self.image.topics.values())
            await self._run_in_slices(step for topic in topics for step in self._topic_steps(topic))

    @property
    def is_registered(self) -> bool:
        registered = self.image.registered_brokers.get(self._node_id)
        return (
            self.broker_epoch != UNKNOWN_EPOCH
            and registered is not None
            and registered.epoch == self.broker_epoch
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
            self._remove(tp, topic_id)
            return
        if known is None:
            storage = PartitionStorage(self.directories, tp, topic_id, self._state_of, is_new)
            known = self._partitions[tp] = Partition(tp, topic_id, config, storage, self._context)
        elif known.config != config:
            known.configure(config)
        self._take_role(known, state)

    def _take_role(self, partition: Partition, state: PartitionState) -> None:
        before = partition.leader_epoch, partition.is_leader
        if state.leader == self._node_id and self.is_registered:
            self._stop_fetching(partition)
            partition.make_leader(state, self.broker_epoch)
            self._led[partition.partition] = partition
            if (partition.leader_epoch, True) != before:
                self._notify_role(lambda listener: listener.on_leader(partition))
            return
        self._led.pop(partition.partition, None)
        if state.leader == self._node_id:
            # The state is older than this broker's registration.
            self._stop_fetching(partition)
            partition.stop_leading()
        else:
            self._follow_leader(partition, state)
        if (partition.leader_epoch, False) != before:
            self._notify_role(lambda listener: listener.on_follower(partition))

    def _follow_leader(self, partition: Partition, state: PartitionState) -> None:
        is_same = partition.leader == state.leader and partition.leader_epoch == state.leader_epoch
        partition.make_follower(state)
        if state.leader == NO_NODE or not self.is_registered:
            # Leaders refuse a broker that is not registered; its registration applies all states.
            self._stop_fetching(partition)
        elif self._fetchers is not None and not (is_same and self._fetchers.has(partition)):
            # Hazard 22: every new leader epoch needs a log comparison, even with the same leader.
            # The next fetch does it, because it carries the last epoch in the log.
            self._fetchers.add_fetcher_for(partition)

    def _notify_role(self, notify: Callable[[RoleListener], None]) -> None:
        for listener in self._listeners:
            try:
                notify(listener)
            except Exception as error:
                self._tasks.count("role listener", error)

    def _drop(self, tp: TopicPartition, reason: BrokerError | None = None) -> None:
        known = self._partitions.pop(tp, None)
        self._led.pop(tp, None)
        if known is not None:
            self._stop_fetching(known)
            known.close(reason)
            self._notify_role(lambda listener: listener.on_removed(known))

    def _remove(self, tp: TopicPartition, topic_id: TopicId) -> None:
        """The replica was moved to other brokers, perhaps while this one was down: delete its log.

        An image that is older than this broker's registration may lack a later reassignment, after
        which the replica joined the ISR: until the image is newer the log is kept.
        """
        if tp not in self._partitions and self.directories.topic_id_of(tp) != topic_id:
            return
        reason = NotLeaderOrFollower(f"{tp} was moved to other brokers")
        if self.is_registered:
            self._delete(tp, topic_id, reason)
            log.info("replica removed", extra={"partition": str(tp)})
        else:
            self._drop(tp, reason)

    def _own_replica(self, tp: TopicPartition) -> OwnReplica:
        state = self.image.partition(tp)
        return OwnReplica.of(self._node_id, state, is_registered=self.is_registered)

    def _delete(
        self, tp: TopicPartition, topic_id: TopicId, reason: BrokerError | None = None
    ) -> None:
        known = self._partitions.get(tp)
        if known is not None and known.topic_id != topic_id:
            return  # A new topic with this name exists.
        self._drop(tp, reason or UnknownTopicOrPartition(f"{tp} was deleted"))
        for path in self.directories.mark_for_deletion(tp):
            self._on_marked_for_deletion(path)


def _proposal_to_leave(state: PartitionState, node: NodeId) -> Proposal | None:
    """A follower that cannot write leaves the ISR at once: otherwise all writers would wait for it
    until it is out of sync. The leader proposes its return when it has caught up."""
    if state.leader in (NO_NODE, node) or node not in state.isr:
        return None
    members = tuple((other, UNKNOWN_EPOCH) for other in state.isr if other != node)
    return Proposal(state.leader_epoch, state.partition_epoch, members)


def _affects_all_partitions(old: ClusterImage, new: ClusterImage, node: NodeId) -> bool:
    """A change of this broker's registration affects all its roles, a change of the default
    configuration all topics."""
    return (
        old.registered_brokers.get(node) != new.registered_brokers.get(node)
        or old.broker_configs != new.broker_configs
    )


def _applied_states(old: ClusterImage, topic: Topic) -> Sequence[PartitionState]:
    """The states that are applied already; empty if everything about the topic is to be applied. A
    change of a few partitions of a large topic must not cost a step for each of them."""
    known = old.topics.get(topic.name)
    is_same = known is not None and known.id == topic.id and known.configs == topic.configs
    return known.partitions if known is not None and is_same else ()


def _first_new(old: ClusterImage, topic: Topic) -> int | None:
    """The first partition that was created since the old image; None if this broker has just
    started: then any may have its data here already, as may a replica that was moved here again."""
    known = old.topics.get(topic.name)
    if old.sequence == 0:
        return None
    return len(known.partitions) if known is not None and known.id == topic.id else 0
