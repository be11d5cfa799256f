"""`commit_progress`: what a query has done is committed."""

from typing import TYPE_CHECKING, Any

import pytest

from suwi.spark import commit_progress
from suwi.spark.options import BadOption
from suwi.spark.pipeline import lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RememberingLag:
    """Takes what is committed, since the broker has no groups."""

    def __init__(self, group: str | None) -> None:
        self.group = group
        self.ends: list[Any] = []
        self.is_closed = False

    def reached(self, end: Any) -> None:
        self.ends.append(end)

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
