"""After a failed sync: writes again what the kernel may have dropped.

The kernel marks pages as clean that it failed to write. A later process then reads them from
memory, and its syncs succeed without writing them. Writing them again makes them dirty, so that a
sync is meaningful.
"""

import logging

from suwi.env import Disk
from suwi.log import names
from suwi.model.ids import Offset

log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


def rewrite_unsynced(disk: Disk, directory: str, recovery_point: Offset) -> None:
    """Write and sync again everything of a log above its recovery point. Raises OSError.

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
    file = disk.open(path)
    try:
        size_bytes = file.size()
        position = 0
        while position < size_bytes:
            position += file.pwrite(file.pread(_CHUNK_BYTES, position), position)
        file.truncate(size_bytes)  # The size may not have been written either.
        file.sync()
    finally:
        file.close()
