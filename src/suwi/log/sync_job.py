"""A sync that makes a log survive a power loss, run in a thread.

`PartitionLog.sync_job` creates it; `synced` or `sync_failed` must be called with it afterwards.
"""

from contextlib import suppress
from typing import NamedTuple

from suwi.env import Disk, File
from suwi.model.ids import Offset


class SyncJob(NamedTuple):
    end_offset: Offset
    generation: int
    disk: Disk
    files: tuple[File, ...]
    small_files: tuple[str, ...]
    """Files beside the segments, if they may have changed since the last sync."""
    dirs: tuple[str, ...]
    """Directories whose entries may have changed, the inner one first."""
    names_version: int
    reaches_end: bool
    """Whether nothing of the log is left to be synced after it."""

    def run(self) -> None:
        """Raises OSError: then the state on the disk is unknown."""
        for file in self.files:
            file.sync()
        # A missing file belongs to a log that was deleted meanwhile.
        for path in self.small_files:
            with suppress(FileNotFoundError):
                self._sync_file(path)
        for directory in self.dirs:
            with suppress(FileNotFoundError):
                self.disk.sync_dir(directory)

    def _sync_file(self, path: str) -> None:
        file = self.disk.open(path)
        try:
            file.sync()
        finally:
            file.close()
