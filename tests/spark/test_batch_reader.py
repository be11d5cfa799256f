"""What a batch query reads, told by options; against a real broker, without Spark around it."""

from collections.abc import Iterator

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructField, StructType

from suwi.model.errors import CorruptMessage, OffsetOutOfRange, UnknownTopicOrPartition
from suwi.records.builder import build_batch
from suwi.records.compression import Compression
from suwi.records.record import Record
from suwi.spark import partition_reader
from suwi.spark.data_source import SuwiDataSource
from suwi.spark.offsets import BadOffsets, DataLoss
from suwi.spark.options import BadOption
from suwi.wire.fetch_response import FetchedPartition
from tests.broker_process import BrokerProcess
from tests.spark.readers import batch_reader, read_all, read_batch, stop_readers, values
from tests.spark.topics import delete_before, fill, make_topic

NUMBERS = [b"%d" % number for number in range(10)]


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    stop_readers()


def test_offsets_say_what_is_read(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address, partitions=2)
    fill(broker.address, topic, NUMBERS, partition=0)
    fill(broker.address, topic, [b"x", b"y"], partition=1)
    rows = read_batch(
        broker,
        subscribe=topic,
        startingOffsets=f'{{"{topic}":{{"0":3,"1":-2}}}}',
        endingOffsets=f'{{"{topic}":{{"0":5,"1":-1}}}}',
    )
    assert values(rows) == ["3", "4", "x", "y"]
    assert [row["offset"] for row in rows] == [3, 4, 0, 1]


def test_offsets_must_name_every_partition(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address, partitions=2)
    with pytest.raises(BadOffsets, match=rf"missing: {topic}-1; not read: {topic}-7"):
        read_batch(broker, subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":0,"7":1}}}}')


@pytest.mark.parametrize("more", [{}, {"minPartitions": "3"}, {"where": "partition = 0"}])
def test_a_start_beyond_the_end_is_refused(broker: BrokerProcess, more: dict[str, str]) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, NUMBERS)
    with pytest.raises(BadOffsets, match=f"{topic}-0 ends at 10, and 50 is beyond that"):
        read_batch(broker, subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":50}}}}', **more)
    assert not read_batch(broker, subscribe=topic, startingOffsets=f'{{"{topic}":{{"0":10}}}}')


def test_an_end_before_the_beginning_is_refused(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address)
    bounds = {
        "startingOffsets": f'{{"{topic}":{{"0":5}}}}',
        "endingOffsets": f'{{"{topic}":{{"0":3}}}}',
    }
    with pytest.raises(BadOffsets, match=f"{topic}-0 would be read from 5 to 3"):
        read_batch(broker, subscribe=topic, **bounds)


def test_times_say_what_is_read(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address, partitions=2)
    records = [Record(value=b"%d" % number, timestamp=1000 + number) for number in range(10)]
    fill(broker.address, topic, records, partition=0)
    fill(broker.address, topic, records[:6], partition=1)
    span = read_batch(broker, subscribe=topic, startingTimestamp="1004", endingTimestamp="1008")
    assert values(span) == ["4", "5", "6", "7", "4", "5"]
    by_partition = f'{{"{topic}":{{"0":1008,"1":1005}}}}'
    assert values(read_batch(broker, subscribe=topic, startingOffsetsByTimestamp=by_partition)) == [
        "8",
        "9",
        "5",
    ]
    with pytest.raises(BadOffsets, match=f"{topic}-1 has no record from 1006 on"):
        read_batch(broker, subscribe=topic, startingTimestamp="1006")
    late = read_batch(
        broker,
        subscribe=topic,
        startingTimestamp="1006",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert values(late) == ["6", "7", "8", "9"]


def test_partitions_are_split_into_tasks_that_read_every_record_once(
    broker: BrokerProcess,
) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, NUMBERS)
    for split, tasks in (({"minPartitions": "3"}, 3), ({"maxRecordsPerPartition": "4"}, 3)):
        reader = batch_reader(broker, subscribe=topic, **split)
        partitions = reader.partitions()
        assert len(partitions) == tasks
        assert values(read_all(reader, partitions)) == [number.decode() for number in NUMBERS]


def test_a_pattern_finds_topics_and_assign_names_partitions(broker: BrokerProcess) -> None:
    first = make_topic(broker.address, word="kind-of-blue", partitions=2)
    second = make_topic(broker.address, word="kind-of-red")
    fill(broker.address, first, [b"blue"], partition=1)
    fill(broker.address, second, [b"red"])
    found = read_batch(broker, subscribePattern="nd-of-(blue|red)")
    assert sorted(values(found)) == ["blue", "red"]
    assert values(read_batch(broker, assign=f'{{"{first}":[1]}}')) == ["blue"]
    assert read_batch(broker, assign=f'{{"{first}":[0]}}') == []
    assert read_batch(broker, subscribePattern="no such topic") == []


def test_a_topic_that_is_missing_is_named(broker: BrokerProcess) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="topic 'nowhere' does not exist"):
        read_batch(broker, subscribe="nowhere", fetchOffset__retryIntervalMs="1")


