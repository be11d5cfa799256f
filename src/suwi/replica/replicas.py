"""The partitions that this broker has a replica of, kept in step with the cluster image.

`follow` takes in each new image; handlers look partitions up with `leader_of` and `replica_of`.
Invariant: a partition is led here only in a life of this broker that the controller has journaled.
"""

import logging
from collections.abc import Callable, Iterator
from uuid import UUID

from suwi.env import Clock
from suwi.log.log_directories import LogDirectories
from suwi.metadata.image import ClusterImage, PartitionState, Topic, partitions_of
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.errors import (
    NotLeaderOrFollower,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId, PartitionIndex, TopicPartition
from suwi.model.topic_config import parse_topic_config
from suwi.replica.copying import NOT_COPYING, Copying
from suwi.replica.home import Home
from suwi.replica.leadership import UNKNOWN_EPOCH
from suwi.replica.loss import Loss
from suwi.replica.partition import Partition, Surroundings
from suwi.replica.preparation import Turns
from suwi.replica.stats import ReplicationStats

log = logging.getLogger(__name__)


class Replicas:
    def __init__(
        self,
        node_id: NodeId,
        directories: LogDirectories,
        clock: Clock,
        config: BrokerConfig,
        on_put_away: Callable[[str], None],
        on_loss: Callable[[Loss], None] = lambda _: None,
    ) -> None:
        self.image = ClusterImage()
        self.broker_epoch = UNKNOWN_EPOCH
        """This broker's own, while it is registered."""
        self.copying: Copying = NOT_COPYING
        self.stats = ReplicationStats()
        self.directories = directories
        self._node_id = node_id
        self._config = config
        self._defaults = config.topic
        self._on_put_away = on_put_away
        """Told the path of a directory that may be removed."""
        # By topic and index: a plain tuple finds too, and is made faster than a `TopicPartition`.
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._led: dict[tuple[str, int], Partition] = {}
        self._touched: list[Partition] = []
        self._epoch_of = self._leader_epoch
        """Made once: every partition keeps it."""
        self._around = Surroundings(
            node_id,
            clock,
            Turns(),
            config.replica_lag_time_max_ms / 1000,
            self._is_live,
            self._touched.append,
            lambda partition, proposal: self.copying.propose(partition, proposal),
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
        if self.image.partition(TopicPartition(topic, PartitionIndex(partition))) is None:
            raise UnknownTopicOrPartition(f"{topic}-{partition} does not exist")
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

    def take_touched(self) -> list[Partition]:
        """The partitions that were appended to since the last call. Idle ones cost nothing."""
        taken = self._touched[:]
        self._touched.clear()
        for partition in taken:
            partition.touched = False
        return taken

    def led(self) -> list[Partition]:
        return list(self._led.values())

    def _is_live(self, node: NodeId, epoch: int) -> bool:
        broker = self.image.brokers.get(node)
        return broker is not None and epoch in (UNKNOWN_EPOCH, broker.epoch)

    # -- following the image -------------------------------------------------------------------

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """Take in the next image: begin, change and end what differs from the last."""
        self.image = new
        if new.broker_configs != old.broker_configs:
            self._configure_all()
        for name, topic in old.topics.items():
            successor = new.topics.get(name)
            if successor is None or successor.id != topic.id:
                self._delete(topic)
        # What this broker may do depends on its own journaled life.
        all_anew = old.registered.get(self._node_id) != new.registered.get(self._node_id)
        for name, topic in new.topics.items():
            if all_anew or old.topics.get(name) is not topic:
                # What exists when the broker starts may have its data anywhere.
                self._follow_topic(topic, is_new=old.sequence > 0)
        if old.brokers != new.brokers:
            self._reconsider_watermarks()

    def live_as(self, broker_epoch: int) -> None:
        """This broker is registered, or (UNKNOWN_EPOCH) no longer so and may lead nothing."""
        self.broker_epoch = broker_epoch
        for topic in self.image.topics.values():
            self._follow_topic(topic, is_new=False)

    @property
    def _may_lead(self) -> bool:
        journaled = self.image.registered.get(self._node_id)
        return (
            self.broker_epoch != UNKNOWN_EPOCH
            and journaled is not None
            and journaled.epoch == self.broker_epoch
        )

    def _configure_all(self) -> None:
        """The defaults of all topics changed while running."""
        effective = {**self._config.given, **self.image.dynamic_config(self._node_id)}
        self._defaults = parse_broker_config(effective).config.topic
        configs = {
            name: parse_topic_config(topic.configs, self._defaults)
            for name, topic in self.image.topics.items()
        }
        for partition in self:
            config = configs.get(partition.partition.topic)
            if config is not None:
                partition.configure(config)

    def _follow_topic(self, topic: Topic, *, is_new: bool) -> None:
        config = parse_topic_config(topic.configs, self._defaults)
        for tp, state in partitions_of(topic):
            if self._node_id not in state.replicas:
                self._drop(tp)
                continue
            known = self._partitions.get(tp)
            if known is None:
                home = Home(self.directories, tp, topic.id, self._epoch_of, is_new=is_new)
                known = self._partitions[tp] = Partition(tp, topic.id, config, home, self._around)
            elif known.config != config:
                known.configure(config)
            self._take_role(known, state)

    def _take_role(self, partition: Partition, state: PartitionState) -> None:
        if state.leader == self._node_id and self._may_lead:
            self.copying.release(partition)
            partition.lead(state, self.broker_epoch)
            self._led[partition.partition] = partition
            return
        self._led.pop(partition.partition, None)
        if state.leader == self._node_id:
            # Of an earlier life of this broker: the controller has not spoken yet.
            self.copying.release(partition)
            partition.stand_by()
            return
        is_same = partition.leader == state.leader and partition.leader_epoch == state.leader_epoch
        partition.follow(state)
        if state.leader == NO_NODE:
            self.copying.release(partition)
        elif not is_same or not self.copying.has(partition):
            # Hazard 22: at every change of the epoch the logs are compared, even if the leader is
            # the same: with the next fetch, which names the last epoch it follows on.
            self.copying.assign(partition)

    def _reconsider_watermarks(self) -> None:
        """A broker came or went: leaders may have waited for one that was about to join."""
        for partition in self._led.values():
            partition.live_brokers_changed()

    def _drop(self, tp: TopicPartition) -> None:
        known = self._partitions.pop(tp, None)
        self._led.pop(tp, None)
        if known is not None:
            self.copying.release(known)
            known.close()

    def _leader_epoch(self, tp: TopicPartition) -> LeaderEpoch | None:
        state = self.image.partition(tp)
        return state.leader_epoch if state is not None else None

    def _delete(self, topic: Topic) -> None:
        for tp, _ in partitions_of(topic):
            known = self._partitions.pop(tp, None)
            self._led.pop(tp, None)
            if known is not None:
                self.copying.release(known)
                known.close(UnknownTopicOrPartition(f"{tp} was deleted"))
            for directory in self.directories.usable():
                gone = directory.put_away(tp)
                if gone is not None:
                    self._on_put_away(gone)
            self.directories.forget(tp)
