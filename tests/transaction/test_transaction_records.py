"""Records of `__transaction_state`: their bytes are those of Kafka's schemas."""

import struct
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from suwi.coordinator.record import CoordinatorRecord
from suwi.model.ids import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from suwi.transaction.transaction_records import (
    TRANSACTION_RECORDS,
    TransactionLogKey,
    TransactionLogValue,
    TransactionState,
)
from suwi.wire.errors import MalformedMessage

KEY = TransactionLogKey("copier-1")


def tp(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(partition))


FULL = TransactionLogValue(
    producer_id=ProducerId(2**40 + 7),
    producer_epoch=ProducerEpoch(32766),
    timeout_ms=60_000,
    state=TransactionState.PREPARE_COMMIT,
    partitions=frozenset({tp("b", 3), tp("a", 1), tp("b", 0)}),
    last_update_ms=1_700_000_000_123,
    start_ms=1_700_000_000_000,
    previous_producer_id=ProducerId(6),
    next_producer_id=ProducerId(8),
    next_producer_epoch=ProducerEpoch(9),
    client_transaction_version=2,
)


def decoded(value: bytes | None) -> TransactionLogValue:
    record = TRANSACTION_RECORDS.decode(KEY.encode(), value)
    assert record is not None
    assert record.key == KEY
    assert isinstance(record.value, TransactionLogValue)
    return record.value


def test_every_field_of_version_1_round_trips() -> None:
    assert decoded(FULL.encode()) == FULL


@pytest.mark.parametrize("topics", [10, 5_000])
def test_many_partitions_are_encoded_and_decoded_in_slices(topics: int) -> None:
    partitions = frozenset(tp(f"t{number % topics}", number) for number in range(5_000))
    value = replace(FULL, partitions=partitions)
    slices, encoded = counted(value.encoding())
    assert (slices >= 10, encoded) == (True, value.encode())
    slices, record = counted(TRANSACTION_RECORDS.decoding(KEY.encode(), encoded))
    assert (slices >= 10, record) == (True, CoordinatorRecord(KEY, value))


def counted(slices: Generator[None, None, Any]) -> tuple[int, Any]:
    count = 0
    while True:
        try:
            next(slices)
        except StopIteration as done:
            return count, done.value
        count += 1


def test_version_0_has_no_tagged_fields() -> None:
    plain = TransactionLogValue(
        producer_id=FULL.producer_id,
        producer_epoch=FULL.producer_epoch,
        timeout_ms=FULL.timeout_ms,
        state=FULL.state,
        partitions=FULL.partitions,
        last_update_ms=FULL.last_update_ms,
        start_ms=FULL.start_ms,
    )
    assert decoded(FULL.encode(version=0)) == plain


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("version", [0, 1])
def test_every_state_round_trips(state: TransactionState, version: int) -> None:
    is_empty = state is TransactionState.EMPTY
    value = replace(FULL, state=state, partitions=frozenset() if is_empty else FULL.partitions)
    found = decoded(value.encode(version))
    assert (found.state, found.partitions) == (state, value.partitions)


def test_the_bytes_of_version_0_are_kafkas() -> None:
    assert FULL.encode(0) == (
        b"\0\0"
        + struct.pack(">qhib", FULL.producer_id, 32766, 60_000, 2)
        + struct.pack(">i", 2)
        + b"\0\1a" + struct.pack(">ii", 1, 1)
        + b"\0\1b" + struct.pack(">iii", 2, 0, 3)
        + struct.pack(">qq", FULL.last_update_ms, FULL.start_ms)
    )  # fmt: skip


def test_the_bytes_of_version_1_are_kafkas() -> None:
    assert FULL.encode() == (
        b"\0\1"
        + struct.pack(">qhib", FULL.producer_id, 32766, 60_000, 2)
        + b"\3"
        + b"\2a\2" + struct.pack(">i", 1) + b"\0"
        + b"\2b\3" + struct.pack(">ii", 0, 3) + b"\0"
        + struct.pack(">qq", FULL.last_update_ms, FULL.start_ms)
        + b"\4"
        + b"\0\x08" + struct.pack(">q", 6)
        + b"\1\x08" + struct.pack(">q", 8)
        + b"\2\2" + struct.pack(">h", 2)
        + b"\3\2" + struct.pack(">h", 9)
    )  # fmt: skip


def test_the_partitions_of_an_empty_transaction_are_null() -> None:
    empty = replace(FULL, state=TransactionState.EMPTY, partitions=frozenset())
    assert empty.encode(0)[17:21] == b"\xff\xff\xff\xff"
    assert empty.encode(1)[17:18] == b"\0"


def test_an_unknown_tagged_field_is_no_error() -> None:
    data = FULL.encode()
    at = data.index(b"\4\0\x08")
    assert decoded(data[:at] + b"\5" + data[at + 1 :] + b"\x09\1x") == FULL


def test_an_unknown_state_is_malformed() -> None:
    data = bytearray(FULL.encode())
    data[16] = 99
    with pytest.raises(MalformedMessage):
        decoded(bytes(data))


def test_a_key_is_its_type_and_the_transactional_id() -> None:
    assert KEY.encode() == b"\0\0\0\x08copier-1"
    encoded = TRANSACTION_RECORDS.encode(CoordinatorRecord(KEY, None))
    assert TRANSACTION_RECORDS.decode(*encoded) == CoordinatorRecord(KEY, None)
