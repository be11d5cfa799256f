"""Who leads a partition and who is in sync with it, as brokers come and go. Pure.

`compute_change` gives the state of a partition after brokers were registered, unregistered or
fenced; `elect_greatest` ends the wait for replicas that all came back from a power loss, `prefer`
gives a partition back to its preferred leader. A `BrokerLiveness` says which brokers are live.
Invariants: an in-sync set is never empty; whoever is elected lives; epochs only rise; only an
unclean election, where it is allowed, chooses a replica that may miss what others had committed.
"""

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from suwi.metadata.image import BrokerInfo, PartitionState
from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId, Offset


class BrokerLiveness(NamedTuple):
    """The brokers, once an event has happened."""

    live: frozenset[NodeId]
    """They may lead and be in sync."""
    fenced: frozenset[NodeId] = frozenset()
    """Registered, but to be given nothing: their sessions are not over."""
    restarted: frozenset[NodeId] = frozenset()
    """A life of theirs begins with the event: what they were before, they are no more."""
    unclean_shutdown_replicas: frozenset[NodeId] = frozenset()
    """Of those, the ones that come back from a power loss."""

    @classmethod
    def of(
        cls,
        before: Mapping[NodeId, BrokerInfo],
        after: Mapping[NodeId, BrokerInfo],
        unclean_shutdown_replicas: Collection[NodeId] = (),
    ) -> "BrokerLiveness":
        """From the registered brokers before and after an event."""
        restarted = frozenset(
            node
            for node, broker in after.items()
            if node not in before or before[node].epoch != broker.epoch
        )
        return cls(
            live=frozenset(node for node, broker in after.items() if not broker.fenced),
            fenced=frozenset(node for node, broker in after.items() if broker.fenced),
            restarted=restarted,
            unclean_shutdown_replicas=restarted.intersection(unclean_shutdown_replicas),
        )


class Rules(NamedTuple):
    """What a topic's configuration says about its elections."""

    unclean: bool = False
    insync_min: int = 1


class Election(enum.Enum):
    NONE = "none"
    CLEAN = "clean"
    SUSPECT = "suspect"
    """Of a replica that may have lost its last records, as all others may have."""
    UNCLEAN = "unclean"


class PartitionChange(NamedTuple):
    state: PartitionState
    election: Election = Election.NONE


class Position(NamedTuple):
    """How far the log of a replica goes; the greater one knows more."""

    last_epoch: LeaderEpoch
    end_offset: Offset


def compute_change(
    state: PartitionState, liveness: BrokerLiveness, rules: Rules
) -> PartitionChange:
    """The state of a partition among the brokers that live now."""
    unclean_shutdown_replicas = (
        _unclean_shutdown_replicas(state, liveness)
        if state.unclean_shutdown_replicas or liveness.unclean_shutdown_replicas
        else ()
    )
    clean = [
        node
        for node in state.isr
        if node in liveness.live and node not in unclean_shutdown_replicas
    ]
    # Who begins a new life has to catch up first, unless there is nobody else.
    members = [node for node in clean if node not in liveness.restarted] or clean
    if members:
        return _lead(state, members, liveness, unclean_shutdown_replicas, rules, Election.CLEAN)
    return _without_clean_member(state, liveness, unclean_shutdown_replicas, rules)


def _unclean_shutdown_replicas(
    state: PartitionState, liveness: BrokerLiveness
) -> tuple[NodeId, ...]:
    return tuple(
        node
        for node in state.replicas
        if node in state.unclean_shutdown_replicas
        or (node in liveness.unclean_shutdown_replicas and (node in state.isr or node in state.elr))
    )


def _without_clean_member(
    state: PartitionState,
    liveness: BrokerLiveness,
    unclean_shutdown_replicas: tuple[NodeId, ...],
    rules: Rules,
) -> PartitionChange:
    holders = (*state.isr, *state.elr)
    if all(node in unclean_shutdown_replicas for node in state.isr):
        heirs = [n for n in state.elr if n in liveness.live and n not in unclean_shutdown_replicas]
        if heirs:
            return _lead(state, heirs, liveness, unclean_shutdown_replicas, rules, Election.CLEAN)
        if all(node in unclean_shutdown_replicas and node in liveness.live for node in holders):
            if len(holders) == 1:
                return _lead(
                    state, holders, liveness, unclean_shutdown_replicas, rules, Election.SUSPECT
                )
            return _leaderless(
                state, liveness, unclean_shutdown_replicas
            )  # until their positions are known
    # The session of a fenced broker is not over: it may be back with everything.
    if rules.unclean and not any(node in liveness.fenced for node in holders):
        for node in (*holders, *state.replicas):
            if node in liveness.live:
                elected = _next(state, node, (node,), elects=True, unclean=True)
                return PartitionChange(elected, Election.UNCLEAN)
    return _leaderless(state, liveness, unclean_shutdown_replicas)


