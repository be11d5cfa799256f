"""`.suwi-running`: a file in each data directory in use, read after an unclean shutdown.

It has the boot id of the machine, and whether data written then may be missing.
"""

import logging

from suwi.env import Disk
from suwi.log import names

log = logging.getLogger(__name__)

_UNSYNCED = "unsynced"
"""The first line of the file after the directory failed."""


class RunningMark:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{names.RUNNING}"

    def is_of_this_boot(self) -> bool:
        """Whether the machine has not rebooted since: then everything that was written is there.

        A directory that was suspect, and was not cleared since, is still suspect.
        """
        boot_id, _, suspect = self._read().partition("\n")
        return boot_id != "" and boot_id == self._disk.boot_id() and not suspect

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
            file = self._disk.open(self._path)
            try:
                file.pwrite(f"{_UNSYNCED}\n".encode(), 0)
            finally:
                file.close()
        except OSError as error:
            fields = {"dir": self._directory, "reason": str(error)}
            log.warning("cannot mark directory as unsynced", extra=fields)

    def write(self, *, lost_power: bool) -> None:
        # Never synced: if a power loss removes the file, that is the information needed.
        text = self._disk.boot_id() + ("\nsuspect" if lost_power else "")
        try:
            self._disk.write_atomically(self._path, text.encode(), sync=False)
        except OSError as error:
            fields = {"dir": self._directory, "reason": str(error)}
            log.warning("cannot mark directory as running", extra=fields)
