"""The hazards of transactions, by number, on the pure machine."""

from dataclasses import replace

import pytest

from suwi.coordinator.event import Event
from tests.transaction.driver import (
    ABORT_INTERVAL_MS,
    EXPIRATION_MS,
    REMOVE_INTERVAL_MS,
    TIMEOUT_MS,
    Driver,
    producer,
    tp,
)
from tests.transaction.states import (
    CURRENT,
    FENCED,
    INVALID,
    MAPPING,
    NEXT,
    NONE,
    S,
    in_state,
)

# -- hazards ---------------------------------------------------------------------------------------


def test_t4_a_late_end_txn_does_not_decide_the_next_transaction() -> None:
    driver = Driver()
    first = driver.init()
    second = driver.transaction(version=2)
    assert second == producer(first.id, 1)
    assert driver.add(1, producer=second, version=2) is NONE
    assert driver.end(producer=first, version=2, commit=True) is FENCED
    assert driver.end(producer=first, version=2, commit=False) is FENCED
    assert driver.state is S.ONGOING


def test_t4_with_version_1_a_late_end_txn_decides_the_next_transaction() -> None:
    """It cannot be told from the one that is meant: why version 2 exists."""
    driver = Driver()
    first = driver.init()
    assert driver.transaction() == first
    assert driver.add(1) is NONE
    assert driver.end(producer=first) is NONE
    assert driver.state is S.PREPARE_COMMIT


def test_t5_a_retried_end_txn_gets_the_ids_that_are_in_force() -> None:
    for commit in (True, False):
        driver = Driver()
        first = driver.init()
        after = driver.transaction(version=2, commit=commit)
        for _ in range(2):
            token = driver.start_end(producer=first, version=2, commit=commit)
            assert driver.replies[token].producer == after
            assert driver.end(producer=first, version=2, commit=not commit) is INVALID
            driver.fail_over()


def test_t5_an_abort_of_nothing_bumps_and_succeeds() -> None:
    driver = Driver()
    first = driver.init()
    token = driver.start_end(producer=first, version=2, commit=False)
    assert driver.replies[token].producer == producer(first.id, 1)
    assert driver.state is S.COMPLETE_ABORT
    assert not driver.to_send
    again = driver.start_end(producer=first, version=2, commit=False)
    assert driver.replies[again].producer == producer(first.id, 1)


def test_t5_an_end_txn_with_the_new_epoch_waits_for_the_markers() -> None:
    driver = in_state(S.ONGOING, version=2)
    assert driver.end(version=2) is NONE
    token = driver.start_end(producer=NEXT, version=2, commit=False)
    assert token in driver.waiting
    driver.write_markers()
    assert driver.replies[token].producer == producer(7, 7)


def test_t7_init_producer_id_takes_a_new_id_when_the_epochs_are_used_up() -> None:
    driver = in_state(S.EMPTY, epoch=32765)
    assert driver.init() == producer(7, 32766)
    rotated = driver.init()
    assert rotated.id != 7
    assert rotated.epoch == 0
    assert driver.metadata.previous_producer_id == 7


def test_t7_a_lost_reply_of_a_rotation_is_given_again() -> None:
    driver = in_state(S.EMPTY, epoch=32766)
    last = producer(7, 32766)
    rotated = driver.init(last)
    assert rotated.epoch == 0
    assert driver.init(last) == rotated
    driver.init()
    assert driver.error_of(driver.start_init(last)) is FENCED


def test_t7_fencing_the_last_epoch_leads_to_a_new_id() -> None:
    for expected in (None, producer(7, 32766)):
        driver = in_state(S.ONGOING, epoch=32766)
        token = driver.start_init(expected)
        assert driver.metadata.producer_epoch == 32767
        driver.write_markers()
        assert driver.replies[token].needs_producer_id
        after = driver.init(expected)
        assert after.id != 7
        assert after.epoch == 0


def test_t7_end_txn_of_the_last_epoch_hands_over_to_a_new_id() -> None:
    driver = in_state(S.ONGOING, version=2, epoch=32766)
    last = producer(7, 32766)
    token = driver.start_end(producer=last, version=2)
    after = driver.replies[token].producer
    assert after.id != 7
    assert after.epoch == 0
    (markers,) = driver.to_send
    assert markers.producer == producer(7, 32767)
    begins = driver.start_add(1, producer=after, version=2)  # Before the markers are written.
    retry = driver.start_end(producer=last, version=2)
    assert {begins, retry} <= set(driver.waiting)
    driver.write_markers()
    assert driver.error_of(begins) is NONE
    assert driver.error_of(retry) is MAPPING  # Its successor has begun by now.
    assert driver.producer == after


