"""Which records of fetched bytes are visible to a reader."""

import pytest

from suwi.client.isolation_filter import visible_records
from suwi.model.errors import CorruptMessage
from suwi.model.ids import Offset
from suwi.records.builder import build_batch, build_marker
from suwi.records.record import MarkerType, Record
from suwi.wire.fetch_response import AbortedTransaction


def batch(base_offset: int, *values: bytes, producer: int = -1) -> bytes:
    return bytes(
        build_batch(
            [Record(value=value) for value in values],
            base_offset=base_offset,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=base_offset if producer >= 0 else -1,
            transactional=producer >= 0,
        )
    )


def marker(offset: int, kind: MarkerType, producer: int) -> bytes:
    return bytes(
        build_marker(
            kind,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
            base_offset=offset,
        )
    )


def seen(data: bytes, position: int, *aborted: tuple[int, int]) -> tuple[list[int], int]:
    visible = visible_records(
        data, Offset(position), [AbortedTransaction(*transaction) for transaction in aborted]
    )
    return [record.offset for record in visible.records], visible.next_offset


def test_a_batch_that_contains_the_position_is_read_from_there() -> None:
    assert seen(batch(0, b"a", b"b", b"c") + batch(3, b"d"), 1) == ([1, 2, 3], 4)


def test_an_incomplete_batch_at_the_end_is_read_next_time() -> None:
    assert seen(batch(0, b"a") + batch(1, b"b")[:-1], 0) == ([0], 1)


def test_without_new_records_the_position_does_not_change() -> None:
    assert seen(b"", 7) == ([], 7)
    assert seen(batch(0, b"a"), 5) == ([], 5)


def test_transaction_markers_are_skipped() -> None:
    data = batch(0, b"a", producer=1) + marker(1, MarkerType.COMMIT, 1)
    assert seen(data, 0) == ([0], 2)


def test_an_aborted_transaction_is_skipped_up_to_its_marker() -> None:
    data = (
        batch(0, b"other")
        + batch(1, b"gone", b"gone", producer=1)
        + batch(3, b"kept", producer=2)
        + marker(4, MarkerType.ABORT, 1)
        + batch(5, b"new", producer=1)
        + marker(6, MarkerType.COMMIT, 1)
    )
    assert seen(data, 0, (1, 1)) == ([0, 3, 5], 7)
    assert seen(data, 0) == ([0, 1, 2, 3, 5], 7)


def test_a_fetch_from_the_middle_of_an_aborted_transaction_skips_it_too() -> None:
    data = batch(3, b"gone", producer=1) + marker(4, MarkerType.ABORT, 1) + batch(5, b"x")
    assert seen(data, 3, (1, 1)) == ([5], 6)


def test_a_corrupted_batch_is_detected() -> None:
    data = bytearray(batch(0, b"abcdef"))
    data[-3] ^= 1
    with pytest.raises(CorruptMessage):
        visible_records(data, Offset(0))
