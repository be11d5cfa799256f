"""What keeps a batch out of a Delta table."""


class DeltaSinkError(Exception):
    """Something the table's owner or the job's author has to change."""


class SchemaMismatch(DeltaSinkError):
    """The data's columns and the table's do not fit."""


class UnsupportedTable(DeltaSinkError):
    """The table promises something that this writer does not keep."""


class AnotherDriver(DeltaSinkError):
    """Two drivers write under one checkpoint."""


class CommitContended(DeltaSinkError):
    """Other writers were faster every time."""


class DeltaSourceError(Exception):
    """A table, or a part of it, that cannot be read."""


class CannotRead(DeltaSourceError):
    """The table is missing, or promises its readers something that this one does not know."""


class TableMissing(CannotRead):
    """It may come: the job that makes it has not written yet."""


class VersionGone(DeltaSourceError):
    """A version of the table, or a file of it, was removed before it was read."""


class RowsChanged(DeltaSourceError):
    """A commit removes or rewrites rows, which a stream of new rows cannot express."""


class SchemaChanged(DeltaSourceError):
    """The table has columns that the query does not know: started again, it does."""


class OtherTable(DeltaSourceError):
    """The checkpoint belongs to another table."""
