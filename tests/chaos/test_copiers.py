"""`make chaos-copiers`: its checks find every planted violation, a copier reads on where it has
committed, and a short run."""

import asyncio
import random
from pathlib import Path

import pytest

from chaos.cluster import process_plan, run
from chaos.copier import Batch, Copy, Record, batch_of, copy_all
from chaos.copiers import COPIER_BAG
from chaos.copy_checker import CopiesRead, transactions, violations
from chaos.journal import value_of
from chaos.report import complaints
from suwi.local_cluster.zookeeper import why_unavailable
from tests.local_cluster.ports import free_ports

PARTITIONS = 2
SOURCE = {p: [value_of(1, p, number) for number in range(6)] for p in range(PARTITIONS)}


def copied(*transactions: list[tuple[int, int]], aborts: bool = False) -> dict[int, list[bytes]]:
    """What is in the target after transactions that copied these places of the source."""
    target: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
    for number, places in enumerate(transactions):
        records = [Record(p, offset, SOURCE[p][offset]) for p, offset in places]
        batch = batch_of(records, f"t{number}", range(PARTITIONS), aborts=aborts)
        for partition, value in batch.copies:
            target[partition].append(value)
    return target


FIRST = [(p, offset) for p in range(PARTITIONS) for offset in range(3)]
SECOND = [(p, offset) for p in range(PARTITIONS) for offset in range(3, 6)]


def kinds(target: dict[int, list[bytes]]) -> set[str]:
    return {violation.kind for violation in violations(SOURCE, target)}


def test_all_records_once_in_whole_transactions_are_right() -> None:
    target = copied(FIRST, SECOND)
    assert kinds(target) == set()
    assert transactions(target) == 2


def test_planted_violations_are_found() -> None:
    assert kinds(copied(FIRST)) == {"lost"}
    assert kinds(copied(FIRST, SECOND, SECOND[:1])) == {"duplicate", "reordered write"}
    assert kinds(copied(SECOND, FIRST)) == {"reordered write"}
    assert kinds(copied(FIRST, SECOND, aborts=True)) == {"aborted read"}
    torn = copied(FIRST, SECOND)
    torn[1].pop()
    assert kinds(torn) == {"lost", "torn transaction"}
    strange = copied(FIRST, SECOND)
    strange[0].append(Copy("t9", 1, False, value_of(2, 0, 0)).encode())
    assert kinds(strange) == {"invented"}
    misplaced = copied(FIRST, SECOND)
    misplaced[1].insert(0, misplaced[0].pop(0))
    assert kinds(misplaced) == {"invented"}


def test_partitions_of_a_client_are_numbered_from_zero_and_may_have_markers() -> None:
    read = CopiesRead("the consumer afterwards")
    read.saw(2, 0, b"a")
    read.saw(2, 3, b"b")
    assert read.values(range(2, 4)) == {0: [b"a", b"b"], 1: []}


def test_records_of_one_transaction_go_to_several_partitions() -> None:
    batch = batch_of(
        [Record(0, 4, SOURCE[0][4]), Record(0, 5, SOURCE[0][5])], "t", range(4, 6), aborts=False
    )
    assert [partition for partition, _ in batch.copies] == [4, 5]
    assert batch.offsets == {0: 6}
    assert Copy.decode(batch.copies[0][1]) == ("t", 2, False, SOURCE[0][4])


class Flaky:
    """A copier whose second transaction fails, and its first recovery."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failures = {"copy 2", "recover 1"}

    def _do(self, what: str) -> None:
        number = sum(each.startswith(what) for each in self.done) + 1
        self.done.append(f"{what} {number}")
        if self.done[-1] in self.failures:
            raise RuntimeError(self.done[-1])

    async def poll(self) -> list[Record]:
        self._do("poll")
        return [Record(0, 0, SOURCE[0][0])]

    async def copy(self, batch: Batch) -> None:
        self._do("copy")

    async def recover(self) -> None:
        self._do("recover")


def test_a_copier_recovers_before_it_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.copier._RETRY_S", 0)
    copier = Flaky()

    def is_over() -> bool:
        return "copy 3" in copier.done

    asyncio.run(copy_all(copier, "c", range(1), is_over, random.Random(1)))
    assert copier.done[2:] == ["poll 2", "copy 2", "recover 1", "recover 2", "poll 3", "copy 3"]


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.timeout(600)
@pytest.mark.skipif(why_unavailable() is not None, reason="no ZooKeeper here")
def test_a_short_run_with_copiers_is_right(tmp_path: Path) -> None:
    bag = ["kill of a transaction coordinator", "kill of a copier"]
    assert set(bag) <= set(COPIER_BAG)
    wanted = process_plan(5, 0, 2, 5, bag, copiers=["librdkafka"])
    report = run(wanted, tmp_path, free_ports())
    assert complaints(report) == []
    assert report.faults.total() == 2
    assert report.copied == report.records > 0
