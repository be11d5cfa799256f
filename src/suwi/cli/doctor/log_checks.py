"""Checks of the logs in the data directory of a stopped broker: every batch, index and snapshot.

`check_logs` reads each segment once, with its checksums, and compares it with its neighbours. They
change nothing.
"""

import os
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from suwi.cli.doctor.finding import ERROR, WARNING, Finding
from suwi.cli.dump.command import Findings
from suwi.cli.dump.findings import Damage
from suwi.cli.dump.indexes import read_offset_index, read_time_index, read_txn_index
from suwi.cli.dump.segments import open_file, read_log
from suwi.cli.dump.small_files import read_snapshot
from suwi.cli.output import count_text, size_text
from suwi.env import Clock, Disk, Env
from suwi.env.local_disk import LocalFile
from suwi.log import checkpoints, names
from suwi.log.batch_scan import Row, scan_rows
from suwi.log.segment import RELATIVE_OFFSET_MAX
from suwi.log.txn_index import TxnIndex
from suwi.model.errors import CorruptMessage, InvalidRecord
from suwi.model.ids import Offset, TopicPartition
from suwi.records.batch import BatchHeader
from suwi.records.record import MarkerType, read_marker

_PROGRESS_EVERY_MS = 5_000
_REBUILT = "remove the file: the next start makes it again from the log"
_INDEXES: dict[str, Callable[[str, int], Findings]] = {
    names.OFFSET_INDEX: read_offset_index,
    names.TIME_INDEX: read_time_index,
    names.TXN_INDEX: read_txn_index,
}


class Log(NamedTuple):
    """The log of one partition."""

    directory: str
    start_offset: Offset
    may_have_gaps: bool
    """Whether it was compacted, or Apache Kafka may have compacted it."""
    was_killed: bool
    """The end may be an unfinished write, which the next start removes."""

    @property
    def advice(self) -> str:
        return f"{self.advice_without_repair}; without one: suwi repair segments {self.directory}"

    @property
    def advice_without_repair(self) -> str:
        return (
            "with an in-sync replica on another broker: move the directory away and start the "
            "broker, which copies it"
        )


class _Segment(NamedTuple):
    base_offset: Offset
    end_offset: int
    """The offset after the last batch that could be read."""
    is_whole: bool
    aborted: list[Offset]
    """The offsets of the markers that aborted transactions."""


class Progress:
    """A line on stderr every few seconds."""

    def __init__(self, clock: Clock, size_bytes: int) -> None:
        self._clock = clock
        self._size_bytes = size_bytes
        self._checked_bytes = 0
        self._line_ms = clock.now_ms()

    def add(self, size_bytes: int) -> None:
        self._checked_bytes += size_bytes
        now_ms = self._clock.now_ms()
        if now_ms - self._line_ms >= _PROGRESS_EVERY_MS:
            self._line_ms = now_ms
            checked, of = size_text(self._checked_bytes), size_text(self._size_bytes)
            sys.stderr.write(f"checked {checked} of {of}\n")


def check_logs(path: str, env: Env, *, was_killed: bool) -> Iterator[Finding]:
    """`path`: the data directory of a stopped broker."""
    disk = env.disk
    starts = checkpoints.read_offsets(disk, f"{path}/{names.LOG_START_OFFSETS}") or {}
    cleaned = checkpoints.read_offsets(disk, f"{path}/{names.CLEANER_OFFSETS}") or {}
    found: list[tuple[TopicPartition, str]] = []
    for name in disk.list_dir(path):
        partition = names.parse_partition_dir_name(name)
        if partition is not None:
            found.append((partition, f"{path}/{name}"))
    progress = Progress(env.clock, sum(_size(disk, directory) for _, directory in found))
    for partition, directory in found:
        start = starts.get(partition, Offset(0))
        log = Log(directory, start, partition in cleaned, was_killed)
        try:
            yield from _check_log(log, disk, progress)
        except OSError as error:
            yield Finding(
                ERROR,
                error.filename or directory,
                f"it cannot be read: {error.strerror}",
                "give the broker's user access to it, or check the disk",
            )


def _size(disk: Disk, directory: str) -> int:
    try:
        logs = [name for name in disk.list_dir(directory) if name.endswith(names.LOG)]
        return sum(disk.size(f"{directory}/{name}") for name in logs)
    except OSError:
        return 0  # `_check_log` reports it.


def _check_log(log: Log, disk: Disk, progress: Progress) -> Iterator[Finding]:
    files = names.offsets_by_suffix(disk.list_dir(log.directory))
    bases = files.get(names.LOG, [])
    segments: list[_Segment] = []
    open_txns: set[int] = set()
    yield from _check_first(log, disk, bases)
    for base in bases:
        is_last = base == bases[-1]
        findings, segment = _check_segment(log, base, progress, open_txns, is_last=is_last)
        yield from findings
        yield from _check_aborted(log, disk, segment)
        segments.append(segment)
    for before, after in pairwise(segments):
        yield from _compare(log, before, after)
    for suffix, read in _INDEXES.items():
        for base in files.get(suffix, []):
            path = f"{log.directory}/{names.offset_name(base)}{suffix}"
            yield from _check_file(path, read(path, base))
    for base in files.get(names.SNAPSHOT, []):
        path = f"{log.directory}/{names.offset_name(base)}{names.SNAPSHOT}"
        yield from _check_file(path, read_snapshot(path))


