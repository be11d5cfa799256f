"""`.txnindex`: the aborted transactions of a segment, so that `read_committed` can leave them out.

An entry, 34 bytes: version, producer id, first offset, last offset (the abort marker's) and the
last stable offset at that time. The file exists only where there is something to say.
"""

import struct
from typing import NamedTuple

from suwi.env import Disk
from suwi.model.ids import Offset, ProducerId

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTxn(NamedTuple):
    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


class TxnIndex:
    __slots__ = ("_aborted", "_disk", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._aborted: list[AbortedTxn] | None = None

    def entries(self) -> list[AbortedTxn]:
        if self._aborted is None:
            self._aborted = self._read()
        return self._aborted

    def append(self, aborted: AbortedTxn) -> None:
        entries = self.entries()
        file = self._disk.open(self.path, create=True)
        try:
            file.pwrite(_ENTRY.pack(_VERSION, *aborted), len(entries) * _ENTRY.size)
        finally:
            file.close()
        entries.append(aborted)

    def between(self, first: Offset, end: Offset) -> list[AbortedTxn]:
        """The aborted transactions that have records from `first` up to but without `end`."""
        return [a for a in self.entries() if a.last_offset >= first and a.first_offset < end]

    def truncate(self, offset: Offset) -> None:
        """Forget the transactions whose marker lies at or above `offset`."""
        kept = [a for a in self.entries() if a.last_offset < offset]
        if len(kept) < len(self.entries()):
            file = self._disk.open(self.path)
            try:
                file.truncate(len(kept) * _ENTRY.size)
            finally:
                file.close()
            self._aborted = kept

    def reset(self) -> None:
        """Forget everything, before a rebuild."""
        if self._disk.exists(self.path):
            self._disk.remove(self.path)
        self._aborted = []

    def _read(self) -> list[AbortedTxn]:
        if not self._disk.exists(self.path):
            return []
        data = self._disk.read_bytes(self.path)
        whole = len(data) - len(data) % _ENTRY.size
        found = []
        for _, producer_id, first, last, stable in _ENTRY.iter_unpack(data[:whole]):
            aborted = AbortedTxn(
                ProducerId(producer_id), Offset(first), Offset(last), Offset(stable)
            )
            found.append(aborted)
        return found
