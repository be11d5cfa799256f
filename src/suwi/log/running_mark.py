"""`.suwi-running`: a file in each data directory in use, read after an unclean shutdown.

It has the boot id of the machine, and whether data written then may be missing. After a failed sync
`rewrite_unsynced` writes again what the kernel may have dropped.
"""

import logging
from contextlib import closing

from suwi.env import Disk
from suwi.log import names
from suwi.model.ids import Offset

log = logging.getLogger(__name__)

_SUSPECT = "suspect"
_LOST = "lost"
"""Damaged records were removed; all others that were written are there."""
_UNSYNCED = "unsynced"
"""The first line of the file after the directory failed."""
_CHUNK_BYTES = 1 << 20


class RunningMark:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{names.RUNNING}"

    def is_of_this_boot(self) -> bool:
        """Whether the machine has not rebooted since: then everything that was written is there.

        A directory that was suspect, and was not cleared since, is still suspect.
        """
        boot_id, _, missing = self._read().partition("\n")
        return boot_id != "" and boot_id == self._disk.boot_id() and missing in ("", _LOST)

    def has_lost_records(self) -> bool:
        """Whether a recovery removed records and no controller knows it yet."""
        return self._read().endswith(f"\n{_LOST}")

    def is_unsynced(self) -> bool:
        """Whether syncs failed in the last run: data that can be read may not be on the disk."""
        return self._read().startswith(_UNSYNCED)

    def _read(self) -> str:
        if not self._disk.exists(self._path):
            return ""
        return self._disk.read_bytes(self._path).decode("utf-8", "replace")

    def write_unsynced(self) -> None:
        """Record for the next start that data it reads may not be on the disk.

        Overwrites the existing file, which also works on a full disk.
        """
        try:
            with closing(self._disk.open(self._path)) as file:
                file.pwrite(f"{_UNSYNCED}\n".encode(), 0)
        except OSError as error:
            fields = {"dir": self._directory, "reason": str(error)}
            log.warning("cannot mark directory as unsynced", extra=fields)

    def write(self, *, lost_power: bool = False, lost_records: bool = False) -> None:
        # Never synced: if a power loss removes the file, that is the information needed.
        missing = _SUSPECT if lost_power else _LOST if lost_records else ""
        text = self._disk.boot_id() + (f"\n{missing}" if missing else "")
        try:
            self._disk.write_atomically(self._path, text.encode(), sync=False)
        except OSError as error:
            fields = {"dir": self._directory, "reason": str(error)}
            log.warning("cannot mark directory as running", extra=fields)


def rewrite_unsynced(disk: Disk, directory: str, recovery_point: Offset) -> None:
    """Write and sync again everything of a log above its recovery point. Raises OSError.

    The kernel marks pages as clean that it failed to write. A later process reads them from memory,
    and its syncs succeed without writing them. Writing them again makes them dirty.
    Indexes are not included: recovery rebuilds them.
    """
    found = disk.list_dir(directory)
    parsed = (names.parse_offset_name(name, names.LOG) for name in found)
    reached = [base for base in parsed if base is not None and base <= recovery_point]
    first = max(reached, default=Offset(0))
    for name in found:
        if name in names.SMALL_FILES or _is_at_or_above(name, first):
            _rewrite(disk, f"{directory}/{name}")
    disk.sync_dir(directory)
    log.info("log rewritten after a failed sync", extra={"dir": directory, "from": first})


def _is_at_or_above(name: str, first: Offset) -> bool:
    bases = (names.parse_offset_name(name, suffix) for suffix in (names.LOG, names.TXN_INDEX))
    return any(base is not None and base >= first for base in bases)


def _rewrite(disk: Disk, path: str) -> None:
    with closing(disk.open(path)) as file:
        size_bytes = file.size()
        position = 0
        while position < size_bytes:
            position += file.pwrite(file.pread(_CHUNK_BYTES, position), position)
        file.truncate(size_bytes)  # The size may not have been written either.
        file.sync()
