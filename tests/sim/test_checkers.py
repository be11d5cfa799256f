"""Each checker is itself checked: a good cluster passes, and every planted fault is found."""

from collections.abc import Callable
from uuid import UUID

import pytest

from suwi.controller.events import RECORDS_LOST, UNCLEAN_ELECTION, Event
from suwi.metadata.image import PartitionState
from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId, PartitionIndex, TopicPartition
from suwi.sim.checkers import Broken, Committed, all_checkers
from suwi.sim.checkers.facts import Batch, LogId, Replica, Rules, StateChange, World

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
ALL = (ONE, TWO, THREE)
LOG = LogId(UUID(int=1), TopicPartition("orders", PartitionIndex(0)))


class Stage:
    """Three replicas of one partition, led by b1 in epoch 0, and the checkers that look at them."""

    def __init__(self, *, unclean: bool = False) -> None:
        self.world = World()
        self.committed = Committed()
        self.checkers = all_checkers(self.committed)
        self.world.rules[LOG.topic_id] = Rules(2, unclean)
        self.elect(ONE)
        self.change(PartitionState(ONE, LeaderEpoch(0), 0, ALL, ALL), author=ONE)
        for node in ALL:
            self.world.replicas[node, LOG] = Replica(
                node, LOG, life=f"b{node}#1", leads=node == ONE, leader_epoch=0
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
        """A clean election, told to everybody."""
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

    def reopen(self, node: NodeId, kept: list[Batch], *, safe_end: int | None = None) -> None:
        replica = self[node]
        before, replica.batches = replica.batches, kept
        replica.life, replica.leads = f"b{node}#2", False
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


def test_a_cluster_that_does_everything_right_passes() -> None:
    stage = Stage()
    three_committed(stage)
    stage.append(ONE, batch(3))
    stage[ONE].is_live = False
    stage.elect(TWO)
    stage.move(TWO, isr=(TWO, THREE))
    for node in (TWO, THREE):
        stage.append(node, batch(3, epoch=1, crc=77))
    stage.commit(TWO, 4)
    stage.commit(THREE, 4)
    stage.reopen(ONE, stage[ONE].batches)
    stage.truncate(ONE, 3)
    stage.append(ONE, batch(3, epoch=1, crc=77))
    stage.commit(ONE, 4)
    stage.change(stage.state._replace(partition_epoch=9, isr=ALL), author=TWO)
    stage.at_end()


def test_after_a_power_loss_counts_what_a_replica_had_and_not_what_it_never_had() -> None:
    """The leader cannot know yet that a member lost what it has told to have."""
    stage = Stage()
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE, TWO)))
    for node in (ONE, TWO):
        stage.append(node, batch(0))
    stage[TWO].is_suspect = True
    stage.reopen(TWO, [], safe_end=0)
    stage.commit(ONE, 1)
    stage.append(ONE, batch(1))
    with pytest.raises(Broken, match="only"):
        stage.commit(ONE, 2)


# -- planted faults -------------------------------------------------------------------------------


def a_lost_record(stage: Stage) -> None:
    three_committed(stage)
    stage.truncate(TWO, 2)


def a_record_that_is_missing_at_the_end(stage: Stage) -> None:
    three_committed(stage)
    stage[TWO].batches.pop()
    stage[TWO].end = 2
    stage.at_end()


def two_values_at_one_offset(stage: Stage) -> None:
    three_committed(stage)
    stage[TWO].batches.pop()
    stage[THREE].batches.pop()
    stage[ONE].leads = False
    stage[TWO].leads, stage[TWO].leader_epoch = True, 1
    stage.append(TWO, batch(2, epoch=1, crc=9))
    stage.commit(TWO, 3)


def replicas_that_differ(stage: Stage) -> None:
    three_committed(stage)
    stage[THREE].batches[1] = batch(1, crc=9)
    stage.at_end()


def a_follower_that_counts_what_no_leader_committed(stage: Stage) -> None:
    stage.append(ONE, batch(0))
    stage.append(TWO, batch(0))
    stage.commit(TWO, 1)


def a_commit_that_one_replica_has(stage: Stage) -> None:
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE,)))
    stage.append(ONE, batch(0))
    stage.commit(ONE, 1)


def a_commit_that_a_member_does_not_have(stage: Stage) -> None:
    for node in (ONE, TWO):
        stage.append(node, batch(0))
    stage.commit(ONE, 1)


def a_member_let_in_without_what_is_committed(stage: Stage) -> None:
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE, TWO)))
    for node in (ONE, TWO):
        stage.append(node, batch(0))
    stage.commit(ONE, 1)
    stage.change(stage.state._replace(partition_epoch=2, isr=ALL))


