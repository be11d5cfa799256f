"""A task: one partition's records from one offset to another, as Arrow record batches.

`read_range` is all there is. The next fetch is under way while the last one is decoded.
Gaps are normal, transactions and compaction leave them; what is gone is reported (`loss`).
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from suwi.client.fetching import PartitionFetcher
from suwi.client.offsets import EARLIEST as EARLIEST_TIME
from suwi.client.offsets import LATEST as LATEST_TIME
from suwi.client.offsets import list_offsets
from suwi.model.errors import CorruptMessage, OffsetOutOfRange, UnknownTopicOrPartition
from suwi.model.ids import Offset
from suwi.spark.columns import Decoder
from suwi.spark.gc_freeze import freeze_loaded
from suwi.spark.offsets import EARLIEST, LATEST, LossReporter
from suwi.spark.options import SourceOptions
from suwi.spark.planning import OffsetRange, check_settled
from suwi.spark.session import session_for
from suwi.spark.where import expression
from suwi.wire.fetch_response import FetchedPartition

if TYPE_CHECKING:
    import pyarrow as pa

# Before anything is known of the records.
_RECORD_BYTES_GUESS = 1024
_FETCH_BYTES_MIN = 64 * 1024
_VANISHED_MAX = 3


def read_range(options: SourceOptions, range_: OffsetRange) -> Iterator["pa.RecordBatch"]:
    """Raises `DataLoss`, `BrokerError`s, TimeoutError and other OSErrors."""
    freeze_loaded("read")
    return _RangeReader(options, range_).batches()


class _RangeReader:
    def __init__(self, options: SourceOptions, range_: OffsetRange) -> None:
        self._options = options
        self._partition = range_.partition
        self._range = range_
        self._session = session_for(options.connection)
        self._fetcher = PartitionFetcher(self._session.cluster, self._partition, options.read)
        self._decoder = Decoder(self._partition, include_headers=options.include_headers)
        self._loss = LossReporter(fail=options.fail_on_data_loss)
        self._next: asyncio.Task[FetchedPartition] | None = None
        self._vanished = 0
        """How often an offset was not there that should be: a topic may just be made anew."""
        self._bytes_read = 0
        self._offsets_read = 0

    def batches(self) -> Iterator["pa.RecordBatch"]:
        position, end = self._settle()
        if self._is_replaced():
            position = end
        try:
            while position < end:
                fetched = self._fetch(position, end)
                if isinstance(fetched, int):  # Something is lost; read on there.
                    position = Offset(fetched)
                    continue
                assert isinstance(fetched.records, bytes | memoryview)
                data = memoryview(fetched.records)
                opened = self._decoder.open(
                    data, fetched.aborted, check_crcs=self._options.check_crcs
                )
                after = opened.position_after(position)
                if after <= position:
                    raise CorruptMessage(f"{self._partition}: no whole batch came for {position}")
                self._bytes_read += len(data)
                self._offsets_read += after - position
                if after < end:
                    self._next = self._session.start(self._ask(after, end))
                yield from self._chosen(opened.decode(position, end))
                position = after
        finally:
            if self._next is not None:
                self._next.cancel()

    def _chosen(self, batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        """The rows and columns that are wanted."""
        choice = self._options.choice
        if not choice.columns and not choice.where:
            yield from batches
            return
        import pyarrow as pa

        for batch in batches:
            table = pa.Table.from_batches([batch])
            wanted = expression(choice.where, batch.schema)
            if wanted is not None:
                table = table.filter(wanted)
            if choice.columns:
                table = table.select(list(choice.columns))
            yield from table.combine_chunks().to_batches()

    def _is_replaced(self) -> bool:
        """Whether another topic has the name now, or none. Raises `DataLoss`."""
        wanted, name = self._range.topic_id, self._partition.topic
        if wanted is None:
            return False
        cluster = self._session.cluster
        what = "was deleted and created again"
        try:
            for fresh in (False, True):  # What this process knows may be older than the plan.
                topic = self._session.run(cluster.topic(name, fresh=fresh))
                if str(topic.id) == wanted:
                    return False
        except UnknownTopicOrPartition:
            what = "was deleted"
        self._loss.report(
            f"topic {name!r} {what}: offsets {self._range.start} to {self._range.end - 1} of the "
            f"former {self._partition} are gone"
        )
        return True

    def _settle(self) -> tuple[Offset, Offset]:
        start, end = self._range.start, self._range.end
        if start == EARLIEST:
            start = self._offset_at(EARLIEST_TIME)
        if end == LATEST:
            end = self._offset_at(LATEST_TIME)
            check_settled(self._partition, start, end)
        return start, end

    def _offset_at(self, time: int) -> Offset:
        committed = self._options.read.committed_only
        asked = list_offsets(
            self._session.cluster, {self._partition: time}, committed_only=committed
        )
        return self._session.run(asked)[self._partition].offset

    async def _ask(self, position: Offset, end: Offset) -> FetchedPartition:
        """A response with records, or an empty one after the time-out."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._options.poll_timeout_ms / 1000
        while True:
            fetched = await self._fetcher.fetch(
                position, bytes_max=self._bytes_wanted(position, end)
            )
            if fetched.records or loop.time() >= until_s:
                return fetched

    def _bytes_wanted(self, position: Offset, end: Offset) -> int:
        """About as many bytes as are left in the range: other tasks read the rest."""
        guess = _RECORD_BYTES_GUESS
        if self._offsets_read:
            guess = self._bytes_read // self._offsets_read + 1
        wanted = (end - position) * guess * 5 // 4
        return min(self._options.read.partition_bytes_max, max(wanted, _FETCH_BYTES_MIN))

    def _fetch(self, position: Offset, end: Offset) -> FetchedPartition | int:
        """What lies at the position; where it is gone, the offset to read on at."""
        task, self._next = self._next, None
        try:
            fetched = self._session.run(self._wait(task, position, end))
        except OffsetOutOfRange:
            return self._skip(position, end)
        except UnknownTopicOrPartition:
            self._loss.report(
                f"{self._partition} is gone, and its offsets {position} to {end - 1} with it"
            )
            return end
        if fetched.records:
            return fetched
        there = fetched.last_stable_offset
        if not self._options.read.committed_only:
            there = fetched.high_watermark
        if position < there:
            waited_s = self._options.poll_timeout_ms / 1000
            raise TimeoutError(f"{self._partition}: offset {position} did not come in {waited_s} s")
        self._loss.report(
            f"{self._partition} ends at {there}: its offsets {position} to {end - 1} are gone"
        )
        return end

    async def _wait(
        self, task: asyncio.Task[FetchedPartition] | None, position: Offset, end: Offset
    ) -> FetchedPartition:
        return await (task or self._ask(position, end))

    def _skip(self, position: Offset, end: Offset) -> int:
        first, last = self._offset_at(EARLIEST_TIME), self._offset_at(LATEST_TIME)
        is_apart = position >= last or first >= end
        self._vanished += not is_apart and first <= position
        if self._vanished > _VANISHED_MAX:
            raise OffsetOutOfRange(f"{self._partition} has offset {position} and does not give it")
        lost_to = end if is_apart else max(first, position + 1)
        self._loss.report(
            f"{self._partition} has offsets {first} to {last - 1} now: {position} to {lost_to - 1} "
            "are gone"
        )
        return end if is_apart else max(first, position)
