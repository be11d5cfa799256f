"""Changes of many partitions at once, and the store entries for them. Without side effects.

`compute_changes` gives the changes after a registration, unregistration or fencing, and after the
rules of topics have changed;
`elect_preferred_all` elects preferred leaders; `shard_puts` makes the store entries.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from suwi.controller.elections import (
    BrokerLiveness,
    Election,
    Rules,
    awaits_positions,
    compute_change,
    elect_preferred,
)
from suwi.controller.reassignments import complete
from suwi.env.slices import Pace
from suwi.metadata.image import (
    SHARD_PARTITIONS,
    ClusterImage,
    PartitionState,
    Topic,
    encode_shards,
    partitions_of,
)
from suwi.metadata.store import Put
from suwi.model.ids import NodeId, PartitionIndex, TopicPartition

RulesOf = Callable[[Topic], Rules]

SLICE_PARTITIONS = 100
"""How many are decided in one iteration of the event loop."""
_DECIDED_AT_ONCE_MAX = 1000
_CHANGE_STEPS = 15
"""Of a microsecond, for a partition that may change."""


@dataclass(slots=True)
class PartitionChanges:
    """New partition states, and the kind of election of each newly elected leader."""

    states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    elections: dict[TopicPartition, Election] = field(default_factory=dict)

    def elected(self, election: Election) -> list[TopicPartition]:
        return [tp for tp, kind in self.elections.items() if kind is election]

    def complete_reassignments(
        self, live: Collection[NodeId], insync_min: Callable[[str], int]
    ) -> list[TopicPartition]:
        """Complete the reassignments whose targets are in sync now. Returns the partitions.

        Applied to every change, with which it is written: nothing has to remember reassignments.
        """
        completed = []
        for tp, state in self.states.items():
            if not state.is_reassigning:
                continue
            after = complete(state, live, insync_min=insync_min(tp.topic))
            if after is not state:
                self.states[tp] = after
                completed.append(tp)
                if after.leader != state.leader:
                    self.elections.setdefault(tp, Election.CLEAN)
        return completed

    def add_completable(
        self, topics: Iterable[Topic], live: Collection[NodeId], rules_of: RulesOf
    ) -> None:
        """Add the partitions that need no other change for their reassignments to complete."""
        for topic in topics:
            for tp, state in partitions_of(topic):
                if state.is_reassigning and tp not in self.states:
                    insync_min = rules_of(topic).insync_min
                    if complete(state, live, insync_min=insync_min) is not state:
                        self.states[tp] = state


def pieces(partitions: Sequence[TopicPartition]) -> Iterator[Sequence[TopicPartition]]:
    """Each is a decision of its own, so that no other decision waits for all of them."""
    for first in range(0, len(partitions), _DECIDED_AT_ONCE_MAX):
        yield partitions[first : first + _DECIDED_AT_ONCE_MAX]


def all_partitions(image: ClusterImage) -> Iterator[TopicPartition]:
    for topic in image.topics.values():
        for index in range(len(topic.partitions)):
            yield TopicPartition(topic.name, PartitionIndex(index))


async def compute_changes(
    topics: Iterable[Topic], liveness: BrokerLiveness, rules_of: RulesOf
) -> PartitionChanges:
    """The changes of all partitions of these topics, in slices: there may be ten thousands."""
    decided, pace = PartitionChanges(), Pace()
    steady = liveness.live - liveness.restarted
    for topic in topics:
        rules: Rules | None = None
        for tp, state in partitions_of(topic):
            is_steady = state.leader in steady and not state.elr and steady.issuperset(state.isr)
            if pace.is_over(1 if is_steady else _CHANGE_STEPS):
                await asyncio.sleep(0)
            if is_steady:
                continue  # No broker of this partition's ISR has changed.
            rules = rules or rules_of(topic)
            changed_state, election = compute_change(state, liveness, rules)
            if changed_state is not state:
                decided.states[tp] = changed_state
            if election is not Election.NONE:
                decided.elections[tp] = election
    return decided


def elect_preferred_all(image: ClusterImage, partitions_max: int) -> PartitionChanges:
    """Elect the preferred leaders of at most `partitions_max` partitions."""
    decided = PartitionChanges()
    for topic in image.topics.values():
        for tp, state in partitions_of(topic):
            preferred = elect_preferred(state, image.unfenced_brokers)
            if preferred is not None:
                decided.states[tp] = preferred
                decided.elections[tp] = Election.CLEAN
                if len(decided.states) >= partitions_max:
                    return decided
    return decided


def awaiting_positions(image: ClusterImage) -> dict[TopicPartition, PartitionState]:
    """The partitions that await the positions of their replicas; see `elect_longest_log`."""
    return {
        tp: state
        for topic in image.topics.values()
        for tp, state in partitions_of(topic)
        if state.unclean_shutdown_replicas and awaits_positions(state, image.unfenced_brokers)
    }


def shard_puts(
    image: ClusterImage, states: Mapping[TopicPartition, PartitionState]
) -> Iterator[Put]:
    """The store entries that set these partition states, each made when it is asked for."""
    by_topic: dict[str, dict[int, PartitionState]] = {}
    for tp, state in states.items():
        by_topic.setdefault(tp.topic, {})[tp.partition] = state
    for name, changed in by_topic.items():
        topic = image.topics[name]
        partitions = list(topic.partitions)
        for index, state in changed.items():
            partitions[index] = state
        after = topic._replace(partitions=tuple(partitions))
        for shard in sorted({index // SHARD_PARTITIONS for index in changed}):
            for key, value in encode_shards(after, [shard]).items():
                yield Put(key, value)


def without_elr(image: ClusterImage, topics: Iterable[str]) -> dict[TopicPartition, PartitionState]:
    """Clear the ELR: with a new min.insync.replicas, records may be committed without those
    replicas."""
    return {
        tp: state._replace(
            elr=(),
            unclean_shutdown_replicas=tuple(
                node for node in state.unclean_shutdown_replicas if node in state.isr
            ),
            partition_epoch=state.partition_epoch + 1,
        )
        for name in topics
        for tp, state in partitions_of(image.topics[name])
        if state.elr
    }
