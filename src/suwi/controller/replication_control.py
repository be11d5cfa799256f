"""The controller's decisions on brokers and partitions: computed by pure functions, written here.

`apply_registrations` processes the registered brokers, `fence` and `unfence` what the failure
detector finds before a session ends, `shut_down` a controlled shutdown; `propose` is
AlterPartition, `elect` ElectLeaders, `balance` the periodic election of preferred leaders.
Invariant: a registration or unregistration becomes visible together with the partition changes it
causes, or after them: if a write is interrupted, the controller computes the changes again from
the state in the store.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from suwi.controller.elections import (
    BrokerLiveness,
    Election,
    Position,
    compute_change,
    elect_longest_log,
    elect_preferred,
)
from suwi.controller.metadata_writer import MetadataWriter
from suwi.controller.partition_changes import (
    SLICE_PARTITIONS,
    PartitionChanges,
    RulesOf,
    all_partitions,
    awaiting_positions,
    compute_changes,
    elect_preferred_all,
    pieces,
    shard_puts,
)
from suwi.controller.proposed_isr import ProposedIsr, check_sender, validate
from suwi.controller.replica_state_query import (
    Answers,
    QueryReplicaStates,
    ReplicaFacts,
    lost_at_least,
)
from suwi.env import Clock
from suwi.env.slices import in_slices
from suwi.metadata.cluster_events import (
    RECORDS_LOST,
    SUSPECT_ELECTION,
    UNCLEAN_ELECTION,
    Event,
    logged_facts,
    operations,
)
from suwi.metadata.image import (
    LIVE,
    BrokerInfo,
    ClusterImage,
    PartitionState,
    delete_deletions,
    encode_broker,
)
from suwi.metadata.metadata_follower import MetadataFollower
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
_SHARDS_AT_ONCE = 4
_PREFERRED_PAUSE_S = 1.0
"""Hazard Z16: clients find the new leaders of one piece before the next piece moves."""
_LOSSES_REPORTED_MAX = 50
"""Per decision."""
_LOSSES_TIMEOUT_S = 1.0
"""Short: other decisions wait meanwhile."""
_AWAITED_TIMEOUT_S = 10.0
_ELECTIONS_LOGGED_MAX = 10
"""If one decision has more, only their number is logged."""
_ELECTIONS_REMEMBERED = 20

Results: TypeAlias = dict[TopicPartition, BrokerError | None]


class Registered(NamedTuple):
    """A broker's registration."""

    broker: BrokerInfo
    was_unclean_shutdown: bool


class TopicProposal(NamedTuple):
    topic_id: UUID
    partition: PartitionIndex
    proposal: ProposedIsr


class RecentElection(NamedTuple):
    """One decision that elected leaders, whether it lost records or not."""

    at_ms: int
    cause: str
    partitions: int


@dataclass(slots=True)
class ElectionCounts:
    clean: int = 0
    unclean: int = 0
    suspect: int = 0
    recent: deque[RecentElection] = field(
        default_factory=lambda: deque(maxlen=_ELECTIONS_REMEMBERED)
    )
    """Of this broker as the controller, the oldest first; lost when its process ends."""


