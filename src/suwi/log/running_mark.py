"""A file in each data directory in use: what it tells the next owner after an unclean stop.

It says under which boot of the machine the directory was in use, and whether what was written then
may be missing.
"""

import logging

from suwi.env import Disk
from suwi.log import names

log = logging.getLogger(__name__)

_UNSYNCED = "unsynced"
"""How `names.RUNNING` begins once the directory failed."""


class RunningMark:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{names.RUNNING}"

    def is_of_this_boot(self) -> bool:
        """Whether the last life ended without the machine: all that it wrote is there.

        One that was in doubt and did not live to be trusted again is in doubt still.
        """
        boot_id, _, doubt = self._read().partition("\n")
        return boot_id != "" and boot_id == self._disk.boot_id() and not doubt

    def is_unsynced(self) -> bool:
        """Whether the last owner's syncs failed: what is read may not be on the disk."""
        return self._read().startswith(_UNSYNCED)

    def _read(self) -> str:
        if not self._disk.exists(self._path):
            return ""
        return self._disk.read_bytes(self._path).decode("utf-8", "replace")

    def write_unsynced(self) -> None:
        """Tell the next life that what it will read may not be on the disk.

        Written over what is there: that works on a full disk, too.
        """
        try:
            file = self._disk.open(self._path)
            try:
                file.pwrite(f"{_UNSYNCED}\n".encode(), 0)
            finally:
                file.close()
        except OSError as error:
            fields = {"dir": self._directory, "reason": str(error)}
            log.warning("cannot mark as unsynced", extra=fields)

    def write(self, *, lost_power: bool) -> None:
        # Never synced: where a power loss takes it away, that says what it has to say.
        text = self._disk.boot_id() + ("\nsuspect" if lost_power else "")
        try:
            self._disk.write_atomically(self._path, text.encode(), sync=False)
        except OSError as error:
            fields = {"dir": self._directory, "reason": str(error)}
            log.warning("cannot mark as running", extra=fields)
