"""Every request in every state, and the hazards of transactions, on the pure machine."""

from dataclasses import replace
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from suwi.transaction.transaction_records import TransactionLogValue, TransactionState
from tests.transaction.driver import (
    ABORT_INTERVAL_MS,
    EXPIRATION_MS,
    ID,
    REMOVE_INTERVAL_MS,
    TIMEOUT_MS,
    Driver,
    producer,
    tp,
)

S = TransactionState
NONE, FENCED = ErrorCode.none, ErrorCode.producer_fenced
INVALID, MAPPING = ErrorCode.invalid_txn_state, ErrorCode.invalid_producer_id_mapping
CONCURRENT, ABORTABLE = ErrorCode.concurrent_transactions, ErrorCode.transaction_abortable
WAITS = None
CURRENT, PREVIOUS, NEXT, OTHER = producer(7, 5), producer(7, 4), producer(7, 6), producer(8, 5)


def in_state(state: TransactionState, *, version: int = 0, epoch: int = 5) -> Driver:
    """Elected with a producer 7 of that epoch."""
    driver = Driver()
    is_begun = state is not S.EMPTY
    has_partitions = state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
    driver.put(
        TransactionLogValue(
            producer_id=CURRENT.id,
            producer_epoch=producer(7, epoch).epoch,
            timeout_ms=TIMEOUT_MS,
            state=state,
            partitions=frozenset({tp(0)}) if has_partitions else frozenset(),
            last_update_ms=driver.now_ms,
            start_ms=driver.now_ms if is_begun else -1,
            previous_producer_id=CURRENT.id,
            client_transaction_version=version if is_begun else 0,
        )
    )
    driver.resign_and_return()
    return driver


# -- every state and request -----------------------------------------------------------------------

ADD = {
    # state: by the current producer, one with an older epoch, one with another id
    S.EMPTY: (NONE, FENCED, MAPPING),
    S.ONGOING: (NONE, FENCED, MAPPING),
    S.PREPARE_COMMIT: (WAITS, WAITS, WAITS),
    S.PREPARE_ABORT: (WAITS, WAITS, WAITS),
    S.COMPLETE_COMMIT: (NONE, FENCED, MAPPING),
    S.COMPLETE_ABORT: (NONE, FENCED, MAPPING),
}


@pytest.mark.parametrize("state", ADD)
@pytest.mark.parametrize("version", [0, 2])
def test_add_partitions_in_every_state(state: TransactionState, version: int) -> None:
    for who, expected in zip((CURRENT, PREVIOUS, OTHER), ADD[state], strict=True):
        driver = in_state(state, version=version)
        before = len(driver.log)
        assert driver.add(1, producer=who, version=version) is expected, who
        if expected is NONE:
            assert driver.state is S.ONGOING
            assert tp(1) in driver.metadata.partitions
        else:
            assert len(driver.log) == before
        if expected is WAITS:
            driver.write_markers()
            after = NONE if who == CURRENT else FENCED if who == PREVIOUS else MAPPING
            assert set(driver.replies.popitem()[1].values()) == {after}


VERIFY = {
    S.EMPTY: (ABORTABLE, FENCED, MAPPING),
    S.ONGOING: (NONE, FENCED, MAPPING),
    S.PREPARE_COMMIT: (CONCURRENT, FENCED, MAPPING),
    S.PREPARE_ABORT: (CONCURRENT, FENCED, MAPPING),
    S.COMPLETE_COMMIT: (ABORTABLE, FENCED, MAPPING),
    S.COMPLETE_ABORT: (ABORTABLE, FENCED, MAPPING),
}


@pytest.mark.parametrize("state", VERIFY)
def test_verify_only_changes_nothing_in_any_state(state: TransactionState) -> None:
    for who, expected in zip((CURRENT, PREVIOUS, OTHER), VERIFY[state], strict=True):
        driver = in_state(state)
        before = len(driver.log)
        assert driver.add(0, producer=who, verify=True) is expected
        assert len(driver.log) == before


