"""The checkers are tested: a correct cluster passes, and every planted fault is found."""

from collections.abc import Callable
from uuid import UUID

import pytest

from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId
from suwi.sim.checkers import Broken
from suwi.sim.checkers.facts import LogId, Replica, Rules, StateChange
from tests.sim.stage import (
    ALL,
    FOUR,
    LOG,
    ONE,
    THREE,
    TWO,
    Stage,
    batch,
    lose_a_record,
    three_committed,
)


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
    """The leader cannot know yet that a member lost what it had fetched."""
    stage = Stage()
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE, TWO)))
    for node in (ONE, TWO):
        stage.append(node, batch(0))
    stage[TWO].was_unclean_shutdown = True
    stage.reopen(TWO, [], safe_end=0)
    stage.commit(ONE, 1)
    stage.append(ONE, batch(1))
    with pytest.raises(Broken, match="only"):
        stage.commit(ONE, 2)


def test_the_replica_that_completes_a_reassignment_may_lead() -> None:
    stage = Stage()
    reassigning(stage, (THREE, TWO), isr=(ONE, TWO))
    completed(stage, THREE, THREE, TWO)
    for checker in stage.checkers:
        checker.on_deleted(stage.world, stage[ONE])


def test_the_only_replica_may_open_its_log_and_append_in_one_step() -> None:
    stage = Stage()
    three_committed(stage)
    stage.reopen(ONE, [*stage[ONE].batches, batch(3, epoch=1)], leads_in=1)


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


def an_unclean_replica_elected_without_what_is_committed(stage: Stage) -> None:
    three_committed(stage)
    stage[TWO].was_unclean_shutdown = True
    stage.reopen(TWO, stage[TWO].batches[:2], safe_end=2)
    stage.move(TWO)


def a_watermark_that_falls(stage: Stage) -> None:
    three_committed(stage)
    stage.commit(ONE, 2)


def a_watermark_that_falls_out_of_sync(stage: Stage) -> None:
    """What is committed is in every log in which it once was: the leader has it."""
    three_committed(stage)
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE, TWO)))
    stage.truncate(THREE, 2)
    stage.look(THREE)


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


def a_leader_in_the_epoch_of_its_earlier_incarnation(stage: Stage) -> None:
    stage.look(ONE)
    stage[ONE].incarnation = "b1#2"
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


def a_recovery_that_finds_more_than_its_leader_appended(stage: Stage) -> None:
    three_committed(stage)
    stage.reopen(ONE, [*stage[ONE].batches, batch(3)], leads_in=1)


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


def reassigning(stage: Stage, target: tuple[NodeId, ...], isr: tuple[NodeId, ...]) -> None:
    """From b1 and b2 to the target."""
    stage.world.states[LOG] = stage.state._replace(replicas=(ONE, TWO), isr=isr)
    everyone = tuple(dict.fromkeys((*target, ONE, TWO)))
    stage.change(
        stage.state._replace(
            partition_epoch=1,
            replicas=everyone,
            adding_replicas=tuple(node for node in everyone if node not in (ONE, TWO)),
            removing_replicas=tuple(node for node in everyone if node not in target),
        )
    )


def completed(stage: Stage, leader: NodeId, *replicas: NodeId) -> None:
    stage.change(
        stage.state._replace(
            leader=leader,
            leader_epoch=LeaderEpoch(1),
            partition_epoch=2,
            replicas=replicas,
            isr=replicas,
            adding_replicas=(),
            removing_replicas=(),
        )
    )


def a_completed_reassignment_that_elects_from_outside(stage: Stage) -> None:
    """Two replicas join at once; a leader adds one at a time."""
    reassigning(stage, (FOUR, THREE), isr=(ONE,))
    completed(stage, FOUR, FOUR, THREE)


def a_cancelled_reassignment_that_elects_from_outside(stage: Stage) -> None:
    reassigning(stage, (THREE, TWO), isr=(ONE,))
    completed(stage, TWO, TWO, ONE)


def replicas_removed_in_the_same_epoch(stage: Stage) -> None:
    stage.change(stage.state._replace(partition_epoch=1, replicas=(ONE, TWO), isr=(ONE, TWO)))


