"""The compaction that the simulation applies to logs of coordinators before it replays them."""

from simulation.shard_log import LogRecord, compacted
from suwi.coordinator.record import RecordFacts
from suwi.records.record import Marker, MarkerType

COMMIT, ABORT = Marker(MarkerType.COMMIT, 0), Marker(MarkerType.ABORT, 0)


def log_of(*entries: tuple[str, str | None] | tuple[int, str, str] | tuple[int, Marker]) -> list:
    """`(key, value)`, `(producer id, key, value)` or `(producer id, marker)`, from offset 0 on."""
    records = []
    for offset, entry in enumerate(entries):
        match entry:
            case (int(producer), Marker() as marker):
                facts = RecordFacts(offset, True, producer, 0, True)
                records.append(LogRecord(facts, b"", None, marker))
            case (int(producer), str(key), str(value)):
                facts = RecordFacts(offset, True, producer, 0, True)
                records.append(LogRecord(facts, key.encode(), value.encode()))
            case (str(key), value):
                data = None if value is None else value.encode()
                records.append(LogRecord(RecordFacts(offset), key.encode(), data))
    return records


def left(records: list, start: int, end: int) -> list[int]:
    return [record.facts.offset for record in compacted(records, start, end)]


def test_the_newest_record_of_a_key_stays_in_the_part_that_is_compacted() -> None:
    records = log_of(("a", "1"), ("b", "1"), ("a", "2"), ("a", "3"))
    assert left(records, 0, 3) == [1, 2, 3]
    assert left(records, 0, 4) == [1, 3]


def test_a_tombstone_goes_with_the_first_part_only() -> None:
    records = log_of(("b", "1"), ("a", "1"), ("a", None))
    assert left(records, 0, 3) == [0]
    assert left(records, 1, 3) == [0, 2]


def test_nothing_is_compacted_above_the_last_stable_offset() -> None:
    records = log_of(("a", "1"), ("a", "2"), (7, "a", "3"), ("a", "4"), ("a", "5"))
    assert left(records, 0, 5) == [1, 2, 3, 4]


def test_an_aborted_record_hides_no_other() -> None:
    records = log_of(("a", "1"), (7, "a", "2"), (7, ABORT))
    assert left(records, 1, 2) == [0, 2]
    assert left(records, 0, 3) == [0]


def test_a_marker_stays_as_long_as_a_record_of_its_transaction() -> None:
    records = log_of((7, "a", "1"), (7, "b", "1"), (7, COMMIT), ("a", "2"))
    assert left(records, 0, 4) == [1, 2, 3]
    assert left([*records, *log_of(("b", "2"))], 0, 5) == [3, 0]
