"""How far a query is behind: committed to a group, and no reason to fail."""

import pytest
from confluent_kafka import Consumer, TopicPartition

from suwi.spark.pipeline.progress import Lag, end_of_batch
from tests.broker_process import BrokerProcess
from tests.spark.topics import fill, make_topic


def lag_of(address: str, group: str | None = "readers") -> Lag:
    quick = {"kafka.default.api.timeout.ms": "300", "kafka.retry.backoff.ms": "10"}
    return Lag({"kafka.bootstrap.servers": address, **quick}, group)


def test_progress_is_committed_to_a_group_and_the_lag_is_known(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address, partitions=2)
    fill(broker.address, topic, [b"a", b"b", b"c"])
    lag = Lag({"kafka.bootstrap.servers": broker.address}, topic)
    assert lag.behind() is None  # nothing was read yet
    lag.reached({topic: {"0": 1, "1": 0}, "#began": {topic: {"0": 0}}})
    lag.reached({topic: {"0": 2, "1": 0}})
    assert lag.behind() == {f"{topic}-0": 1, f"{topic}-1": 0}
    lag.close()
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": topic})
    committed = consumer.committed([TopicPartition(topic, index) for index in range(2)], 60)
    consumer.close()
    assert [partition.offset for partition in committed] == [2, 0]


def test_brokers_that_are_away_are_told_of_once_and_stop_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lag = lag_of("127.0.0.1:1")
    for number in range(3):
        lag.reached({"orders": {"0": number}})
        assert lag.behind() is None
    assert [record.message for record in caplog.records] == ["progress could not be committed"]
    lag.close()


def test_the_end_of_a_batch_is_that_of_its_one_source() -> None:
    one = {"endOffset": {"a": {"0": 1}}}
    assert end_of_batch({"sources": [one]}) == {"a": {"0": 1}}
    assert end_of_batch({"sources": [{"endOffset": '{"a": {"0": 1}}'}]}) == {"a": {"0": 1}}
    assert end_of_batch({"sources": [one, one]}) is None  # which offsets would be committed?
    assert end_of_batch({"sources": [{"endOffset": None}]}) is None
    assert end_of_batch({"sources": [{"endOffset": 7}]}) is None
