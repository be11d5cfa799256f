"""Leader elections: leader and in-sync replicas of one partition as brokers come and go. Pure.

`compute_change` gives the state of a partition after brokers were registered, unregistered or
fenced; `elect_longest_log` elects a leader among replicas that all had an unclean shutdown;
`elect_preferred` elects the preferred leader. `BrokerLiveness` gives the live brokers.
Invariants: the ISR is never empty; an elected leader is live; epochs never decrease; only an
unclean election, where it is enabled, elects a replica that may lack committed records.
"""

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from suwi.metadata.image import BrokerInfo, PartitionState
from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId, Offset


class BrokerLiveness(NamedTuple):
    """The brokers after an event."""

    live: frozenset[NodeId]
    """May be leaders and in-sync replicas."""
    fenced: frozenset[NodeId] = frozenset()
    """Registered, but not allowed to lead or be in sync; their sessions have not ended."""
    restarted: frozenset[NodeId] = frozenset()
    """The event starts a new incarnation of them; the previous one has ended."""
    unclean_shutdown_replicas: frozenset[NodeId] = frozenset()
    """The restarted brokers that had an unclean shutdown with a power loss."""

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
    """A topic's configuration for elections."""

    unclean: bool = False
    insync_min: int = 1


class Election(enum.Enum):
    NONE = "none"
    CLEAN = "clean"
    SUSPECT = "suspect"
    """All candidates, and so the elected replica, may have lost their last records."""
    UNCLEAN = "unclean"


class PartitionChange(NamedTuple):
    state: PartitionState
    election: Election = Election.NONE


class Position(NamedTuple):
    """The end of a replica's log; the replica with the greater position has more records."""

    last_epoch: LeaderEpoch
    end_offset: Offset


def compute_change(
    state: PartitionState, liveness: BrokerLiveness, rules: Rules
) -> PartitionChange:
    """The state of a partition after the event."""
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
    # A restarted broker has to catch up first, unless the ISR has no other live member.
    members = [node for node in clean if node not in liveness.restarted] or clean
    if members:
        return _lead(state, members, liveness, unclean_shutdown_replicas, rules, Election.CLEAN)
    return _elect_without_clean_member(state, liveness, unclean_shutdown_replicas, rules)


def _unclean_shutdown_replicas(
    state: PartitionState, liveness: BrokerLiveness
) -> tuple[NodeId, ...]:
    return tuple(
        node
        for node in state.replicas
        if node in state.unclean_shutdown_replicas
        or (node in liveness.unclean_shutdown_replicas and (node in state.isr or node in state.elr))
    )


def _elect_without_clean_member(
    state: PartitionState,
    liveness: BrokerLiveness,
    unclean_shutdown_replicas: tuple[NodeId, ...],
    rules: Rules,
) -> PartitionChange:
    candidates = (*state.isr, *state.elr)
    if all(node in unclean_shutdown_replicas for node in state.isr):
        eligible = [
            n for n in state.elr if n in liveness.live and n not in unclean_shutdown_replicas
        ]
        if eligible:
            return _lead(
                state, eligible, liveness, unclean_shutdown_replicas, rules, Election.CLEAN
            )
        if all(node in unclean_shutdown_replicas and node in liveness.live for node in candidates):
            if len(candidates) == 1:
                return _lead(
                    state, candidates, liveness, unclean_shutdown_replicas, rules, Election.SUSPECT
                )
            # Until their positions are known.
            return _leaderless(state, liveness, unclean_shutdown_replicas)
    # A fenced broker's session has not ended: it may return with all committed records.
    if rules.unclean and not any(node in liveness.fenced for node in candidates):
        # A replica that a reassignment adds is likely to have the fewest records.
        for node in (*candidates, *state.original_replicas, *state.adding_replicas):
            if node in liveness.live:
                elected = _next(state, node, (node,), is_election=True, unclean=True)
                return PartitionChange(elected, Election.UNCLEAN)
    return _leaderless(state, liveness, unclean_shutdown_replicas)


def awaits_positions(state: PartitionState, live: Collection[NodeId]) -> bool:
    """Whether all replicas that may have all committed records are live again, and all of them had
    an unclean shutdown."""
    candidates = (*state.isr, *state.elr)
    return state.leader == NO_NODE and all(
        n in state.unclean_shutdown_replicas and n in live for n in candidates
    )


