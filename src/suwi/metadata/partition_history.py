"""When partitions got other leaders and in-sync sets and why, and who is missing since when.

Every broker derives it from the images that it applies: it survives a change of the controller and
the failure of any other broker, not a restart of its own. Times are those of this broker's clock.
`apply_image` records, `missing`, `newest` and `since` are for administrators.
Invariant: at most `EVENTS_KEPT` events are kept; members that are missing are known however many
events there were, and are as many as the image's replicas at most.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

from suwi.env import Clock
from suwi.env.slices import in_slices
from suwi.metadata.image import ClusterImage, PartitionState, Topic
from suwi.model.ids import NO_NODE, NodeId

EVENTS_KEPT: Final = 10_000
_PARTITIONS_PER_SLICE: Final = 100

AWAY: Final = "the broker is away or stopping"
"""Which of both is not told: a broker that fails is fenced first, and its session ends later."""
UNCLEAN_SHUTDOWN: Final = "the broker had an unclean shutdown"
REMOVED: Final = "the replica was removed"
UNCLEAN_ELECTION: Final = "unclean election"
GAVE_UP: Final = "its log is damaged or cannot be written"
FELL_BEHIND: Final = "it did not keep up with the leader, or cannot write"
"""A follower whose disk is full leaves as one that the leader removes: the image is the same."""
UNKNOWN: Final = "not known"
"""It was missing when this broker started."""

NO_LEADER: Final = "no replica can lead"
LEADER_AWAY: Final = "the former leader is away"
REPLICA_BACK: Final = "a replica is back"
OTHER_PREFERRED: Final = "another leader is preferred"


class Missing(NamedTuple):
    """A replica that is not in sync."""

    since_ms: int
    is_exact: bool
    """False: it was missing before, when this broker started."""
    reason: str


class PartitionEvent(NamedTuple):
    """One change of a partition's in-sync set, of its leader, or of both."""

    at_ms: int
    topic: str
    topic_id: UUID
    partition: int
    leader: NodeId
    leader_epoch: int
    partition_epoch: int
    isr: tuple[NodeId, ...]
    left: dict[NodeId, str]
    """Who left the in-sync set, and why."""
    joined: tuple[NodeId, ...]
    election: str
    """Why the leader is another one; empty if it is not."""


