"""One partition's replica on this broker: leader or follower, with its high watermark.

Produce enters at `append`, readers at `read`, delayed operations at `when_committed` and `watch`,
role changes at `make_leader` and `make_follower`. Its parts: `replica_log` (the log, the high
watermark and opening the log), `leader_replica` while this broker leads, `follower` while another
does, and `syncer`.
Invariant: start offset <= last stable offset <= high watermark <= end offset.
"""

import asyncio
import logging
from collections.abc import Callable
from math import inf

from suwi.env.problems import because
from suwi.log.log_segments import LogSlice
from suwi.log.partition_log import Appended, PartitionLog
from suwi.metadata.image import PartitionState
from suwi.model.errors import (
    BrokerError,
    FencedLeaderEpoch,
    KafkaStorageError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
)
from suwi.model.ids import NO_EPOCH, NO_NODE, LeaderEpoch, Offset, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import BatchHeader
from suwi.replica.delayed_operations import OnCommit
from suwi.replica.follower_replica import FollowerReplica
from suwi.replica.leader_replica import LeaderReplica
from suwi.replica.leader_state import UNKNOWN_EPOCH, LeaderState
from suwi.replica.log_sync import LogSyncer
from suwi.replica.log_validator import validation_rules_of
from suwi.replica.partition_transactions import CheckProducers, PartitionTransactions
from suwi.replica.partition_watch import PartitionWatch
from suwi.replica.replica_log import PartitionContext, PartitionStorage, ReplicaLog

log = logging.getLogger(__name__)

_ACKS_ALL = -1


