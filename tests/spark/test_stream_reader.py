"""A streaming query's reader, called as Spark calls it; against a real broker."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceStreamReader

from suwi.model.errors import UnknownTopicOrPartition
from suwi.spark import stream_reader as module
from suwi.spark.offsets import CheckpointMismatch, DataLoss
from suwi.spark.options import BadOption
from suwi.spark.session import close_sessions
from suwi.spark.stream_reader import HAS_ADMISSION_CONTROL, OldStreamReader
from suwi.spark.topic_reader import TopicSource
from tests.broker_process import BrokerProcess
from tests.spark.readers import read_all, stop_readers, stream_reader, values
from tests.spark.topics import add_partitions, delete_before, delete_topic, fill, make_topic

needs_4_2 = pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="needs PySpark 4.2")
NUMBERS = [b"%d" % number for number in range(10)]


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    stop_readers()


@pytest.fixture(autouse=True)
def always_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered for the next hundred milliseconds: tests do not wait."""
    monkeypatch.setattr(TopicSource, "ask_every_ms", 0)


class Query:
    """Spark's part: it keeps offsets as text, and asks for a batch."""

    def __init__(self, reader: DataSourceStreamReader, *, ended_at: str | None = None) -> None:
        self.reader = reader
        self.is_old = isinstance(reader, OldStreamReader)
        self.start = self.end = ended_at or ""
        if ended_at and self.is_old:
            assert reader.partitions(json.loads(ended_at), json.loads(ended_at)) == []
        elif not ended_at and not self.is_old:
            self.start = self.end = json.dumps(reader.initialOffset())

    def plan(self) -> bool:
        """Whether there is a batch to run."""
        if self.is_old:
            self.end = json.dumps(self.reader.latestOffset())  # type: ignore[call-arg]
            self.start = self.start or json.dumps(self.reader.initialOffset())
        else:
            limit = self.reader.getDefaultReadLimit()
            self.end = json.dumps(self.reader.latestOffset(json.loads(self.start), limit))
        return self.end != self.start

    def run(self) -> list[str]:
        """The values of a batch that was planned, which is then done."""
        start, end = json.loads(self.start), json.loads(self.end)
        found = values(read_all(self.reader, self.reader.partitions(start, end)))
        self.start = self.end
        return found

    def batch(self) -> list[str]:
        assert self.plan()
        return self.run()


def test_batches_follow_each_other_without_gaps(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address, partitions=2)
    fill(broker.address, topic, [b"a"], partition=0)
    query = Query(stream_reader(broker, subscribe=topic, startingOffsets="earliest"))
    assert query.is_old or json.loads(query.start)[topic] == {"0": 0, "1": 0}
    assert query.batch() == ["a"]
    assert not query.plan()
    fill(broker.address, topic, [b"b", b"c"], partition=1)
    assert query.batch() == ["b", "c"]
    assert not query.plan()


def test_a_query_starts_at_the_end_unless_told_otherwise(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b"old"])
    query = Query(stream_reader(broker, subscribe=topic))
    assert query.batch() == []  # Spark's first batch: it records where the query began
    fill(broker.address, topic, [b"new"])
    assert query.batch() == ["new"]


@needs_4_2
def test_a_first_batch_that_is_run_again_reads_the_same(broker: BrokerProcess) -> None:
    """A driver killed in its first batch: the log has where that ends, not where it began."""
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b"old"])
    query = Query(stream_reader(broker, subscribe=topic))
    fill(broker.address, topic, [b"a", b"b"])
    assert query.plan()
    fill(broker.address, topic, [b"c"])
    again = Query(stream_reader(broker, subscribe=topic))
    assert json.loads(again.start)[topic] == {"0": 4}
    again.end = query.end
    assert again.run() == ["a", "b"]
    assert again.batch() == ["c"]


def test_partitions_that_are_added_are_read_from_their_beginning(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address)
    options = {"subscribe": topic, "partition.metadata.cache.ttl.ms": "-1"}
    query = Query(stream_reader(broker, **options))
    query.batch()
    add_partitions(broker.address, topic, 3)
    fill(broker.address, topic, [b"a", b"b"], partition=2)
    assert query.batch() == ["a", "b"]
    restarted = Query(stream_reader(broker, **options), ended_at=query.start)
    assert not restarted.plan()


def test_a_new_partition_that_has_lost_its_beginning_is_reported(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address)
    options = {"subscribe": topic, "partition.metadata.cache.ttl.ms": "-1"}
    query = Query(stream_reader(broker, **options))
    query.batch()
    add_partitions(broker.address, topic, 2)
    fill(broker.address, topic, NUMBERS, partition=1)
    delete_before(broker.address, topic, 3, partition=1)
    assert query.plan()
    with pytest.raises(DataLoss, match=f"{topic}-1 is new and begins at offset 3 instead of 0"):
        query.run()
    careless = Query(stream_reader(broker, failOnDataLoss="false", **options), ended_at=query.start)
    assert careless.batch() == [number.decode() for number in NUMBERS[3:]]


