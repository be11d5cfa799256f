"""Batches of other implementations are readable here, and ours there, with every codec."""

import warnings
from typing import Any

import aiokafka.record.default_records as aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.records.batch import read_header
from suwi.records.builder import build_batch, build_marker
from suwi.records.compression import Compression
from suwi.records.record import MarkerType, Record, iter_records
from suwi.records.validate import (
    BatchRules,
    validate_produced_batch,
    validate_produced_records,
)
from tests.records.strategies import record_lists

with warnings.catch_warnings():
    # kafka-python reads its schemas with a call that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    import kafka.record.default_records as kp

# kafka-python uses optional packages for its codecs.
KAFKA_PYTHON_HAS = {
    Compression.NONE: lambda: True,
    Compression.GZIP: kafka.codec.has_gzip,
    Compression.SNAPPY: kafka.codec.has_snappy,
    Compression.LZ4: kafka.codec.has_lz4,
    Compression.ZSTD: kafka.codec.has_zstd,
}
IMPLEMENTATIONS = [
    pytest.param(
        reader,
        builder,
        codec,
        id=f"{name}-{codec.name}",
        marks=pytest.mark.skipif(
            name == "kafka-python" and not KAFKA_PYTHON_HAS[codec](), reason="codec not installed"
        ),
    )
    for name, reader, builder in (
        ("kafka-python", kp.DefaultRecordBatch, kp.DefaultRecordBatchBuilder),
        ("aiokafka", aio._DefaultRecordBatchPy, aio._DefaultRecordBatchBuilderPy),
        ("aiokafka-native", aio.DefaultRecordBatch, aio.DefaultRecordBatchBuilder),
    )
    for codec in Compression
]
every_implementation = pytest.mark.parametrize(("reader", "builder", "codec"), IMPLEMENTATIONS)


def as_ours(theirs: Any) -> Record:
    return Record(
        theirs.offset,
        theirs.timestamp,
        None if theirs.key is None else bytes(theirs.key),
        None if theirs.value is None else bytes(theirs.value),
        tuple((name, None if value is None else bytes(value)) for name, value in theirs.headers),
    )


@every_implementation
@given(records=record_lists(), times=st.integers(1, 20))
def test_other_implementations_read_our_batches(
    reader: Any, builder: Any, codec: Compression, records: list[Record], times: int
) -> None:
    batch = build_batch(
        records * times,
        codec=codec,
        base_offset=1000,
        producer_id=5,
        producer_epoch=6,
        base_sequence=7,
    )
    theirs = reader(bytes(batch))
    assert theirs.validate_crc()
    assert theirs.compression_type == codec
    assert (theirs.base_offset, theirs.next_offset) == (1000, 1000 + len(records) * times)
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (5, 6, 7)
    assert theirs.max_timestamp == max(record.timestamp for record in records)
    assert [as_ours(record) for record in theirs] == [
        record._replace(offset=1000 + n) for n, record in enumerate(records * times)
    ]


@every_implementation
@given(records=record_lists(), times=st.integers(1, 20))
def test_batches_of_other_implementations_are_read_and_accepted(
    reader: Any, builder: Any, codec: Compression, records: list[Record], times: int
) -> None:
    theirs = builder(
        magic=2,
        compression_type=codec,
        is_transactional=True,
        producer_id=5,
        producer_epoch=6,
        base_sequence=7,
        batch_size=10_000_000,
    )
    for n, (_, timestamp, key, value, headers) in enumerate(records * times):
        theirs.append(n, timestamp, key, value, list(headers))
    batch = theirs.build()
    header = read_header(batch)
    rules = BatchRules()
    validate_produced_batch(batch, header, rules=rules, now_ms=2**45, produce_version=7)
    validate_produced_records(batch, header, needs_keys=False)
    assert header.codec in (codec, Compression.NONE)  # they do not compress what does not shrink
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 6, 7)
    assert list(iter_records(batch, header)) == [
        record._replace(offset=n) for n, record in enumerate(records * times)
    ]


@pytest.mark.parametrize("marker", list(MarkerType))
def test_kafka_python_reads_our_transaction_markers(marker: MarkerType) -> None:
    batch = build_marker(marker, producer_id=1, producer_epoch=2, coordinator_epoch=3, timestamp=4)
    theirs = kp.DefaultRecordBatch(bytes(batch))
    assert theirs.is_control_batch
    assert theirs.is_transactional
    (record,) = theirs
    assert (record.commit, record.abort) == (
        marker is MarkerType.COMMIT,
        marker is MarkerType.ABORT,
    )
