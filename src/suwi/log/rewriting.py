"""After a failed sync: give the kernel once more what it may have dropped.

The kernel calls pages clean that it failed to write, so a later process reads them from memory and
its syncs succeed without writing them. Written again they are dirty, and a sync means something.
"""

import logging

from suwi.env import Disk
from suwi.log import names
from suwi.model.ids import Offset

log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


def rewrite_unsynced(disk: Disk, directory: str, recovery_point: Offset) -> None:
    """Write and sync all of a log that its recovery point does not vouch for. Raises OSError.

    Indexes are left to the recovery, which makes them anew.
    """
    found = disk.list_dir(directory)
    parsed = (names.parse_offset_name(name, names.LOG) for name in found)
    reached = [base for base in parsed if base is not None and base <= recovery_point]
    first = max(reached, default=Offset(0))
    for name in found:
        if name in names.SMALL_FILES or _lies_at_or_above(name, first):
            _rewrite(disk, f"{directory}/{name}")
    disk.sync_dir(directory)
    log.info("written again after a failed sync", extra={"dir": directory, "from": first})


def _lies_at_or_above(name: str, first: Offset) -> bool:
    bases = (names.parse_offset_name(name, suffix) for suffix in (names.LOG, names.TXN_INDEX))
    return any(base is not None and base >= first for base in bases)


def _rewrite(disk: Disk, path: str) -> None:
    file = disk.open(path)
    try:
        size_bytes = file.size()
        position = 0
        while position < size_bytes:
            position += file.pwrite(file.pread(_CHUNK_BYTES, position), position)
        file.truncate(size_bytes)  # A size that was not written down either.
        file.sync()
    finally:
        file.close()