def test_t7_a_retried_end_txn_after_the_hand_over_gets_the_new_id() -> None:
    driver = in_state(S.ONGOING, version=2, epoch=32766)
    last = producer(7, 32766)
    token = driver.start_end(producer=last, version=2)
    driver.write_markers()
    driver.fail_over()
    retry = driver.start_end(producer=last, version=2)
    assert driver.replies[retry].producer == driver.replies[token].producer


def test_t7_nobody_is_given_the_epoch_that_fences() -> None:
    driver = in_state(S.ONGOING, version=2, epoch=32766)
    driver.sleep(TIMEOUT_MS + ABORT_INTERVAL_MS)
    driver.write_markers()
    assert driver.metadata.producer_epoch == 32767
    assert driver.end(producer=producer(7, 32766), version=2, commit=False) is FENCED
    assert driver.add(0, producer=producer(7, 32767)) is FENCED


def test_t8_a_transaction_that_times_out_is_fenced_and_aborted() -> None:
    driver = in_state(S.ONGOING)
    driver.sleep(TIMEOUT_MS - 1)
    assert driver.state is S.ONGOING
    driver.sleep(ABORT_INTERVAL_MS)
    assert driver.state is S.PREPARE_ABORT
    (markers,) = driver.write_markers()
    assert markers.producer == NEXT
    assert driver.add(1, producer=CURRENT) is FENCED
    assert driver.end(producer=CURRENT) is FENCED
    assert driver.end(producer=CURRENT, commit=False) is FENCED


def test_t8_a_timed_out_client_of_version_2_may_abort_and_go_on_but_not_commit() -> None:
    driver = in_state(S.ONGOING, version=2)
    driver.sleep(TIMEOUT_MS + ABORT_INTERVAL_MS)
    driver.write_markers()
    assert driver.end(producer=CURRENT, version=2, commit=True) is INVALID
    token = driver.start_end(producer=CURRENT, version=2, commit=False)
    assert driver.replies[token].producer == NEXT


def test_t9_a_transaction_completes_after_a_fail_over_at_any_point() -> None:
    after = {S.PREPARE_COMMIT: S.COMPLETE_COMMIT, S.PREPARE_ABORT: S.COMPLETE_ABORT}
    for state, completed in after.items():
        driver = in_state(state)
        driver.fail_over()
        driver.write_markers()
        assert driver.state is completed
        assert driver.add(1) is NONE


def test_t10_markers_of_one_transaction_do_not_complete_the_next() -> None:
    driver = in_state(S.ONGOING)
    driver.end()
    (first,) = driver.write_markers()
    driver.add(1)
    driver.end()
    driver.written(first)
    driver.run_due()
    assert driver.state is S.PREPARE_COMMIT
    assert not driver.machine.is_sending(first)


def test_t10_markers_written_twice_complete_once() -> None:
    driver = in_state(S.ONGOING)
    driver.end()
    (markers,) = driver.to_send
    driver.written(markers)
    driver.written(markers)
    driver.write_markers()
    ended = len(driver.log)
    driver.written(markers)
    driver.run_due()
    assert len(driver.log) == ended


def test_t10_what_an_earlier_leadership_sent_completes_nothing() -> None:
    driver = in_state(S.PREPARE_COMMIT)
    (first,) = driver.to_send
    driver.resign_and_return()
    assert not driver.machine.is_sending(first)
    driver.written(first)
    driver.run_due()
    assert driver.state is S.PREPARE_COMMIT
    driver.write_markers()
    assert driver.state is S.COMPLETE_COMMIT


def test_t12_a_transaction_is_known_after_a_fail_over() -> None:
    driver = Driver()
    driver.init()
    driver.add(0)
    driver.add(3)
    driver.fail_over()
    assert driver.metadata.partitions == {tp(0), tp(3)}
    assert driver.add(3, verify=True) is NONE
    assert driver.end() is NONE
    assert driver.to_send[0].partitions == {tp(0), tp(3)}


@pytest.mark.parametrize(("begun", "ended"), [(0, 2), (2, 0), (2, 2), (0, 0)])
def test_t15_the_version_of_end_txn_decides_epoch_and_markers_alike(begun: int, ended: int) -> None:
    driver = in_state(S.EMPTY)
    driver.add(0, version=begun)
    driver.add(1, version=2 - begun)
    assert driver.metadata.client_transaction_version == begun
    driver.end(version=ended)
    (markers,) = driver.write_markers()
    assert markers.transaction_version == ended
    assert markers.producer == (NEXT if ended == 2 else CURRENT)


def test_t15_one_id_moves_between_clients_of_both_versions() -> None:
    driver = Driver()
    for version in (2, 0, 2):
        old = driver.producer if driver.machine.transactions else None
        new = driver.init()
        assert driver.add(0, version=version) is NONE
        if old is not None:
            assert driver.end(producer=old, version=2 - version) is FENCED
        assert driver.producer == new