class Partition:
    """A replica, and the only interface to its parts. Its log is opened on first use."""

    __slots__ = (
        "_follower",
        "_transactions",
        "bytes_in",
        "leader",
        "leader_replica",
        "leader_state",
        "partition",
        "quotas",
        "replica_log",
        "syncer",
        "topic_id",
        "validation_rules",
        "watched_by",
    )

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        storage: PartitionStorage,
        context: PartitionContext,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.validation_rules = validation_rules_of(config)
        self.quotas = context.quotas_of(partition, config)
        self.bytes_in = 0
        """What was appended here while this broker led, since it started."""
        self.leader = NO_NODE
        self.leader_replica: LeaderReplica | None = None
        """The leader side; None while another broker leads or the partition has no leader."""
        self.leader_state: LeaderState | None = None
        """The `state` of `leader_replica`, here for fast access."""
        self.replica_log = ReplicaLog(partition, config, storage, context)
        self.syncer = LogSyncer(self.replica_log)
        self._transactions: PartitionTransactions | None = None
        """Created at the first transactional batch or marker, as few partitions have one."""
        self._follower: FollowerReplica | None = None
        self.watched_by: PartitionWatch | None = None
        """Notes fetches and produces while somebody watches this partition."""

    # -- state ---------------------------------------------------------------------------------

    @property
    def log(self) -> PartitionLog:
        """The log, ready for use. Raises a `BrokerError` if it is not ready, see `ReplicaLog`."""
        return self.replica_log.ready_log or self.replica_log.get_ready()

    @property
    def is_open(self) -> bool:
        """Whether the log has been opened since the broker started."""
        return self.replica_log.log is not None

    @property
    def log_as_it_is(self) -> PartitionLog:
        """The log of an open replica. Never raises: unlike `log`, it does not start the leader
        epoch, which a full disk may prevent."""
        partition_log = self.replica_log.log
        assert partition_log is not None
        return partition_log

    @property
    def watermark_as_it_is(self) -> Offset:
        """The high watermark of an open replica; never raises, see `log_as_it_is`."""
        return self.replica_log.high_watermark

    @property
    def config(self) -> TopicConfig:
        return self.replica_log.config

    @property
    def is_closed(self) -> bool:
        """Whether the partition was deleted or this broker is stopping."""
        return self.replica_log.closed is not None

    def check_open(self) -> None:
        """Raises the reason if the replica was closed while the caller waited."""
        if self.replica_log.closed is not None:
            raise self.replica_log.closed

    @property
    def is_leader(self) -> bool:
        return self.leader_state is not None

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The latest leader epoch that this replica has seen."""
        return self.replica_log.leader_epoch

    @property
    def high_watermark(self) -> Offset:
        replica_log = self.replica_log
        if replica_log.ready_log is None:
            replica_log.get_ready()
        return replica_log.high_watermark

    @property
    def watermark_is_known(self) -> bool:
        """Whether the high watermark has reached the start offset of this leader epoch.

        Before that, records may be committed without this leader knowing it.
        """
        leader_state = self.leader_state
        return leader_state is None or self.high_watermark >= leader_state.epoch_start

    @property
    def last_stable_offset(self) -> Offset:
        """Below it every transaction is committed or aborted, by a marker that is committed."""
        replica_log = self.replica_log
        partition_log = replica_log.ready_log or replica_log.get_ready()
        if partition_log.producers.has_unstable_txns:
            producers, start = partition_log.producers, partition_log.start_offset
            return producers.last_stable_offset(start, replica_log.high_watermark)
        return replica_log.high_watermark

    @property
    def low_watermark(self) -> Offset:
        """The lowest log start offset of all live replicas."""
        starts = [self.log.start_offset]
        if self.leader_state is not None:
            is_live = self.replica_log.context.is_live
            starts += [
                max(follower.start_offset, Offset(0))
                for node, follower in self.leader_state.followers.items()
                if is_live(node, UNKNOWN_EPOCH)
            ]
        return min(starts)

    def configure(self, config: TopicConfig) -> None:
        self.validation_rules = validation_rules_of(config)
        self.quotas = self.replica_log.context.quotas_of(self.partition, config)
        self.replica_log.configure(config)
        if self.leader_replica is not None:
            self.leader_replica.count_replicas()

    def check_epoch(self, known_to_client: int) -> None:
        """Hazard 4: a client with another leader epoch may have outdated metadata."""
        if known_to_client == NO_EPOCH:
            return
        leader_epoch = self.replica_log.leader_epoch
        if known_to_client == leader_epoch:
            return
        if known_to_client < leader_epoch:
            raise FencedLeaderEpoch(f"leader epoch {known_to_client} is older than {leader_epoch}")
        raise UnknownLeaderEpoch(f"leader epoch {known_to_client} is newer than {leader_epoch}")

    # -- roles ---------------------------------------------------------------------------------

    def make_leader(self, state: PartitionState, broker_epoch: int) -> None:
        """The controller made this replica the leader, or changed the ISR of its leader epoch."""
        replica_log = self.replica_log
        if replica_log.closed is not None:
            return  # This broker is stopping; the controller will elect another leader.
        leader = self.leader_replica
        if leader is not None and (leader.state.leader_epoch, leader.state.broker_epoch) == (
            state.leader_epoch,
            broker_epoch,
        ):
            leader.confirm(state)
            return
        self._begin_epoch(state)
        self.leader_state = LeaderState(
            replica_log.context.node_id,
            broker_epoch,
            state,
            epoch_start=Offset(0),  # set by `start_epoch` when the log is open
            now_s=asyncio.get_running_loop().time(),
        )
        leader = self.leader_replica = LeaderReplica(self.leader_state, replica_log, self.syncer)
        replica_log.make_leader(leader)
        leader.count_replicas()
        if replica_log.log is not None or len(state.replicas) > 1:
            try:
                replica_log.get_ready()
            except KafkaStorageError as error:
                log.error("cannot become leader", extra=because(error, partition=self.partition))
                leader.resign()
            except NotLeaderOrFollower:
                pass  # The epoch starts when the log is ready.

    def make_follower(self, state: PartitionState) -> None:
        """Another broker leads, or the partition has no leader."""
        if self.leader_state is None and self.leader_epoch == state.leader_epoch:
            self.leader = state.leader
            return
        self._begin_epoch(state)

    def stop_leading(self) -> None:
        """This broker lost its registration: it must not lead until it is elected again."""
        if self.leader_state is not None:
            self._begin_epoch(None)

    def _begin_epoch(self, state: PartitionState | None) -> None:
        self.leader_state = self.leader_replica = self._follower = None
        self.leader = state.leader if state is not None else NO_NODE
        self.replica_log.begin_epoch(state)

    @property
    def follower(self) -> FollowerReplica:
        """The follower side, while another broker leads."""
        assert self.leader_state is None
        if self._follower is None:
            self._follower = FollowerReplica(self.replica_log)
        return self._follower

    def maybe_shrink_isr(self) -> None:
        """Propose to remove followers from the ISR that have not kept up."""
        if self.leader_replica is not None:
            self.leader_replica.maybe_shrink_isr()

    def live_brokers_changed(self) -> None:
        if self.leader_replica is not None:
            self.leader_replica.live_brokers_changed()

    def close(self, reason: BrokerError | None = None) -> None:
        """The partition was deleted or the broker is stopping: fail everything that waits."""
        self.replica_log.close(
            reason or NotLeaderOrFollower(f"{self.partition} is not led by this broker")
        )

    # -- writing -------------------------------------------------------------------------------

    @property
    def transactions(self) -> PartitionTransactions:
        if self._transactions is None:
            self._transactions = PartitionTransactions(
                self.replica_log, self.append, self.check_enough_replicas
            )
        return self._transactions

    def check_enough_replicas(self) -> None:
        """Raises NotEnoughReplicas if an acks=all append cannot be committed."""
        leader = self.leader_replica
        if leader is None or leader.has_enough_replicas:
            return
        raise NotEnoughReplicas(
            f"{self.partition} has fewer replicas in sync than "
            f"min.insync.replicas {self.config.min_insync_replicas}"
        )

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        now_ms: int,
        check: CheckProducers | None = None,
    ) -> Appended:
        """Append a batch that `validate` accepted; changes it in place. Raises a `BrokerError`.

        Transactional batches and markers come through `transactions`. `check` is called with the
        log's producers in the step of the append.
        """
        leader = self.leader_replica
        if leader is None:
            raise NotLeaderOrFollower(f"{self.partition} is not led by this broker")
        replica_log = self.replica_log
        try:
            partition_log = replica_log.ready_log or replica_log.get_ready()
            if check is not None:
                check(partition_log.producers)
            appended = partition_log.append_as_leader(
                batch, header, replica_log.leader_epoch, now_ms
            )
        except KafkaStorageError:
            leader.resign()
            raise
        if not appended.is_duplicate:
            self.bytes_in += len(batch)
            leader.after_append(partition_log)
        return appended

    def delete_before(self, offset: Offset) -> None:
        """Raise the log start offset: readers no longer see records below `offset`."""
        assert offset <= self.high_watermark
        self.log.advance_start(offset)
        self.replica_log.mark_dirty()
        self.replica_log.delayed.notify_all()

    # -- waiting -------------------------------------------------------------------------------

    def is_committed(self, end_offset: Offset) -> bool:
        return end_offset <= self.replica_log.high_watermark

    def must_wait(self, acks: int) -> bool:
        """Whether the response waits for the commit, or with flush.messages=1 for a sync."""
        return acks == _ACKS_ALL or self.replica_log.config.flush_messages == 1

    def when_committed(self, end: Offset, on_commit: OnCommit, timeout_s: float = inf) -> None:
        """Call `on_commit` once: when all below `end` is committed, has failed or has timed out."""
        replica_log = self.replica_log
        if replica_log.closed is not None:
            on_commit(replica_log.closed)
        elif end <= replica_log.high_watermark:
            on_commit(None)
        else:
            replica_log.delayed.add(end, on_commit, timeout_s)

    def watch(self, watcher: Callable[[], None], *, also_uncommitted: bool = False) -> None:
        """Call `watcher` whenever more can be read, until `unwatch`."""
        self.replica_log.delayed.watch(watcher, also_uncommitted=also_uncommitted)

    def watch_low_watermark(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` whenever `low_watermark` may have changed, until `unwatch`."""
        self.replica_log.delayed.watch_low_watermark(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        self.replica_log.delayed.unwatch(watcher)

    # -- reading -------------------------------------------------------------------------------

    def read(
        self, offset: Offset, bytes_max: int, *, committed_only: bool, whole_batch: bool
    ) -> LogSlice | None:
        """Batches below the high watermark; `committed_only`: below the last stable offset."""
        replica_log = self.replica_log
        partition_log = replica_log.ready_log or replica_log.get_ready()
        limit = self.last_stable_offset if committed_only else replica_log.high_watermark
        return partition_log.read(offset, bytes_max, limit, whole_batch=whole_batch)

    def read_for_follower(
        self, offset: Offset, bytes_max: int, *, whole_batch: bool
    ) -> LogSlice | None:
        """Batches up to the log end offset, committed or not."""
        partition_log = self.log
        return partition_log.read(
            offset, bytes_max, partition_log.end_offset, whole_batch=whole_batch
        )