def test_a_restart_after_retention_names_what_is_gone_or_skips_it(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address)
    query = Query(stream_reader(broker, subscribe=topic, startingOffsets="earliest"))
    fill(broker.address, topic, NUMBERS[:2])
    query.batch()
    fill(broker.address, topic, NUMBERS[2:])
    delete_before(broker.address, topic, 5)
    strict = Query(stream_reader(broker, subscribe=topic), ended_at=query.start)
    assert strict.plan()
    with pytest.raises(DataLoss, match=rf"{topic}-0 has offsets 5 to 9 now: 2 to 4 are gone"):
        strict.run()
    options = {"subscribe": topic, "failOnDataLoss": "false"}
    careless = Query(stream_reader(broker, **options), ended_at=query.start)
    assert careless.batch() == ["5", "6", "7", "8", "9"]


def test_a_topic_that_was_made_anew_is_reported(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, NUMBERS)
    query = Query(stream_reader(broker, subscribe=topic))
    query.batch()
    delete_topic(broker.address, topic)
    assert make_topic(broker.address, name=topic) == topic
    fill(broker.address, topic, [b"new"])
    options = {"subscribe": topic, "fetchOffset.retryIntervalMs": "1"}
    strict = Query(stream_reader(broker, **options), ended_at=query.start)
    with pytest.raises(DataLoss, match=f"topic '{topic}' was deleted and created again"):
        strict.plan()
    old = json.loads(query.start)
    connectors = json.dumps({topic: old[topic]})
    strict = Query(stream_reader(broker, **options), ended_at=connectors)
    with pytest.raises(DataLoss, match=f"{topic}-0 ended at 10 and now ends at 1"):
        strict.plan()


def test_a_topic_that_was_made_anew_with_more_records_is_read_from_its_beginning(
    broker: BrokerProcess,
) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, NUMBERS[:3])
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    query = Query(stream_reader(broker, **options))
    assert query.batch() == ["0", "1", "2"]
    assert not query.plan()
    begun = Query(stream_reader(broker, **options), ended_at=query.start)
    fill(broker.address, topic, NUMBERS[3:5])
    assert begun.plan()
    delete_topic(broker.address, topic)
    make_topic(broker.address, name=topic)
    fill(broker.address, topic, [b"new-%d" % number for number in range(8)])
    close_sessions()  # A task in a new worker.
    with pytest.raises(DataLoss, match="offsets 3 to 4 of the former"):
        begun.run()
    with pytest.raises(DataLoss, match=f"topic '{topic}' was deleted and created again"):
        Query(stream_reader(broker, **options), ended_at=query.start).plan()
    careless = stream_reader(broker, failOnDataLoss="false", **options)
    again = Query(careless, ended_at=query.start)
    assert again.batch() == [f"new-{number}" for number in range(8)]
    assert not again.plan()


def test_a_checkpoint_of_another_topic_is_refused_before_spark_writes_to_it(
    broker: BrokerProcess,
) -> None:
    mine, other = make_topic(broker.address), make_topic(broker.address)
    fill(broker.address, mine, NUMBERS[:2])
    query = Query(stream_reader(broker, subscribe=mine, startingOffsets="earliest"))
    query.batch()
    for options in ({}, {"failOnDataLoss": "false"}):
        wrong = Query(stream_reader(broker, subscribe=other, **options), ended_at=query.start)
        with pytest.raises(CheckpointMismatch, match="this checkpoint belongs to other topics"):
            wrong.plan()
    both = f"{mine},{other}"
    grown = Query(stream_reader(broker, subscribe=both), ended_at=query.start)
    assert grown.batch() == []
    shrunk = Query(stream_reader(broker, subscribe=other), ended_at=grown.start)
    with pytest.raises(DataLoss, match=f"offsets of {mine}, which the query no longer reads"):
        shrunk.plan()


def test_offsets_without_ids_are_kept_as_they_are_until_something_comes(
    broker: BrokerProcess,
) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, NUMBERS[:2])
    of_the_connector = json.dumps({topic: {"0": 2}})
    query = Query(stream_reader(broker, subscribe=topic), ended_at=of_the_connector)
    assert not query.plan()
    fill(broker.address, topic, [b"new"])
    assert query.batch() == ["new"]
    assert json.loads(query.start)["#ids"].keys() == {topic}