def test_t20_a_transaction_times_out_though_the_clock_was_set_back() -> None:
    driver = in_state(S.ONGOING)
    driver.now_ms -= 500_000
    driver.timers.clear()
    driver.resign_and_return()
    driver.sleep(TIMEOUT_MS + 2 * ABORT_INTERVAL_MS)
    assert driver.state is S.PREPARE_ABORT


def test_t20_the_deadline_counts_from_the_persisted_start() -> None:
    driver = in_state(S.ONGOING)
    driver.sleep(TIMEOUT_MS - ABORT_INTERVAL_MS)
    driver.add(1)
    driver.fail_over()
    driver.sleep(2 * ABORT_INTERVAL_MS)
    assert driver.state is S.PREPARE_ABORT


def test_t20_an_id_that_never_began_a_transaction_expires() -> None:
    driver = Driver()
    driver.init()
    driver.sleep(EXPIRATION_MS + REMOVE_INTERVAL_MS)
    assert not driver.machine.transactions


def test_an_id_at_rest_expires_and_an_open_one_does_not() -> None:
    driver = in_state(S.COMPLETE_COMMIT)
    open_one = replace(
        driver.metadata, state=S.ONGOING, partitions=frozenset({tp(0)}), timeout_ms=2**31 - 1
    )
    driver.put(open_one, "open")
    driver.put(replace(open_one, state=S.PREPARE_COMMIT), "prepared")
    driver.resign_and_return()
    driver.sleep(EXPIRATION_MS + REMOVE_INTERVAL_MS)
    assert list(driver.machine.transactions) == ["open", "prepared"]


def test_many_transactions_time_out_and_many_ids_expire_in_slices() -> None:
    driver = in_state(S.ONGOING)
    for index in range(250):
        driver.put(driver.metadata, f"open-{index}")
    driver.check = lambda: None  # type: ignore[method-assign]
    driver.resign_and_return()
    driver.sleep(TIMEOUT_MS + ABORT_INTERVAL_MS)
    assert {each.state for each in driver.machine.transactions.values()} == {S.PREPARE_ABORT}
    assert len(driver.write_markers()) == 251
    driver.sleep(EXPIRATION_MS + REMOVE_INTERVAL_MS)
    assert not driver.machine.transactions


def test_many_open_transactions_are_checked_in_slices() -> None:
    driver = in_state(S.ONGOING)
    driver.check = lambda: None  # type: ignore[method-assign]
    for index in range(2_000):
        driver.put(driver.metadata, f"open-{index}")
    event = Event(driver.now_ms)
    (timer,) = (key for key in driver.timers if key == ("abort timed out",))
    assert sum(1 for _ in driver.machine.expired(timer, event) or ()) >= 3
    assert not event.records


def test_a_transaction_that_is_too_large_to_be_aborted_does_not_hold_up_the_others() -> None:
    driver = in_state(S.ONGOING)
    partitions = frozenset(tp(0, f"a-topic-with-a-long-name-{index}") for index in range(50))
    driver.put(replace(driver.metadata, partitions=partitions), "large")
    driver.put(driver.metadata, "other")
    driver.resign_and_return()
    driver.batch_bytes_max = 1_000
    driver.sleep(TIMEOUT_MS + ABORT_INTERVAL_MS)
    states = {name: each.state for name, each in driver.machine.transactions.items()}
    assert (states["large"], states["other"]) == (S.ONGOING, S.PREPARE_ABORT)


def test_t21_what_is_not_persisted_is_dropped_with_leadership() -> None:
    driver = in_state(S.PREPARE_COMMIT)
    driver.start_add(1)
    driver.machine.resigned()
    fresh = driver.replayed(0)
    for name in ("transactions", "_sending", "_last_epochs", "_expiry_left"):
        assert getattr(driver.machine, name) == getattr(fresh, name)
    assert not driver.machine._held


def test_a_dead_id_of_another_broker_is_unknown() -> None:
    driver = in_state(S.COMPLETE_COMMIT)
    driver.put(replace(driver.metadata, state=S.DEAD))
    assert not driver.machine.transactions


def test_an_epoch_fence_of_another_broker_is_ended() -> None:
    driver = in_state(S.ONGOING)
    driver.put(replace(driver.metadata, state=S.PREPARE_EPOCH_FENCE))
    assert driver.add(3) is NONE
    driver.put(replace(driver.metadata, state=S.PREPARE_EPOCH_FENCE))
    assert driver.init() == producer(7, 7)


def test_a_transaction_without_partitions_has_no_markers_and_ends() -> None:
    driver = in_state(S.EMPTY)
    driver.start_add()
    assert driver.state is S.ONGOING
    assert driver.end() is NONE
    assert driver.to_send[0].partitions == frozenset()
    driver.write_markers()
    assert driver.state is S.COMPLETE_COMMIT
