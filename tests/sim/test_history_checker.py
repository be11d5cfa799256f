"""The checker of client histories is tested: each planted fault is found, under its name."""

import pytest

from simulation.history import History
from simulation.history_checker import CHECKS, violations

P = "orders-0"


def a_good_history() -> History:
    """Two writers, of which one is idempotent, a transaction of each kind, two readers."""
    history = History()
    history.begin("paid")
    history.begin("dropped")
    history.begin("unclear")
    stored: list[tuple[int, bytes]] = []
    for number in range(6):
        write = history.send("w1", P, b"a%d" % number, idempotent=True)
        write.acked(len(stored))
        stored.append((len(stored), write.value))
        write = history.send("w2", P, b"b%d" % number, acks=1)
        stored.append((len(stored), write.value))
    for value in (b"c0", b"c1"):
        write = history.send("w3", P, value, idempotent=True, transaction="paid")
        write.acked(len(stored))
        stored.append((len(stored), value))
    history.committed("paid")
    history.send("w3", P, b"d0", idempotent=True, transaction="dropped").acked(14)
    history.aborted("dropped")
    history.send("w3", P, b"e0", idempotent=True, transaction="unclear")
    history.send("w4", P, b"f0").refused()
    reader = history.reader("r1", committed_only=True)
    dirty = history.reader("r2")
    reader.start_at(P, 0)
    dirty.start_at(P, 8)
    for offset, value in stored:
        reader.saw(P, offset, value)
        if offset >= 8:
            dirty.saw(P, offset, value)
    dirty.saw(P, 14, b"d0")
    reader.finished()
    history.final(P, stored, timestamps=[(offset, 1000 + offset) for offset, _ in stored])
    return history


def found(history: History) -> set[str]:
    return {violation.kind for violation in violations(history)}


def test_a_good_history_has_nothing_wrong() -> None:
    assert violations(a_good_history()) == []


def _look_up_wrongly(history: History) -> None:
    history.looked_up("c", P, 1002, offset=3, timestamp=1003, leader_epoch=0)


def _let_the_end_fall(history: History) -> None:
    for offset, epoch in ((10, 3), (9, 4)):
        history.looked_up("c", P, -1, offset=offset, timestamp=-1, leader_epoch=epoch)


def _lose(history: History) -> None:
    del history.finals[P].records[0]


def _put_another_value(history: History) -> None:
    history.send("w9", P, b"z0")
    history.finals[P].records[4] = b"z0"


def _invent(history: History) -> None:
    history.finals[P].records[20] = b"nobody sent this"


def _store_what_was_refused(history: History) -> None:
    history.finals[P].records[20] = b"f0"


def _put_into_another_partition(history: History) -> None:
    history.final("orders-1", [(0, b"a0")])


def _store_twice(history: History) -> None:
    history.finals[P].records[20] = b"a3"


def _give_twice_at_other_offsets(history: History) -> None:
    history.readings[0].saw(P, 30, b"a3")


def _reorder_writes(history: History) -> None:
    records = history.finals[P].records
    records[0], records[2] = records[2], records[0]


def _show_what_was_aborted(history: History) -> None:
    history.finals[P].records[14] = b"d0"


def _tear_a_commit(history: History) -> None:
    del history.finals[P].records[13]


def _tear_what_is_unclear(history: History) -> None:
    history.send("w3", P, b"e1", idempotent=True, transaction="unclear")
    history.finals[P].records[15] = b"e0"


def _give_what_is_not_committed(history: History) -> None:
    history.send("w9", P, b"z0")
    history.readings[0].saw(P, 17, b"z0")


def _give_out_of_order(history: History) -> None:
    events = history.readings[0].events[P]
    events[2], events[3] = events[3], events[2]


def _give_the_same_again(history: History) -> None:
    events = history.readings[0].events[P]
    events.insert(5, events[4])


def _skip_between_polls(history: History) -> None:
    del history.readings[0].events[P][5]


def _skip_the_first(history: History) -> None:
    del history.readings[1].events[P][1]


def _leave_the_last_unseen(history: History) -> None:
    del history.readings[0].events[P][-1]


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (_lose, "lost"),
        (_look_up_wrongly, "wrong look-up"),
        (_let_the_end_fall, "newest offset fell"),
        (_put_another_value, "two values"),
        (_invent, "invented"),
        (_store_what_was_refused, "invented"),
        (_put_into_another_partition, "invented"),
        (_store_twice, "duplicate"),
        (_give_twice_at_other_offsets, "duplicate"),
        (_reorder_writes, "reordered write"),
        (_show_what_was_aborted, "aborted read"),
        (_tear_a_commit, "torn transaction"),
        (_tear_what_is_unclear, "torn transaction"),
        (_give_what_is_not_committed, "uncommitted read"),
        (_give_out_of_order, "reordered read"),
        (_give_the_same_again, "reordered read"),
        (_skip_between_polls, "skipped"),
        (_skip_the_first, "skipped"),
        (_leave_the_last_unseen, "unseen"),
    ],
)
def test_a_planted_fault_is_found(plant, kind) -> None:  # type: ignore[no-untyped-def]
    history = a_good_history()
    plant(history)
    assert kind in found(history)


