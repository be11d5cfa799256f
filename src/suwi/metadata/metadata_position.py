"""How far this broker has followed the cluster's metadata, kept in its first data directory.

An ensemble that was restored from older data would take back topics, leader epochs and in-sync
replicas that this broker has acted on. `check` refuses it (hazard Z11).
Invariant: the file is never ahead of the metadata that this broker has seen.
"""

import asyncio
import logging
from collections.abc import Callable

from suwi.env import Disk
from suwi.metadata.image import ClusterImage
from suwi.metadata.store import StoreRolledBack

log = logging.getLogger(__name__)

_FILE = "suwi-metadata-position"
_INTERVAL_S = 1.0


class MetadataPosition:
    def __init__(self, disk: Disk, directory: Callable[[], str | None]) -> None:
        """`directory`: the first data directory that is usable now, if there is one."""
        self._disk = disk
        self._directory = directory
        self._is_checked = False
        self._written = self._seen = 0
        self._written_s = 0.0

    def check(self, sequence: int) -> None:
        """Compare with the metadata at the start. Raises StoreRolledBack."""
        path = self._path()
        if self._disk.exists(path):
            try:
                self._seen = int(self._disk.read_bytes(path))
            except ValueError:
                log.warning("metadata position damaged, writing it again", extra={"path": path})
        if sequence < self._seen:
            raise StoreRolledBack(
                f"the metadata store is at change {sequence}, but this broker has seen change "
                f"{self._seen}: the store has lost data or was restored from an older copy. "
                f"Restore newer data; or, to continue with what is there, remove {path}"
            )
        self._is_checked = True
        self.apply_image(ClusterImage(), ClusterImage(sequence=sequence))

    def apply_image(self, _old: ClusterImage, new: ClusterImage) -> None:
        self._seen = max(self._seen, new.sequence)
        if asyncio.get_running_loop().time() - self._written_s >= _INTERVAL_S:
            self.write()

    def write(self) -> None:
        if not self._is_checked or self._written == self._seen or self._directory() is None:
            return
        self._written_s = asyncio.get_running_loop().time()
        try:
            self._disk.write_atomically(self._path(), b"%d\n" % self._seen, sync=False)
            self._written = self._seen
        except OSError as error:
            log.warning("metadata position not written", extra={"reason": str(error)})

    def _path(self) -> str:
        return f"{self._directory()}/{_FILE}"