def elect_longest_log(
    state: PartitionState,
    live: Collection[NodeId],
    positions: Mapping[NodeId, Position],
    *,
    unclean: bool = False,
) -> PartitionChange:
    """Of replicas that all had an unclean shutdown, elect the one with the longest log; `unclean`:
    even if the positions of some are unknown, which may have more."""
    candidates = [n for n in state.replicas if n in state.isr or n in state.elr]
    known = [node for node in candidates if node in positions]
    lacks_some = len(known) < len(candidates)
    if not awaits_positions(state, live) or not known or (lacks_some and not unclean):
        return PartitionChange(state)
    longest = max(known, key=lambda node: positions[node])
    elected = _next(state, longest, (longest,), is_election=True, unclean=lacks_some)
    return PartitionChange(elected, Election.UNCLEAN if lacks_some else Election.SUSPECT)


def elect_preferred(state: PartitionState, live: Collection[NodeId]) -> PartitionState | None:
    """The state with the preferred leader; None if it already leads or cannot."""
    preferred = state.replicas[0]
    if state.leader in (preferred, NO_NODE) or preferred not in live or preferred not in state.isr:
        return None
    return _next(
        state,
        preferred,
        state.isr,
        elr=state.elr,
        unclean_shutdown_replicas=state.unclean_shutdown_replicas,
        is_election=True,
    )


def with_members(state: PartitionState, members: Iterable[NodeId], rules: Rules) -> PartitionState:
    """The state with another ISR, and the eligible leader replicas that follow (KIP-966)."""
    isr = tuple(members)
    elr = _elr(state, isr, rules)
    unclean_shutdown_replicas = tuple(
        node for node in state.unclean_shutdown_replicas if node in elr
    )
    return _next(
        state, state.leader, isr, elr=elr, unclean_shutdown_replicas=unclean_shutdown_replicas
    )


def _elr(state: PartitionState, isr: Collection[NodeId], rules: Rules) -> tuple[NodeId, ...]:
    """The eligible leader replicas (ELR).

    While the ISR is smaller than min.insync.replicas nothing is committed, so a replica that leaves
    the ISR then has all committed records, unless it lost some in an unclean shutdown. Such a
    replica is not elected from the ELR; but if all members of the ISR turn out to have had an
    unclean shutdown too, its log end is compared with theirs.
    """
    if len(isr) >= min(rules.insync_min, state.replication_factor):
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
    """Make `members` the ISR and elect one of them; the current leader stays if it can."""
    isr = tuple(members)
    elr = _elr(state, isr, rules)
    unclean_in_elr = tuple(node for node in unclean_shutdown_replicas if node in elr)
    if state.leader in isr and state.leader not in liveness.restarted:
        return PartitionChange(
            _next(state, state.leader, isr, elr=elr, unclean_shutdown_replicas=unclean_in_elr)
        )
    leader = next(node for node in state.replicas if node in isr)
    led = _next(
        state, leader, isr, elr=elr, unclean_shutdown_replicas=unclean_in_elr, is_election=True
    )
    return PartitionChange(led, election)


def _leaderless(
    state: PartitionState, liveness: BrokerLiveness, unclean_shutdown_replicas: tuple[NodeId, ...]
) -> PartitionChange:
    keeps_leader = state.leader in liveness.fenced and state.leader not in liveness.restarted
    loses_leader = state.leader != NO_NODE and not keeps_leader
    waiting = _next(
        state,
        NO_NODE if loses_leader else state.leader,
        state.isr,
        elr=state.elr,
        unclean_shutdown_replicas=unclean_shutdown_replicas,
        is_election=loses_leader,
    )
    return PartitionChange(waiting)


def _next(
    state: PartitionState,
    leader: NodeId,
    isr: tuple[NodeId, ...],
    *,
    elr: tuple[NodeId, ...] = (),
    unclean_shutdown_replicas: tuple[NodeId, ...] = (),
    is_election: bool = False,
    unclean: bool = False,
) -> PartitionState:
    """The next state. `is_election`: with the next leader epoch; `unclean`: the new leader was not
    in the ISR. Each change increments the partition epoch.

    Builds the state in one step, for speed: the failure of one broker may change thousands of
    partitions.
    """
    assert isr, "the ISR is never empty"
    if (
        not is_election
        and leader == state.leader
        and isr == state.isr
        and elr == state.elr
        and unclean_shutdown_replicas == state.unclean_shutdown_replicas
    ):
        return state
    epoch = LeaderEpoch(state.leader_epoch + is_election)
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
        state.adding_replicas,
        state.removing_replicas,
    )
