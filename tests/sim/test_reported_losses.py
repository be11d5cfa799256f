"""The checker of losses: all losses are reported, and nothing else. Faults are planted."""

from collections.abc import Callable

import pytest

from suwi.model.ids import LeaderEpoch, NodeId
from suwi.sim.checkers import Broken
from tests.sim.stage import ONE, THREE, TWO, Stage, batch, lose_a_record, three_committed


def come_back(stage: Stage, node: NodeId) -> None:
    stage.reopen(node, stage[node].batches)
    stage[node].is_live = True
    stage.truncate(node, 0)


def test_a_replica_that_reports_all_that_it_gives_up_is_right() -> None:
    """The report covers whatever the leader had committed when it was killed."""
    stage = Stage(unclean=True)
    lose_a_record(stage)
    come_back(stage, ONE)
    stage.report_lost(ONE, 0, 2, committed_below=1)
    come_back(stage, TWO)
    stage.report_lost(TWO, 0, 2, committed_below=0)
    stage.at_end()


def test_deleted_records_need_not_be_reported_though_their_batch_goes() -> None:
    """Simulation seed 35007: the log starts within the batch that is truncated as a whole, and
    so starts before it afterwards."""
    stage = Stage(unclean=True)
    lose_a_record(stage)
    stage[ONE].start_before = 1
    come_back(stage, ONE)
    stage.at_end()


def test_a_process_that_is_killed_before_its_report_is_excused() -> None:
    stage = Stage(unclean=True)
    lose_a_record(stage)
    come_back(stage, ONE)
    stage.reopen(ONE, [])
    stage[ONE].incarnation = "b1#3"
    stage.at_end()


def a_loss_that_is_not_reported(stage: Stage) -> None:
    come_back(stage, ONE)
    stage.at_end()


def a_loss_of_which_only_a_part_is_reported(stage: Stage) -> None:
    stage[ONE].leads, stage[ONE].leader_epoch = True, 0  # It does not know of the election yet.
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
    a_loss_that_is_not_reported: r"truncated \[0\]",
    a_loss_of_which_only_a_part_is_reported: r"truncated \[1\]",
    a_loss_that_another_has_reported: "on b2 truncated",
    a_report_of_what_was_never_committed: "but it is not",
    a_report_of_what_was_not_given_up: "did not truncate it",
    a_report_of_what_came_after_the_election: "not written before",
}


@pytest.mark.parametrize("plant", PLANTED_LOSSES, ids=lambda plant: plant.__name__)
def test_a_loss_that_is_reported_wrongly_is_found(plant: Callable[[Stage], None]) -> None:
    stage = Stage(unclean=True)
    lose_a_record(stage)
    with pytest.raises(Broken, match=PLANTED_LOSSES[plant]):
        plant(stage)


def test_the_report_of_a_replica_whose_disk_failed_in_the_truncation_is_accepted() -> None:
    """Simulation seed 33125: it truncates, and the sync of the truncation fails."""
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
    stage.move(TWO, isr=(TWO,), is_recovering=True, unclean_epoch=LeaderEpoch(1))
    assert stage.committed.losses == []
    stage[THREE].is_live = True
    isr = (TWO, THREE)
    stage.change(stage.state._replace(partition_epoch=9, isr=isr, is_recovering=False))
    stage.move(THREE)
    stage.commit(THREE, 3)
