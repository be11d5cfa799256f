"""Where a table's files lie: a directory of this machine, or an object store.

`storage_of` chooses; paths are relative to the table. An object store is reached through delta-rs,
with the same options as the commits.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow.fs as fs

_LOCAL: Final = "file://"


def local_path(uri: str) -> str | None:
    """The directory that a table's address means, if it is one of this machine."""
    from urllib.parse import unquote

    if uri.startswith(_LOCAL):
        return unquote(uri.removeprefix(_LOCAL)) or None
    if uri.startswith("file:/"):  # as Spark and Hadoop write it
        return unquote(uri.removeprefix("file:"))
    return uri if "://" not in uri else None


@dataclass(frozen=True, slots=True)
class Storage:
    """A table's directory. Not pickled: each process creates its own."""

    filesystem: "fs.FileSystem"
    root: str
    has_directories: bool = True

    def create(self, path: str) -> Any:
        """A new file, open for writing."""
        whole = self._whole(path)
        if self.has_directories:
            self.filesystem.create_dir(whole.rpartition("/")[0], recursive=True)
        return self.filesystem.open_output_stream(whole)

    def read(self, path: str) -> Any:
        return self.filesystem.open_input_file(self._whole(path))

    def look(self, path: str) -> "fs.FileInfo":
        return self.filesystem.get_file_info(self._whole(path))

    def remove(self, paths: Iterable[str]) -> None:
        """Remove the files that exist."""
        for path in paths:
            try:
                self.filesystem.delete_file(self._whole(path))
            except FileNotFoundError:
                pass

    def top(self) -> "list[fs.FileInfo]":
        """What lies directly in the directory, which may be missing."""
        import pyarrow.fs as fs

        selector = fs.FileSelector(self._whole(""), allow_not_found=True)
        return list(self.filesystem.get_file_info(selector))

    def list(self, under: str) -> "list[fs.FileInfo]":
        """Everything below a directory, which may be missing."""
        import pyarrow.fs as fs

        selector = fs.FileSelector(self._whole(under), allow_not_found=True, recursive=True)
        return list(self.filesystem.get_file_info(selector))

    def _whole(self, path: str) -> str:
        return f"{self.root}/{path}" if self.root else path


def storage_of(uri: str, options: Mapping[str, str]) -> Storage:
    import pyarrow.fs as fs

    path = local_path(uri)
    if path is not None:
        return Storage(fs.LocalFileSystem(), path.rstrip("/") or "/")
    from deltalake.fs import DeltaStorageHandler

    return Storage(fs.PyFileSystem(DeltaStorageHandler(uri, dict(options))), "")
