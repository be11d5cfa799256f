"""Reads `.log` files: batches and records.

A batch with a wrong checksum is reported and skipped, because its length locates the next batch;
after bytes that are not a batch nothing more can be read.
"""

import os
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from suwi.admin.json_records import record_fields
from suwi.admin.log_dump.findings import Damage, Entry, Findings, Note, open_file
from suwi.admin.text import bytes_text, printable, time_text
from suwi.model.errors import BrokerError, CorruptMessage
from suwi.records.batch import HEADER_BYTES, BatchHeader, compute_crc, read_header
from suwi.records.record import Record, iter_records, read_marker

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_CHUNK_BYTES = 1 << 20


class Batch(NamedTuple):
    position: int
    header: BatchHeader


def headers(file: BinaryIO, size_bytes: int) -> Iterator[Batch | Damage | Note]:
    """Every batch up to the end, or up to the first bytes that are not a batch."""
    position = 0
    while position < size_bytes:
        file.seek(position)
        head = file.read(min(HEADER_BYTES, size_bytes - position))
        left = size_bytes - position
        try:
            header = read_header(head)
        except CorruptMessage as error:
            if _is_zero_from(file, position):
                yield Note(f"{left} bytes of zeros from position {position} on: preallocated")
            elif len(head) < HEADER_BYTES:
                yield Damage(
                    f"position {position}: torn, {left} bytes of an incomplete batch header"
                )
            else:
                yield Damage(
                    f"position {position}: not a batch ({error}); the last {left} bytes are lost"
                )
            return
        if header.size_bytes > left:
            yield Damage(
                f"position {position}: torn, the batch at offset {header.base_offset} has "
                f"{header.size_bytes} bytes, but only {left} exist"
            )
            return
        yield Batch(position, header)
        position += header.size_bytes


def _is_zero_from(file: BinaryIO, position: int) -> bool:
    file.seek(position)
    while chunk := file.read(_CHUNK_BYTES):
        if chunk.count(0) < len(chunk):
            return False
    return True


def read_log(path: str, base_offset: int | None, records: bool) -> Findings:
    with open_file(path) as file:
        before: BatchHeader | None = None
        for found in headers(file, os.path.getsize(path)):
            if not isinstance(found, Batch):
                yield found
                continue
            header = found.header
            file.seek(found.position)
            data = file.read(header.size_bytes)
            yield _batch_entry(found)
            yield from _check(found, data, before, base_offset)
            if records:
                yield from _records(found, data)
            before = header


def _batch_entry(batch: Batch) -> Entry:
    header = batch.header
    codec = header.attributes & 0x07
    fields: dict[str, Any] = {
        "offset": header.base_offset,
        "last_offset": header.last_offset,
        "position": batch.position,
        "size": header.size_bytes,
        "count": header.record_count,
        "epoch": header.partition_leader_epoch,
        "codec": _CODECS[codec] if codec < len(_CODECS) else f"unknown ({codec})",
        "time": header.max_timestamp,
        "time_type": "LogAppendTime" if header.uses_log_append_time else "CreateTime",
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "delete_horizon": header.base_timestamp if header.has_delete_horizon else None,
        "crc": header.crc,
    }
    shown = {
        "offset": f"{header.base_offset}..{header.last_offset}",
        "position": batch.position,
        "size": header.size_bytes,
        "count": header.record_count,
        "epoch": header.partition_leader_epoch,
        "codec": fields["codec"] if codec else None,
        "LogAppendTime" if header.uses_log_append_time else "time": time_text(header.max_timestamp),
    }
    if header.has_producer_id:
        shown["producer"] = f"{header.producer_id} epoch {header.producer_epoch}"
        if header.base_sequence >= 0:
            shown["sequence"] = f"{header.base_sequence}..{header.last_sequence}"
    if header.has_delete_horizon:
        shown["delete_horizon"] = time_text(header.base_timestamp)
    flags = (header.is_transactional and "transactional", header.is_control and "control")
    shown["is"] = ",".join(flag for flag in flags if flag)
    return Entry("batch", fields, shown)


def _check(
    batch: Batch, data: bytes, before: BatchHeader | None, base_offset: int | None
) -> Iterator[Damage]:
    position, header = batch
    computed = compute_crc(data, 0, header.size_bytes)
    if computed != header.crc:
        yield Damage(
            f"position {position}: bad CRC, stored {header.crc:08x}, computed {computed:08x}"
        )
    if before is not None and header.base_offset <= before.last_offset:
        yield Damage(
            f"position {position}: offset {header.base_offset} is not greater than "
            f"{before.last_offset}"
        )
    elif before is None and base_offset is not None and header.base_offset < base_offset:
        yield Damage(
            f"position {position}: offset {header.base_offset} is below the file's {base_offset}"
        )
    if before is not None and header.partition_leader_epoch < before.partition_leader_epoch:
        yield Damage(
            f"position {position}: leader epoch {header.partition_leader_epoch} comes after "
            f"{before.partition_leader_epoch}"
        )


def _records(batch: Batch, data: bytes) -> Iterator[Entry | Damage]:
    header = batch.header
    try:
        if header.is_control:
            marker = read_marker(data, header)
            name = "other" if marker is None else marker.type.name
            epoch = -1 if marker is None else marker.coordinator_epoch
            fields = {"offset": header.base_offset, "marker": name, "coordinator_epoch": epoch}
            yield Entry("marker", fields, indent=2)
            return
        for record in iter_records(data, header):
            yield _record_entry(record)
    except BrokerError as error:
        yield Damage(f"position {batch.position}: the records cannot be read: {error}")


def _record_entry(record: Record) -> Entry:
    fields = record_fields("", 0, record)
    del fields["topic"], fields["partition"]
    shown = {
        "offset": record.offset,
        "time": time_text(record.timestamp),
        "key": None if record.key is None else printable(bytes_text(record.key)) or '""',
        "value": printable(bytes_text(record.value)) or '""',
        "headers": printable(",".join(f"{n}={bytes_text(v)}" for n, v in record.headers)),
    }
    return Entry("record", fields, shown, indent=2)
