"""Checks of the logs in the data directory of a stopped broker: every batch, index and snapshot.

`check_logs` lists what `suwi repair segments` would give up, and damaged files that the next start
makes again. Nothing is changed.
"""

from collections.abc import Callable, Iterator

from suwi.admin.finding import ERROR, WARNING, Finding
from suwi.admin.log_dump.findings import Damage, Findings
from suwi.admin.log_dump.indexes import read_offset_index, read_time_index, read_txn_index
from suwi.admin.log_dump.small_files import read_snapshot
from suwi.admin.text import count_text, size_text
from suwi.env import Clock, Disk, Env, File
from suwi.log import names
from suwi.log.batch_scan import scan_headers
from suwi.log.log_repair import LogRepair, log_repairs
from suwi.log.txn_index import TxnIndex
from suwi.model.errors import CorruptMessage, InvalidRecord
from suwi.model.ids import Offset, TopicPartition
from suwi.records.batch import BatchHeader
from suwi.records.record import MarkerType, read_marker

_PROGRESS_EVERY_MS = 5_000
_REBUILT = "remove the file: the next start makes it again from the log"
Tell = Callable[[str], None]
_INDEXES: dict[str, Callable[[str, int], Findings]] = {
    names.OFFSET_INDEX: read_offset_index,
    names.TIME_INDEX: read_time_index,
    names.TXN_INDEX: read_txn_index,
}


class Progress:
    """Tells every few seconds how much is checked."""

    def __init__(self, clock: Clock, size_bytes: int, tell: Tell) -> None:
        self._clock = clock
        self._tell = tell
        self._size_bytes = size_bytes
        self._checked_bytes = 0
        self._line_ms = clock.now_ms()

    def add(self, size_bytes: int) -> None:
        self._checked_bytes += size_bytes
        now_ms = self._clock.now_ms()
        if now_ms - self._line_ms >= _PROGRESS_EVERY_MS:
            self._line_ms = now_ms
            checked, of = size_text(self._checked_bytes), size_text(self._size_bytes)
            self._tell(f"checked {checked} of {of}")


def check_logs(path: str, env: Env, tell: Tell) -> Iterator[Finding]:
    """`path`: the data directory of a stopped broker."""
    disk, repair_of = env.disk, log_repairs(env.disk, path)
    found: list[tuple[TopicPartition, str]] = []
    for name in disk.list_dir(path):
        partition = names.parse_partition_dir_name(name)
        if partition is not None:
            found.append((partition, f"{path}/{name}"))
    size_bytes = sum(_size(disk, directory) for _, directory in found)
    progress = Progress(env.clock, size_bytes, tell)
    for partition, directory in found:
        try:
            yield from _check_log(repair_of(partition), disk, directory, progress)
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


def _check_log(log: LogRepair, disk: Disk, directory: str, progress: Progress) -> Iterator[Finding]:
    for damage in log.find(progress.add):
        where = f", position {damage.position}" if damage.is_in_file else ""
        advice = (
            "with an in-sync replica on another broker: start the broker, which copies the log; "
            f"without one: suwi repair segments {directory}"
        )
        yield Finding(ERROR, damage.path, f"{damage}{where}: {damage.reason}", advice)
    files = names.offsets_by_suffix(disk.list_dir(directory))
    if not log.may_have_gaps:  # Compaction removes aborted records, and then their entries.
        yield from _check_aborted(disk, directory, files.get(names.LOG, []))
    for suffix, read in _INDEXES.items():
        for base in files.get(suffix, []):
            path = f"{directory}/{names.offset_name(base)}{suffix}"
            yield from _check_file(path, read(path, base))
    for base in files.get(names.SNAPSHOT, []):
        path = f"{directory}/{names.offset_name(base)}{names.SNAPSHOT}"
        yield from _check_file(path, read_snapshot(path))


def _check_aborted(disk: Disk, directory: str, bases: list[Offset]) -> Iterator[Finding]:
    """Without its entry in the index an aborted transaction is read as if it were committed."""
    open_txns: set[int] = set()
    for base in bases:
        stem = f"{directory}/{names.offset_name(base)}"
        known = {each.last_offset for each in TxnIndex(disk, stem + names.TXN_INDEX).entries()}
        file = disk.open(stem + names.LOG)
        try:
            missing = [each for each in _aborted(file, open_txns) if each not in known]
        finally:
            file.close()
        if missing:
            count = count_text(len(missing), "aborted transaction")
            yield Finding(
                ERROR,
                stem + names.TXN_INDEX,
                f"no entry for {count}, the first one aborted at offset {missing[0]}: consumers "
                "read aborted records as committed",
                f"remove {directory}/{names.LEADER_EPOCHS}: the next start reads the whole log and "
                "makes both again",
            )


def _aborted(file: File, open_txns: set[int]) -> Iterator[Offset]:
    """The offsets of markers that abort transactions with records. `open_txns`: the producers of
    open transactions; updated."""
    try:
        for position, header in scan_headers(file, 0, file.size()):
            if header.is_transactional and _is_abort(file, position, header, open_txns):
                yield Offset(header.base_offset)
    except (CorruptMessage, InvalidRecord):
        open_txns.clear()  # Their ends may be in what cannot be read; `find` lists it.


def _is_abort(file: File, position: int, header: BatchHeader, open_txns: set[int]) -> bool:
    if not header.is_control:
        open_txns.add(header.producer_id)
        return False
    was_open = header.producer_id in open_txns
    open_txns.discard(header.producer_id)
    marker = read_marker(file.pread(header.size_bytes, position), header)
    return was_open and marker is not None and marker.type is MarkerType.ABORT


def _check_file(path: str, findings: Findings) -> Iterator[Finding]:
    damages = [found.text for found in findings if isinstance(found, Damage)]
    if damages:
        more = f" (and {len(damages) - 1} more)" if len(damages) > 1 else ""
        yield Finding(WARNING, path, damages[0] + more, _REBUILT)
