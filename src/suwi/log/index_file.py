"""An index file with entries of fixed size: the common part of the offset and the time index.

The newest entries are buffered in memory until `write_out`: an index can be rebuilt from its log,
so a crash loses nothing. Kafka's classes can read any prefix of whole entries.
"""

import logging

from suwi.log.file_cache import FileCache, make_empty, write_all

log = logging.getLogger(__name__)

_PENDING_BYTES_MAX = 4096


class IndexFile:
    __slots__ = ("_count_on_disk", "_files", "_pending", "entry_bytes", "path", "size_bytes")

    def __init__(self, files: FileCache, path: str, entry_bytes: int, *, create: bool) -> None:
        self._files = files
        self.path = path
        self.entry_bytes = entry_bytes
        self._pending = bytearray()
        size = 0 if create else files.disk.size(path)
        if create:
            make_empty(files.get(path, create=True))
        self._count_on_disk = size // entry_bytes
        self.size_bytes = self._count_on_disk * entry_bytes  # including buffered entries

    def __len__(self) -> int:
        return self.size_bytes // self.entry_bytes

    def entry_at(self, number: int) -> bytes:
        at = number * self.entry_bytes
        in_memory = at - self._count_on_disk * self.entry_bytes
        if in_memory >= 0:
            return bytes(self._pending[in_memory : in_memory + self.entry_bytes])
        return self._files.get(self.path).pread(self.entry_bytes, at)

    def entries(self, first: int, end: int) -> bytes:
        """The entries from `first` up to but excluding `end`, concatenated."""
        on_disk = self._count_on_disk
        entry_bytes = self.entry_bytes
        found = b""
        if first < on_disk:
            size_bytes = (min(end, on_disk) - first) * entry_bytes
            found = self._files.get(self.path).pread(size_bytes, first * entry_bytes)
        if end > on_disk:
            start = (max(first, on_disk) - on_disk) * entry_bytes
            found += self._pending[start : (end - on_disk) * entry_bytes]
        return found

    def add_entry(self, entry: bytes) -> None:
        self._pending += entry
        self.size_bytes += len(entry)
        if len(self._pending) < _PENDING_BYTES_MAX:
            return
        try:
            self.write_out()
        except OSError as error:
            # The batch of this entry is already in the log, so this must not fail.
            log.warning("index write deferred", extra={"path": self.path, "reason": str(error)})

    def write_out(self) -> None:
        """Write all buffered entries to the file. Raises OSError; then they stay buffered."""
        if not self._pending:
            return
        entries = bytes(self._pending)
        write_all(self._files.get(self.path), entries, self._count_on_disk * self.entry_bytes)
        self._count_on_disk += len(entries) // self.entry_bytes
        self._pending.clear()

    def keep_first(self, count: int) -> None:
        """Keep the first `count` entries."""
        if count >= len(self):
            return
        if count <= self._count_on_disk:
            self._pending.clear()
            self._count_on_disk = count
            self._files.get(self.path).truncate(count * self.entry_bytes)
        else:
            del self._pending[(count - self._count_on_disk) * self.entry_bytes :]
        self.size_bytes = count * self.entry_bytes