def a_suspect_elected_without_what_is_committed(stage: Stage) -> None:
    three_committed(stage)
    stage[TWO].is_suspect = True
    stage.reopen(TWO, stage[TWO].batches[:2], safe_end=2)
    stage.move(TWO)


def a_watermark_that_falls(stage: Stage) -> None:
    three_committed(stage)
    stage.commit(ONE, 2)


def a_watermark_beyond_the_end(stage: Stage) -> None:
    stage.commit(ONE, 1)


def a_stable_offset_beyond_the_watermark(stage: Stage) -> None:
    stage.append(ONE, batch(0))
    stage[ONE].stable = 1
    stage.look(ONE)


def two_leaders(stage: Stage) -> None:
    stage.look(ONE)
    stage[TWO].leads = True
    stage.look(TWO)


def a_leader_in_the_epoch_of_its_last_life(stage: Stage) -> None:
    stage.look(ONE)
    stage[ONE].life = "b1#2"
    stage.look(ONE)


def an_append_that_no_leader_made(stage: Stage) -> None:
    stage.append(TWO, batch(0))


def an_append_from_the_future(stage: Stage) -> None:
    stage.append(ONE, batch(0))
    stage.append(TWO, batch(0, epoch=4))


def a_leader_that_writes_an_offset_twice(stage: Stage) -> None:
    stage.append(ONE, batch(0))
    stage[ONE].batches.pop()
    stage.append(ONE, batch(0, crc=9))


def a_gap(stage: Stage) -> None:
    stage.append(ONE, batch(0))
    stage.append(ONE, batch(2))


def an_epoch_that_falls(stage: Stage) -> None:
    stage.move(ONE)
    stage.append(ONE, batch(0, epoch=1))
    stage.append(ONE, batch(1, epoch=0))


def epochs_that_the_log_does_not_have(stage: Stage) -> None:
    three_committed(stage)
    stage[ONE].epochs = [(0, 2)]
    stage.at_end()


def a_duplicate(stage: Stage) -> None:
    for base in range(2):
        for node in ALL:
            stage.append(node, batch(base, producer_id=7, producer_epoch=0, sequence=0))
        for node in ALL:
            stage.commit(node, base + 1)
    stage.at_end()


def a_reordering(stage: Stage) -> None:
    for base, sequence in ((0, 0), (1, 2), (2, 1)):
        for node in ALL:
            stage.append(node, batch(base, producer_id=7, producer_epoch=0, sequence=sequence))
        for node in ALL:
            stage.commit(node, base + 1)
    stage.at_end()


def a_crash_that_loses_what_was_written(stage: Stage) -> None:
    three_committed(stage)
    stage.reopen(TWO, stage[TWO].batches[:2])


def a_power_loss_that_loses_what_was_synced(stage: Stage) -> None:
    three_committed(stage)
    stage.reopen(TWO, stage[TWO].batches[:1], safe_end=2)


def a_recovery_that_invents(stage: Stage) -> None:
    three_committed(stage)
    stage.reopen(TWO, [*stage[TWO].batches[:2], batch(2, crc=9)])


def a_recovery_that_finds_more_than_was_written(stage: Stage) -> None:
    three_committed(stage)
    stage.reopen(TWO, [*stage[TWO].batches, batch(3)])


def a_record_of_a_deleted_topic(stage: Stage) -> None:
    stage.append(ONE, batch(0, crc=4711))
    recreated = LogId(UUID(int=2), LOG.name)
    stage.world.replicas[TWO, LOG] = Replica(TWO, recreated, leader_epoch=0)
    stage.append(TWO, batch(0, crc=4711))


def an_election_from_outside(stage: Stage) -> None:
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE, TWO)))
    stage.change(
        stage.state._replace(
            leader=THREE, leader_epoch=LeaderEpoch(1), partition_epoch=2, isr=(THREE,)
        )
    )


def an_unclean_election_that_nobody_allowed(stage: Stage) -> None:
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE, TWO)))
    stage.change(
        stage.state._replace(
            leader=THREE,
            leader_epoch=LeaderEpoch(1),
            partition_epoch=2,
            isr=(THREE,),
            recovering=True,
            unclean_epoch=LeaderEpoch(1),
        )
    )


def a_leader_change_in_the_same_epoch(stage: Stage) -> None:
    stage.change(stage.state._replace(leader=TWO, partition_epoch=1))


def a_leader_epoch_that_falls(stage: Stage) -> None:
    stage.move(TWO)
    stage.change(stage.state._replace(leader_epoch=LeaderEpoch(0), partition_epoch=9))


def a_partition_epoch_that_stays(stage: Stage) -> None:
    stage.change(stage.state._replace(isr=(ONE, TWO)))


def an_empty_in_sync_set(stage: Stage) -> None:
    stage.change(stage.state._replace(leader=NO_NODE, partition_epoch=1, isr=()))


