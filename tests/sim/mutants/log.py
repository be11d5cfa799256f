"""What a data directory can get wrong: hazard 21."""

from typing import Any

from suwi.lab.mutants import Mutant
from suwi.log.log_directory import LogDirectory


def _is_no_stranger(self: LogDirectory, *_: Any) -> bool:
    """A directory is identified by its name alone."""
    return False


def _stays(self: LogDirectory, partition: Any) -> None:
    """The directory of a deleted topic stays."""
    opened = self._logs.pop(partition, None)
    if opened is not None:
        opened.close()
    self._files.forget_dir(self.dir_of(partition))


MUTANTS = (
    Mutant(
        "topics-by-name",
        21,
        "a topic that is created again uses the directory of the old one, with its records",
        (
            (LogDirectory, "_mark_other_topic_for_deletion", _is_no_stranger),
            (LogDirectory, "mark_for_deletion", _stays),
        ),
    ),
)