@dataclass(eq=False)
class ReplicationControl:
    _writer: MetadataWriter
    _follower: MetadataFollower
    _rules_of: RulesOf
    _counts: ElectionCounts
    _query_replica_states: QueryReplicaStates
    _clock: Clock
    _stopping: dict[NodeId, int] = field(default_factory=dict)
    """With their epochs, while `shut_down` waits."""

    # -- brokers ---------------------------------------------------------------------------------

    def are_registrations_applied(self, registered: Mapping[NodeId, Registered]) -> bool:
        """Whether the image has exactly these brokers with these broker epochs and features."""
        known_brokers = self._follower.image.registered_brokers
        return {n: (b.epoch, b.features) for n, b in known_brokers.items()} == {
            n: (r.broker.epoch, r.broker.features) for n, r in registered.items()
        }

    async def apply_registrations(self, registered: Mapping[NodeId, Registered]) -> None:
        """Write registrations and unregistrations, with the partition changes they cause."""
        await self._writer.run_exclusively(lambda: self._apply_registrations(registered))

    async def _apply_registrations(self, registered: Mapping[NodeId, Registered]) -> None:
        before = self._follower.image.registered_brokers
        after: dict[NodeId, BrokerInfo] = {}
        for node, (broker, _) in registered.items():
            known = before.get(node)
            # A broker fenced in this incarnation stays fenced until the failure detector unfences
            # it.
            is_fenced = known is not None and known.epoch == broker.epoch and known.fenced
            after[node] = broker._replace(fenced=is_fenced)
        unclean_shutdown_replicas = [
            node for node, found in registered.items() if found.was_unclean_shutdown
        ]
        await self._apply_liveness(after, unclean_shutdown_replicas)

    async def fence(self, node: NodeId, epoch: int) -> None:
        """Fence a broker that has failed: elect other leaders for its partitions where that loses
        no records."""
        await self._writer.run_exclusively(lambda: self._set_fenced({node: epoch}, fenced=True))

    async def unfence(self, node: NodeId, epoch: int) -> None:
        """Unfence a broker that turned out to be running."""
        await self._writer.run_exclusively(lambda: self._set_fenced({node: epoch}, fenced=False))

    async def _set_fenced(self, epochs: Mapping[NodeId, int], *, fenced: bool) -> None:
        before = self._follower.image.registered_brokers
        changed = {
            node: known._replace(fenced=fenced)
            for node, known in before.items()
            if known.epoch == epochs.get(node) and known.fenced is not fenced
        }
        for node in changed:
            log.info("broker fenced" if fenced else "broker unfenced", extra={"broker": node})
        if changed:
            await self._apply_liveness({**before, **changed})

    async def shut_down(self, node: NodeId, epoch: int) -> None:
        """Controlled shutdown: returns when the broker leads no partition that another could. One
        decision fences all that came while the one before ran: no leader moves to the next."""
        known = self._follower.image.registered_brokers.get(node)
        if known is None:
            raise BrokerIdNotRegistered(f"broker {node} is not registered")
        if known.epoch != epoch:
            raise StaleBrokerEpoch(f"broker {node} has epoch {known.epoch}, not {epoch}")
        self._stopping[node] = epoch
        try:
            await self._writer.run_exclusively(
                lambda: self._set_fenced({**self._stopping, node: epoch}, fenced=True)
            )
        finally:
            self._stopping.pop(node, None)
        # A controller that resigns before would let the others wait for the next one.
        await self._writer.wait_idle()

    async def _apply_liveness(
        self, after: Mapping[NodeId, BrokerInfo], unclean_shutdown_replicas: Iterable[NodeId] = ()
    ) -> None:
        image = self._follower.image
        before = image.registered_brokers
        liveness = BrokerLiveness.of(before, after, list(unclean_shutdown_replicas))
        decided = await compute_changes(list(image.topics.values()), liveness, self._rules_of)
        registrations: list[Operation] = [
            Put(f"{LIVE}{node}", encode_broker(broker))
            for node, broker in after.items()
            if before.get(node) != broker
        ]
        registrations += [Delete(f"{LIVE}{node}") for node in before if node not in after]
        # A restarted broker has marked those topics for deletion before it registered.
        for node in sorted(liveness.restarted & set(image.deletions)):
            registrations += delete_deletions(node, image.deletions[node])
        await self.write(decided, registrations, after)
        for node in sorted(liveness.restarted):
            log.info("broker registered", extra={"broker": node, "epoch": after[node].epoch})
        for node in sorted(set(before) - set(after)):
            log.info("broker unregistered", extra={"broker": node, "epoch": before[node].epoch})

    # -- elections -------------------------------------------------------------------------------

    async def reconsider(self, topics: Iterable[str]) -> None:
        """Elect leaders and complete reassignments where the new rules of these topics allow it.
        Part of the decision that has changed the rules."""
        image = self._follower.image
        present = [image.topics[name] for name in topics if name in image.topics]
        liveness = BrokerLiveness.of(image.registered_brokers, image.registered_brokers)
        decided = await compute_changes(present, liveness, self._rules_of)
        decided.add_completable(present, image.unfenced_brokers, self._rules_of)
        await self.write(decided)

    async def balance(self) -> int:
        """Elect preferred leaders; returns the number of changed partitions. Each piece is a
        decision of its own, so that no other decision waits for all of them."""
        moved = 0
        while True:
            piece = await self._writer.run_exclusively(self._balance)
            moved += piece
            if piece < _PREFERRED_AT_ONCE_MAX:
                return moved
            await asyncio.sleep(_PREFERRED_PAUSE_S)

    async def _balance(self) -> int:
        decided = elect_preferred_all(self._follower.image, _PREFERRED_AT_ONCE_MAX)
        await self.write(decided)
        return len(decided.states)

    async def elect(self, requested: Sequence[TopicPartition] | None, *, unclean: bool) -> Results:
        """Serve ElectLeaders; `requested` None: all partitions. Returns the result of each."""
        answers = await self._query_awaited() if unclean else {}
        image = self._follower.image
        asked = all_partitions(image) if requested is None else requested
        decide = partial(self._elect, unclean=unclean, answers=answers)
        results = await self.decide_in_pieces(asked, decide)
        if requested is None:
            results = {
                tp: error
                async for tp, error in in_slices(results.items(), SLICE_PARTITIONS)
                if not isinstance(error, ElectionNotNeeded)
            }
        return results

    async def decide_in_pieces(
        self,
        partitions: Iterable[TopicPartition],
        decide: Callable[[Sequence[TopicPartition]], Coroutine[Any, Any, Results]],
    ) -> Results:
        """The result of each partition: an error if it does not exist. Each piece of the others is
        a decision of its own, so that no other decision waits for all of them."""
        image = self._follower.image
        results: Results = {}
        present = []
        async for tp in in_slices(partitions, SLICE_PARTITIONS):
            if image.partition(tp) is None:
                results[tp] = UnknownTopicOrPartition(f"{tp} does not exist")
            else:
                present.append(tp)
        for piece in pieces(present):
            results |= await self._writer.run_exclusively(partial(decide, piece))
        return results

    async def _elect(
        self, requested: Sequence[TopicPartition], unclean: bool, answers: Answers
    ) -> Results:
        image = self._follower.image
        decided = PartitionChanges()
        results: Results = {}
        async for tp in in_slices(requested, SLICE_PARTITIONS):
            try:
                state, election = self._elected(image, tp, unclean, answers.get(tp, {}))
                decided.states[tp] = state
                decided.elections[tp] = election
                results[tp] = None
            except BrokerError as error:
                results[tp] = error
        await self.write(decided)
        return results

    def _elected(
        self,
        image: ClusterImage,
        tp: TopicPartition,
        unclean: bool,
        known: Mapping[NodeId, ReplicaFacts],
    ) -> tuple[PartitionState, Election]:
        state = image.partition(tp)
        if state is None:
            raise UnknownTopicOrPartition(f"{tp} does not exist")
        if not unclean:
            if state.leader == state.replicas[0]:
                raise ElectionNotNeeded(f"{tp} is led by its preferred leader")
            preferred = elect_preferred(state, image.unfenced_brokers)
            if preferred is None:
                raise PreferredLeaderNotAvailable(
                    f"broker {state.replicas[0]} is not in sync with {tp}"
                )
            return preferred, Election.CLEAN
        if state.leader != NO_NODE:
            raise ElectionNotNeeded(f"{tp} has a leader")
        rules = self._rules_of(image.topics[tp.topic])._replace(unclean=True)
        changed, election = compute_change(
            state, BrokerLiveness.of(image.registered_brokers, image.registered_brokers), rules
        )
        if changed.leader == NO_NODE:
            live = image.unfenced_brokers
            changed, election = elect_longest_log(changed, live, _positions(known), unclean=True)
        if changed.leader == NO_NODE:
            raise EligibleLeadersNotAvailable(f"no replica of {tp} can lead")
        return changed, election

    def awaiting_positions(self) -> dict[TopicPartition, PartitionState]:
        return awaiting_positions(self._follower.image)

    async def elect_longest_log(self, *, is_last_resort: bool = False) -> None:
        """Elect leaders for partitions whose replicas all had an unclean shutdown, if all of those
        replicas can be queried; `is_last_resort`: or if the topic allows unclean elections."""
        answers = await self._query_awaited()
        await self._writer.run_exclusively(lambda: self._elect_longest_log(answers, is_last_resort))

    async def _query_awaited(self) -> Answers:
        awaited = {tp: (*state.isr, *state.elr) for tp, state in self.awaiting_positions().items()}
        if not awaited:
            return {}
        live = self._follower.image.unfenced_brokers
        return await self._query_replica_states(awaited, live, _AWAITED_TIMEOUT_S)

    async def _elect_longest_log(self, answers: Answers, is_last_resort: bool) -> None:
        image = self._follower.image
        decided = PartitionChanges()
        for tp, known in answers.items():
            state = image.partition(tp)
            if state is None:
                continue
            unclean = is_last_resort and self._rules_of(image.topics[tp.topic]).unclean
            changed, election = elect_longest_log(
                state, image.unfenced_brokers, _positions(known), unclean=unclean
            )
            if election is not Election.NONE:
                decided.states[tp] = changed
                decided.elections[tp] = election
        await self.write(decided, answers=answers)

    # -- in-sync sets ----------------------------------------------------------------------------

    async def propose(
        self, sender: NodeId, broker_epoch: int, proposals: Sequence[TopicProposal]
    ) -> list[PartitionState | BrokerError]:
        """Serve AlterPartition; returns the new state of each partition, or its error.

        Raises StaleBrokerEpoch if the sender is fenced or has another broker epoch.
        """
        return await self._writer.run_exclusively(
            lambda: self._propose(sender, broker_epoch, proposals)
        )

    async def _propose(
        self, sender: NodeId, broker_epoch: int, proposals: Sequence[TopicProposal]
    ) -> list[PartitionState | BrokerError]:
        image = self._follower.image
        check_sender(image, sender, broker_epoch)
        decided = PartitionChanges()
        results: list[TopicPartition | BrokerError] = []
        async for topic_id, index, proposal in in_slices(proposals, SLICE_PARTITIONS):
            try:
                topic = image.topics_by_id.get(topic_id)
                if topic is None:
                    raise UnknownTopicId(f"no topic has the id {topic_id}")
                tp = TopicPartition(topic.name, index)
                state = image.partition(tp)
                if state is None:
                    raise UnknownTopicOrPartition(f"{tp} does not exist")
                rules = self._rules_of(topic)
                altered = validate(state, sender, proposal, image.unfenced_brokers, rules)
                decided.states[tp] = altered
                if altered.leader != state.leader:
                    decided.elections[tp] = Election.CLEAN
                results.append(tp)
            except BrokerError as error:
                results.append(error)
        await self.write(decided)
        return [
            result if isinstance(result, BrokerError) else decided.states[result]
            for result in results
        ]

    # -- losses ----------------------------------------------------------------------------------

    async def report_loss(self, facts: Mapping[str, Any]) -> None:
        """Record that a replica truncated records that were, or may have been, committed."""
        event = Event(RECORDS_LOST, self._clock.now_ms(), facts)
        await self._writer.run_exclusively(lambda: self._write_event(event))

    async def _write_event(self, event: Event) -> None:
        await self._writer.write(operations(self._follower.image, [event]))
        log.error(event.kind, extra=logged_facts(event))

    def _losses(self, decided: PartitionChanges, answers: Answers) -> list[Event]:
        """Events for records lost by elections, as far as the live replicas show."""
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
                leader_facts = known.get(state.leader)
                facts["recovery_point"] = leader_facts.recovery_point if leader_facts else None
                facts["log_end"] = leader_facts.end_offset if leader_facts else None
                events.append(Event(SUSPECT_ELECTION, now_ms, facts))
        return events

    # -- writing ---------------------------------------------------------------------------------

    def insync_min(self, topic: str) -> int:
        return self._rules_of(self._follower.image.topics[topic]).insync_min

    async def write(
        self,
        decided: PartitionChanges,
        registrations: Sequence[Operation] = (),
        brokers: Mapping[NodeId, BrokerInfo] | None = None,
        answers: Answers | None = None,
    ) -> None:
        """Write the decision; broker registrations last, see the invariant."""
        image = self._follower.image
        live = image.unfenced_brokers
        if brokers is not None:
            live = {node: broker for node, broker in brokers.items() if not broker.fenced}
        completed = decided.complete_reassignments(live, self.insync_min)
        if answers is None and (lossy := _lossy(decided)):
            replicas = {tp: decided.states[tp].replicas for tp in lossy}
            # Query before the write: afterwards the followers truncate the records that the new
            # leader lacks.
            answers = await self._query_replica_states(
                replicas, brokers or image.unfenced_brokers, _LOSSES_TIMEOUT_S
            )
        events = self._losses(decided, answers or {})
        writes: list[Operation] = [
            put async for put in in_slices(shard_puts(image, decided.states), _SHARDS_AT_ONCE)
        ]
        writes += [*operations(image, events), *registrations]
        if not writes:
            return
        await self._writer.write(writes)
        for event in events:
            log.error(event.kind, extra=logged_facts(event))
        _log_elections(decided)
        for tp in completed:
            target = list(decided.states[tp].replicas)
            log.info("reassignment completed", extra={"partition": str(tp), "replicas": target})
        self._counts.clean += len(decided.elected(Election.CLEAN))
        self._counts.unclean += len(decided.elected(Election.UNCLEAN))
        self._counts.suspect += len(decided.elected(Election.SUSPECT))
        if decided.elections:
            cause = _cause(image, decided, live)
            elected = RecentElection(self._clock.now_ms(), cause, len(decided.elections))
            self._counts.recent.append(elected)