def _check_segment(
    log: Log, base: Offset, progress: Progress, open_txns: set[int], *, is_last: bool
) -> tuple[list[Finding], _Segment]:
    """`open_txns`: the producers with open transactions; updated."""
    path = f"{log.directory}/{names.offset_name(base)}{names.LOG}"
    size_bytes = os.path.getsize(path)
    end, last, is_ordered = 0, None, True
    aborted: list[Offset] = []
    try:
        with open_file(path) as opened:
            for row in scan_rows(LocalFile(path, opened.fileno()), 0, size_bytes):
                for position, header in row.batches:
                    is_ordered &= _follows(header, last, base)
                    end, last = position + header.size_bytes, header
                    if header.is_transactional and _is_abort(row, position, header, open_txns):
                        aborted.append(Offset(header.base_offset))
                progress.add(len(row.chunk))
    except (CorruptMessage, InvalidRecord):
        pass  # `read_log` says what is wrong, and finds what follows.
    end_offset = last.next_offset if last is not None else int(base)
    segment = _Segment(base, end_offset, end == size_bytes and is_ordered, aborted)
    if segment.is_whole:
        return [], segment
    open_txns.clear()  # Their ends may be in what cannot be read.
    damages = _damages(read_log(path, base, records=False))
    if is_last and log.was_killed and len(damages) == 1 and ": torn" in damages[0]:
        return [], segment
    where = f"offset {end_offset}: " if not is_ordered or end < size_bytes else ""
    more = f" (and {len(damages) - 1} more)" if len(damages) > 1 else ""
    problem = f"{where}{damages[0] if damages else 'an incomplete batch'}{more}"
    return [Finding(ERROR, path, problem, log.advice)], segment


def _is_abort(row: Row, position: int, header: BatchHeader, open_txns: set[int]) -> bool:
    """Whether the batch of a transaction is the marker that aborts one with records."""
    if not header.is_control:
        open_txns.add(header.producer_id)
        return False
    marker = read_marker(row.bytes_of(position, header), header)
    was_open = header.producer_id in open_txns
    open_txns.discard(header.producer_id)
    return was_open and marker is not None and marker.type is MarkerType.ABORT


def _check_first(log: Log, disk: Disk, bases: list[Offset]) -> Iterator[Finding]:
    """A clean shutdown leaves the first leader epoch at the start of the log."""
    epochs = checkpoints.read_epochs(disk, f"{log.directory}/{names.LEADER_EPOCHS}")
    if log.was_killed or not epochs or not bases or epochs[0][1] >= bases[0]:
        return
    path = f"{log.directory}/{names.offset_name(bases[0])}{names.LOG}"
    problem = f"the records from {epochs[0][1]} to {bases[0] - 1} are missing: a segment was lost"
    yield Finding(ERROR, path, problem, log.advice_without_repair)


def _check_aborted(log: Log, disk: Disk, segment: _Segment) -> Iterator[Finding]:
    """Without its entry in the index an aborted transaction is read as if it were committed."""
    if log.may_have_gaps:
        return  # Compaction removes aborted records, and then their entries.
    path = f"{log.directory}/{names.offset_name(segment.base_offset)}{names.TXN_INDEX}"
    known = {aborted.last_offset for aborted in TxnIndex(disk, path).entries()}
    missing = [offset for offset in segment.aborted if offset not in known]
    if missing:
        count = count_text(len(missing), "aborted transaction")
        yield Finding(
            ERROR,
            path,
            f"no entry for {count}, the first one aborted at offset {missing[0]}: consumers read "
            "aborted records as committed",
            f"remove {log.directory}/{names.LEADER_EPOCHS}: the next start reads the whole log and "
            "makes both again",
        )


def _follows(header: BatchHeader, last: BatchHeader | None, base: Offset) -> bool:
    if last is None:
        return header.base_offset >= base
    return (
        header.base_offset > last.last_offset
        and header.partition_leader_epoch >= last.partition_leader_epoch
    )


def _compare(log: Log, before: _Segment, after: _Segment) -> Iterator[Finding]:
    """Segments are contiguous, but for compaction and offsets that are too far for an index."""
    if not before.is_whole or before.end_offset == after.base_offset:
        return
    path = f"{log.directory}/{names.offset_name(after.base_offset)}{names.LOG}"
    if before.end_offset > after.base_offset:
        problem = f"it begins before offset {before.end_offset}, the end of the segment before it"
        yield Finding(ERROR, path, problem, log.advice)
    elif (
        not log.may_have_gaps
        and after.base_offset > log.start_offset
        and after.base_offset - before.end_offset <= RELATIVE_OFFSET_MAX
    ):
        missing = count_text(after.base_offset - before.end_offset, "offset")
        problem = (
            f"{missing} before it are missing, {before.end_offset} to {after.base_offset - 1}: "
            "a segment was lost"
        )
        yield Finding(ERROR, path, problem, log.advice)


def _check_file(path: str, findings: Findings) -> Iterator[Finding]:
    damages = _damages(findings)
    if damages:
        more = f" (and {len(damages) - 1} more)" if len(damages) > 1 else ""
        yield Finding(WARNING, path, damages[0] + more, _REBUILT)


def _damages(findings: Findings) -> list[str]:
    return [found.text for found in findings if isinstance(found, Damage)]
