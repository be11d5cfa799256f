"""Reads `.index`, `.timeindex` and `.txnindex` files and checks them against their log."""

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from suwi.admin.log_dump.findings import Damage, Entry, Findings, Note, open_file
from suwi.admin.log_dump.segments import Batch, headers
from suwi.admin.text import time_text

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TXN_ENTRY = struct.Struct(">hqqqq")
_TXN_VERSION = 0


class _Log(NamedTuple):
    """The batches of the log beside an index."""

    positions: list[int]
    base_offsets: list[int]
    last_offsets: list[int]
    times: list[int]
    """The maximum timestamp up to each batch."""


def _log_of(path: str, suffix: str) -> _Log | None:
    """The log of an index; None if it does not exist."""
    stem, _, rest = path.rpartition(suffix)
    log_path = f"{stem}.log{rest}"
    if not os.path.isfile(log_path):
        return None
    log = _Log([], [], [], [])
    newest = -1
    with open_file(log_path) as file:
        for found in headers(file, os.path.getsize(log_path)):
            if isinstance(found, Batch):
                newest = max(newest, found.header.max_timestamp)
                log.positions.append(found.position)
                log.base_offsets.append(found.header.base_offset)
                log.last_offsets.append(found.header.last_offset)
                log.times.append(newest)
    return log


def _entries(path: str, form: struct.Struct) -> tuple[list[tuple[int, ...]], list[Damage | Note]]:
    """The entries of a file, without the zeros that a running Apache Kafka has at the end."""
    with open_file(path) as file:
        data = file.read()
    findings: list[Damage | Note] = []
    whole = len(data) - len(data) % form.size
    if whole < len(data):
        findings.append(
            Damage(f"{len(data) - whole} bytes at the end are an incomplete entry of {form.size}")
        )
    used = len(data[:whole].rstrip(b"\0"))
    count = -(-used // form.size)
    if used and count * form.size < whole:
        findings.append(_preallocated(whole // form.size - count))
    elif not used and whole:
        # The first entry may be zero, but not two entries.
        count = 0
        findings.append(_preallocated(whole // form.size))
    return list(form.iter_unpack(data[: count * form.size])), findings


def _preallocated(count: int) -> Note:
    return Note(f"space for {count} more entries, preallocated by a running or crashed broker")


def read_offset_index(path: str, base_offset: int) -> Findings:
    log = _log_of(path, ".index")
    entries, findings = _entries(path, _OFFSET_ENTRY)
    last = (-1, -1)
    for relative, position in entries:
        offset = base_offset + relative
        yield Entry("index", {"offset": offset, "position": position})
        if relative <= last[0] or position <= last[1]:
            yield Damage(f"offset {offset}: it is not greater than the entry before")
        elif log is not None:
            yield from _check_position(log, offset, position)
        last = (relative, position)
    yield from findings
    if log is None:
        yield Note("there is no .log file to compare with")


def _check_position(log: _Log, offset: int, position: int) -> Iterator[Damage]:
    at = bisect_left(log.positions, position)
    if at == len(log.positions) or log.positions[at] != position:
        yield Damage(f"offset {offset}: no batch starts at position {position}")
    elif log.base_offsets[at] > offset:
        yield Damage(
            f"offset {offset}: the batch at position {position} starts at offset "
            f"{log.base_offsets[at]}"
        )
    elif not _is_last_offset(log, offset):
        # Batches that were appended together have one entry, with the last offset.
        yield Damage(f"offset {offset}: no batch ends there")


def _is_last_offset(log: _Log, offset: int) -> bool:
    at = bisect_left(log.last_offsets, offset)
    return at < len(log.last_offsets) and log.last_offsets[at] == offset


def read_time_index(path: str, base_offset: int) -> Findings:
    log = _log_of(path, ".timeindex")
    entries, findings = _entries(path, _TIME_ENTRY)
    last = (-1, -1)
    for timestamp, relative in entries:
        offset = base_offset + relative
        fields = {"timestamp": timestamp, "offset": offset}
        yield Entry("timeindex", fields, {"timestamp": time_text(timestamp), "offset": offset})
        if timestamp <= last[0] or relative < last[1]:
            yield Damage(f"offset {offset}: it is not greater than the entry before")
        elif log is not None:
            yield from _check_time(log, timestamp, offset)
        last = (timestamp, relative)
    yield from findings
    if log is None:
        yield Note("there is no .log file to compare with")


def _check_time(log: _Log, timestamp: int, offset: int) -> Iterator[Damage]:
    if not log.last_offsets or offset > log.last_offsets[-1]:
        yield Damage(f"offset {offset}: it is beyond the end of the log")
        return
    before = bisect_right(log.last_offsets, offset)
    if before and log.times[before - 1] > timestamp:
        newer = time_text(log.times[before - 1])
        yield Damage(f"offset {offset}: an earlier record is newer, {newer}")


def read_txn_index(path: str, base_offset: int) -> Findings:
    with open_file(path) as file:
        data = file.read()
    whole = len(data) - len(data) % _TXN_ENTRY.size
    for version, producer_id, first, last, stable in _TXN_ENTRY.iter_unpack(data[:whole]):
        offsets = {"first_offset": first, "last_offset": last, "last_stable_offset": stable}
        yield Entry("aborted", {"producer_id": producer_id, **offsets})
        if version != _TXN_VERSION:
            yield Damage(f"producer {producer_id}: unknown version {version}")
        if not 0 <= first <= last or last < base_offset:
            yield Damage(f"producer {producer_id}: offsets {first} to {last} are impossible here")
    if whole < len(data):
        yield Damage(f"{len(data) - whole} bytes at the end are an incomplete entry")
