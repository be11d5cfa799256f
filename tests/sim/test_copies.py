"""Planted faults in what copiers leave behind: the checker of copies finds each of them."""

from simulation.checkers.copies import broken_copies
from simulation.transaction_workload import Copies, copy_of
from suwi.model.ids import PartitionIndex, TopicPartition

SOURCE = TopicPartition("orders", PartitionIndex(0))


def copies(*offsets: int, committed: int = 3) -> Copies:
    """Two records, at 0 and 2: a marker or something else lies in between."""
    values = [copy_of(SOURCE, offset, f"t{number}", 0) for number, offset in enumerate(offsets)]
    return Copies({"orders-0": [0, 2]}, {"orders-0": committed}, {"copies-0": values})


def test_records_that_are_copied_once_are_right() -> None:
    assert list(broken_copies(copies(0, 2))) == []
    assert list(broken_copies(copies(0, committed=1))) == []


def test_a_record_that_is_copied_twice_is_found() -> None:
    assert next(broken_copies(copies(0, 2, 0))).startswith("duplicate: orders-0 offset 0")


def test_a_record_that_was_skipped_is_found() -> None:
    assert next(broken_copies(copies(2))).startswith("skip: orders-0 offset 0")


def test_a_copy_without_its_offset_is_found() -> None:
    (wrong,) = broken_copies(copies(0, 2, committed=1))
    assert wrong.startswith("inconsistent offsets: orders-0 offset 2")
