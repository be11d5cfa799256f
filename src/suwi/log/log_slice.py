"""A range of a log that was found for a reader: read into memory, or pinned for sending."""

from collections.abc import Callable
from typing import NamedTuple

from suwi.env import FileRegion
from suwi.log.partition_directory import PartitionDirectory


class LogSlice(NamedTuple):
    """A readable range of one segment's file that starts with a whole batch.

    Read or pin it before the next await: compaction may replace the file.
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
            raise  # Retention removed the segment: not a disk failure.
        except OSError as error:
            raise directory.failed(error, directory.generation) from error

    def pin(self) -> tuple[FileRegion, Callable[[], None]]:
        """The range to send, and a function to call when it has been sent or dropped.

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