def test_topics_that_a_pattern_no_longer_finds_are_reported(broker: BrokerProcess) -> None:
    kept = make_topic(broker.address, word="herd-of-cows")
    lost = make_topic(broker.address, word="herd-of-goats")
    options = {"subscribePattern": "herd-of", "partition.metadata.cache.ttl.ms": "-1"}
    query = Query(stream_reader(broker, **options))
    query.batch()
    delete_topic(broker.address, lost)
    fill(broker.address, kept, [b"moo"])
    with pytest.raises(DataLoss, match=f"partitions are gone: {lost}-0"):
        query.plan()
    careless = Query(stream_reader(broker, failOnDataLoss="false", **options), ended_at=query.start)
    assert careless.batch() == ["moo"]


@pytest.fixture(params=["new", "old"])
def each_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PySpark 4.2 and newer ask for offsets, and as 4.1 does."""
    if request.param == "old":
        monkeypatch.setattr(module, "HAS_ADMISSION_CONTROL", False)
    elif not HAS_ADMISSION_CONTROL:
        pytest.skip("needs PySpark 4.2")


@pytest.mark.parametrize("by", ["subscribe", "assign"])
def test_a_topic_that_was_deleted_is_reported_or_left_out(
    by: str, broker: BrokerProcess, each_spark: None
) -> None:
    kept, lost = make_topic(broker.address), make_topic(broker.address)
    options = {
        by: f"{kept},{lost}" if by == "subscribe" else json.dumps({kept: [0], lost: [0]}),
        "partition.metadata.cache.ttl.ms": "-1",
        "fetchOffset.retryIntervalMs": "1",
    }
    query = Query(stream_reader(broker, **options))
    query.batch()
    careless = Query(stream_reader(broker, failOnDataLoss="false", **options))
    careless.batch()
    fill(broker.address, kept, [b"a"])
    fill(broker.address, lost, [b"b"])
    planned = Query(stream_reader(broker, **options), ended_at=query.start)
    assert planned.plan()
    delete_topic(broker.address, lost)
    close_sessions()  # A task in a new worker.
    with pytest.raises(DataLoss, match=f"topic '{lost}' was deleted: offsets 0 to 0"):
        planned.run()
    for _ in range(2):
        with pytest.raises(DataLoss, match=f"partitions are gone: {lost}-0"):
            query.plan()
    assert careless.batch() == ["a"]
    assert not careless.plan()
    fill(broker.address, kept, [b"c"])
    assert careless.batch() == ["c"]
    make_topic(broker.address, name=lost)
    fill(broker.address, lost, [b"new"])
    assert careless.batch() == ["new"]
    delete_topic(broker.address, lost)
    never_read = Query(stream_reader(broker, **options), ended_at=json.dumps({kept: {"0": 0}}))
    with pytest.raises(UnknownTopicOrPartition, match=lost):
        never_read.plan()


def test_a_topic_that_was_deleted_while_a_batch_was_run_is_left_out(
    broker: BrokerProcess, each_spark: None
) -> None:
    topic = make_topic(broker.address)
    options = {"subscribe": topic, "fetchOffset.retryIntervalMs": "1", "failOnDataLoss": "false"}
    query = Query(stream_reader(broker, **options))
    query.batch()
    fill(broker.address, topic, [b"a"])
    assert query.plan()
    delete_topic(broker.address, topic)
    close_sessions()
    assert query.run() == []
    assert query.batch() == []
    assert not query.plan()


def test_a_topic_that_is_added_begins_with_what_it_has(
    broker: BrokerProcess, each_spark: None
) -> None:
    first, second = make_topic(broker.address), make_topic(broker.address)
    fill(broker.address, second, NUMBERS)
    delete_before(broker.address, second, 3)
    query = Query(stream_reader(broker, subscribe=first))
    query.batch()
    both = Query(stream_reader(broker, subscribe=f"{first},{second}"), ended_at=query.start)
    assert both.batch() == [number.decode() for number in NUMBERS[3:]]


def test_an_end_before_the_start_is_reported_before_spark_logs_it(
    broker: BrokerProcess, each_spark: None
) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, NUMBERS[:2])
    options = {"subscribe": topic, "fetchOffset.retryIntervalMs": "1"}
    beyond = json.dumps({topic: {"0": 5}})
    for _ in range(2):
        query = Query(stream_reader(broker, **options), ended_at=beyond)
        with pytest.raises(DataLoss, match=f"{topic}-0 ended at 5 and now ends at 2"):
            query.plan()
    careless = Query(stream_reader(broker, failOnDataLoss="false", **options), ended_at=beyond)
    assert careless.batch() == []
    fill(broker.address, topic, [b"new"])
    assert careless.batch() == ["new"]


@needs_4_2
def test_a_batch_has_no_more_offsets_than_it_may(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address, partitions=2)
    fill(broker.address, topic, NUMBERS, partition=0)
    fill(broker.address, topic, NUMBERS[:5], partition=1)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"}
    query = Query(stream_reader(broker, **options))
    sizes = []
    while query.plan():
        sizes.append(len(query.run()))
    assert sizes == [6, 6, 3]


@needs_4_2
def test_a_small_batch_is_held_back(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address)
    options = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": "5"}
    query = Query(stream_reader(broker, **options))
    assert query.batch() == []
    fill(broker.address, topic, NUMBERS[:4])
    assert not query.plan()
    fill(broker.address, topic, NUMBERS[4:5])
    assert query.batch() == ["0", "1", "2", "3", "4"]


@needs_4_2
def test_what_is_available_now_is_all_that_is_read(broker: BrokerProcess) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    topic = make_topic(broker.address)
    fill(broker.address, topic, NUMBERS)
    options = {"maxOffsetsPerTrigger": "4", "minOffsetsPerTrigger": "4"}
    reader = stream_reader(broker, subscribe=topic, startingOffsets="earliest", **options)
    reader.prepareForTriggerAvailableNow()
    query = Query(reader)
    found = query.batch()
    fill(broker.address, topic, [b"late"])
    while query.plan():
        found += query.run()
    assert found == [number.decode() for number in NUMBERS]
    assert reader.reportLatestOffset() == {topic: {"0": 10}}
    everything = stream_reader(broker, subscribe=topic, startingOffsets="earliest", **options)
    end = everything.latestOffset({topic: {"0": 0}}, ReadAllAvailable())
    assert end[topic] == {"0": 11}


def test_an_idle_query_asks_seldom(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = make_topic(broker.address)
    query = Query(stream_reader(broker, subscribe=topic, startingOffsets="earliest"))
    monkeypatch.setattr(TopicSource, "ask_every_ms", 3_600_000)
    query.batch()
    fill(broker.address, topic, [b"x"])
    assert not any(query.plan() for _ in range(50))
    monkeypatch.setattr(TopicSource, "ask_every_ms", 0)
    assert query.batch() == ["x"]


def test_a_broker_that_comes_back_is_found_again(tmp_path_factory: Any) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("restarted") / "data") as broker:
        topic = make_topic(broker.address)
        fill(broker.address, topic, [b"a"])
        query = Query(stream_reader(broker, subscribe=topic, startingOffsets="earliest"))
        assert query.batch() == ["a"]
        broker.kill()
        broker.start()
        fill(broker.address, topic, [b"b"])
        assert query.batch() == ["b"]


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_what_an_old_spark_cannot_do_is_refused(
    option: str, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HAS_ADMISSION_CONTROL", False)
    assert isinstance(stream_reader(broker, subscribe="x"), OldStreamReader)
    with pytest.raises(BadOption, match=rf"{option} needs PySpark 4\.2 or newer"):
        stream_reader(broker, subscribe="x", **{option: "5"})


@pytest.fixture
def old_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HAS_ADMISSION_CONTROL", False)


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_an_old_sparks_query_gets_each_record_once(
    starting: str, broker: BrokerProcess, old_spark: None
) -> None:
    """It asks for the latest offset before the initial one, so that the end of its first batch has
    to say where that begins before it was asked for."""
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b"a", b"b"])
    query = Query(stream_reader(broker, subscribe=topic, startingOffsets=starting))
    assert query.batch() == (["a", "b"] if starting == "earliest" else [])
    fill(broker.address, topic, [b"c"])
    assert query.batch() == ["c"]
    fill(broker.address, topic, [b"d"])
    assert query.batch() == ["d"]
    assert not query.plan()
    fill(broker.address, topic, [b"e"])
    assert query.batch() == ["e"]


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_an_old_sparks_query_that_was_killed_in_its_first_batch_runs_it_again(
    starting: str, broker: BrokerProcess, old_spark: None
) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b"a"])
    first = Query(stream_reader(broker, subscribe=topic, startingOffsets=starting))
    assert first.plan()
    again = stream_reader(broker, subscribe=topic, startingOffsets=starting)
    fill(broker.address, topic, [b"b"])
    # What Spark has kept is the end; where the batch begins it asks anew.
    start, end = again.initialOffset(), json.loads(first.end)
    found = values(read_all(again, again.partitions(start, end)))
    assert found == (["a"] if starting == "earliest" else [])
    fill(broker.address, topic, [b"c"])
    following = again.latestOffset()  # type: ignore[call-arg]
    assert values(read_all(again, again.partitions(end, following))) == ["b", "c"]


def test_an_old_sparks_query_goes_on_after_its_last_batch(
    broker: BrokerProcess, old_spark: None
) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b"a"])
    first = Query(stream_reader(broker, subscribe=topic, startingOffsets="earliest"))
    assert first.batch() == ["a"]
    again = stream_reader(broker, subscribe=topic, startingOffsets="earliest")
    query = Query(again, ended_at=first.end)
    assert not query.plan()
    fill(broker.address, topic, [b"b"])
    assert query.batch() == ["b"]