def a_stranger_in_sync(stage: Stage) -> None:
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE, NodeId(4))))


def a_leader_that_is_not_in_sync(stage: Stage) -> None:
    stage.change(stage.state._replace(partition_epoch=1, isr=(TWO, THREE)))


def a_deposed_controller_that_writes(stage: Stage) -> None:
    stage.elect(TWO)
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE, TWO)), author=ONE)


def a_controller_epoch_twice(stage: Stage) -> None:
    for checker in stage.checkers:
        checker.on_controller(stage.world, 1)


PLANTED: dict[Callable[[Stage], None], str] = {
    a_lost_record: "truncates",
    a_record_that_is_missing_at_the_end: "does not have",
    two_values_at_one_offset: "committed was",
    replicas_that_differ: "does not have|differ",
    a_follower_that_counts_what_no_leader_committed: "no leader did",
    a_commit_that_one_replica_has: "only",
    a_commit_that_a_member_does_not_have: "does not have",
    a_member_let_in_without_what_is_committed: "does not have",
    a_suspect_elected_without_what_is_committed: "is elected without",
    a_watermark_that_falls: "the watermark falls",
    a_watermark_beyond_the_end: "does not hold",
    a_stable_offset_beyond_the_watermark: "does not hold",
    two_leaders: "two leaders",
    a_leader_in_the_epoch_of_its_last_life: "two leaders",
    an_append_that_no_leader_made: "the leader of that epoch wrote",
    an_append_from_the_future: "in epoch 0, takes in",
    a_leader_that_writes_an_offset_twice: "was written in that epoch",
    a_gap: "does not follow on",
    an_epoch_that_falls: "the epoch falls",
    epochs_that_the_log_does_not_have: "is not in the epochs",
    a_duplicate: "sequence",
    a_reordering: "sequence",
    a_crash_that_loses_what_was_written: "recovery lost",
    a_power_loss_that_loses_what_was_synced: "recovery lost",
    a_recovery_that_invents: "recovery made",
    a_recovery_that_finds_more_than_was_written: "recovery found",
    a_record_of_a_deleted_topic: "of an earlier topic",
    an_election_from_outside: "outside the in-sync set",
    an_unclean_election_that_nobody_allowed: "outside the in-sync set",
    a_leader_change_in_the_same_epoch: "the same epoch",
    a_leader_epoch_that_falls: "the leader epoch falls",
    a_partition_epoch_that_stays: "does not rise",
    an_empty_in_sync_set: "nobody in sync",
    a_stranger_in_sync: "strangers",
    a_leader_that_is_not_in_sync: "not in sync",
    a_deposed_controller_that_writes: "is the controller",
    a_controller_epoch_twice: "controller epoch",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[Stage], None]) -> None:
    with pytest.raises(Broken, match=PLANTED[plant]):
        plant(Stage())


def test_an_unclean_election_that_is_allowed_gives_up_what_the_leader_lacks() -> None:
    stage = Stage(unclean=True)
    lose_a_record(stage)
    assert [(loss.first, loss.end) for loss in stage.committed.losses] == [(0, 1)]
    assert stage.committed.end_of(LOG) == 0


def lose_a_record(stage: Stage) -> None:
    """The first two have committed one and written another; the third is elected without them."""
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE, TWO)))
    for node in (ONE, TWO):
        stage.append(node, batch(0), batch(1))
    stage.commit(ONE, 1)
    stage[ONE].is_live = stage[TWO].is_live = False
    stage.move(THREE, isr=(THREE,), recovering=True, unclean_epoch=LeaderEpoch(1))
    stage.report(UNCLEAN_ELECTION, leader=3, epoch=1, lost_at_least=None)


def come_back(stage: Stage, node: NodeId) -> None:
    stage.reopen(node, stage[node].batches)
    stage[node].is_live = True
    stage.truncate(node, 0)


def test_a_replica_that_reports_all_that_it_gives_up_is_right() -> None:
    """Whatever the leader had committed when it died, it is among that."""
    stage = Stage(unclean=True)
    lose_a_record(stage)
    come_back(stage, ONE)
    stage.report_lost(ONE, 0, 2, committed_below=1)
    come_back(stage, TWO)
    stage.report_lost(TWO, 0, 2, committed_below=0)
    stage.at_end()


def test_deleted_records_need_not_be_reported_though_their_batch_goes() -> None:
    """Simulation seed 35007: the log starts within the batch that the truncation takes whole, and
    so starts before it afterwards."""
    stage = Stage(unclean=True)
    lose_a_record(stage)
    stage[ONE].start_before = 1
    come_back(stage, ONE)
    stage.at_end()


def test_a_process_that_dies_with_its_report_is_forgiven() -> None:
    stage = Stage(unclean=True)
    lose_a_record(stage)
    come_back(stage, ONE)
    stage.reopen(ONE, [])
    stage[ONE].life = "b1#3"
    stage.at_end()