def test_earliest_and_latest_hold_when_a_task_reads(broker: BrokerProcess) -> None:
    """As with the connector: Spark plans a DataFrame once, and every action reads what is there."""
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b"a"])
    reader = batch_reader(broker, subscribe=topic)
    partitions = reader.partitions()
    assert values(read_all(reader, partitions)) == ["a"]
    fill(broker.address, topic, [b"b"])
    assert values(read_all(reader, partitions)) == ["a", "b"]


def test_headers_are_left_out_unless_they_are_asked_for(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, [Record(value=b"x", headers=(("a", b"1"),))])
    (row,) = read_batch(broker, subscribe=topic)
    assert "headers" not in row
    (row,) = read_batch(broker, subscribe=topic, includeHeaders="true")
    assert row["headers"] == [{"key": "a", "value": b"1"}]


def test_the_time_a_broker_gives_is_marked(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address, message_timestamp_type="LogAppendTime")
    fill(broker.address, topic, [Record(value=b"x", timestamp=5)])
    (row,) = read_batch(broker, subscribe=topic)
    assert row["timestampType"] == 1
    assert row["timestamp"].year >= 2024


def test_many_small_fetches_give_every_record_once(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address)
    sent = [b"%d" % number for number in range(3_000)]
    for part in range(0, 3_000, 500):
        fill(broker.address, topic, sent[part : part + 500], codec=Compression.LZ4)
    rows = read_batch(broker, subscribe=topic, kafka__max__partition__fetch__bytes="1")
    assert values(rows) == [value.decode() for value in sent]
    ends = f'{{"{topic}":{{"0":1717}}}}'
    rows = read_batch(broker, subscribe=topic, endingOffsets=ends)
    assert values(rows) == [value.decode() for value in sent[:1717]]


def test_records_that_are_gone_are_named_or_skipped(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, NUMBERS)
    delete_before(broker.address, topic, 4)
    bounds = {
        "startingOffsets": f'{{"{topic}":{{"0":1}}}}',
        "endingOffsets": f'{{"{topic}":{{"0":6}}}}',
    }
    with pytest.raises(DataLoss, match=rf"{topic}-0 has offsets 4 to 9 now: 1 to 3 are gone"):
        read_batch(broker, subscribe=topic, **bounds)
    rows = read_batch(broker, subscribe=topic, failOnDataLoss="false", **bounds)
    assert values(rows) == ["4", "5"]
    delete_before(broker.address, topic, 7)
    with pytest.raises(DataLoss, match=r"now: 1 to 5 are gone"):
        read_batch(broker, subscribe=topic, **bounds)
    assert read_batch(broker, subscribe=topic, failOnDataLoss="false", **bounds) == []


