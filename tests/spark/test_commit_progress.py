"""`commit_progress`: what a query has done is committed, also what it did before it was asked."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from suwi.spark import commit_progress, read_topics
from suwi.spark.options import BadOption
from suwi.spark.pipeline import progress as lag
from tests.broker_process import BrokerProcess
from tests.spark.streams import NOW, finish_all
from tests.spark.topics import fill, make_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE_S = 120
_IDLE_AFTER = "spark.sql.streaming.noDataProgressEventInterval"


class RememberingLag:
    """Takes what is committed, since the broker has no groups."""

    def __init__(self, group: str | None) -> None:
        self.group = group
        self.ends: list[Any] = []
        self.is_closed = False

    def reached(self, end: Any) -> None:
        self.ends.append({name: at for name, at in end.items() if name[0] != "#"})

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def lags(monkeypatch: pytest.MonkeyPatch) -> list[RememberingLag]:
    made: list[RememberingLag] = []

    def make(options: Any, group: str | None) -> RememberingLag:
        made.append(RememberingLag(group))
        return made[-1]

    monkeypatch.setattr(lag, "Lag", make)
    return made


def test_the_group_may_be_that_of_the_sources_options(
    spark: "SparkSession", lags: list[RememberingLag]
) -> None:
    query: Any = spark.readStream.format("rate").load().writeStream.format("noop").start()
    try:
        commit_progress(query, "127.0.0.1:1", options={"Kafka.Group.Id": "readers"})
        commit_progress(query, "127.0.0.1:1", "own", options={"kafka.group.id": "readers"})
        with pytest.raises(BadOption, match=r"kafka\.group\.id"):
            commit_progress(query, "127.0.0.1:1")
    finally:
        query.stop()
    assert [each.group for each in lags] == ["readers", "own"]


class Stream:
    """A topic of two records and a query that reads it, with a checkpoint."""

    def __init__(self, spark: "SparkSession", broker: BrokerProcess, checkpoint: Path) -> None:
        self.topic = make_topic(broker.address)
        self.end = {self.topic: {"0": 2}}
        fill(broker.address, self.topic, [b"a", b"b"])
        self._address = broker.address
        self._rows = read_topics(spark, broker.address, self.topic, starting="earliest")
        self._checkpoint = checkpoint

    def start(self, **trigger: Any) -> Any:
        writer = self._rows.writeStream.format("noop")
        return writer.option("checkpointLocation", str(self._checkpoint)).trigger(**trigger).start()

    def start_and_commit(self, **trigger: Any) -> Any:
        query = self.start(**trigger)
        commit_progress(query, self._address, "readers")
        return query


def last_end(lags: list[RememberingLag]) -> dict[str, Any]:
    return dict(lags[-1].ends[-1])


def await_that(is_so: Callable[[], bool]) -> None:
    limit = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_what_a_query_did_before_it_ended_is_committed(
    spark: "SparkSession", broker: BrokerProcess, lags: list[RememberingLag], tmp_path: Path
) -> None:
    stream = Stream(spark, broker, tmp_path)
    queries: list[Any] = []

    def start() -> list[Any]:
        queries.append(stream.start(**NOW))
        return queries[-1:]

    finish_all(start)
    commit_progress(queries[-1], broker.address, "readers")
    assert last_end(lags) == stream.end
    assert lags[-1].is_closed


def test_a_query_that_finds_nothing_to_do_commits_where_it_is(
    spark: "SparkSession", broker: BrokerProcess, lags: list[RememberingLag], tmp_path: Path
) -> None:
    stream = Stream(spark, broker, tmp_path)
    finish_all(lambda: [stream.start(**NOW)])
    finish_all(lambda: [stream.start_and_commit(**NOW)])
    await_that(lambda: lags[-1].is_closed)
    assert last_end(lags) == stream.end


def test_a_query_that_is_started_again_and_idle_commits_where_it_is(
    spark: "SparkSession", broker: BrokerProcess, lags: list[RememberingLag], tmp_path: Path
) -> None:
    stream = Stream(spark, broker, tmp_path)
    finish_all(lambda: [stream.start(**NOW)])

    def start() -> list[Any]:
        query = stream.start_and_commit(processingTime="100 milliseconds")
        await_that(lambda: bool(lags[-1].ends) or not query.isActive)
        query.stop()
        return [query]

    spark.conf.set(_IDLE_AFTER, "100ms")
    try:
        finish_all(start)
    finally:
        spark.conf.unset(_IDLE_AFTER)
    assert last_end(lags) == stream.end
