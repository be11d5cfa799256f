"""Every class of Jepsen's verdicts on transactional systems is found: each is planted once.

What clients saw is judged by `history_checker` and `copies`; whoever is stuck, by the limits within
which a healed cluster must have done everything.
"""

from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import pytest

from simulation.checkers.copies import broken_copies
from simulation.history import History
from simulation.history_checker import violations
from simulation.seeded_run import Options, run_seed
from simulation.transaction_workload import Copies, copy_of
from simulation.workload import NotHealed
from suwi.transaction.marker_sender import TransactionMarkers
from tests.sim.mutants import find
from tests.sim.mutants.transactions import COPIERS
from tests.sim.test_copies import SOURCE, copies

P, Q = "copies-0", "copies-1"
CALM = Options(force={**COPIERS, "pause_s_max": 1.0}, kinds=["reset"], trouble_s=2.0)


class Bench:
    """One transaction that is committed, one that is aborted, and a reader of what is committed."""

    def __init__(self) -> None:
        self.history = history = History()
        for number, transaction in enumerate(("paid", "dropped")):
            history.begin(transaction)
            for partition in (P, Q):
                value = copy_of(SOURCE, 0, transaction, int(partition[-1]))
                write = history.send(
                    "t1", partition, value, idempotent=True, transaction=transaction
                )
                write.acked(2 * number)
        history.committed("paid")
        history.aborted("dropped")
        second = history.send("t2", P, b"second", idempotent=True)
        second.acked(4)
        self.paid = {each: copy_of(SOURCE, 0, "paid", int(each[-1])) for each in (P, Q)}
        self.final = {P: {0: self.paid[P], 4: b"second"}, Q: {0: self.paid[Q]}}
        self.seen = {each: list(records.items()) for each, records in self.final.items()}

    def found(self) -> set[str]:
        reader = self.history.reader("r", committed_only=True)
        for partition, seen in self.seen.items():
            reader.start_at(partition, 0)
            for offset, value in seen:
                reader.saw(partition, offset, value)
            self.history.final(partition, list(self.final[partition].items()))
        reader.finished()
        return {violation.kind for violation in violations(self.history)}


def _lose(bench: Bench) -> None:
    for each in (P, Q):
        del bench.final[each][0], bench.seen[each][0]


def _show_aborted(bench: Bench) -> None:
    aborted = copy_of(SOURCE, 0, "dropped", 0)
    bench.seen[P].insert(1, (2, aborted))


def _tear(bench: Bench) -> None:
    del bench.final[Q][0], bench.seen[Q][0]


def _store_twice(bench: Bench) -> None:
    bench.final[P][6] = bench.paid[P]
    bench.seen[P].append((6, bench.paid[P]))


def _skip(bench: Bench) -> None:
    del bench.seen[P][0]


def _go_back(bench: Bench) -> None:
    bench.seen[P].reverse()


def _stop_before_the_end(bench: Bench) -> None:
    del bench.seen[P][-1]


def test_transactions_that_are_as_they_should_be_are_not_complained_about() -> None:
    assert Bench().found() == set()


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (_lose, "lost"),
        (_show_aborted, "aborted read"),
        (_tear, "torn transaction"),
        (_store_twice, "duplicate"),
        (_skip, "skipped"),
        (_go_back, "reordered read"),
        (_stop_before_the_end, "unseen"),
    ],
)
def test_a_class_that_clients_see_is_found(plant: Callable[[Bench], None], kind: str) -> None:
    bench = Bench()
    plant(bench)
    assert kind in bench.found()


@pytest.mark.parametrize(
    ("left", "kind"),
    [
        (copies(0, 2, committed=1), "inconsistent offsets"),
        (copies(0, 2, 2), "duplicate"),
        (copies(2), "skip"),
    ],
    ids=["inconsistent offsets", "duplicate", "skip"],
)
def test_a_class_that_copiers_leave_behind_is_found(left: Copies, kind: str) -> None:
    assert _kinds(broken_copies(left)) == {kind}


def _kinds(wrong: Iterable[str]) -> set[str]:
    return {each.partition(":")[0] for each in wrong}


def test_a_producer_that_is_stuck_is_found() -> None:
    """Its transactions are decided, and no marker is ever sent."""

    def send_nothing(*_: Any) -> None:
        pass

    mute = patch.object(TransactionMarkers, "send", send_nothing)
    with mute, pytest.raises(NotHealed, match="copied up to"):
        run_seed(0, CALM)


def test_a_consumer_that_is_stuck_is_found() -> None:
    """A transaction that nobody ends stops those who read what is committed."""
    with find("no-verification").applied(), pytest.raises(NotHealed, match="is stable up to"):
        run_seed(0, CALM)
