"""Topics in PySpark: a source and a sink of the name `suwi`, from PyPI packages alone.

Nothing here imports PySpark, Arrow or numba before it is used.
"""

from suwi.spark.register import register

__all__ = ["register"]