class PartitionHistory:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[PartitionEvent] = deque(maxlen=EVENTS_KEPT)
        self._missing: dict[str, dict[int, dict[NodeId, Missing]]] = {}
        """By topic and partition, where any are."""
        self._topic_ids: dict[str, UUID] = {}
        self._complete_from_ms: int | None = None
        self.last_number = clock.now_ms()
        """Of the last event. It begins with the time, so that no earlier process had more."""

    @property
    def complete_from_ms(self) -> int:
        """Since when no event is missing from `newest`."""
        if len(self._events) == EVENTS_KEPT:
            return self._events[0].at_ms
        return self._complete_from_ms or 0

    def missing(self, topic: str | None = None) -> Iterator[tuple[str, int, NodeId, Missing]]:
        """Of one topic, or of all."""
        for name in self._missing if topic is None else [topic]:
            partitions = self._missing.get(name, {})
            for partition in sorted(partitions):
                for node, missing in partitions[partition].items():
                    yield name, partition, node, missing

    def count_missing(self, topic: str | None = None) -> int:
        names = self._missing if topic is None else [topic]
        return sum(len(nodes) for name in names for nodes in self._missing.get(name, {}).values())

    def newest(self, topic: str | None = None) -> Iterator[PartitionEvent]:
        """The events of existing topics, the newest first."""
        for event in reversed(self._events):
            is_wanted = topic is None or event.topic == topic
            if is_wanted and self._topic_ids.get(event.topic) == event.topic_id:
                yield event

    def since(self, number: int, topic: str, partition: int) -> list[PartitionEvent]:
        """The events of a partition after the one of that number, the oldest first."""
        is_known = 0 <= number <= self.last_number
        count = self.last_number - number if is_known else EVENTS_KEPT
        new = islice(reversed(self._events), count)
        topic_id = self._topic_ids.get(topic)
        place = topic, topic_id, partition
        return [e for e in new if (e.topic, e.topic_id, e.partition) == place][::-1]

    async def apply_image(self, old: ClusterImage, new: ClusterImage) -> None:
        now_ms = self._clock.now_ms()
        is_first = self._complete_from_ms is None
        if is_first:
            self._complete_from_ms = now_ms
        for name in [name for name in old.topics if name not in new.topics]:
            self._forget(name)
        changed = [topic for name, topic in new.topics.items() if old.topics.get(name) is not topic]
        for topic in changed:
            if self._topic_ids.get(topic.name) != topic.id:
                self._forget(topic.name)
                self._topic_ids[topic.name] = topic.id
        steps = ((t, *pair) for t in changed for pair in _changed_states(old, t))
        async for topic, index, before, after in in_slices(steps, _PARTITIONS_PER_SLICE):
            left = _left(new, before, after)
            if before is not None:
                self._record(new, topic, index, before, after, left, now_ms)
            self._update_missing(new, topic.name, index, after, left, now_ms, is_exact=not is_first)

    def _record(
        self,
        image: ClusterImage,
        topic: Topic,
        index: int,
        before: PartitionState,
        after: PartitionState,
        left: dict[NodeId, str],
        now_ms: int,
    ) -> None:
        joined = tuple(node for node in after.isr if node not in before.isr)
        election = _election(image, before, after) if after.leader != before.leader else ""
        if left or joined or election:
            self.last_number += 1
            self._events.append(
                PartitionEvent(
                    now_ms,
                    topic.name,
                    topic.id,
                    index,
                    after.leader,
                    after.leader_epoch,
                    after.partition_epoch,
                    after.isr,
                    left,
                    joined,
                    election,
                )
            )

    def _update_missing(
        self,
        image: ClusterImage,
        topic: str,
        index: int,
        after: PartitionState,
        left: dict[NodeId, str],
        now_ms: int,
        *,
        is_exact: bool,
    ) -> None:
        # A replica that a reassignment adds is not missing yet.
        out = [n for n in after.replicas if n not in after.isr and n not in after.adding_replicas]
        partitions = self._missing.setdefault(topic, {})
        known = partitions.pop(index, {})
        if out:
            live = image.unfenced_brokers
            partitions[index] = {
                node: known.get(node)
                or Missing(now_ms, is_exact, left.get(node, UNKNOWN if node in live else AWAY))
                for node in out
            }
        if not partitions:
            del self._missing[topic]

    def _forget(self, topic: str) -> None:
        self._missing.pop(topic, None)
        self._topic_ids.pop(topic, None)


def _changed_states(
    old: ClusterImage, topic: Topic
) -> Iterator[tuple[int, PartitionState | None, PartitionState]]:
    former = old.topics.get(topic.name)
    states = former.partitions if former is not None and former.id == topic.id else ()
    for index, after in enumerate(topic.partitions):
        before = states[index] if index < len(states) else None
        # Shards that did not change have the same objects.
        if before is not after and before != after:
            yield index, before, after


def _left(
    image: ClusterImage, before: PartitionState | None, after: PartitionState
) -> dict[NodeId, str]:
    """Who left the in-sync set, and why."""
    if before is None:
        return {}
    gone = [node for node in before.isr if node not in after.isr]
    return {node: _why_left(image, node, before, after) for node in gone}


def _why_left(
    image: ClusterImage, node: NodeId, before: PartitionState, after: PartitionState
) -> str:
    if node not in after.replicas:
        return REMOVED
    if node not in image.unfenced_brokers:
        return AWAY
    if node in after.unclean_shutdown_replicas:
        return UNCLEAN_SHUTDOWN
    if after.unclean_epoch != before.unclean_epoch:
        return UNCLEAN_ELECTION
    # ADR 19: a damaged replica leaves in a new leader epoch, and so does a leader that resigns.
    return GAVE_UP if after.leader_epoch != before.leader_epoch else FELL_BEHIND


def _election(image: ClusterImage, before: PartitionState, after: PartitionState) -> str:
    if after.leader == NO_NODE:
        return NO_LEADER
    if after.unclean_epoch != before.unclean_epoch:
        return UNCLEAN_ELECTION
    if before.leader == NO_NODE:
        return REPLICA_BACK
    return OTHER_PREFERRED if before.leader in image.unfenced_brokers else LEADER_AWAY
