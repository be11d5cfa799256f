"""A cluster made of facts, changed by hand, for the tests of the checkers."""

from uuid import UUID

from suwi.metadata.cluster_events import RECORDS_LOST, UNCLEAN_ELECTION, Event
from suwi.metadata.image import PartitionState
from suwi.model.ids import LeaderEpoch, NodeId, PartitionIndex, TopicPartition
from suwi.sim.checkers import Committed, all_checkers
from suwi.sim.checkers.facts import Batch, LogId, Replica, Rules, StateChange, World

ONE, TWO, THREE, FOUR = NodeId(1), NodeId(2), NodeId(3), NodeId(4)

ALL = (ONE, TWO, THREE)
LOG = LogId(UUID(int=1), TopicPartition("orders", PartitionIndex(0)))


class Stage:
    """Three replicas of one partition, led by b1 in epoch 0, and the checkers."""

    def __init__(self, *, unclean: bool = False) -> None:
        self.world = World()
        self.committed = Committed()
        self.checkers = all_checkers(self.committed)
        self.world.rules[LOG.topic_id] = [(0, Rules(2, unclean))]
        self.elect(ONE)
        self.change(PartitionState(ONE, LeaderEpoch(0), 0, ALL, ALL), author=ONE)
        for node in ALL:
            self.world.replicas[node, LOG] = Replica(
                node, LOG, incarnation=f"b{node}#1", leads=node == ONE, leader_epoch=0
            )

    def __getitem__(self, node: NodeId) -> Replica:
        return self.world.replicas[node, LOG]

    @property
    def state(self) -> PartitionState:
        return self.world.states[LOG]

    def elect(self, node: NodeId) -> None:
        epoch = self.world.controller[1] + 1 if self.world.controller else 1
        self.world.controller = (node, epoch)
        for checker in self.checkers:
            checker.on_controller(self.world, epoch)

    def change(self, state: PartitionState, author: NodeId = ONE) -> None:
        change = StateChange(LOG, self.world.states.get(LOG), state)
        self.world.states[LOG] = state
        for checker in self.checkers:
            checker.on_states(self.world, [change], author)

    def move(self, leader: NodeId, **fields: object) -> None:
        """A clean election that all brokers have seen."""
        state = self.state._replace(
            leader=leader,
            leader_epoch=LeaderEpoch(self.state.leader_epoch + 1),
            partition_epoch=self.state.partition_epoch + 1,
            **fields,
        )
        assert self.world.controller is not None
        self.change(state, author=self.world.controller[0])
        for node in ALL:
            self[node].leads = node == leader
            self[node].leader_epoch = state.leader_epoch

    def append(self, node: NodeId, *batches: Batch) -> None:
        replica = self[node]
        replica.batches += batches
        replica.end = replica.batches[-1].last + 1
        starts = dict(replica.epochs)
        for each in batches:
            starts.setdefault(each.epoch, each.base)
        replica.epochs = sorted(starts.items())
        self.look(node, list(batches))

    def look(self, node: NodeId, appended: list[Batch] | None = None) -> None:
        for checker in self.checkers:
            checker.on_replica(self.world, self[node], appended or [])

    def commit(self, node: NodeId, watermark: int) -> None:
        self[node].watermark = self[node].stable = watermark
        self.look(node)

    def truncate(self, node: NodeId, end: int) -> None:
        replica = self[node]
        removed = [each for each in replica.batches if each.last >= end]
        replica.batches = [each for each in replica.batches if each.last < end]
        replica.end = end
        replica.watermark = replica.stable = min(replica.watermark, end)
        for checker in self.checkers:
            checker.on_truncated(self.world, replica, removed)

    def reopen(
        self,
        node: NodeId,
        kept: list[Batch],
        *,
        safe_end: int | None = None,
        leads_in: int | None = None,
    ) -> None:
        replica = self[node]
        before, replica.batches = replica.batches, kept
        replica.incarnation, replica.leads = f"b{node}#2", leads_in is not None
        replica.leader_epoch = replica.leader_epoch if leads_in is None else leads_in
        replica.end = kept[-1].last + 1 if kept else 0
        for checker in self.checkers:
            checker.on_reopened(self.world, replica, before, safe_end)

    def report(self, kind: str, **facts: object) -> None:
        event = Event(kind, 0, {"partition": str(LOG), **facts})
        for checker in self.checkers:
            checker.on_event(self.world, event)

    def report_lost(
        self, node: NodeId, first: int, end: int, *, committed_below: int, epoch: int = 0
    ) -> None:
        ranges = [{"epoch": epoch, "first": first, "end": end}]
        self.report(RECORDS_LOST, broker=node, ranges=ranges, committed_below=committed_below)

    def at_end(self) -> None:
        for checker in self.checkers:
            checker.at_end(self.world)


def batch(base: int, epoch: int = 0, crc: int | None = None, **fields: int) -> Batch:
    return Batch(base, base, epoch, base if crc is None else crc, **fields)


def three_committed(stage: Stage) -> None:
    for base in range(3):
        for node in ALL:
            stage.append(node, batch(base))
        for node in ALL:
            stage.commit(node, base + 1)


def lose_a_record(stage: Stage) -> None:
    """The first two have committed one batch and written another; the third is elected without."""
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE, TWO)))
    for node in (ONE, TWO):
        stage.append(node, batch(0), batch(1))
    stage.commit(ONE, 1)
    stage[ONE].is_live = stage[TWO].is_live = False
    stage.move(THREE, isr=(THREE,), is_recovering=True, unclean_epoch=LeaderEpoch(1))
    stage.report(UNCLEAN_ELECTION, leader=3, epoch=1, lost_at_least=None)
