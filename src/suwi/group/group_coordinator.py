"""The group coordinator of a broker: its shards, its internal topic, and the history of rebalances.

Handlers ask `runtime` for the shard of a group. When a topic is deleted, so are its offsets.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.coordinator.shard_replica import ShardContext
from suwi.coordinator.topics import Topics
from suwi.env import Env
from suwi.env.problems import ProblemKind
from suwi.env.tasks import Tasks
from suwi.group.classic_coordinator import ClassicGroupConfig
from suwi.group.classic_group import ClassicGroup, subscribed_topics
from suwi.group.consumer_group import ConsumerGroupConfig
from suwi.group.group_coordinator_shard import GROUP_RECORDS, GroupConfig, GroupCoordinatorShard
from suwi.group.history import History, Rebalance, TopicChanges, Trigger
from suwi.group.offset_requests import OffsetsCommitted
from suwi.metadata.image import ClusterImage, NewTopic
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import BrokerError
from suwi.model.group_config import DynamicGroupConfig, group_config_in_force
from suwi.model.ids import TopicPartition

log = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
_MIN_ISR: Final = 2
_REPLICAS_FOR_MIN_ISR: Final = 3
_SILENT_FETCHES_MAX: Final = 3


@dataclass(slots=True)
class GroupStats:
    """What the groups of a broker have done since its start, counted for metrics."""

    offsets_committed: int = 0
    rebalances: Counter[Trigger] = field(default_factory=Counter)
    shard_failures: int = 0


class GroupCoordinator:
    def __init__(
        self,
        config: BrokerConfig,
        env: Env,
        tasks: Tasks,
        image: Callable[[], ClusterImage],
        *,
        brokers_max: int | None,
    ) -> None:
        """`brokers_max`: the final number of brokers, if it is known."""
        self.history = History()
        self._topics = Topics(image(), 0)
        self.stats = GroupStats()
        self._topic_changes = TopicChanges()
        self._clock = env.clock
        self._config = config
        self._tasks = tasks
        self._image = image
        self._brokers_max = brokers_max
        groups = GroupConfig(
            ClassicGroupConfig(
                config.group_initial_rebalance_delay_ms,
                config.group_min_session_timeout_ms,
                config.group_max_session_timeout_ms,
                config.group_max_size,
            ),
            self._consumer_config_of,
            config.offsets_retention_minutes * 60_000,
            config.offsets_retention_check_interval_ms,
        )
        self.runtime = CoordinatorRuntime(
            OFFSETS_TOPIC,
            image,
            ShardContext(
                lambda: GroupCoordinatorShard(
                    groups, lambda: str(env.random.uuid()), self._held_beyond_records
                ),
                GROUP_RECORDS,
                env.clock,
                tasks,
                config.offsets_commit_timeout_ms / 1000,
                _SILENT_FETCHES_MAX * config.replica_fetch_wait_max_ms / 1000,
                self._notice,
                self._shard_failed,
                self.topics,
            ),
        )

    def _held_beyond_records(self) -> int:
        return sum(shard.machine.held_beyond_records.total for shard in self.runtime.active())

    def new_topic(self) -> NewTopic:
        """How the internal topic is created (requirement G4)."""
        replicas = self._config.offsets_topic_replication_factor
        if self._brokers_max is not None:
            replicas = min(replicas, self._brokers_max)
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self._config.offsets_topic_segment_bytes),
        }
        if replicas >= _REPLICAS_FOR_MIN_ISR:
            configs["min.insync.replicas"] = str(_MIN_ISR)
        return NewTopic(OFFSETS_TOPIC, self._config.offsets_topic_num_partitions, replicas, configs)

    def topics(self) -> Topics:
        """The topics of the newest image."""
        return self._topics

    def config_of(self, group_id: str) -> DynamicGroupConfig:
        """The settings in force for a group of the consumer protocol."""
        own = self._image().group_configs.get(group_id, {})
        return group_config_in_force(own, self._config)

    def _consumer_config_of(self, group_id: str) -> ConsumerGroupConfig:
        config, own = self._config, self.config_of(group_id)
        policy = config.group_consumer_migration_policy.lower()
        return ConsumerGroupConfig(
            own.consumer_session_timeout_ms,
            own.consumer_heartbeat_interval_ms,
            own.consumer_assignment_interval_ms,
            config.group_consumer_max_size,
            config.group_consumer_assignors,
            config.group_consumer_regex_refresh_interval_ms,
            bool(config.authorizer_class_name),
            upgrades=policy in ("upgrade", "bidirectional"),
            downgrades=policy in ("downgrade", "bidirectional"),
            classic_size_max=config.group_max_size,
            classic_session_timeout_ms_range=(
                config.group_min_session_timeout_ms,
                config.group_max_session_timeout_ms,
            ),
        )

    def apply_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if not self._topics.is_outdated_by(new):
            return
        self._topic_changes.apply_image(old, new, self._clock.now_ms())
        self._topics = Topics(new, self._topics.version + 1)
        deleted = frozenset(
            topic.name
            for topic_id, topic in old.topics_by_id.items()
            if topic_id not in new.topics_by_id
        )
        self.runtime.tell_all(GroupCoordinatorShard.topics_changed, deleted)

    def _notice(self, notice: Any) -> None:
        if isinstance(notice, OffsetsCommitted):
            self.stats.offsets_committed += notice.offsets
        elif isinstance(notice, Rebalance):
            self._explain(notice)
            self.history.add(notice)
            self.stats.rebalances[notice.cause.trigger] += 1
            log.info(
                "group rebalanced",
                extra={
                    "group": notice.group_id,
                    "trigger": notice.cause.trigger.value,
                    "member": notice.cause.member_id,
                    "client": notice.cause.client_id,
                    "host": notice.cause.client_host,
                    "reason": notice.cause.reason,
                    "generation": notice.to_generation,
                    "members": notice.members,
                    "pause_ms": notice.pause_ms,
                },
            )

    def _explain(self, rebalance: Rebalance) -> None:
        earlier = self.history.of(rebalance.group_id)
        try:
            group = self.runtime.shard_of(rebalance.group_id).machine.group(rebalance.group_id)
        except BrokerError:
            return  # The internal topic is being deleted.
        if earlier and isinstance(group, ClassicGroup):
            topics = sorted(subscribed_topics(group) or ())
            since_ms = earlier[-1].ended_ms
            rebalance.cause = self._topic_changes.explain(rebalance.cause, topics, since_ms)

    def _shard_failed(self, partition: TopicPartition, error: Exception) -> None:
        self.stats.shard_failures += 1
        self._tasks.count("group coordinator", error, is_reported=True)
        kind = ProblemKind.COORDINATOR_FAILED
        self._tasks.problems.report(kind, str(partition), repr(error))
