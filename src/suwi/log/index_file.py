"""Entries of one size, appended in order: what the offset and the time index have in common.

The newest entries wait in memory until `write_out`: an index can be rebuilt from its log, so
nothing is lost with them. Kafka's classes read any prefix of whole entries.
"""

from suwi.log.file_cache import FileCache

_PENDING_BYTES_MAX = 4096


class IndexFile:
    __slots__ = ("_count_on_disk", "_files", "_pending", "entry_bytes", "path")

    def __init__(self, files: FileCache, path: str, entry_bytes: int, *, create: bool) -> None:
        self._files = files
        self.path = path
        self.entry_bytes = entry_bytes
        self._pending = bytearray()
        size = 0 if create else files.disk.size(path)
        if create:
            files.get(path, create=True).truncate(0)
        self._count_on_disk = size // entry_bytes

    def __len__(self) -> int:
        return self._count_on_disk + len(self._pending) // self.entry_bytes

    def entry(self, number: int) -> bytes:
        at = number * self.entry_bytes
        in_memory = at - self._count_on_disk * self.entry_bytes
        if in_memory >= 0:
            return bytes(self._pending[in_memory : in_memory + self.entry_bytes])
        return self._files.get(self.path).pread(self.entry_bytes, at)

    def append(self, entry: bytes) -> None:
        self._pending += entry
        if len(self._pending) >= _PENDING_BYTES_MAX:
            self.write_out()

    def write_out(self) -> None:
        """Bring all entries into the file. Raises OSError; then they wait on in memory."""
        if not self._pending:
            return
        at = self._count_on_disk * self.entry_bytes
        written = self._files.get(self.path).pwrite(self._pending, at)
        whole = written - written % self.entry_bytes
        del self._pending[:whole]
        self._count_on_disk += whole // self.entry_bytes

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries."""
        if count >= len(self):
            return
        if count <= self._count_on_disk:
            self._pending.clear()
            self._count_on_disk = count
            self._files.get(self.path).truncate(count * self.entry_bytes)
        else:
            del self._pending[(count - self._count_on_disk) * self.entry_bytes :]