def a_target_that_is_final_before_it_is_in_sync(stage: Stage) -> None:
    reassigning(stage, (THREE, ONE), isr=(ONE,))
    final = stage.state._replace(adding_replicas=(), removing_replicas=(), replicas=(THREE, ONE))
    stage.change(final._replace(partition_epoch=2, leader_epoch=LeaderEpoch(1)))


def a_log_that_is_deleted_while_it_is_in_sync(stage: Stage) -> None:
    for checker in stage.checkers:
        checker.on_deleted(stage.world, stage[THREE])


def an_unclean_election_that_nobody_allowed(stage: Stage) -> None:
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE, TWO)))
    stage.change(
        stage.state._replace(
            leader=THREE,
            leader_epoch=LeaderEpoch(1),
            partition_epoch=2,
            isr=(THREE,),
            is_recovering=True,
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


def a_broker_in_sync_that_is_no_replica(stage: Stage) -> None:
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
    an_unclean_replica_elected_without_what_is_committed: "is elected without",
    a_watermark_that_falls: "the high watermark decreases",
    a_watermark_that_falls_out_of_sync: "the high watermark decreases",
    a_watermark_beyond_the_end: "does not hold",
    a_stable_offset_beyond_the_watermark: "does not hold",
    two_leaders: "two leaders",
    a_leader_in_the_epoch_of_its_earlier_incarnation: "two leaders",
    an_append_that_no_leader_made: "the leader of that epoch wrote",
    an_append_from_the_future: "in epoch 0, appends",
    a_leader_that_writes_an_offset_twice: "was written in that epoch",
    a_gap: "does not follow",
    an_epoch_that_falls: "the epoch decreases",
    epochs_that_the_log_does_not_have: "is not in the epochs",
    a_duplicate: "sequence",
    a_reordering: "sequence",
    a_crash_that_loses_what_was_written: "recovery lost",
    a_power_loss_that_loses_what_was_synced: "recovery lost",
    a_recovery_that_invents: "recovery turned",
    a_recovery_that_finds_more_than_was_written: "recovery found",
    a_recovery_that_finds_more_than_its_leader_appended: "recovery found",
    a_record_of_a_deleted_topic: "of an earlier topic",
    an_election_from_outside: "outside the ISR",
    a_completed_reassignment_that_elects_from_outside: "outside the ISR",
    a_cancelled_reassignment_that_elects_from_outside: "outside the ISR",
    replicas_removed_in_the_same_epoch: "removed in the same epoch",
    a_target_that_is_final_before_it_is_in_sync: "is final",
    a_log_that_is_deleted_while_it_is_in_sync: "is deleted",
    an_unclean_election_that_nobody_allowed: "outside the ISR",
    a_leader_change_in_the_same_epoch: "the same epoch",
    a_leader_epoch_that_falls: "the leader epoch decreases",
    a_partition_epoch_that_stays: "does not increase",
    an_empty_in_sync_set: "empty ISR",
    a_broker_in_sync_that_is_no_replica: "that are no replicas",
    a_leader_that_is_not_in_sync: "not in sync",
    a_deposed_controller_that_writes: "is the controller",
    a_controller_epoch_twice: "controller epoch",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[Stage], None]) -> None:
    with pytest.raises(Broken, match=PLANTED[plant]):
        plant(Stage())


def test_a_damaged_log_is_discarded_out_of_sync_with_its_watermark() -> None:
    stage = Stage()
    three_committed(stage)
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE, TWO)))
    stage.truncate(THREE, 0)
    stage.look(THREE)


def test_an_unclean_election_that_is_allowed_gives_up_what_the_leader_lacks() -> None:
    stage = Stage(unclean=True)
    lose_a_record(stage)
    assert [(loss.first, loss.end) for loss in stage.committed.losses] == [(0, 1)]
    assert stage.committed.end_of(LOG) == 0


