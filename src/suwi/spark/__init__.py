"""Topics in PySpark: a source and a sink of the name `suwi`, from PyPI packages alone.

Nothing here imports PySpark, Arrow or numba before it is used.
"""

from suwi.spark.commit_progress import commit_progress
from suwi.spark.dead_letter import dead_letter
from suwi.spark.decoders.decode import decode
from suwi.spark.read_topics import read_topics
from suwi.spark.register import register
from suwi.spark.to_delta import to_delta
from suwi.spark.to_topic import to_topic

__all__ = [
    "commit_progress",
    "dead_letter",
    "decode",
    "read_topics",
    "register",
    "to_delta",
    "to_topic",
]