def test_what_was_deleted_before_a_reader_came_there_may_be_back_after_a_crash() -> None:
    history = History()
    for offset in range(4):
        history.send("w", "t-0", b"%d" % offset).acked(offset)
    reader = history.reader("r")
    reader.start_at("t-0", 0)
    reader.saw("t-0", 0, b"0")
    reader.start_at("t-0", 3)
    reader.saw("t-0", 3, b"3")
    reader.finished()
    history.final("t-0", [(offset, b"%d" % offset) for offset in range(4)])
    assert found(history) == {"unseen"}
    history.delete("t-0", 2)
    assert found(history) == {"unseen"}
    history.delete("t-0", 3)
    assert found(history) == set()
    history.delete("t-0", 4)
    reader.events["t-0"].pop()
    assert found(history) == {"unseen"}, "nobody told it that the last one is deleted"


def test_a_write_that_was_reported_lost_may_be_stored_again() -> None:
    """A cluster with unclean elections lost it before it was acknowledged; the writer retried."""
    history = History()
    history.send("w", "t-0", b"a", idempotent=True).acked(13)
    reader = history.reader("r")
    reader.start_at("t-0", 11)
    reader.saw("t-0", 11, b"a")
    reader.start_at("t-0", 11)
    reader.saw("t-0", 13, b"a")
    history.final("t-0", [(13, b"a")], start=11)
    assert "duplicate" in found(history)
    history.reported_lost("t-0", 11, 24)
    assert "duplicate" not in found(history)
    history.final("t-0", [(12, b"a"), (13, b"a")], start=11)
    assert "duplicate" in found(history)


def test_every_kind_of_violation_has_a_planted_fault() -> None:
    (mark,) = test_a_planted_fault_is_found.pytestmark  # type: ignore[attr-defined]
    assert {kind for _, kind in mark.args[1]} == set(CHECKS)


def test_a_loss_that_was_reported_exactly_is_not_missed() -> None:
    history = a_good_history()
    _lose(history)
    history.reported_lost(P, 0, 1)
    assert found(history) == set()
    _tear_a_commit(history)
    assert found(history) != set(), "what is not in the report is missed as ever"


def test_a_write_with_fewer_acks_may_be_lost() -> None:
    history = a_good_history()
    history.send("w2", P, b"b9", acks=1).acked(40)
    assert violations(history) == []


def test_what_retention_removed_is_not_missed() -> None:
    history = a_good_history()
    log = history.finals[P]
    history.final(P, [(o, v) for o, v in log.records.items() if o >= 3], start=3)
    assert violations(history) == []


def test_a_look_up_tells_the_first_record_that_is_new_enough_and_when_it_was() -> None:
    history = a_good_history()
    history.looked_up("c", P, 1002, offset=2, timestamp=1002, leader_epoch=0)
    history.looked_up("c", P, 9999, offset=-1, timestamp=-1, leader_epoch=-1)
    assert violations(history) == []
    history.looked_up("c", P, 1002, offset=2, timestamp=1007, leader_epoch=0)
    assert found(history) == {"wrong look-up"}


def test_a_leader_of_an_earlier_epoch_may_tell_an_earlier_end() -> None:
    history = a_good_history()
    for offset, epoch in ((8, 3), (10, 4), (9, 3), (10, 4)):
        history.looked_up("c", P, -1, offset=offset, timestamp=-1, leader_epoch=epoch)
    history.looked_up("another", P, -1, offset=9, timestamp=-1, leader_epoch=4)
    assert violations(history) == []


def test_a_reader_may_seek_back_and_see_records_again() -> None:
    history = a_good_history()
    reader = history.readings[0]
    reader.start_at(P, 2)
    for offset in range(2, 6):
        reader.saw(P, offset, history.finals[P].records[offset])
    assert violations(history) == []


@pytest.mark.parametrize("replicas_move", [True, False])
@pytest.mark.parametrize("deleted_below", [20, 21])
def test_a_new_replica_may_store_again_what_is_deleted(
    replicas_move: bool, deleted_below: int
) -> None:
    history = a_good_history()
    history.replicas_move = replicas_move
    history.send("w4", P, b"g0", idempotent=True).acked(21)
    history.readings[0].saw(P, 20, b"g0")
    history.readings[0].saw(P, 21, b"g0")
    history.finals[P].records[21] = b"g0"
    history.delete(P, deleted_below)
    found = [str(each) for each in violations(history) if each.kind == "duplicate"]
    assert bool(found) is not (replicas_move and deleted_below > 20)


def test_a_writer_that_is_not_idempotent_may_store_twice() -> None:
    history = a_good_history()
    write = history.send("w4", P, b"g0")
    write.acked(21)
    history.finals[P].records.update({20: b"g0", 21: b"g0"})
    for offset in (20, 21):
        history.readings[0].saw(P, offset, b"g0")
    assert violations(history) == []
