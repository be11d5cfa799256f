"""`.txnindex`: the aborted transactions of a segment, for `read_committed`.

An entry has 34 bytes: version, producer id, first offset, last offset (the abort marker's) and the
last stable offset at that time. The file exists only if there are entries.
"""

import logging
import struct
from contextlib import closing, suppress
from typing import NamedTuple

from suwi.env import Disk
from suwi.env.problems import because
from suwi.log.file_cache import write_all
from suwi.model.ids import Offset, ProducerId

log = logging.getLogger(__name__)

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTxn(NamedTuple):
    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


class TxnIndex:
    __slots__ = ("_aborted", "_count_on_disk", "_disk", "_replaces", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._aborted: list[AbortedTxn] | None = None
        self._count_on_disk = 0
        self._replaces = False
        """Whether the file has what was there before a rebuild."""

    def entries(self) -> list[AbortedTxn]:
        if self._aborted is None:
            self._aborted = self._read()
            self._count_on_disk = len(self._aborted)
        return self._aborted

    def append(self, aborted: AbortedTxn) -> None:
        self.entries().append(aborted)
        if self._replaces:
            return
        try:
            self.write_out()
        except OSError as error:
            # The marker is already in the log, so this must not fail.
            log.warning("transaction index write deferred", extra=because(error, path=self.path))

    def write_out(self) -> None:
        """Write all buffered entries to the file. Raises OSError; then they stay buffered."""
        pending = (self._aborted or [])[self._count_on_disk :]
        data = b"".join(_ENTRY.pack(_VERSION, *aborted) for aborted in pending)
        if self._replaces:
            if pending:
                self._disk.write_atomically(self.path, data, sync=False)
                self._count_on_disk = len(pending)
            else:
                self._remove()
            self._replaces = False
            return
        if not pending:
            return
        with closing(self._disk.open(self.path, create=True)) as file:
            write_all(file, data, self._count_on_disk * _ENTRY.size)
        self._count_on_disk += len(pending)

    def sync(self) -> None:
        with suppress(FileNotFoundError), closing(self._disk.open(self.path)) as file:
            file.sync()

    def between(self, first: Offset, end: Offset) -> list[AbortedTxn]:
        """The aborted transactions with records from `first` up to but excluding `end`."""
        return [a for a in self.entries() if a.last_offset >= first and a.first_offset < end]

    def truncate(self, offset: Offset) -> None:
        """Remove the transactions whose marker is at or above `offset`."""
        entries = self.entries()
        kept = [a for a in entries if a.last_offset < offset]
        if len(kept) == len(entries):
            return
        self._aborted = kept
        if len(kept) < self._count_on_disk:
            with closing(self._disk.open(self.path)) as file:
                file.truncate(len(kept) * _ENTRY.size)
            self._count_on_disk = len(kept)

    def reset(self) -> None:
        """Remove all entries."""
        self._remove()
        self._aborted = []
        self._count_on_disk = 0

    def rebuild(self) -> None:
        """Begin without entries. The file stays as it is until `write_out`: after a kill it may be
        all that tells of a marker that is damaged."""
        self._aborted = []
        self._count_on_disk = 0
        self._replaces = True

    def _remove(self) -> None:
        if self._disk.exists(self.path):
            self._disk.remove(self.path)

    def is_sane(self, base_offset: Offset) -> bool:
        """Whether the file, if it exists, can belong to this segment."""
        if not self._disk.exists(self.path):
            return True
        data = self._disk.read_bytes(self.path)
        return len(data) % _ENTRY.size == 0 and all(
            version == _VERSION and 0 <= first <= last and last >= base_offset
            for version, _, first, last, _ in _ENTRY.iter_unpack(data)
        )

    def _read(self) -> list[AbortedTxn]:
        if not self._disk.exists(self.path):
            return []
        data = self._disk.read_bytes(self.path)
        whole = len(data) - len(data) % _ENTRY.size
        return [
            AbortedTxn(ProducerId(producer_id), Offset(first), Offset(last), Offset(stable))
            for _, producer_id, first, last, stable in _ENTRY.iter_unpack(data[:whole])
        ]