def a_loss_that_is_not_reported(stage: Stage) -> None:
    come_back(stage, ONE)
    stage.at_end()


def a_loss_of_which_only_a_part_is_reported(stage: Stage) -> None:
    stage[ONE].leads, stage[ONE].leader_epoch = True, 0  # It has not heard of the election yet.
    stage.commit(ONE, 2)
    come_back(stage, ONE)
    stage.report_lost(ONE, 0, 1, committed_below=1)
    stage.at_end()


def a_loss_that_another_has_reported(stage: Stage) -> None:
    come_back(stage, ONE)
    come_back(stage, TWO)
    stage.report_lost(ONE, 0, 2, committed_below=1)
    stage.at_end()


def a_report_of_what_was_never_committed(stage: Stage) -> None:
    come_back(stage, ONE)
    stage.report_lost(ONE, 0, 2, committed_below=2)


def a_report_of_what_was_not_given_up(stage: Stage) -> None:
    come_back(stage, ONE)
    stage.report_lost(ONE, 0, 3, committed_below=1)


def a_report_of_what_came_after_the_election(stage: Stage) -> None:
    for node in (THREE, TWO):
        if node == TWO:
            come_back(stage, TWO)
            stage[TWO].epochs = []
        stage.append(node, batch(0, epoch=1, crc=77))
    stage.truncate(TWO, 0)
    stage.report_lost(TWO, 0, 1, committed_below=0, epoch=1)


PLANTED_LOSSES: dict[Callable[[Stage], None], str] = {
    a_loss_that_is_not_reported: r"gave up \[0\]",
    a_loss_of_which_only_a_part_is_reported: r"gave up \[1\]",
    a_loss_that_another_has_reported: "on b2 gave up",
    a_report_of_what_was_never_committed: "but it is not",
    a_report_of_what_was_not_given_up: "did not give it up",
    a_report_of_what_came_after_the_election: "not written before",
}


@pytest.mark.parametrize("plant", PLANTED_LOSSES, ids=lambda plant: plant.__name__)
def test_a_loss_that_is_reported_wrongly_is_found(plant: Callable[[Stage], None]) -> None:
    stage = Stage(unclean=True)
    lose_a_record(stage)
    with pytest.raises(Broken, match=PLANTED_LOSSES[plant]):
        plant(stage)


def test_the_election_of_a_life_that_is_over_is_no_fault_of_the_next() -> None:
    """Found by the simulation: a preferred leader lost power, started again, and was elected before
    the controller had heard of either."""
    stage = Stage()
    three_committed(stage)
    stage.world.lives[TWO] = stage[TWO].life
    stage[TWO].is_suspect = True
    stage.reopen(TWO, stage[TWO].batches[:2], safe_end=2)
    stage.move(TWO)
    stage.world.lives[TWO] = stage[TWO].life
    with pytest.raises(Broken, match="is elected without"):
        stage.move(TWO)


def test_a_dead_member_need_not_have_everything() -> None:
    stage = Stage()
    stage[THREE].is_live = False
    for node in (ONE, TWO):
        stage.append(node, batch(0))
    stage.commit(ONE, 1)


def test_a_follower_without_a_record_may_begin_its_copy_anew_further_back() -> None:
    """Simulation seed 24680: the leader's log starts in the middle of a batch, a full disk keeps
    the follower from taking that batch in after it has made room for it."""
    stage = Stage()
    follower = stage[TWO]
    for at in (53, 51):
        follower.start = follower.end = at
        stage.commit(TWO, at)


def test_what_a_replica_gave_up_whose_disk_failed_in_it_is_believed() -> None:
    """Simulation seed 33125: it truncates, and the sync of that fails."""
    stage = Stage(unclean=True)
    lose_a_record(stage)
    stage[ONE].is_live = stage[ONE].is_offline = True
    stage.report_lost(ONE, 0, 2, committed_below=1)


def test_what_an_unclean_leader_has_deleted_is_not_lost_and_may_be_seen_again() -> None:
    """Simulation seed 33078: a crash moves the start of another replica's log back."""
    stage = Stage(unclean=True)
    three_committed(stage)
    stage.append(ONE, batch(3))
    stage[TWO].batches = stage[TWO].batches[1:]
    stage[TWO].start = 1
    stage[ONE].is_live = stage[THREE].is_live = False
    stage.move(TWO, isr=(TWO,), recovering=True, unclean_epoch=LeaderEpoch(1))
    assert stage.committed.losses == []
    stage[THREE].is_live = True
    isr = (TWO, THREE)
    stage.change(stage.state._replace(partition_epoch=9, isr=isr, recovering=False))
    stage.move(THREE)
    stage.commit(THREE, 3)