END_1 = {
    # state: commit, abort
    S.EMPTY: (INVALID, INVALID),
    S.ONGOING: (NONE, NONE),
    S.PREPARE_COMMIT: (WAITS, WAITS),
    S.PREPARE_ABORT: (WAITS, WAITS),
    S.COMPLETE_COMMIT: (NONE, INVALID),
    S.COMPLETE_ABORT: (INVALID, NONE),
}


@pytest.mark.parametrize("state", END_1)
def test_end_txn_of_version_1_in_every_state(state: TransactionState) -> None:
    for commit, expected in zip((True, False), END_1[state], strict=True):
        assert in_state(state).end(commit=commit) is expected
        if expected is not WAITS:
            assert in_state(state).end(commit=commit, producer=PREVIOUS) is FENCED
            assert in_state(state).end(commit=commit, producer=NEXT) is FENCED
            assert in_state(state).end(commit=commit, producer=OTHER) is MAPPING


END_2 = {
    # state: commit and abort of the current epoch, commit and abort of the one before
    S.EMPTY: (INVALID, NONE, FENCED, FENCED),
    S.ONGOING: (NONE, NONE, FENCED, FENCED),
    S.PREPARE_COMMIT: (WAITS, WAITS, WAITS, WAITS),
    S.PREPARE_ABORT: (WAITS, WAITS, WAITS, WAITS),
    S.COMPLETE_COMMIT: (INVALID, NONE, NONE, INVALID),
    S.COMPLETE_ABORT: (INVALID, NONE, INVALID, NONE),
}


@pytest.mark.parametrize("state", END_2)
def test_end_txn_of_version_2_in_every_state(state: TransactionState) -> None:
    asked = ((True, CURRENT), (False, CURRENT), (True, PREVIOUS), (False, PREVIOUS))
    for (commit, who), expected in zip(asked, END_2[state], strict=True):
        driver = in_state(state, version=2)
        assert driver.end(commit=commit, producer=who, version=2) is expected, (commit, who)
        if expected is not WAITS:
            other = in_state(state, version=2)
            assert other.end(commit=commit, producer=OTHER, version=2) is MAPPING


@pytest.mark.parametrize("state", END_2)
def test_init_producer_id_in_every_state_ends_what_is_open(state: TransactionState) -> None:
    driver = in_state(state)
    bumps = 2 if state is S.ONGOING else 1
    assert driver.init() == producer(7, 5 + bumps)
    assert driver.state is S.EMPTY


@pytest.mark.parametrize("state", END_2)
def test_init_producer_id_of_a_known_producer_goes_on(state: TransactionState) -> None:
    assert in_state(state).init(CURRENT) == NEXT


@pytest.mark.parametrize("state", END_2)
def test_init_producer_id_of_another_producer_is_fenced(state: TransactionState) -> None:
    for who in (PREVIOUS, OTHER, NEXT):
        driver = in_state(state)
        token = driver.start_init(who)
        driver.write_markers()
        assert driver.error_of(token) is FENCED
        if state is S.ONGOING:
            assert driver.state is S.ONGOING, "a zombie does not end the transaction of another"


def test_requests_for_an_unknown_id_are_refused() -> None:
    driver = Driver()
    assert driver.add(0, producer=CURRENT) is MAPPING
    assert driver.add(0, producer=CURRENT, verify=True) is MAPPING
    assert driver.end(producer=CURRENT) is MAPPING
    assert driver.end(producer=CURRENT, version=2) is MAPPING


# -- InitProducerId --------------------------------------------------------------------------------


def test_a_new_id_begins_with_epoch_0() -> None:
    driver = Driver()
    first = driver.init()
    assert first.epoch == 0
    assert driver.state is S.EMPTY
    assert driver.init() == producer(first.id, 1)


def test_the_id_of_an_expired_transactional_id_goes_on_with_a_new_producer_id() -> None:
    driver = Driver()
    assert driver.init(producer(7, 5)) == producer(driver.metadata.producer_id, 0)


def test_a_lost_reply_of_init_producer_id_is_given_again() -> None:
    driver = in_state(S.EMPTY)
    assert driver.init(CURRENT) == NEXT
    assert driver.init(CURRENT) == NEXT


