"""Deletes segment files in two steps: renames them to `.deleted`, removes them later.

Those of a damaged log are renamed to `.damaged`, and kept until there is a new copy of it.
"""

from collections.abc import Iterable
from contextlib import suppress

from suwi.env import Disk
from suwi.log import names
from suwi.log.file_cache import FileCache

_ALL_FILES = (*names.SEGMENT_FILES, names.SNAPSHOT)


def mark_deleted(files: FileCache, stem: str, suffixes: tuple[str, ...] = _ALL_FILES) -> list[str]:
    """Rename the files with the common path `stem` to `.deleted`. Returns the new paths."""
    return _add_ending(files, stem, suffixes, names.DELETED)


def set_aside(files: FileCache, stem: str) -> None:
    """Rename the files of a segment to `.damaged`."""
    _add_ending(files, stem, _ALL_FILES, names.DAMAGED)


def _add_ending(files: FileCache, stem: str, suffixes: tuple[str, ...], ending: str) -> list[str]:
    renamed = []
    for suffix in suffixes:
        path = stem + suffix
        files.forget(path)
        try:
            files.disk.rename(path, path + ending)
        except FileNotFoundError:
            continue
        renamed.append(path + ending)
    return renamed


def remove_files(disk: Disk, paths: Iterable[str]) -> None:
    """Remove the files that still exist; run in a thread."""
    for path in paths:
        with suppress(FileNotFoundError):
            disk.remove(path)
