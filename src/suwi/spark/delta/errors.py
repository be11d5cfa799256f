"""The errors of reading and writing Delta tables."""


class DeltaSinkError(Exception):
    """Something the table's owner or the job's author has to change."""


class SchemaMismatch(DeltaSinkError):
    """The data's columns and the table's do not fit."""


class UnsupportedTable(DeltaSinkError):
    """The table has features that this writer does not support."""


class AnotherDriver(DeltaSinkError):
    """Two drivers write under one checkpoint."""


class CommitContended(DeltaSinkError):
    """The commit lost against other writers in every attempt."""


class FilesGone(DeltaSinkError):
    """Files of a batch were removed before it was committed."""


class DeltaSourceError(Exception):
    """A table, or a part of it, that cannot be read."""


class CannotRead(DeltaSourceError):
    """The table is missing, or has features that this reader does not support."""


class TableMissing(CannotRead):
    """The job that creates the table may not have started yet."""


class VersionGone(DeltaSourceError):
    """A version of the table, or a file of it, was removed before it was read."""


class RowsChanged(DeltaSourceError):
    """A commit removes or rewrites rows, which a stream of new rows cannot express."""


class SchemaChanged(DeltaSourceError):
    """The table has new columns, which the query has after a restart."""


class OtherTable(DeltaSourceError):
    """The checkpoint belongs to another table."""
