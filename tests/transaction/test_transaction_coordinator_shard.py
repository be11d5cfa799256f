"""Every request in every state, and replays of random histories, on the pure machine."""

from dataclasses import replace
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from suwi.transaction.transaction_coordinator_shard import HELD
from suwi.transaction.transaction_records import TransactionState
from tests.transaction.driver import (
    EXPIRATION_MS,
    ID,
    TIMEOUT_MS,
    Driver,
    producer,
    tp,
)
from tests.transaction.states import (
    ABORTABLE,
    CONCURRENT,
    CURRENT,
    FENCED,
    MAPPING,
    NEXT,
    NONE,
    OTHER,
    PREVIOUS,
    WAITS,
    S,
    in_state,
)

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


@pytest.mark.parametrize("state", ADD)
def test_init_producer_id_in_every_state_ends_what_is_open(state: TransactionState) -> None:
    driver = in_state(state)
    bumps = 2 if state is S.ONGOING else 1
    assert driver.init() == producer(7, 5 + bumps)
    assert driver.state is S.EMPTY


@pytest.mark.parametrize("state", ADD)
def test_init_producer_id_of_a_known_producer_goes_on(state: TransactionState) -> None:
    assert in_state(state).init(CURRENT) == NEXT


@pytest.mark.parametrize("state", ADD)
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


def test_a_held_request_is_refused_without_an_append_and_released_with_one() -> None:
    driver = in_state(S.PREPARE_COMMIT)
    driver.start_init()
    (key,) = [key for key in driver.timers if isinstance(key, tuple) and key[0] == HELD]
    assert driver.machine.only_replies(key)
    driver.write_markers()
    assert not driver.machine.only_replies(key)


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


def test_a_transaction_may_have_twenty_thousand_partitions_and_not_more() -> None:
    driver = in_state(S.ONGOING, version=0)
    before = len(driver.log)
    assert driver.add(*range(20_001)) is ErrorCode.invalid_request
    assert len(driver.log) == before
    assert driver.add(*range(20_000)) is NONE
    assert len(driver.metadata.partitions) == 20_000
    assert driver.add(20_000) is ErrorCode.invalid_request
