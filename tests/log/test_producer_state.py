"""The producer state of a partition: retries, gaps, epochs, transactions, snapshots."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from suwi.log.producer_snapshot import DamagedSnapshot, decode_snapshot, encode_snapshot
from suwi.log.producer_state import ENDED_TXNS_MAX, ProducedBatch, Producer, ProducerStates
from suwi.log.txn_index import AbortedTxn
from suwi.model.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from suwi.model.ids import Offset, ProducerEpoch, ProducerId
from suwi.records.batch import BatchHeader, read_header
from suwi.records.builder import build_marker
from suwi.records.record import Marker, MarkerType
from tests.log.kit import NOW_MS, batch_of

SEQUENCE_MAX = 2**31 - 1


class Writer:
    """Appends batches the way a leader does: `check`, then `replay`."""

    def __init__(self) -> None:
        self.producers = ProducerStates()
        self.end_offset = 0

    def header(
        self, sequence: int, count: int = 1, *, epoch: int = 0, transactional: bool = False
    ) -> BatchHeader:
        batch = batch_of(count, producer=(7, epoch, sequence), transactional=transactional)
        return read_header(batch)._replace(base_offset=self.end_offset)

    def send(
        self, sequence: int, count: int = 1, *, epoch: int = 0, transactional: bool = False
    ) -> int:
        """Returns the offset for the response."""
        header = self.header(sequence, count, epoch=epoch, transactional=transactional)
        earlier = self.producers.check(header)
        if earlier is not None:
            return earlier.first_offset
        self.producers.replay(header)
        self.end_offset += count
        return header.base_offset

    def end(self, kind: MarkerType, *, producer_id: int = 7, epoch: int = 0) -> AbortedTxn | None:
        batch = build_marker(
            kind,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=3,
            timestamp=NOW_MS,
            base_offset=self.end_offset,
        )
        header = read_header(batch)
        assert self.producers.check(header) is None
        self.end_offset += 1
        return self.producers.replay(header, Marker(kind, 3))


def test_consecutive_sequences_are_accepted() -> None:
    writer = Writer()
    assert [writer.send(0, 3), writer.send(3, 2), writer.send(5)] == [0, 3, 5]


def test_a_retry_of_one_of_the_last_five_batches_gets_its_first_offset() -> None:
    writer = Writer()
    offsets = [writer.send(i * 2, 2) for i in range(6)]
    for i in range(1, 6):
        assert writer.send(i * 2, 2) == offsets[i]
    assert writer.end_offset == 12


def test_a_retry_of_the_sixth_last_batch_is_out_of_order() -> None:
    writer = Writer()
    for i in range(6):
        writer.send(i)
    with pytest.raises(OutOfOrderSequence):
        writer.send(0)


def test_a_gap_in_the_sequence_is_refused_with_45() -> None:
    writer = Writer()
    writer.send(0, 3)
    with pytest.raises(OutOfOrderSequence) as refused:
        writer.send(4)
    assert refused.value.code == 45


def test_a_batch_that_overlaps_a_stored_one_is_refused() -> None:
    writer = Writer()
    writer.send(0, 5)
    with pytest.raises(OutOfOrderSequence):
        writer.send(0, 4)
    with pytest.raises(OutOfOrderSequence):
        writer.send(3, 5)


def test_an_older_epoch_is_refused_with_47() -> None:
    writer = Writer()
    writer.send(0, epoch=2)
    with pytest.raises(InvalidProducerEpoch) as refused:
        writer.send(1, epoch=1)
    assert refused.value.code == 47


def test_a_retry_from_an_older_epoch_is_refused_and_not_treated_as_a_duplicate() -> None:
    writer = Writer()
    writer.send(0, epoch=1)
    writer.send(0, epoch=2)
    with pytest.raises(InvalidProducerEpoch):
        writer.send(0, epoch=1)


def test_a_new_epoch_must_start_with_sequence_zero() -> None:
    writer = Writer()
    writer.send(0, 3, epoch=1)
    with pytest.raises(OutOfOrderSequence):
        writer.send(3, epoch=2)
    assert writer.send(0, epoch=2) == 3
    assert writer.send(1, epoch=2) == 4


def test_an_unknown_producer_may_start_at_any_sequence() -> None:
    """KIP-360: retention may have removed everything that it wrote before."""
    writer = Writer()
    assert writer.send(42, 2, epoch=5) == 0
    assert writer.send(44, epoch=5) == 2


def test_after_the_largest_sequence_comes_zero() -> None:
    writer = Writer()
    assert writer.send(SEQUENCE_MAX - 1, 2) == 0
    assert writer.send(0) == 2
    assert writer.send(SEQUENCE_MAX - 1, 2) == 0, "a retry"


def test_a_batch_can_span_the_largest_sequence() -> None:
    writer = Writer()
    assert writer.send(SEQUENCE_MAX - 1, 4) == 0
    with pytest.raises(OutOfOrderSequence):
        writer.send(1)
    assert writer.send(2) == 4
    assert writer.send(SEQUENCE_MAX - 1, 4) == 0, "a retry"


def test_producers_are_independent_of_each_other() -> None:
    writer = Writer()
    writer.send(0)
    other = read_header(batch_of(producer=(8, 0, 0)))
    assert writer.producers.check(other) is None


def test_batches_without_a_producer_change_nothing_but_the_end() -> None:
    producers = ProducerStates()
    producers.replay(read_header(batch_of(3)))
    assert len(producers) == 0
    assert producers.end_offset == 3


def test_an_inactive_producer_expires_and_may_then_start_at_any_sequence() -> None:
    writer = Writer()
    writer.send(0)
    writer.producers.expire(NOW_MS + 999, 1_000)
    assert len(writer.producers) == 1
    writer.producers.expire(NOW_MS + 1_000, 1_000)
    assert len(writer.producers) == 0
    writer.send(99)


def test_a_producer_with_an_open_transaction_does_not_expire() -> None:
    writer = Writer()
    writer.send(0, transactional=True)
    writer.producers.expire(NOW_MS + 10**9, 1)
    assert len(writer.producers) == 1
    writer.end(MarkerType.COMMIT)
    writer.producers.expire(NOW_MS + 10**9, 1)
    assert len(writer.producers) == 0


# -- transactions -------------------------------------------------------------------------------


def test_a_transaction_is_open_from_its_first_batch_to_its_marker() -> None:
    writer = Writer()
    writer.send(0, 2)
    assert writer.producers.first_open_txn_offset is None
    writer.send(2, 2, transactional=True)
    writer.send(4, 2, transactional=True)
    assert writer.producers.first_open_txn_offset == 2
    assert writer.end(MarkerType.COMMIT) is None
    assert writer.producers.first_open_txn_offset is None


def test_an_abort_returns_the_aborted_transaction_and_the_last_stable_offset() -> None:
    writer = Writer()
    writer.send(0, 2, transactional=True)
    other = read_header(batch_of(producer=(8, 0, 0), transactional=True))
    writer.producers.replay(other._replace(base_offset=2))
    writer.end_offset = 3
    assert writer.end(MarkerType.ABORT) == AbortedTxn(
        ProducerId(7), Offset(0), Offset(3), Offset(2)
    )
    assert writer.end(MarkerType.ABORT, producer_id=8) == AbortedTxn(
        ProducerId(8), Offset(2), Offset(4), Offset(5)
    )


def test_an_abort_without_an_open_transaction_returns_nothing() -> None:
    writer = Writer()
    writer.send(0)
    assert writer.end(MarkerType.ABORT) is None


def test_a_marker_needs_no_sequence() -> None:
    writer = Writer()
    writer.send(0, 5, transactional=True)
    writer.end(MarkerType.COMMIT)
    assert writer.send(5, transactional=True) == 6


def test_a_marker_with_a_higher_epoch_fences_the_old_one() -> None:
    writer = Writer()
    writer.send(0, transactional=True)
    writer.end(MarkerType.ABORT, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        writer.send(1, transactional=True)
    with pytest.raises(OutOfOrderSequence):
        writer.send(1, epoch=1, transactional=True)
    writer.send(0, epoch=1, transactional=True)


def test_a_marker_of_an_older_epoch_is_refused() -> None:
    writer = Writer()
    writer.send(0, epoch=2, transactional=True)
    with pytest.raises(InvalidProducerEpoch):
        writer.end(MarkerType.COMMIT, epoch=1)


# -- snapshots ----------------------------------------------------------------------------------


def test_a_snapshot_has_apache_kafkas_bytes() -> None:
    producer = Producer(
        ProducerId(4_000),
        ProducerEpoch(3),
        last_timestamp=NOW_MS,
        coordinator_epoch=2,
        txn_first_offset=Offset(90),
    )
    producer.batches.append(ProducedBatch(10, 14, Offset(99), 4, NOW_MS))
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 4_000, 3, 14, 99, 4, NOW_MS, 2, 90)
    assert encode_snapshot([producer]) == struct.pack(">hI", 1, crc32c(body)) + body


def test_an_empty_snapshot_has_ten_bytes() -> None:
    assert encode_snapshot([]) == struct.pack(">hIi", 1, crc32c(b"\0\0\0\0"), 0)
    assert decode_snapshot(encode_snapshot([])) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=30), st.data())
def test_a_snapshot_keeps_the_last_batch_epoch_and_transaction_of_every_producer(
    sent: list[tuple[int, int]], data: st.DataObject
) -> None:
    producers = ProducerStates()
    offset, sequences = 0, dict.fromkeys(range(4), SEQUENCE_MAX - 5)
    for producer_id, count in sent:
        header = read_header(
            batch_of(
                count,
                producer=(producer_id, 1, sequences[producer_id]),
                transactional=data.draw(st.booleans()),
            )
        )
        producers.replay(header._replace(base_offset=offset))
        offset += count
        sequences[producer_id] = (sequences[producer_id] + count) & SEQUENCE_MAX
    again = ProducerStates(decode_snapshot(encode_snapshot(producers.all())), Offset(offset))
    assert again.first_open_txn_offset == producers.first_open_txn_offset
    for before in producers.all():
        after = again.get(before.producer_id)
        assert after is not None
        assert list(after.batches) == [before.batches[-1]]
        assert after.epoch == before.epoch
        assert after.last_timestamp == before.last_timestamp


def test_a_producer_that_only_has_a_marker_survives_a_snapshot() -> None:
    writer = Writer()
    writer.end(MarkerType.ABORT, epoch=4)
    (producer,) = decode_snapshot(encode_snapshot(writer.producers.all()))
    assert (producer.epoch, producer.last_sequence, producer.coordinator_epoch) == (4, -1, 3)
    assert not producer.has_open_txn


def test_every_truncation_and_every_flipped_bit_of_a_snapshot_is_detected() -> None:
    writer = Writer()
    writer.send(0, 3)
    whole = encode_snapshot(writer.producers.all())
    for size in range(len(whole)):
        with pytest.raises(DamagedSnapshot):
            decode_snapshot(whole[:size])
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedSnapshot):
            decode_snapshot(bytes(damaged))
    with pytest.raises(DamagedSnapshot):
        decode_snapshot(whole + b"\0")


# -- many at a time ----------------------------------------------------------------------------


@st.composite
def rows_of_headers(draw: st.DrawFn) -> list[list[BatchHeader]]:
    """Rows of batches of any length: epochs, gaps, transactions, some without a producer."""
    offset, rows = 0, []
    for length in draw(st.lists(st.integers(0, 12), max_size=5)):
        row = []
        for _ in range(length):
            producer = (draw(st.integers(-1, 2)), draw(st.integers(0, 1)), draw(st.integers(0, 99)))
            batch = batch_of(
                draw(st.integers(1, 3)),
                producer=producer if producer[0] >= 0 else None,
                transactional=producer[0] >= 0 and draw(st.booleans()),
            )
            header = read_header(batch)._replace(base_offset=offset, max_timestamp=offset)
            offset = header.next_offset + draw(st.integers(0, 1))
            row.append(header)
        rows.append(row)
    return rows


@given(rows_of_headers())
def test_replaying_many_batches_at_a_time_equals_replaying_them_one_by_one(
    rows: list[list[BatchHeader]],
) -> None:
    singly, together = ProducerStates(), ProducerStates()
    for row in rows:
        for header in row:
            singly.replay(header)
        together.replay_all(row)
        assert together.end_offset == singly.end_offset
        assert together.first_open_txn_offset == singly.first_open_txn_offset
        by_id = [
            sorted(p.all(), key=lambda producer: producer.producer_id) for p in (singly, together)
        ]
        assert by_id[0] == by_id[1]


# -- markers (hazards 14, T6, T17) -----------------------------------------------------------------

LEGACY, STRICT = False, True


def marks(
    producers: ProducerStates, epoch: int, coordinator_epoch: int = 3, *, is_strict: bool
) -> str:
    """Whether a marker is appended, or why not."""
    try:
        is_new = producers.check_marker(
            ProducerId(7), epoch, coordinator_epoch, is_strict=is_strict
        )
    except (InvalidProducerEpoch, TransactionCoordinatorFenced) as error:
        return type(error).__name__
    return "appended" if is_new else "repeated"


def test_t6_a_marker_of_version_2_needs_a_greater_epoch_than_the_open_transaction() -> None:
    writer = Writer()
    writer.send(0, transactional=True, epoch=4)
    assert marks(writer.producers, 4, is_strict=STRICT) == "InvalidProducerEpoch"
    assert marks(writer.producers, 5, is_strict=STRICT) == "appended"


def test_t6_a_repeated_marker_of_version_2_is_no_error_and_not_appended_again() -> None:
    writer = Writer()
    writer.send(0, transactional=True, epoch=4)
    writer.end(MarkerType.COMMIT, epoch=5)
    assert marks(writer.producers, 5, is_strict=STRICT) == "repeated"


def test_t6_a_late_marker_does_not_end_the_next_transaction_of_version_2() -> None:
    writer = Writer()
    writer.send(0, transactional=True, epoch=4)
    writer.end(MarkerType.COMMIT, epoch=5)
    writer.send(0, transactional=True, epoch=5)
    assert marks(writer.producers, 5, is_strict=STRICT) == "InvalidProducerEpoch"
    assert writer.producers.first_open_txn_offset == 2


@pytest.mark.parametrize("is_open", [True, False])
def test_t6_a_marker_of_version_1_or_of_an_administrator_may_have_the_same_epoch(
    is_open: bool,
) -> None:
    writer = Writer()
    writer.send(0, transactional=True, epoch=4)
    if not is_open:
        writer.end(MarkerType.ABORT, epoch=4)
    assert marks(writer.producers, 4, is_strict=LEGACY) == "appended"


@pytest.mark.parametrize("is_strict", [LEGACY, STRICT])
def test_t6_a_marker_of_an_older_epoch_is_refused(is_strict: bool) -> None:
    writer = Writer()
    writer.send(0, transactional=True, epoch=4)
    assert marks(writer.producers, 3, is_strict=is_strict) == "InvalidProducerEpoch"


def test_t6_a_marker_of_an_older_coordinator_is_fenced() -> None:
    writer = Writer()
    writer.send(0, transactional=True)
    writer.end(MarkerType.COMMIT)
    writer.send(1, transactional=True)
    assert marks(writer.producers, 0, 2, is_strict=LEGACY) == "TransactionCoordinatorFenced"
    assert marks(writer.producers, 0, 3, is_strict=LEGACY) == "appended"


def test_t6_a_marker_of_a_producer_without_state_is_appended() -> None:
    assert marks(ProducerStates(), 0, is_strict=STRICT) == "appended"


def test_hazard_14_a_transaction_is_unstable_until_its_marker_is_committed() -> None:
    writer = Writer()
    writer.send(0, transactional=True)
    writer.end(MarkerType.COMMIT)
    assert writer.producers.first_open_txn_offset is None
    assert writer.producers.first_unstable_offset(Offset(1)) == 0
    assert writer.producers.first_unstable_offset(Offset(2)) is None


def test_t18_of_very_many_ended_transactions_none_is_stable_before_its_marker_is_committed() -> (
    None
):
    writer = Writer()
    for sequence in range(ENDED_TXNS_MAX + 3):  # Offset 2 * sequence, and its marker after it.
        writer.send(sequence, transactional=True)
        writer.end(MarkerType.COMMIT)
    producers = writer.producers
    assert producers.first_unstable_offset(Offset(0)) == 0
    assert producers.first_unstable_offset(Offset(1)) == 0
    # The four oldest count as one, which ends with the marker at offset 7.
    assert producers.first_unstable_offset(Offset(7)) == 0
    assert producers.first_unstable_offset(Offset(8)) == 8
    assert producers.first_unstable_offset(Offset(10)) == 10
    assert producers.first_unstable_offset(Offset(writer.end_offset)) is None


def test_t18_a_long_transaction_is_unstable_until_its_marker_is_committed_after_shorter_ones() -> (
    None
):
    writer = Writer()
    writer.send(0, transactional=True)
    for producer_id in (8, 9):
        header = writer.header(0, transactional=True)
        writer.producers.replay(header._replace(producer_id=producer_id))
        writer.end_offset += 1
        writer.end(MarkerType.ABORT, producer_id=producer_id)
    writer.end(MarkerType.COMMIT)
    assert writer.producers.first_unstable_offset(Offset(5)) == 0
    assert writer.producers.first_unstable_offset(Offset(6)) is None


def test_stability_needs_no_look_at_transactions_after_they_are_committed() -> None:
    """And no memory: a broker may have very many idle partitions."""
    writer = Writer()
    assert not writer.producers.has_unstable_txns
    writer.send(0, transactional=True)
    assert writer.producers.has_unstable_txns
    writer.end(MarkerType.COMMIT)
    writer.producers.forget_ended_txns(Offset(1))
    assert writer.producers.has_unstable_txns
    writer.send(1, transactional=True)
    writer.producers.forget_ended_txns(Offset(2))
    assert writer.producers.has_unstable_txns
    assert writer.producers._ended_txns is None
    writer.end(MarkerType.ABORT)
    writer.producers.forget_ended_txns(Offset(4))
    assert not writer.producers.has_unstable_txns


def test_a_marker_without_records_makes_nothing_unstable() -> None:
    writer = Writer()
    writer.end(MarkerType.ABORT)
    assert writer.producers.first_unstable_offset(Offset(0)) is None


def test_a_batch_outside_the_open_transaction_of_its_producer_is_refused() -> None:
    writer = Writer()
    writer.send(0, transactional=True)
    with pytest.raises(InvalidTxnState):
        writer.send(1)


def test_t17_a_marker_keeps_the_state_of_its_producer_from_expiring() -> None:
    writer = Writer()
    writer.send(0, transactional=True)
    batch = build_marker(
        MarkerType.ABORT,
        producer_id=7,
        producer_epoch=1,
        coordinator_epoch=3,
        timestamp=NOW_MS + 900,
        base_offset=1,
    )
    writer.producers.replay(read_header(batch), Marker(MarkerType.ABORT, 3))
    writer.producers.expire(NOW_MS + 1_000, 500)
    producer = writer.producers.get(ProducerId(7))
    assert producer is not None
    assert producer.epoch == 1


def test_t17_an_open_transaction_outlives_expiry_and_snapshots() -> None:
    writer = Writer()
    writer.send(0, transactional=True)
    writer.producers.expire(NOW_MS + 1_000_000, 500)
    loaded = ProducerStates(decode_snapshot(encode_snapshot(writer.producers.all())), Offset(1))
    assert loaded.first_open_txn_offset == 0
    assert loaded.has_unstable_txns
