"""Turns the records of a shard into batches at the end of its partition's log.

Invariant: a piece that must be whole is one batch. One that is too large for the topic is
compressed: Kafka's limit counts the bytes of a batch as it is stored. Zstandard is both faster and
smaller than LZ4 for offsets (100,000 of them: 19 ms and 0.4 MB, not 68 ms and 1.1 MB).
"""

from collections.abc import Generator, Sequence
from typing import Final

from suwi.coordinator.decision import (
    RECORDS_PER_SLICE,
    Decision,
    TransactionalProducer,
)
from suwi.coordinator.record import Codec
from suwi.coordinator.record_queue import Queued, encode, encoding
from suwi.env.slices import run_to_end
from suwi.model.errors import RecordListTooLarge
from suwi.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Offset
from suwi.records.batch import HEADER_BYTES, read_header
from suwi.records.builder import RecordsSection
from suwi.records.compression import Compression, compressing
from suwi.records.record import Record
from suwi.replica.partition import Partition

_UNCOMPRESSED_BYTES_MAX: Final = 16 << 20
"""What every replica decompresses, however small the batch is."""


class Appender:
    def __init__(self, partition: Partition, codec: Codec) -> None:
        self._partition = partition
        self._codec = codec

    @property
    def batch_bytes_max(self) -> int:
        return self._partition.config.max_message_bytes - HEADER_BYTES

    def encode(self, decision: Decision, now_ms: int) -> list[Queued]:
        return encode(decision, self._codec, now_ms)

    def encoding(self, decision: Decision, now_ms: int) -> Generator[None, None, list[Queued]]:
        """As `encode`, in slices; what must be whole may be too large for a batch as it is."""
        return encoding(decision, self._codec, now_ms, _UNCOMPRESSED_BYTES_MAX)

    def append(
        self, records: Sequence[Record], producer: TransactionalProducer | None = None
    ) -> Offset:
        """The end of the log after it. Raises a `BrokerError`, and nothing is appended."""
        section = RecordsSection()
        section.extend(records)
        return run_to_end(self._append(section, records[0].timestamp, producer))

    def appending(
        self, records: Sequence[Record], producer: TransactionalProducer | None = None
    ) -> Generator[None, None, Offset]:
        """As `append`; encodes in slices, and appends after the last one."""
        section = RecordsSection()
        for start in range(0, len(records), RECORDS_PER_SLICE):
            section.extend(records[start : start + RECORDS_PER_SLICE])
            yield
        return (yield from self._append(section, records[0].timestamp, producer))

    def _append(
        self, section: RecordsSection, now_ms: int, producer: TransactionalProducer | None
    ) -> Generator[None, None, Offset]:
        """Compresses in slices; the append itself is in the last one."""
        bytes_max, compressed = self.batch_bytes_max, None
        is_small = len(section.encoded) <= bytes_max
        if not is_small:
            compressed = yield from compressing(section.encoded)
        producer_id, producer_epoch, guard = producer or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, None)
        batch = memoryview(
            section.batch(
                codec=Compression.NONE if is_small else Compression.ZSTD,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=producer is not None,
                compressed=compressed,
            )
        )
        if len(batch) - HEADER_BYTES > bytes_max:
            raise RecordListTooLarge(f"{section.records} records in one batch")
        header = read_header(batch)
        if producer is None:
            appended = self._partition.append(batch, header, now_ms)
            return Offset(appended.base_offset + section.records)
        self._partition.transactions.append(batch, header, now_ms, guard)
        return self._partition.log.end_offset
