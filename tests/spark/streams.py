"""Streams for tests: files that arrive one by one, and checkpoints that lost their last entry."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from suwi.spark.data_source import SuwiDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

NOW = {"availableNow": True}


class ReadCounter:
    """How many records the tasks of streams have read of topics, whatever Spark reports."""

    def __init__(self, patch: pytest.MonkeyPatch, file: Path) -> None:
        """Of queries that are made from now on."""
        file.touch()
        self._file = file
        path = str(file)

        class Counted(SuwiDataSource):
            def streamReader(self, schema: "StructType") -> Any:  # noqa: N802
                reader = SuwiDataSource.streamReader(self, schema)
                read = reader.read

                def counted(partition: Any) -> Iterator[Any]:
                    for batch in read(partition):
                        with open(path, "a") as log:
                            log.write(f"{batch.num_rows}\n")
                        yield batch

                reader.read = counted  # type: ignore[method-assign]
                return reader

        patch.setattr("suwi.spark.data_source.SuwiDataSource", Counted)

    def take(self) -> int:
        """Since the last call."""
        numbers = self._file.read_text().split()
        self._file.write_text("")
        return sum(map(int, numbers))


_ATTEMPTS = 5
_numbers = count()


class Arrivals:
    """A directory as a source: each file is a micro-batch."""

    def __init__(self, spark: "SparkSession", directory: Path, schema: str) -> None:
        self._spark = spark
        self._directory = directory
        self._schema = schema
        directory.mkdir()

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        text = "\n".join(json.dumps(row) for row in rows)
        number = next(_numbers)
        file = self._directory / f"{number:06}.json"
        file.write_text(text)
        os.utime(file, (number, number))  # Spark takes the oldest first, by the second.

    def stream(self) -> "DataFrame":
        reader = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1)
        return reader.json(str(self._directory))


def finish(query: "StreamingQuery | None") -> "StreamingQuery":
    """Wait until everything that is there is done; raises what stopped the query."""
    assert query is not None
    query.awaitTermination()
    return query


def finish_all(start: "Callable[[], Sequence[StreamingQuery | None]]") -> None:
    """Start queries and wait for their ends; again where Spark lost patience with a busy machine.

    It gives the Python worker of a source ten seconds to start, and cannot be told otherwise.
    """
    for attempt in range(_ATTEMPTS):
        failures = []
        for query in start():
            try:
                finish(query)
            except Exception as error:
                failures.append(error)
        if not failures:
            return
        for error in failures:
            if attempt == _ATTEMPTS - 1 or "failed to connect back" not in str(error):
                raise error


def lose_last_commit(checkpoint: Path) -> int:
    """As if the driver died after the sink's commit and before it was noted; which batch."""
    last = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    return last
