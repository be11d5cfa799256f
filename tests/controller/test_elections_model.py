"""Elections against a model of the replicas' logs: committed records are never lost.

Three replicas of one partition crash, lose power and restart; a leader appends, its followers
replicate, it proposes other ISRs. The controller sees registrations and decides. Checked at every
step: no acknowledged record is lost while fewer replicas than min.insync.replicas lose power.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from suwi.controller.elections import (
    BrokerLiveness,
    Election,
    Position,
    Rules,
    awaits_positions,
    compute_change,
    elect_longest_log,
    elect_preferred,
)
from suwi.controller.proposed_isr import ProposedIsr, validate
from suwi.metadata.image import BrokerInfo, PartitionState
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId, Offset

NODES = (NodeId(1), NodeId(2), NodeId(3))
WALKS = 3000
STEPS = 40


@dataclass
class Replica:
    log: list[tuple[int, int]] = field(default_factory=list)
    """Records: the leader epoch in which each was written, and a unique number."""
    is_running: bool = True
    epoch: int = 0
    """The broker epoch; 0 while it is not registered."""
    was_unclean_shutdown: bool = False


class World:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.rules = Rules(unclean=random.random() < 0.3, insync_min=random.randint(1, 3))
        self.replicas = {node: Replica() for node in NODES}
        self.registered: dict[NodeId, BrokerInfo] = {}
        self.state = PartitionState(NODES[0], LeaderEpoch(0), 0, NODES, NODES)
        self.committed: list[tuple[int, int]] = []
        self.acked: dict[NodeId, int] = {}
        self.acked_epochs: dict[NodeId, int] = {}
        self.lost_power: set[NodeId] = set()
        self.guarantee_void = False
        self.epochs = 0
        self.numbers = 0
        for node in NODES:
            self._register(node)
        self._apply_registrations()

    def step(self) -> None:
        """One random event."""
        draw, node = self.random, self.random.choice(NODES)
        noticed = draw.random() < 0.6
        events: list[tuple[float, Callable[[], None]]] = [
            (3, lambda: self.crash(node, noticed)),
            (2, lambda: self.lose_power(node, draw.randint(0, 2), noticed)),
            (5, lambda: self.start(node, noticed)),
            (1, self.notice),
            (1, lambda: self.fence(node)),
            (0.5, self.balance),
            (1, self.query_positions),
        ]
        if self._leader() is not None:
            some = tuple(n for n in NODES if draw.random() < 0.7)
            events += [
                (5, lambda: self.produce(some)),
                (2, lambda: self.replicate(node)),
                (3, lambda: self.propose(some, resigns=draw.random() < 0.2)),
            ]
        (event,) = draw.choices([act for _, act in events], [weight for weight, _ in events])
        event()

    def check(self) -> None:
        self.check_state_is_consistent()
        self.check_a_leader_exists()
        self.check_the_leader_has_all_committed_records()

    # -- the cluster -----------------------------------------------------------------------------

    def _register(self, node: NodeId) -> None:
        self.epochs += 1
        self.replicas[node].is_running = True
        self.replicas[node].epoch = self.epochs

    def _leader(self) -> Replica | None:
        """The leader, if it runs and is registered with its current broker epoch."""
        replica = self.replicas.get(self.state.leader)
        known = self.registered.get(self.state.leader)
        if replica is None or not replica.is_running or known is None:
            return None
        return replica if known.epoch == replica.epoch else None

    def produce(self, followers: tuple[NodeId, ...]) -> None:
        """The leader appends a record, and some followers replicate it at once."""
        leader = self._leader()
        assert leader is not None
        self.numbers += 1
        leader.log.append((self.state.leader_epoch, self.numbers))
        for node in followers:
            self.replicate(node)

    def replicate(self, node: NodeId) -> None:
        leader, follower = self._leader(), self.replicas[node]
        assert leader is not None
        if follower.is_running and follower is not leader:
            follower.log = list(leader.log)
            self.acked[node] = len(leader.log)
            self.acked_epochs[node] = follower.epoch
        self._commit()

    def _commit(self) -> None:
        """The leader commits what all in-sync replicas have, if the ISR is large enough."""
        leader = self._leader()
        if leader is None or len(self.state.isr) < min(self.rules.insync_min, len(NODES)):
            return
        ends = [self.acked.get(n, 0) for n in self.state.isr if n != self.state.leader]
        end = min([len(leader.log), *ends])
        if end > len(self.committed):
            self.committed = leader.log[:end]

    def propose(self, members: list[NodeId], resigns: bool) -> None:
        """Propose another ISR, of followers that have all the leader's records."""
        leader, at = self._leader(), self.state.leader
        assert leader is not None
        chosen = {at: leader.epoch}
        for node in members:
            if node in self.state.isr or self.acked.get(node, -1) == len(leader.log):
                chosen.setdefault(node, self.acked_epochs.get(node, self.replicas[node].epoch))
        if resigns:
            del chosen[at]
        epochs = tuple(chosen.items())
        proposal = ProposedIsr(self.state.leader_epoch, self.state.partition_epoch, epochs)
        live = {n: b for n, b in self.registered.items() if not b.fenced}
        try:
            self._set_state(validate(self.state, self.state.leader, proposal, live, self.rules))
        except BrokerError:
            return
        for node, epoch in epochs:
            replica = self.replicas[node]
            if replica.is_running and replica.epoch == epoch == self.acked_epochs.get(node):
                self.lost_power.discard(node)

    def crash(self, node: NodeId, noticed: bool) -> None:
        self.replicas[node].is_running = False
        if noticed:
            self._apply_registrations()

    def lose_power(self, node: NodeId, lost: int, noticed: bool) -> None:
        replica = self.replicas[node]
        replica.is_running = False
        replica.was_unclean_shutdown = True
        replica.log = replica.log[: max(0, len(replica.log) - lost)]
        self.lost_power.add(node)
        if len(self.lost_power) > min(self.rules.insync_min, len(NODES)) - 1:
            self.guarantee_void = True
        if noticed:
            self._apply_registrations()

    def start(self, node: NodeId, noticed: bool) -> None:
        if not self.replicas[node].is_running:
            self._register(node)
        if noticed:
            self._apply_registrations()

    # -- the controller --------------------------------------------------------------------------

    def _set_state(self, state: PartitionState) -> None:
        assert state.leader_epoch >= self.state.leader_epoch
        if state == self.state:
            return
        assert state.partition_epoch == self.state.partition_epoch + 1
        if state.leader != self.state.leader:
            assert state.leader_epoch > self.state.leader_epoch
        if state.leader_epoch != self.state.leader_epoch:
            self.acked, self.acked_epochs = {}, {}
        self.state = state

    def _apply_liveness(
        self, after: dict[NodeId, BrokerInfo], unclean_shutdown_replicas: list[NodeId]
    ) -> None:
        liveness = BrokerLiveness.of(self.registered, after, unclean_shutdown_replicas)
        before = self.state
        state, election = compute_change(before, liveness, self.rules)
        self.registered = after
        self._set_state(state)
        candidates = (*before.isr, *before.elr)
        if election in (Election.CLEAN, Election.SUSPECT):
            assert state.leader in candidates
            assert state.leader in liveness.live
        if before.leader in liveness.restarted and state.leader == before.leader:
            assert state.leader_epoch > before.leader_epoch
        if election is Election.UNCLEAN:
            assert self.rules.unclean
            assert not any(
                n in liveness.live and n not in before.unclean_shutdown_replicas
                for n in before.isr
                if n not in liveness.unclean_shutdown_replicas
            )
            self.committed = []  # The remaining records are no longer guaranteed.

    def notice(self) -> None:
        self._apply_registrations()

    def _apply_registrations(self) -> None:
        """The controller applies the registrations that differ from its metadata."""
        after = {
            node: BrokerInfo(node, (), None, replica.epoch)
            for node, replica in self.replicas.items()
            if replica.is_running
        }
        unclean_shutdown_replicas = [
            node for node in after if self.replicas[node].was_unclean_shutdown
        ]
        self._apply_liveness(after, unclean_shutdown_replicas)
        for node in unclean_shutdown_replicas:
            self.replicas[node].was_unclean_shutdown = False

    def fence(self, node: NodeId) -> None:
        """The connection to a broker broke, and a new one was refused."""
        if node in self.registered and not self.replicas[node].is_running:
            fenced = self.registered[node]._replace(fenced=True)
            self._apply_liveness({**self.registered, node: fenced}, [])

    def balance(self) -> None:
        live = [node for node, broker in self.registered.items() if not broker.fenced]
        preferred = elect_preferred(self.state, live)
        if preferred is not None:
            self._set_state(preferred)

    def query_positions(self) -> None:
        live = [node for node, broker in self.registered.items() if not broker.fenced]
        if not awaits_positions(self.state, live):
            return
        positions = {
            node: Position(
                LeaderEpoch(replica.log[-1][0] if replica.log else -1), Offset(len(replica.log))
            )
            for node, replica in self.replicas.items()
            if replica.is_running
        }
        state, election = elect_longest_log(self.state, live, positions)
        if election is Election.SUSPECT:
            self._set_state(state)

    # -- invariants ------------------------------------------------------------------------------

    def check_state_is_consistent(self) -> None:
        state = self.state
        assert state.isr
        assert set(state.isr) <= set(state.replicas)
        assert len(set(state.isr)) == len(state.isr)
        assert not set(state.elr) & set(state.isr)
        assert set(state.unclean_shutdown_replicas) <= {*state.isr, *state.elr}
        if state.leader != NO_NODE:
            assert state.leader in state.isr
        live = {node for node, broker in self.registered.items() if not broker.fenced}
        if state.leader in live:
            assert not set(state.unclean_shutdown_replicas) & set(state.isr)
            assert set(state.isr) <= live

    def check_a_leader_exists(self) -> None:
        live = {node for node, broker in self.registered.items() if not broker.fenced}
        if any(
            node in live and node not in self.state.unclean_shutdown_replicas
            for node in self.state.isr
        ):
            assert self.state.leader in live

    def check_the_leader_has_all_committed_records(self) -> None:
        if self.guarantee_void:
            return
        leader = self._leader()
        if leader is not None:
            assert leader.log[: len(self.committed)] == self.committed


def walk(seed: int) -> None:
    """One history, drawn from a seed."""
    world = World(Random(seed))
    for _ in range(STEPS):
        world.step()
        world.check()


@pytest.mark.parametrize(
    "first",
    [
        0,
        *(pytest.param(n * WALKS // 4, marks=pytest.mark.slow) for n in range(1, 4)),
    ],
)
def test_no_history_loses_committed_records(first: int) -> None:
    for seed in range(first, first + WALKS // 4):
        try:
            walk(seed)
        except AssertionError as error:
            error.add_note(f"replay: walk({seed})")
            raise
