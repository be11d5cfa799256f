"""Lookup of batches by timestamp.

A segment written by an earlier process reads its newest timestamp from its files. So that a lookup
in thousands of segments does not take the event loop, `reading_timestamps` goes first, in slices.
"""

from suwi.log.log_segments import SEGMENTS_AT_ONCE
from suwi.log.log_slice import LogSlice
from suwi.log.partition_log import PartitionLog
from suwi.log.sliced_work import TURN, Steps
from suwi.model.ids import Offset


def reading_timestamps(partition_log: PartitionLog, until: int | None = None) -> Steps[None]:
    """Read the newest timestamps of all segments, or up to the first at or after `until`.

    Yields only `TURN`. Raises KafkaStorageError.
    """
    while True:
        read = 0
        with partition_log.directory.guard():
            # Segments may have been deleted or replaced in the meantime, hence from the start.
            for segment in partition_log.segments():
                if not segment.knows_max_timestamp:
                    if read == SEGMENTS_AT_ONCE:
                        break
                    read += 1
                newest = segment.max_timestamp
                if until is not None and newest >= until:
                    return
            else:
                return
        yield TURN


def batch_at_time(
    partition_log: PartitionLog, timestamp: int, from_offset: Offset = Offset(0)
) -> LogSlice | None:
    """The first batch that ends at or after `from_offset` and has a record at or after `timestamp`;
    None if there is none.

    The start of the log, or `from_offset`, may be inside the batch: if the record is before it,
    call again with the end of the batch.
    """
    from_offset = max(from_offset, partition_log.start_offset)
    with partition_log.directory.guard():
        for segment in partition_log.segments(from_offset):
            batch = segment.locate_time(timestamp, from_offset) if segment.size_bytes else None
            if batch is not None:
                return LogSlice(
                    partition_log.directory, segment.log_path, batch.position, batch.size_bytes
                )
    return None


def batch_of_max_timestamp(partition_log: PartitionLog) -> LogSlice | None:
    """The first batch with the newest timestamp; None in an empty log."""
    with partition_log.directory.guard():
        newest = max(segment.max_timestamp for segment in partition_log.segments())
    return batch_at_time(partition_log, newest) if newest >= 0 else None