def awaits_positions(state: PartitionState, live: Collection[NodeId]) -> bool:
    """Whether everyone who may hold what is committed is back, all from a power loss."""
    holders = (*state.isr, *state.elr)
    return state.leader == NO_NODE and all(
        n in state.unclean_shutdown_replicas and n in live for n in holders
    )


def elect_greatest(
    state: PartitionState, live: Collection[NodeId], positions: Mapping[NodeId, Position]
) -> PartitionChange:
    """Of replicas that all came back from a power loss, the one that lost the least leads."""
    holders = [n for n in state.replicas if n in state.isr or n in state.elr]
    if not awaits_positions(state, live) or any(node not in positions for node in holders):
        return PartitionChange(state)
    greatest = max(holders, key=lambda node: positions[node])
    return PartitionChange(_next(state, greatest, (greatest,), elects=True), Election.SUSPECT)


def prefer(state: PartitionState, live: Collection[NodeId]) -> PartitionState | None:
    """The state with the preferred leader; None where it leads already, or cannot."""
    preferred = state.replicas[0]
    if state.leader in (preferred, NO_NODE) or preferred not in live or preferred not in state.isr:
        return None
    return _next(
        state,
        preferred,
        state.isr,
        elr=state.elr,
        unclean_shutdown_replicas=state.unclean_shutdown_replicas,
        elects=True,
    )


def with_members(state: PartitionState, members: Iterable[NodeId], rules: Rules) -> PartitionState:
    """The state with another in-sync set, and those who may lead beside it (KIP-966)."""
    isr = tuple(members)
    elr = _elr(state, isr, rules)
    unclean_shutdown_replicas = tuple(
        node for node in state.unclean_shutdown_replicas if node in elr
    )
    return _next(
        state, state.leader, isr, elr=elr, unclean_shutdown_replicas=unclean_shutdown_replicas
    )


def _elr(state: PartitionState, isr: Collection[NodeId], rules: Rules) -> tuple[NodeId, ...]:
    """Below the minimum nothing is committed: who leaves the in-sync set holds all that is.

    Unless a power loss took it. A suspect leads nothing by itself, but is waited for and compared
    where those who were believed to live prove to have lost power, too.
    """
    if len(isr) >= min(rules.insync_min, len(state.replicas)):
        return ()
    return tuple(
        node
        for node in state.replicas
        if (node in state.isr or node in state.elr) and node not in isr
    )


def _lead(
    state: PartitionState,
    members: Sequence[NodeId],
    liveness: BrokerLiveness,
    unclean_shutdown_replicas: tuple[NodeId, ...],
    rules: Rules,
    election: Election,
) -> PartitionChange:
    """Let one of these lead, the present leader if it can, and these be in sync."""
    isr = tuple(members)
    elr = _elr(state, isr, rules)
    doubtful = tuple(node for node in unclean_shutdown_replicas if node in elr)
    if state.leader in isr and state.leader not in liveness.restarted:
        return PartitionChange(
            _next(state, state.leader, isr, elr=elr, unclean_shutdown_replicas=doubtful)
        )
    leader = next(node for node in state.replicas if node in isr)
    led = _next(state, leader, isr, elr=elr, unclean_shutdown_replicas=doubtful, elects=True)
    return PartitionChange(led, election)


def _leaderless(
    state: PartitionState, liveness: BrokerLiveness, unclean_shutdown_replicas: tuple[NodeId, ...]
) -> PartitionChange:
    stays = state.leader in liveness.fenced and state.leader not in liveness.restarted
    is_led = state.leader != NO_NODE and not stays
    waiting = _next(
        state,
        NO_NODE if is_led else state.leader,
        state.isr,
        elr=state.elr,
        unclean_shutdown_replicas=unclean_shutdown_replicas,
        elects=is_led,
    )
    return PartitionChange(waiting)


def _next(
    state: PartitionState,
    leader: NodeId,
    isr: tuple[NodeId, ...],
    *,
    elr: tuple[NodeId, ...] = (),
    unclean_shutdown_replicas: tuple[NodeId, ...] = (),
    elects: bool = False,
    unclean: bool = False,
) -> PartitionState:
    """The state that follows; `elects`: in the next leader epoch, `unclean`: which begins without
    a member of the in-sync set. Every change has a number, one above the last.

    Made in one go: a death may concern thousands of partitions.
    """
    assert isr, "an in-sync set is never empty"
    if (
        not elects
        and leader == state.leader
        and isr == state.isr
        and elr == state.elr
        and unclean_shutdown_replicas == state.unclean_shutdown_replicas
    ):
        return state
    epoch = LeaderEpoch(state.leader_epoch + elects)
    return PartitionState(
        leader,
        epoch,
        state.partition_epoch + 1,
        state.replicas,
        isr,
        unclean or state.is_recovering,
        elr,
        unclean_shutdown_replicas,
        epoch if unclean else state.unclean_epoch,
    )