def test_an_end_beyond_the_end_is_waited_for_and_then_named(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, NUMBERS)
    options = {
        "subscribe": topic,
        "endingOffsets": f'{{"{topic}":{{"0":12}}}}',
        "kafkaConsumer.pollTimeoutMs": "1",
        "kafka.fetch.max.wait.ms": "1",
    }
    with pytest.raises(DataLoss, match=rf"{topic}-0 ends at 10: its offsets 10 to 11 are gone"):
        read_batch(broker, **options)
    assert len(read_batch(broker, failOnDataLoss="false", **options)) == 10


def test_columns_and_rows_are_chosen_by_options(broker: BrokerProcess) -> None:
    topic = make_topic(broker.address, partitions=2)
    records = [Record(value=b"%d" % number, timestamp=1000 + number) for number in range(10)]
    fill(broker.address, topic, records, partition=0)
    fill(broker.address, topic, records, partition=1)
    reader = batch_reader(broker, subscribe=topic, where="partition = 1 AND offset > 4")
    (planned,) = reader.partitions()
    assert (planned.range.start, planned.range.end) == (5, 10)
    assert values(read_all(reader, [planned])) == ["5", "6", "7", "8", "9"]
    late = "timestamp >= '1970-01-01T00:00:01.008Z' AND value != '8'"
    rows = read_batch(broker, subscribe=topic, where=late, columns="offset,value")
    assert [list(row.items()) for row in rows] == [[("offset", 9), ("value", b"9")]] * 2
    assert read_batch(broker, subscribe=topic, where=f"topic IN ('x', '{topic}-')") == []


class OddFetcher:
    """A leader that gives what it should not."""

    answer: FetchedPartition | Exception

    def __init__(self, *_: object) -> None:
        pass

    async def fetch(self, *_: object, **__: object) -> FetchedPartition:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_leader_that_gives_half_a_batch_is_not_asked_for_ever(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b"x"])
    half = bytes(build_batch([Record(value=b"x")]))[:-1]
    monkeypatch.setattr(OddFetcher, "answer", FetchedPartition(0, records=half), raising=False)
    monkeypatch.setattr(partition_reader, "PartitionFetcher", OddFetcher)
    with pytest.raises(CorruptMessage, match="no whole batch came for 0"):
        read_batch(broker, subscribe=topic)


def test_a_leader_that_refuses_what_it_has_is_not_asked_for_ever(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, [b"x"])
    monkeypatch.setattr(OddFetcher, "answer", OffsetOutOfRange("no"), raising=False)
    monkeypatch.setattr(partition_reader, "PartitionFetcher", OddFetcher)
    with pytest.raises(OffsetOutOfRange, match="has offset 0 and does not give it"):
        read_batch(broker, subscribe=topic, failOnDataLoss="false")


def test_the_schema_is_fixed() -> None:
    options = CaseInsensitiveDict({"kafka.bootstrap.servers": "a:1", "subscribe": "b"})
    source = SuwiDataSource(options)
    assert source.reader(source.schema()) is not None
    other = StructType([StructField("value", StringType())])
    for make in (source.reader, source.streamReader):
        with pytest.raises(BadOption, match="schema of a topic's rows is fixed"):
            make(other)


def test_what_is_skipped_is_said(broker: BrokerProcess, caplog: pytest.LogCaptureFixture) -> None:
    topic = make_topic(broker.address)
    fill(broker.address, topic, NUMBERS)
    delete_before(broker.address, topic, 4)
    start = f'{{"{topic}":{{"0":1}}}}'
    read_batch(broker, subscribe=topic, failOnDataLoss="false", startingOffsets=start)
    (said,) = caplog.records
    assert f"{topic}-0 has offsets 4 to 9 now: 1 to 3 are gone" in said.getMessage()


def test_a_bad_option_is_refused_before_anything_is_read(broker: BrokerProcess) -> None:
    with pytest.raises(BadOption, match="startingOffsets cannot be latest"):
        batch_reader(broker, subscribe="x", startingOffsets="latest")
