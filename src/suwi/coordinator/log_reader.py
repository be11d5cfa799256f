"""Replays the records of an internal partition into a machine, in slices of the event loop.

Invariant: `applied` is the offset of the next batch to replay; all before it has been replayed.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from suwi.coordinator.event import Replayable
from suwi.coordinator.record import Codec, RecordFacts
from suwi.env.slices import Slices
from suwi.log.partition_log import PartitionLog
from suwi.model.errors import BrokerError, CorruptMessage, InvalidRecord, KafkaStorageError
from suwi.model.ids import Offset
from suwi.records.batch import BatchHeader, batches, compute_crc
from suwi.records.record import iter_records, read_marker
from suwi.replica.partition import Partition
from suwi.wire.errors import MalformedMessage

log = logging.getLogger(__name__)

_READ_BYTES: Final = 64 * 1024
_RECORDS_PER_SLICE: Final = 100


class LogReader:
    def __init__(self, partition_log: PartitionLog, codec: Codec) -> None:
        self.applied = partition_log.start_offset
        self.unreadable = 0
        """Records and batches that were skipped because they cannot be decoded."""
        self._log = partition_log
        self._codec = codec
        self._generation = partition_log.generation
        self._since_turn = 0
        partition_log.directory.truncated_to = None

    def lags_behind(self, end: Offset) -> bool:
        return self.applied < end or self._generation != self._log.generation

    def is_void(self, partition_log: PartitionLog) -> bool:
        """Whether what was replayed may differ from the log, because it is another one or was
        truncated."""
        if partition_log is not self._log or self.applied < partition_log.start_offset:
            return True
        if self._generation == partition_log.generation:
            return False
        truncated_to = partition_log.directory.truncated_to
        if truncated_to is not None and truncated_to < self.applied:
            return True
        partition_log.directory.truncated_to = None
        self._generation = partition_log.generation
        return False

    async def replay(
        self, machine: Replayable, end: Offset, committed: Offset, is_wanted: Callable[[], bool]
    ) -> None:
        """Replay up to `end`; what lies at `committed` or above is not committed yet."""
        while self.applied < end:
            try:
                found = self._log.read(self.applied, _READ_BYTES, end, whole_batch=True)
            except KafkaStorageError as error:
                known = [
                    each for each in self._log.damages if each.first <= self.applied < each.end
                ]
                if not known:
                    raise
                # Skipped like a batch that cannot be decoded: a retry would fail in the same place,
                # and the shard would never be loaded.
                self._skip(known[0].first, error)
                self.applied = min(known[0].end, end)
                continue
            if found is None:
                self.applied = end  # Compaction left nothing.
                return
            region, release = found.pin()
            generation = self._log.generation
            try:
                data = await asyncio.get_running_loop().run_in_executor(
                    None, region.file.pread, region.size_bytes, region.position
                )
            except OSError as error:
                # The disk has failed, not a record. Its directory goes offline, and loading is
                # retried.
                raise self._log.directory.failed(error, generation) from error
            finally:
                release()
            if not is_wanted() or self._generation != self._log.generation:
                return
            for position, header in batches(data):
                if header.next_offset <= self.applied:
                    continue
                for _ in self._batch(memoryview(data)[position:], header, machine, committed):
                    await asyncio.sleep(0)
                    if not is_wanted():
                        return
                self.applied = Offset(header.next_offset)

    def _batch(
        self, batch: memoryview, header: BatchHeader, machine: Replayable, committed: Offset
    ) -> Slices[None]:
        """Replay a batch, with a pause after each slice."""
        if compute_crc(batch, 0, header.size_bytes) != header.crc:
            # Damaged values could be taken for committed offsets or decided transactions.
            self._log.state.suspects[self._log.partition] = Offset(header.base_offset)
            self._skip(header.base_offset, CorruptMessage("the batch's checksum is wrong"))
            return
        try:
            yield from self._records(batch, header, machine, committed)
        except InvalidRecord as error:
            self._skip(header.base_offset, error)

    def _skip(self, offset: int, error: Exception) -> None:
        """A record that cannot be decoded is skipped: neither a retry nor another leader could read
        it (hazard G10)."""
        self.unreadable += 1
        log.error(
            "coordinator record skipped",
            extra={"partition": str(self._log.partition), "offset": offset, "reason": str(error)},
        )

    def _records(
        self, batch: memoryview, header: BatchHeader, machine: Replayable, committed: Offset
    ) -> Slices[None]:
        is_committed = header.last_offset < committed
        producer = header.producer_id, header.producer_epoch, header.is_transactional
        if header.is_control:
            marker = read_marker(batch, header)
            if marker is not None:
                facts = RecordFacts(header.base_offset, is_committed, *producer)
                yield from machine.replaying_marker(marker, facts)
            if self._ends_slice():
                yield
            return
        for record in iter_records(batch, header, with_headers=False):
            try:
                key, value = record.key or b"", record.value
                decoded = self._codec.decode_plain(key, value)
                if decoded is None:
                    decoded = yield from self._codec.decoding(key, value)
            except MalformedMessage as error:
                self._skip(record.offset, error)
                decoded = None
            if decoded is not None:
                facts = RecordFacts(record.offset, is_committed, *producer)
                yield from machine.replay(decoded, facts) or ()
            if self._ends_slice():
                yield

    def _ends_slice(self) -> bool:
        """Whether the slice is over after this record."""
        self._since_turn += 1
        if self._since_turn < _RECORDS_PER_SLICE:
            return False
        self._since_turn = 0
        return True


async def until_committed(partition: Partition, end: Offset) -> None:
    """Wait until all records below `end` are committed. Raises a `BrokerError` if this replica will
    not learn of it."""
    committed = asyncio.get_running_loop().create_future()

    def tell(error: BrokerError | None) -> None:
        if committed.done():
            return
        if error is None:
            committed.set_result(None)
        else:
            committed.set_exception(error)

    partition.when_committed(end, tell)
    await committed