@pytest.mark.parametrize(
    ("incarnation", "is_live", "was_unclean_shutdown"),
    [("b2#2", False, True), ("b2#3", True, True), ("b2#2", True, False), ("b2#1", False, False)],
    ids=["just died", "just began", "goes on", "another is registered"],
)
def test_a_replica_that_joins_has_everything_unless_its_incarnation_has_just_ended(
    incarnation: str, is_live: bool, was_unclean_shutdown: bool
) -> None:
    """Simulation seed 80965: a replica was about to join when it lost power, and the checker
    blamed it for what it had lost. If the next incarnation is registered already, it must."""
    stage = Stage()
    stage.world.incarnations = {TWO: "b2#2"}
    replica = stage[TWO]
    replica.incarnation, replica.is_live, replica.was_unclean_shutdown = incarnation, is_live, True
    before = stage.state._replace(isr=(ONE, THREE))
    stage.world.clear_unclean_shutdown(StateChange(LOG, before, stage.state))
    assert replica.was_unclean_shutdown == was_unclean_shutdown


def test_what_an_unclean_election_gave_up_may_come_back_with_the_next() -> None:
    """Simulation seed 61325: of two replicas one lost its disk and led, then the other led again
    and showed what it had shown before."""
    stage = Stage(unclean=True)
    lose_a_record(stage)
    stage[ONE].is_live, stage[THREE].is_live = True, False
    unclean_epoch = LeaderEpoch(2)
    stage.move(ONE, isr=(ONE,), is_recovering=True, unclean_epoch=unclean_epoch)
    stage[TWO].batches = []
    stage.look(ONE)
    assert stage.committed.end_of(LOG) == 1


def test_the_election_of_an_ended_incarnation_is_no_fault_of_the_next() -> None:
    """Found by the simulation: a preferred leader lost power, started again, and was elected before
    the controller knew of either."""
    stage = Stage()
    three_committed(stage)
    stage.world.incarnations[TWO] = stage[TWO].incarnation
    stage[TWO].was_unclean_shutdown = True
    stage.reopen(TWO, stage[TWO].batches[:2], safe_end=2)
    stage.move(TWO)
    stage.world.incarnations[TWO] = stage[TWO].incarnation
    with pytest.raises(Broken, match="is elected without"):
        stage.move(TWO)


def test_a_deleted_segment_may_come_back_with_a_power_loss_but_not_with_a_crash() -> None:
    """Simulation seeds 25 and 102502: the deletion was not synced."""
    stage = Stage()
    three_committed(stage)
    everything = list(stage[TWO].batches)
    stage[TWO].batches = everything[1:]
    stage.reopen(TWO, everything, safe_end=3)
    stage[TWO].batches = everything[1:]
    with pytest.raises(Broken, match="recovery turned"):
        stage.reopen(TWO, everything)


def test_a_dead_member_need_not_have_everything() -> None:
    stage = Stage()
    stage[THREE].is_live = False
    for node in (ONE, TWO):
        stage.append(node, batch(0))
    stage.commit(ONE, 1)


def test_a_member_whose_disk_failed_has_what_it_appended_in_that_step() -> None:
    """Simulation seed 1894: it had told its leader so before the next write failed."""
    stage = Stage()
    for node in (ONE, TWO):
        stage.append(node, batch(0))
    stage[THREE].is_offline, stage[THREE].offline_end = True, 1
    stage.commit(ONE, 1)
    for node in (ONE, TWO):
        stage.append(node, batch(1))
    with pytest.raises(Broken, match="is in sync, but does not have"):
        stage.commit(ONE, 2)


def test_a_follower_without_a_record_may_begin_its_copy_anew_further_back() -> None:
    """Simulation seed 24680: the leader's log starts in the middle of a batch, and a full disk
    refuses that batch after the follower has truncated its log for it."""
    stage = Stage()
    follower = stage[TWO]
    for at in (53, 51):
        follower.start = follower.end = at
        stage.commit(TWO, at)


def test_a_raised_minimum_counts_from_when_the_leader_has_heard_of_it() -> None:
    stage = Stage()
    stage.world.rules[LOG.topic_id].append((7, Rules(3)))
    stage.change(stage.state._replace(partition_epoch=1, isr=(ONE, TWO)))
    stage[ONE].image_sequence = 6
    for node in (ONE, TWO):
        stage.append(node, batch(0), batch(1))
    stage.commit(ONE, 1)
    stage[ONE].image_sequence = 7
    with pytest.raises(Broken, match="have it, not 3"):
        stage.commit(ONE, 2)
