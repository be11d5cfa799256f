"""The files of Spark Declarative Pipelines, where Spark may be neither asked nor changed."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def is_declarative() -> bool:
    """Whether a declarative pipeline is defined by what runs now."""
    # It is loaded by `spark-pipelines`, and not there before PySpark 4.1.
    definitions = sys.modules.get("pyspark.pipelines.graph_element_registry")
    if definitions is None:
        return False
    from pyspark.errors import PySparkRuntimeError

    try:
        definitions.get_active_graph_element_registry()
    except PySparkRuntimeError:
        return False
    return True


def columns_of(df: "DataFrame", otherwise: Iterable[str]) -> list[str]:
    """Its columns; `otherwise` in a declarative pipeline."""
    return list(otherwise if is_declarative() else df.columns)
