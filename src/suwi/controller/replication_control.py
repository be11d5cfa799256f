"""The controller's word on brokers and partitions: decided purely, written to the store.

`journal` takes in who is registered, `fence` and `unfence` what is seen of a broker before its
session ends, `shut_down` a broker's wish to go; `propose` is AlterPartition, `elect` ElectLeaders,
`balance` the preferred leaders' turn.
Invariant: a birth or a death and what it changes become visible together, or the partitions first:
a round that was cut short is made again from what is written.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from suwi.controller.elections import (
    BrokerLiveness,
    Election,
    compute_change,
    elect_greatest,
    prefer,
)
from suwi.controller.events import (
    RECORDS_LOST,
    SUSPECT_ELECTION,
    UNCLEAN_ELECTION,
    Event,
    logged_facts,
    operations,
)
from suwi.controller.metadata_writer import MetadataWriter
from suwi.controller.partition_changes import (
    PartitionChanges,
    RulesOf,
    awaiting_positions,
    compute_changes,
    prefer_all,
    shard_puts,
)
from suwi.controller.proposed_isr import ProposedIsr, check_sender, validate
from suwi.controller.replica_state_query import Answers, QueryReplicaStates, lost_at_least
from suwi.env import Clock
from suwi.metadata.follower import MetadataFollower
from suwi.metadata.image import (
    DELETIONS,
    LIVE,
    BrokerInfo,
    ClusterImage,
    PartitionState,
    encode_broker,
)
from suwi.metadata.store import Delete, Operation, Put
from suwi.model.errors import (
    BrokerError,
    BrokerIdNotRegistered,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
    StaleBrokerEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from suwi.model.ids import NO_NODE, NodeId, PartitionIndex, TopicPartition

log = logging.getLogger(__name__)

_PREFERRED_AT_ONCE_MAX = 1000
_LOSSES_TOLD_MAX = 50
"""Of one round."""
_ELECTIONS_TOLD_MAX = 10
"""Of more in one round only their number is logged."""


class Registered(NamedTuple):
    """A broker as it has registered itself."""

    broker: BrokerInfo
    was_unclean_shutdown: bool


class TopicProposal(NamedTuple):
    topic_id: UUID
    partition: PartitionIndex
    proposal: ProposedIsr


@dataclass(slots=True)
class ElectionCounts:
    clean: int = 0
    unclean: int = 0
    suspect: int = 0


class ReplicationControl:
    def __init__(
        self,
        writer: MetadataWriter,
        follower: MetadataFollower,
        rules_of: RulesOf,
        counts: ElectionCounts,
        query_replica_states: QueryReplicaStates,
        clock: Clock,
    ) -> None:
        self._writer = writer
        self._follower = follower
        self._rules_of = rules_of
        self._counts = counts
        self._query_replica_states = query_replica_states
        self._clock = clock

    # -- brokers ---------------------------------------------------------------------------------

    def is_journaled(self, registered: Mapping[NodeId, Registered]) -> bool:
        """Whether the image shows exactly these lives."""
        journaled = self._follower.image.registered_brokers
        return {n: b.epoch for n, b in journaled.items()} == {
            n: r.broker.epoch for n, r in registered.items()
        }

    async def journal(self, registered: Mapping[NodeId, Registered]) -> None:
        """Make births and deaths known, with all that they change."""
        await self._writer.alone(lambda: self._journal(registered))

    async def _journal(self, registered: Mapping[NodeId, Registered]) -> None:
        before = self._follower.image.registered_brokers
        after: dict[NodeId, BrokerInfo] = {}
        for node, (broker, _) in registered.items():
            known = before.get(node)
            # Who was fenced in this life stays so until it is seen again.
            after[node] = known if known and known.epoch == broker.epoch else broker
        unclean_shutdown_replicas = [
            node for node, found in registered.items() if found.was_unclean_shutdown
        ]
        await self._apply_liveness(after, unclean_shutdown_replicas)

    async def fence(self, node: NodeId, epoch: int) -> None:
        """A broker is taken for dead, or leaves: give its partitions to others where that can be
        done without loss."""
        await self._writer.alone(lambda: self._set_fenced(node, epoch, True))

    async def unfence(self, node: NodeId, epoch: int) -> None:
        """A broker that was fenced is in service after all."""
        await self._writer.alone(lambda: self._set_fenced(node, epoch, False))

    async def _set_fenced(self, node: NodeId, epoch: int, fenced: bool) -> None:
        before = self._follower.image.registered_brokers
        known = before.get(node)
        if known is None or known.epoch != epoch or known.fenced is fenced:
            return
        log.info("broker fenced" if fenced else "broker unfenced", extra={"broker": node})
        await self._apply_liveness({**before, node: known._replace(fenced=fenced)})

    async def shut_down(self, node: NodeId, epoch: int) -> None:
        """A broker wants to go; returns when it leads nothing that another could."""
        known = self._follower.image.registered_brokers.get(node)
        if known is None:
            raise BrokerIdNotRegistered(f"broker {node} is not registered")
        if known.epoch != epoch:
            raise StaleBrokerEpoch(f"broker {node} lives with epoch {known.epoch}, not {epoch}")
        await self.fence(node, epoch)

    async def _apply_liveness(
        self, after: Mapping[NodeId, BrokerInfo], unclean_shutdown_replicas: Iterable[NodeId] = ()
    ) -> None:
        image = self._follower.image
        before = image.registered_brokers
        liveness = BrokerLiveness.of(before, after, list(unclean_shutdown_replicas))
        decided = compute_changes(image, liveness, self._rules_of)
        lives: list[Operation] = [
            Put(f"{LIVE}{node}", encode_broker(broker))
            for node, broker in after.items()
            if before.get(node) != broker
        ]
        lives += [Delete(f"{LIVE}{node}") for node in before if node not in after]
        # It has put those topics away before it registered.
        lives += [
            Delete(f"{DELETIONS}{node}")
            for node in sorted(liveness.restarted & set(image.deletions))
        ]
        await self._write(decided, lives, after)
        for node in sorted(liveness.restarted):
            log.info("broker born", extra={"broker": node, "epoch": after[node].epoch})
        for node in sorted(set(before) - set(after)):
            log.info("broker dead", extra={"broker": node, "epoch": before[node].epoch})

    # -- elections -------------------------------------------------------------------------------

    async def balance(self) -> int:
        """Give partitions back to their preferred leaders; how many."""
        return await self._writer.alone(lambda: self._balance())

    async def _balance(self) -> int:
        decided = prefer_all(self._follower.image, _PREFERRED_AT_ONCE_MAX)
        await self._write(decided)
        return len(decided.states)

    async def elect(
        self, asked: Sequence[TopicPartition] | None, *, unclean: bool
    ) -> dict[TopicPartition, BrokerError | None]:
        """Elect as an administrator asks; None is all partitions. What became of each."""
        return await self._writer.alone(lambda: self._elect(asked, unclean))

    async def _elect(
        self, asked: Sequence[TopicPartition] | None, unclean: bool
    ) -> dict[TopicPartition, BrokerError | None]:
        image = self._follower.image
        decided = PartitionChanges()
        results: dict[TopicPartition, BrokerError | None] = {}
        for tp in _all_partitions(image) if asked is None else asked:
            try:
                state, election = self._elected(image, tp, unclean)
                decided.states[tp] = state
                decided.elections[tp] = election
                results[tp] = None
            except ElectionNotNeeded as error:
                if asked is not None:
                    results[tp] = error
            except BrokerError as error:
                results[tp] = error
        await self._write(decided)
        return results

    def _elected(
        self, image: ClusterImage, tp: TopicPartition, unclean: bool
    ) -> tuple[PartitionState, Election]:
        state = image.partition(tp)
        if state is None:
            raise UnknownTopicOrPartition(f"{tp} does not exist")
        if not unclean:
            if state.leader == state.replicas[0]:
                raise ElectionNotNeeded(f"{tp} is led by its preferred leader")
            preferred = prefer(state, image.unfenced_brokers)
            if preferred is None:
                raise PreferredLeaderNotAvailable(
                    f"broker {state.replicas[0]} is not in sync with {tp}"
                )
            return preferred, Election.CLEAN
        if state.leader != NO_NODE:
            raise ElectionNotNeeded(f"{tp} has a leader")
        rules = self._rules_of(image.topics[tp.topic])._replace(unclean=True)
        settled, election = compute_change(
            state, BrokerLiveness.of(image.registered_brokers, image.registered_brokers), rules
        )
        if settled.leader == NO_NODE:
            raise EligibleLeadersNotAvailable(f"no replica of {tp} can lead")
        return settled, election

    def awaiting_positions(self) -> dict[TopicPartition, PartitionState]:
        return awaiting_positions(self._follower.image)

    async def elect_greatest(self) -> None:
        """End the wait of replicas that all came back from a power loss, if they can be asked."""
        awaited = {tp: (*state.isr, *state.elr) for tp, state in self.awaiting_positions().items()}
        answers = await self._query_replica_states(awaited, self._follower.image.unfenced_brokers)
        await self._writer.alone(lambda: self._elect_greatest(answers))

    async def _elect_greatest(self, answers: Answers) -> None:
        image = self._follower.image
        decided = PartitionChanges()
        for tp, known in answers.items():
            state = image.partition(tp)
            if state is None:
                continue
            positions = {node: facts.position for node, facts in known.items()}
            settled, election = elect_greatest(state, image.unfenced_brokers, positions)
            if election is not Election.NONE:
                decided.states[tp] = settled
                decided.elections[tp] = election
        await self._write(decided, answers=answers)

    # -- in-sync sets ----------------------------------------------------------------------------

    async def propose(
        self, sender: NodeId, broker_epoch: int, proposals: Sequence[TopicProposal]
    ) -> list[PartitionState | BrokerError]:
        """Judge what a leader asks for; the new state of each partition, or why not.

        Raises StaleBrokerEpoch where the sender is not heard at all.
        """
        return await self._writer.alone(lambda: self._propose(sender, broker_epoch, proposals))

    async def _propose(
        self, sender: NodeId, broker_epoch: int, proposals: Sequence[TopicProposal]
    ) -> list[PartitionState | BrokerError]:
        image = self._follower.image
        check_sender(image, sender, broker_epoch)
        decided = PartitionChanges()
        results: list[PartitionState | BrokerError] = []
        for topic_id, index, proposal in proposals:
            try:
                topic = image.topics_by_id.get(topic_id)
                if topic is None:
                    raise UnknownTopicId(f"no topic has the id {topic_id}")
                tp = TopicPartition(topic.name, index)
                state = image.partition(tp)
                if state is None:
                    raise UnknownTopicOrPartition(f"{tp} does not exist")
                rules = self._rules_of(topic)
                judged = validate(state, sender, proposal, image.unfenced_brokers, rules)
                decided.states[tp] = judged
                if judged.leader != state.leader:
                    decided.elections[tp] = Election.CLEAN
                results.append(judged)
            except BrokerError as error:
                results.append(error)
        await self._write(decided)
        return results

    # -- losses ----------------------------------------------------------------------------------

    async def report_loss(self, facts: Mapping[str, Any]) -> None:
        """A replica gave up records that were committed, or may have been: remember which."""
        event = Event(RECORDS_LOST, self._clock.now_ms(), facts)
        await self._writer.alone(lambda: self._remember(event))

    async def _remember(self, event: Event) -> None:
        await self._writer.write(operations(self._follower.image, [event]))
        log.error(event.kind, extra=logged_facts(event))

    def _losses(self, decided: PartitionChanges, answers: Answers) -> list[Event]:
        """What elections have cost, as far as anyone who lives can say."""
        now_ms = self._clock.now_ms()
        events = []
        for tp in _lossy(decided):
            state, known = decided.states[tp], answers.get(tp, {})
            facts: dict[str, Any] = {
                "partition": str(tp),
                "leader": state.leader,
                "epoch": state.leader_epoch,
            }
            if decided.elections[tp] is Election.UNCLEAN:
                facts["lost_at_least"] = lost_at_least(known, state.leader)
                events.append(Event(UNCLEAN_ELECTION, now_ms, facts))
            else:
                of_leader = known.get(state.leader)
                facts["recovery_point"] = of_leader.recovery_point if of_leader else None
                facts["log_end"] = of_leader.end_offset if of_leader else None
                events.append(Event(SUSPECT_ELECTION, now_ms, facts))
        return events

    # -- writing ---------------------------------------------------------------------------------

    async def _write(
        self,
        decided: PartitionChanges,
        lives: Sequence[Operation] = (),
        brokers: Mapping[NodeId, BrokerInfo] | None = None,
        answers: Answers | None = None,
    ) -> None:
        """Write down what was decided; brokers' lives last, see the invariant."""
        image = self._follower.image
        if answers is None and (lossy := _lossy(decided)):
            replicas = {tp: decided.states[tp].replicas for tp in lossy}
            # Before the others hear of it and give up what the new leader does not have.
            answers = await self._query_replica_states(replicas, brokers or image.unfenced_brokers)
        events = self._losses(decided, answers or {})
        writes = [*shard_puts(image, decided.states), *operations(image, events), *lives]
        if not writes:
            return
        await self._writer.write(writes)
        for event in events:
            log.error(event.kind, extra=logged_facts(event))
        _tell(decided)
        self._counts.clean += len(decided.elected(Election.CLEAN))
        self._counts.unclean += len(decided.elected(Election.UNCLEAN))
        self._counts.suspect += len(decided.elected(Election.SUSPECT))


def _lossy(decided: PartitionChanges) -> list[TopicPartition]:
    lossy = [*decided.elected(Election.UNCLEAN), *decided.elected(Election.SUSPECT)]
    return lossy[:_LOSSES_TOLD_MAX]


def _tell(decided: PartitionChanges) -> None:
    if len(decided.elections) > _ELECTIONS_TOLD_MAX:
        log.info("leaders elected", extra={"partitions": len(decided.elections)})
        return
    for tp, election in decided.elections.items():
        state = decided.states[tp]
        facts = {"leader": state.leader, "epoch": state.leader_epoch, "isr": list(state.isr)}
        log.info(
            "leader elected",
            extra={"partition": str(tp), "election": election.value, **facts},
        )


def _all_partitions(image: ClusterImage) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, PartitionIndex(index))
        for topic in image.topics.values()
        for index in range(len(topic.partitions))
    ]