def _positions(known: Mapping[NodeId, ReplicaFacts]) -> dict[NodeId, Position]:
    return {node: facts.position for node, facts in known.items()}


def _lossy(decided: PartitionChanges) -> list[TopicPartition]:
    lossy = [*decided.elected(Election.UNCLEAN), *decided.elected(Election.SUSPECT)]
    return lossy[:_LOSSES_REPORTED_MAX]


def _cause(image: ClusterImage, decided: PartitionChanges, live: Collection[NodeId]) -> str:
    """Why leaders were elected, by what their predecessors are now."""
    before = {state.leader for tp in decided.elections if (state := image.partition(tp))}
    away = sorted(node for node in before if node != NO_NODE and node not in live)
    if away:
        return f"{'brokers' if len(away) > 1 else 'broker'} {', '.join(map(str, away))} away"
    return "a replica is back" if NO_NODE in before else "other leaders preferred"


def _log_elections(decided: PartitionChanges) -> None:
    if len(decided.elections) > _ELECTIONS_LOGGED_MAX:
        log.info("leaders elected", extra={"partitions": len(decided.elections)})
        return
    for tp, election in decided.elections.items():
        state = decided.states[tp]
        facts = {"leader": state.leader, "epoch": state.leader_epoch, "isr": list(state.isr)}
        extra = {"partition": str(tp), "election": election.value, **facts}
        log.info("leader elected", extra=extra)
