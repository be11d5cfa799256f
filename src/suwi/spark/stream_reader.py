"""A streaming query's reader as each release of PySpark calls it, for topics and for tables.

`StreamReader` is for PySpark from 4.2 on, where Spark says from where on and how much;
`OldStreamReader` for 4.0 and 4.1, where it does not.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from suwi.env import local_env
from suwi.spark.offsets import beginning, where_it_began, with_beginning
from suwi.spark.options import BadOption
from suwi.spark.releases import HAS_ADMISSION_CONTROL

if TYPE_CHECKING:
    import pyarrow as pa

    from suwi.spark.releases import ReadLimit

Json = dict[str, Any]


class Source(Protocol):
    """Topics or a table. Connects when it is first asked: Spark sends readers to executors too.

    `initial` is where a new query begins, `latest` how far it can be read now. `end` is where a
    batch ends, and the very `start` where there is nothing to read; it raises if the query cannot
    go on from there, before Spark writes to its log. `read` is what a task does.
    """

    ask_every_ms: int
    """How long an answer of `latest` is good for: idle queries are asked forty times a second."""
    limits: Mapping[str, int | None]
    """Options that need PySpark 4.2; None: not given."""
    is_available_now: bool = False
    """Whether the query reads what is there, and ends."""

    def initial(self) -> Json: ...
    def latest(self, start: Json) -> Any: ...
    def end(self, start: Json, latest: Any, limit: "ReadLimit | None") -> Json: ...
    def plan(self, start: Json, end: Json) -> Sequence[InputPartition]: ...
    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]: ...
    def default_limit(self) -> "ReadLimit": ...
    def report(self, latest: Any) -> Json | None: ...
    def close(self) -> None: ...


class _Reader(DataSourceStreamReader):
    def __init__(self, source: Source) -> None:
        self._source = source
        self._latest: Any = None
        self._asked_ms = 0
        self._initial: Json | None = None
        """Where the query begins, if it was begun by this reader."""

    def initialOffset(self) -> Json:  # noqa: N802
        self._initial = self._source.initial()
        return self._initial

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        return [] if start == end else self._source.plan(dict(beginning(start, end)), end)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return self._source.read(partition)

    def commit(self, end: Json) -> None:
        """Nothing: it comes one batch late, and never for the last one."""

    def stop(self) -> None:
        self._source.close()

    def _ask(self, start: Json) -> Any:
        now_ms = local_env().clock.now_ms()
        if self._latest is None or not 0 <= now_ms - self._asked_ms < self._source.ask_every_ms:
            self._latest, self._asked_ms = self._source.latest(start), now_ms
        return self._latest


class OldStreamReader(_Reader):
    """Spark asks a new query's reader for its latest offset, then for its initial one, and then for
    a plan; of a query that goes on it wants a plan first, if only from its last offset to the same.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._planned: Json | None = None
        """Where the last batch that was planned ends: where the next one begins."""

    def initialOffset(self) -> Json:  # noqa: N802
        return super().initialOffset() if self._initial is None else self._initial

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        self._planned = end
        self._initial = where_it_began(end) or self._initial
        return super().partitions(start, end)

    def latestOffset(self) -> Json:  # noqa: N802
        start = self.initialOffset() if self._planned is None else self._planned
        end = self._source.end(start, self._ask(start), None)
        if end is self._planned:
            return end  # As it was written: Spark compares texts.
        # Spark does not say where the batch begins, so whether it is the first is not known here:
        # all ends say it, or none.
        return end if self._initial is None else with_beginning(end, self._initial)


if HAS_ADMISSION_CONTROL:
    from suwi.spark.releases import SupportsTriggerAvailableNow

    class StreamReader(_Reader, SupportsTriggerAvailableNow):
        def __init__(self, source: Source) -> None:
            super().__init__(source)
            self._target: Any = None
            """How far a query reads that reads what is there, and ends."""

        def getDefaultReadLimit(self) -> "ReadLimit":  # noqa: N802
            return self._source.default_limit()

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            self._source.is_available_now = True

        def latestOffset(self, start: Json, limit: "ReadLimit") -> Json:  # noqa: N802
            latest = self._ask(start) if self._target is None else self._target
            if self._source.is_available_now:
                self._target = latest
            end = self._source.end(start, latest, limit)
            return with_beginning(end, start) if start == self._initial else end

        def reportLatestOffset(self) -> Json | None:  # noqa: N802
            return None if self._latest is None else self._source.report(self._latest)


def make_stream_reader(source: Source) -> DataSourceStreamReader:
    """The reader for this PySpark. Raises `BadOption` where it is too old for an option."""
    if HAS_ADMISSION_CONTROL:
        return StreamReader(source)
    for name, value in source.limits.items():
        if value is not None:
            text = f"{name} needs PySpark 4.2 or newer: this one cannot limit a batch"
            raise BadOption(text, name)
    return OldStreamReader(source)
