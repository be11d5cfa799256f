"""A range of a log that was found for a reader: read into memory, or pinned to be sent."""

from collections.abc import Callable
from typing import NamedTuple

from suwi.env import FileRegion
from suwi.log.partition_directory import PartitionDirectory


class LogSlice(NamedTuple):
    """A readable range of one segment's file, whole batches from its start on.

    To be read or pinned before the next await: compaction may put another file in its place.
    """

    directory: PartitionDirectory
    path: str
    position: int
    size_bytes: int

    def read(self) -> bytes:
        directory = self.directory
        try:
            return directory.files.get(self.path).pread(self.size_bytes, self.position)
        except FileNotFoundError:
            raise  # Retention took the segment; the disk is well.
        except OSError as error:
            raise directory.failed(error, directory.generation) from error

    def pin(self) -> tuple[FileRegion, Callable[[], None]]:
        """The range for sending, and what to call when it is sent or given up.

        Raises KafkaStorageError.
        """
        owner, generation = self.directory, self.directory.generation
        try:
            file = owner.files.pin(self.path)
        except OSError as error:
            raise owner.failed(error, generation) from error
        region = FileRegion(
            file, self.position, self.size_bytes, lambda: owner.generation == generation
        )
        return region, lambda: owner.files.unpin(file)
