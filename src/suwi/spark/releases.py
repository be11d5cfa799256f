"""What differs between releases of PySpark, in one place.

4.0 has no Arrow writer for streams; from 4.2 on Spark says from where on and how much a micro-batch
reads.
"""

from typing import TYPE_CHECKING

from pyspark.sql import datasource as _of_this_release

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import StructType

    HAS_ADMISSION_CONTROL = True
else:
    DataSourceStreamArrowWriter = getattr(_of_this_release, "DataSourceStreamArrowWriter", None)
    if DataSourceStreamArrowWriter is None:
        # 4.0: whether a task gets Arrow is decided by one base, whether it streams by the other.
        class DataSourceStreamArrowWriter(
            _of_this_release.DataSourceStreamWriter, _of_this_release.DataSourceArrowWriter
        ):
            pass

    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxFiles,
            ReadMaxRows,
            ReadMinRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:
        HAS_ADMISSION_CONTROL = False
    else:
        HAS_ADMISSION_CONTROL = True

__all__ = [
    "HAS_ADMISSION_CONTROL",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxFiles",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
]


def arrow_schema(schema: "StructType") -> "pa.Schema":
    """Exactly what Spark expects of a source: it compares before it reads. Times are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        return to_arrow_schema(schema)  # Before 4.2 nothing else was possible.