def test_a_new_producer_fences_the_one_whose_reply_was_lost() -> None:
    driver = in_state(S.EMPTY)
    driver.init(CURRENT)
    driver.init()
    assert driver.error_of(driver.start_init(CURRENT)) is FENCED
    assert driver.error_of(driver.start_init(NEXT)) is FENCED


def test_a_late_init_producer_id_does_not_end_the_transaction_of_its_own_client() -> None:
    driver = in_state(S.EMPTY)
    driver.init(CURRENT)
    driver.add(0, producer=NEXT)  # The client has had its reply.
    assert driver.error_of(driver.start_init(CURRENT)) is FENCED
    assert driver.state is S.ONGOING


def test_init_producer_id_sets_the_time_out() -> None:
    driver = in_state(S.COMPLETE_COMMIT)
    driver.init(timeout_ms=1_234)
    assert driver.metadata.timeout_ms == 1_234


def test_init_producer_id_waits_for_the_abort_that_it_asked_for() -> None:
    driver = in_state(S.ONGOING)
    token = driver.start_init()
    assert driver.state is S.PREPARE_ABORT
    assert driver.producer == NEXT
    assert token in driver.waiting
    (markers,) = driver.write_markers()
    assert (markers.producer, markers.is_commit) == (NEXT, False)
    assert driver.replies[token].producer == producer(7, 7)


def test_a_held_request_is_refused_after_a_while() -> None:
    driver = in_state(S.PREPARE_COMMIT)
    tokens = [driver.start_add(1), driver.start_init(), driver.start_end()]
    driver.sleep(1_000)
    assert [driver.error_of(token) for token in tokens] == [CONCURRENT] * 3
    driver.write_markers()
    assert driver.state is S.COMPLETE_COMMIT


def test_a_broker_that_asks_for_many_is_not_held_for_long() -> None:
    driver = in_state(S.PREPARE_COMMIT)
    patient = driver.start_init()
    driver.sleep(10)
    broker = driver.start_add(1, held_ms_max=100)
    also = driver.start_add(1, held_ms_max=100)
    driver.sleep(99)
    assert {patient, broker, also} <= set(driver.waiting)
    driver.sleep(1)
    assert not driver.waiting
    again = driver.start_add(1)
    driver.sleep(400)
    assert again in driver.waiting


def test_held_requests_are_decided_one_after_the_other() -> None:
    driver = in_state(S.PREPARE_COMMIT)
    first, second = driver.start_init(), driver.start_init()
    late = driver.start_add(1, producer=CURRENT)
    driver.write_markers()
    assert driver.replies[first].producer == NEXT
    assert driver.replies[second].producer == producer(7, 7)
    assert driver.error_of(late) is FENCED


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
    assert driver.to_send[0].partitions == (tp(0), tp(3))


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
    assert driver.to_send[0].partitions == ()
    driver.write_markers()
    assert driver.state is S.COMPLETE_COMMIT


# -- H0 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_live_state_is_the_replay_of_the_compacted_log(seed: int) -> None:
    """Random walks; `Driver.check` compares after every event."""
    random, driver = Random(seed), Driver(seed)
    known = [driver.init()]
    if seed % 3 == 0:
        driver.put(replace(driver.metadata, producer_epoch=producer(0, 32760).epoch))
    for _ in range(80):
        who, version = random.choice(known[-4:]), random.choice((0, 2))
        match random.randrange(10):
            case 0:
                driver.start_init(random.choice((None, who)))
            case 1 | 2 | 3:
                driver.start_add(random.randrange(4), producer=who, version=version)
            case 4 | 5:
                driver.start_end(producer=who, version=version, commit=random.random() < 0.7)
            case 6 | 7:
                driver.write_markers()
            case 8:
                driver.sleep(random.choice((1, 600, TIMEOUT_MS, EXPIRATION_MS)))
            case 9:
                random.choice((driver.fail_over, driver.resign_and_return))()
        if ID in driver.machine.transactions:
            known.append(driver.producer)
    driver.write_markers()
    assert driver.init().epoch <= 32766
