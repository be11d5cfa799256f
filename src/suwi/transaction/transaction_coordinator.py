"""The transaction coordinator of a broker: its shards, its internal topic, and its markers.

Handlers ask `runtime` for the shard of a transactional id.
"""

from collections.abc import Callable
from typing import Final

from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.coordinator.shard import Shard
from suwi.coordinator.shard_replica import ShardContext
from suwi.env import Env
from suwi.env.problems import ProblemKind
from suwi.env.tasks import Tasks
from suwi.metadata.image import ClusterImage, NewTopic
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId, TopicPartition
from suwi.replica.peers import Peers
from suwi.transaction.marker_sender import AppendMarkers, TransactionMarkers
from suwi.transaction.transaction_coordinator_shard import (
    TransactionConfig,
    TransactionCoordinatorShard,
)
from suwi.transaction.transaction_metadata import MarkersToSend
from suwi.transaction.transaction_records import TRANSACTION_RECORDS
from suwi.transaction.transaction_search import TransactionSearch

TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
_SILENT_FETCHES_MAX: Final = 3


class TransactionCoordinator:
    def __init__(
        self,
        config: BrokerConfig,
        env: Env,
        tasks: Tasks,
        image: Callable[[], ClusterImage],
        follower: MetadataFollower,
        peers: Peers,
        append_markers: AppendMarkers,
        *,
        brokers_max: int | None,
    ) -> None:
        """`append_markers`: to partitions of this broker. `brokers_max`: the final number of
        brokers, if it is known."""
        self._config = config
        self._tasks = tasks
        self._clock = env.clock
        self._brokers_max = brokers_max
        transactions = TransactionConfig(
            config.transactional_id_expiration_ms,
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            config.transaction_remove_expired_transaction_cleanup_interval_ms,
        )
        self.runtime = CoordinatorRuntime(
            TRANSACTION_STATE_TOPIC,
            image,
            ShardContext(
                lambda: TransactionCoordinatorShard(transactions),
                TRANSACTION_RECORDS,
                env.clock,
                tasks,
                config.offsets_commit_timeout_ms / 1000,
                _SILENT_FETCHES_MAX * config.replica_fetch_wait_max_ms / 1000,
                self._send,
                self._shard_failed,
            ),
        )
        self.search = TransactionSearch(NodeId(config.node_id), follower, self.runtime, peers)
        self._markers = TransactionMarkers(
            NodeId(config.node_id),
            follower,
            peers,
            append_markers,
            tasks,
            self._is_sending,
            self._written,
        )

    def new_topic(self) -> NewTopic:
        """How the internal topic is created. If there are fewer brokers than replicas asked for, it
        has a replica on each, and one of them may be missing."""
        config = self._config
        replicas = config.transaction_state_log_replication_factor
        min_isr = config.transaction_state_log_min_isr
        if self._brokers_max is not None and self._brokers_max < replicas:
            replicas = self._brokers_max
            min_isr = min(min_isr, replicas - 1)
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min(max(min_isr, 1), replicas)),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        }
        partitions = config.transaction_state_log_num_partitions
        return NewTopic(TRANSACTION_STATE_TOPIC, partitions, replicas, configs)

    def apply_image(self, old: ClusterImage, new: ClusterImage) -> None:
        self._markers.apply_image(old, new)

    @property
    def open_transactions(self) -> int:
        return sum(len(shard.machine.open_since_ms) for shard in self.runtime.active())

    @property
    def oldest_open_ms(self) -> int:
        """For how long the oldest open transaction has been open; 0 if there is none."""
        now_ms = self._clock.now_ms()
        since_ms = [ms for shard in self.runtime.active() for ms in shard.machine.open_since_ms]
        return max(0, now_ms - min(since_ms, default=now_ms))

    async def stop(self) -> None:
        self.runtime.stop()
        await self._markers.stop()

    # -- markers ---------------------------------------------------------------------------------

    def _send(self, markers: MarkersToSend) -> None:
        shard = self._shard_of(markers)
        if shard is not None:
            self._markers.send(markers, shard.epoch)

    def _is_sending(self, markers: MarkersToSend) -> bool:
        shard = self._shard_of(markers)
        return shard is not None and shard.machine.is_sending(markers)

    def _written(self, markers: MarkersToSend) -> None:
        shard = self._shard_of(markers)
        if shard is not None:
            shard.tell(TransactionCoordinatorShard.markers_written, markers)

    def _shard_of(self, markers: MarkersToSend) -> Shard[TransactionCoordinatorShard] | None:
        """None if this broker no longer coordinates the transaction."""
        try:
            return self.runtime.shard_of(markers.transactional_id)
        except BrokerError:
            return None

    def _shard_failed(self, partition: TopicPartition, error: Exception) -> None:
        self._tasks.count("transaction coordinator", error, is_reported=True)
        kind = ProblemKind.COORDINATOR_FAILED
        self._tasks.problems.report(kind, str(partition), repr(error))
