"""What EndTxn is answered in the end: state x producer x result x version, as Apache Kafka 4.3.

In a Prepare state the request waits here, where Kafka lets the client ask again after
CONCURRENT_TRANSACTIONS: the table has the last answer. The two places that differ are named.
"""

import pytest

from suwi.transaction.transaction_records import TransactionState
from tests.transaction.driver import Driver
from tests.transaction.states import (
    CURRENT,
    FENCED,
    INVALID,
    MAPPING,
    NEXT,
    NONE,
    OTHER,
    PREVIOUS,
    WAITS,
    S,
    in_state,
)

WHO = {"current": CURRENT, "previous": PREVIOUS, "next": NEXT, "other": OTHER}
STRANGERS = {"next": (FENCED, FENCED), "other": (MAPPING, MAPPING)}
# By producer the answers to commit and to abort.
VERSION_1 = {
    S.EMPTY: {"current": (INVALID, INVALID), "previous": (FENCED, FENCED)},
    S.ONGOING: {"current": (NONE, NONE), "previous": (FENCED, FENCED)},
    S.PREPARE_COMMIT: {"current": (NONE, INVALID), "previous": (FENCED, FENCED)},
    S.PREPARE_ABORT: {"current": (INVALID, NONE), "previous": (FENCED, FENCED)},
    S.COMPLETE_COMMIT: {"current": (NONE, INVALID), "previous": (FENCED, FENCED)},
    S.COMPLETE_ABORT: {"current": (INVALID, NONE), "previous": (FENCED, FENCED)},
}
VERSION_2 = {
    S.EMPTY: {"current": (INVALID, NONE), "previous": (FENCED, FENCED)},
    S.ONGOING: {"current": (NONE, NONE), "previous": (FENCED, FENCED)},
    # Kafka: FENCED for the current epoch, which the client has just been told; here it waits.
    S.PREPARE_COMMIT: {"current": (INVALID, NONE), "previous": (NONE, INVALID)},
    S.PREPARE_ABORT: {"current": (INVALID, NONE), "previous": (INVALID, NONE)},
    S.COMPLETE_COMMIT: {"current": (INVALID, NONE), "previous": (NONE, INVALID)},
    S.COMPLETE_ABORT: {"current": (INVALID, NONE), "previous": (INVALID, NONE)},
}
ROWS = [
    pytest.param(version, state, who, commit, answers[int(not commit)])
    for version, table in ((0, VERSION_1), (2, VERSION_2))
    for state, known in table.items()
    for who, answers in {**known, **STRANGERS}.items()
    for commit in (True, False)
]


@pytest.mark.parametrize(("version", "state", "who", "commit", "expected"), ROWS)
def test_end_txn(
    version: int, state: TransactionState, who: str, commit: bool, expected: object
) -> None:
    driver = in_state(state, version=version)
    token = driver.start_end(commit=commit, producer=WHO[who], version=version)
    if state in (S.PREPARE_COMMIT, S.PREPARE_ABORT):
        assert driver.error_of(token) is WAITS
        driver.write_markers()
    assert driver.error_of(token) is expected


@pytest.mark.parametrize("commit", [True, False])
def test_a_replaced_producer_is_not_told_that_its_successors_transaction_was_its_own(
    commit: bool,
) -> None:
    """Kafka takes any epoch that is one less for a retry, also where version 1 has ended the
    transaction and no epoch with it."""
    driver = Driver()
    replaced = driver.init()
    driver.init()
    driver.transaction(commit=commit)
    assert driver.end(commit=commit, producer=replaced, version=2) is FENCED


@pytest.mark.parametrize("first", [True, False])
def test_librdkafka_is_told_that_it_aborts_what_has_not_begun(first: bool) -> None:
    """It sends EndTxn also if AddPartitionsToTxn may have been lost, and takes the answer for
    fatal; so it is with Kafka. Success would be wrong: after a commit whose answer was lost, too,
    the epoch is the current one."""
    driver = Driver()
    driver.init()
    if not first:
        driver.transaction(commit=True)
    assert driver.end(commit=False) is INVALID
    assert driver.add(0) is NONE  # What arrives late is aborted when its time is over.
