"""The log of a coordinator's shard as it lies on a simulated disk, and as compaction may leave it.

`read` goes past the code under test. `compacted` does what a log cleaner may do at any time, also
with transactions: it stays below the last stable offset, an aborted record hides no other, and a
marker goes only after all records of its transaction (hazard T16).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from suwi.coordinator.record import Codec, RecordFacts
from suwi.log.partition_log import PartitionLog
from suwi.records.batch import batches
from suwi.records.record import Marker, MarkerType, iter_records, read_marker
from suwi.sim.cluster import SimNode


class LogRecord(NamedTuple):
    facts: RecordFacts
    key: bytes
    value: bytes | None
    marker: Marker | None = None


def read(node: SimNode, log: PartitionLog) -> Iterator[LogRecord]:
    for segment in log.segments():
        content = node.machine.disk.peek(segment.log_path)
        data = memoryview(bytes(content[: segment.size_bytes]))
        for position, header in batches(data):
            batch = data[position:]
            of_producer = header.producer_id, header.producer_epoch, header.is_transactional
            if header.is_control:
                marker = read_marker(batch, header)
                if marker is not None:
                    yield LogRecord(
                        RecordFacts(header.base_offset, True, *of_producer), b"", None, marker
                    )
                continue
            for record in iter_records(batch, header, with_headers=False):
                facts = RecordFacts(record.offset, True, *of_producer)
                yield LogRecord(facts, record.key or b"", record.value)


def replay(machine: Any, codec: Codec, records: list[LogRecord]) -> None:
    for facts, key, value, marker in records:
        if marker is not None:
            for _ in machine.replaying_marker(marker, facts):
                pass
            continue
        decoded = codec.decode(key, value)
        if decoded is not None:
            for _ in machine.replay(decoded, facts) or ():
                pass


def compacted(records: list[LogRecord], start: int, end: int) -> list[LogRecord]:
    """With the records from number `start` to `end` compacted, as far as they are stable.
    Tombstones go with the first part only: in the middle they may hide what lies before."""
    ends = _transactions(records)
    end = min([end, *(number for number, marker in ends.items() if marker is None)])
    is_first = start == 0

    def is_aborted(number: int) -> bool:
        marker = ends.get(number)
        return marker is not None and _is_abort(records[marker])

    newest = {
        records[number].key: number
        for number in range(start, end)
        if records[number].marker is None and not is_aborted(number)
    }

    def is_kept(number: int, record: LogRecord) -> bool:
        if record.marker is not None or not start <= number < end:
            return True
        return newest.get(record.key) == number and not (is_first and record.value is None)

    kept = [number for number, record in enumerate(records) if is_kept(number, record)]
    if is_first:
        needed = {ends.get(number) for number in kept}
        kept = [
            number
            for number in kept
            if number >= end or records[number].marker is None or number in needed
        ]
    return [records[number] for number in kept]


def _transactions(records: list[LogRecord]) -> dict[int, int | None]:
    """By number of each transactional record that of its marker; None while it is open."""
    ends: dict[int, int | None] = {}
    open_of: dict[int, list[int]] = {}
    for number, record in enumerate(records):
        producer_id = record.facts.producer_id
        if record.marker is not None:
            ends.update(dict.fromkeys(open_of.pop(producer_id, ()), number))
        elif record.facts.is_transactional:
            ends[number] = None
            open_of.setdefault(producer_id, []).append(number)
    return ends


def _is_abort(record: LogRecord) -> bool:
    return record.marker is not None and record.marker.type is MarkerType.ABORT
