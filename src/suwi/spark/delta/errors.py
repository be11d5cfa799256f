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
