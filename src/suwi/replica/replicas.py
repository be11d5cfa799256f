"""The partitions this broker leads, kept in step with the cluster image.

`follow` takes in each new image; handlers look partitions up with `leader_of`.
"""

import logging
from collections.abc import Callable, Iterator
from uuid import UUID

from suwi.env import Clock
from suwi.log.log_directories import LogDirectories
from suwi.log.partition_log import PartitionLog
from suwi.metadata.image import ClusterImage, Topic, partitions_of
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.errors import (
    NotLeaderOrFollower,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from suwi.model.ids import NodeId, PartitionIndex, TopicPartition
from suwi.model.topic_config import TopicConfig, parse_topic_config
from suwi.replica.partition import Partition

log = logging.getLogger(__name__)


class Replicas:
    def __init__(
        self,
        node_id: NodeId,
        directories: LogDirectories,
        clock: Clock,
        config: BrokerConfig,
        on_put_away: Callable[[str], None],
    ) -> None:
        self.image = ClusterImage()
        self._node_id = node_id
        self.directories = directories
        self._clock = clock
        self._config = config
        self._defaults = config.topic
        self._on_put_away = on_put_away
        """Told the path of a directory that may be removed."""
        # By topic and index: a plain tuple finds too, and is made faster than a `TopicPartition`.
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._touched: list[Partition] = []

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    # -- looking up ----------------------------------------------------------------------------

    def leader_of(self, topic: str, partition: int) -> Partition:
        """The partition, led by this broker; else the error a client is answered with."""
        found = self._partitions.get((topic, partition))
        if found is not None:
            return found
        if self.image.partition(TopicPartition(topic, PartitionIndex(partition))) is None:
            raise UnknownTopicOrPartition(f"{topic}-{partition} does not exist")
        raise NotLeaderOrFollower(f"{topic}-{partition} is led by another broker")

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
        for name, topic in new.topics.items():
            if old.topics.get(name) is not topic:
                # What exists when the broker starts may have its data anywhere.
                self._follow_topic(topic, is_new=old.sequence > 0)

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
            known = self._partitions.get(tp)
            if state.leader != self._node_id:
                if known is not None:
                    known.close()
                    del self._partitions[tp]
            elif known is not None and known.leader_epoch == state.leader_epoch:
                known.configure(config)
            else:
                if known is not None:
                    known.close()
                self._partitions[tp] = Partition(
                    tp,
                    topic.id,
                    config,
                    self._opener(tp, topic, is_new=is_new),
                    self._clock,
                    leader=state.leader,
                    leader_epoch=state.leader_epoch,
                    on_append=self._touched.append,
                )

    def _opener(
        self, tp: TopicPartition, topic: Topic, *, is_new: bool
    ) -> Callable[[TopicConfig], PartitionLog]:
        epoch = topic.partitions[tp.partition].leader_epoch

        def open_log(config: TopicConfig) -> PartitionLog:
            home = self.directories.home_of(tp, is_new=is_new)
            return home.log_of(tp, topic.id, config, epoch)

        return open_log

    def _delete(self, topic: Topic) -> None:
        for tp, _ in partitions_of(topic):
            known = self._partitions.pop(tp, None)
            if known is not None:
                known.close(UnknownTopicOrPartition(f"{tp} was deleted"))
            for directory in self.directories.usable():
                gone = directory.put_away(tp, topic.id)
                if gone is not None:
                    self._on_put_away(gone)
            self.directories.forget(tp)
