"""The rows of `format("suwi")` are those of Spark's own Kafka connector, from either broker."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat.kafka import KafkaServer, Unavailable, free_port, run_java
from compat.spark_connector import connector_jars
from suwi.spark.option_table import KAFKA, Use, find
from tests.broker_process import SOURCE, BrokerProcess, unique_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytestmark = [
    pytest.mark.timeout(900),
    # PySpark and py4j leave sockets and files to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
_COMPACTED_S = 120
_TIME_MS = 1_700_000_000_000
_OURS, _THEIRS = "suwi", "kafka"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    try:
        jars = connector_jars()
    except Unavailable as reason:
        pytest.skip(str(reason))
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    import suwi.spark

    # A JVM that another test left behind has no connector on its class path.
    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    home = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(jars))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    suwi.spark.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def token_port() -> int:
    """Of a listener of Apache Kafka with unsecured tokens."""
    return free_port()


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, token_port: int) -> Iterator[KafkaServer]:
    folder = tmp_path_factory.mktemp("kafka")
    server = KafkaServer(folder, heap="512m", log_cleaner_backoff_ms="200")
    controller = f"127.0.0.1:{free_port()}"
    served = f"PLAINTEXT://{server.address},TOKEN://127.0.0.1:{token_port}"
    login = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    server._settings |= {
        "listeners": f"{served},CONTROLLER://{controller}",
        "advertised.listeners": served,
        "controller.quorum.voters": f"0@{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "TOKEN:SASL_PLAINTEXT",
        "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.token.oauthbearer.sasl.jaas.config": f"{login} "
        'unsecuredLoginStringClaim_sub="broker";',
    }
    server.format()
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["suwi", "kafka"])
def servers(request: pytest.FixtureRequest) -> str:
    """The address of a broker of ours, and of one of Apache Kafka's."""
    address: str = request.getfixturevalue(request.param).address
    return address


def make_topic(servers: str, partitions: int = 1, **settings: str) -> str:
    name = unique_name("spark")
    config = {"retention.ms": "-1", **{k.replace("_", "."): v for k, v in settings.items()}}
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(60)
    return name


def fill(servers: str, topic: str, partitions: int) -> None:
    """Records of all kinds: every codec, nulls, empty ones, headers, decreasing times."""
    for number, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
        producer = Producer(
            {"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 20}
        )
        for index in range(200):
            producer.produce(
                topic,
                value=None if index % 7 == 0 else b"v" * (index % 5) + b"%d" % index,
                key=None if index % 3 == 0 else b"" if index % 3 == 1 else b"key-%d" % index,
                partition=index % partitions,
                timestamp=_TIME_MS + number * 1_000_000 - index,
                headers=[("a", b"1"), ("a", None), ("ü", b"")] if index % 4 == 0 else None,
            )
        assert producer.flush(60) == 0


def read(spark: "SparkSession", source: str, servers: str, **options: str) -> "DataFrame":
    return _with(spark.read, source, servers, options)


def _with(reader: Any, source: str, servers: str, options: dict[str, str]) -> "DataFrame":
    reader = reader.format(source).option("kafka.bootstrap.servers", servers)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    frame: DataFrame = reader.load()
    return frame


def rows_of(frame: "DataFrame") -> list[Any]:
    return frame.orderBy("topic", "partition", "offset").collect()


def assert_same(spark: "SparkSession", servers: str, **options: str) -> list[Any]:
    """Asserts that both sources' rows and schema are equal; returns ours."""
    ours = read(spark, _OURS, servers, **options)
    theirs = read(spark, _THEIRS, servers, **options)
    assert ours.schema == theirs.schema
    rows = rows_of(ours)
    assert rows == rows_of(theirs)
    return rows


def test_a_batch_query_has_the_same_rows(spark: "SparkSession", servers: str) -> None:
    topic = make_topic(servers, partitions=3)
    fill(servers, topic, 3)
    rows = assert_same(spark, servers, subscribe=topic, includeHeaders="true")
    assert len(rows) == 1000
    assert len(assert_same(spark, servers, subscribe=topic)) == 1000
    offsets = {
        "startingOffsets": f'{{"{topic}":{{"0":17,"1":-2,"2":100}}}}',
        "endingOffsets": f'{{"{topic}":{{"0":-1,"1":40,"2":100}}}}',
    }
    assert len(assert_same(spark, servers, subscribe=topic, **offsets)) == 335 - 17 + 40
    times = {
        "startingTimestamp": str(_TIME_MS + 500_000),
        "endingTimestamp": str(_TIME_MS + 3_000_000),
    }
    assert len(assert_same(spark, servers, subscribe=topic, **times)) > 100


def test_the_time_of_the_broker_is_shown_alike(spark: "SparkSession", servers: str) -> None:
    topic = make_topic(servers, message_timestamp_type="LogAppendTime")
    fill(servers, topic, 1)
    rows = assert_same(spark, servers, subscribe=topic)
    assert {row.timestampType for row in rows} == {1}


@pytest.mark.parametrize(
    "split", [{"minPartitions": "8"}, {"maxRecordsPerPartition": "150"}, {"minPartitions": "2"}]
)
def test_partitions_are_split_alike(
    spark: "SparkSession", suwi: BrokerProcess, split: dict[str, str]
) -> None:
    topic = make_topic(suwi.address, partitions=3)
    fill(suwi.address, topic, 3)
    # With "earliest" and "latest" the connector ignores maxRecordsPerPartition in batch queries.
    bounds = {
        "startingOffsets": f'{{"{topic}":{{"0":0,"1":0,"2":0}}}}',
        "endingOffsets": f'{{"{topic}":{{"0":335,"1":335,"2":330}}}}',
    }
    options = {"subscribe": topic, **split, **bounds}
    assert len(assert_same(spark, suwi.address, **options)) == 1000
    ours, theirs = (
        read(spark, source, suwi.address, **options).rdd.getNumPartitions()
        for source in (_OURS, _THEIRS)
    )
    assert ours == theirs


def test_a_stream_has_the_same_rows(spark: "SparkSession", servers: str, tmp_path: Path) -> None:
    topic = make_topic(servers, partitions=2)
    fill(servers, topic, 2)
    found = {}
    for source in (_OURS, _THEIRS):
        options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "300"}
        stream = _with(spark.readStream, source, servers, options)
        found[source] = run(stream, tmp_path / source)
    assert len(found[_OURS]) == 1000
    assert found[_OURS] == found[_THEIRS]


def test_a_query_of_the_connector_goes_on_with_ours(
    spark: "SparkSession", servers: str, tmp_path: Path
) -> None:
    """Changing one word: the same checkpoint, the same output, nothing lost and nothing twice."""
    topic = make_topic(servers, partitions=2)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    fill(servers, topic, 2)
    assert len(run(_with(spark.readStream, _THEIRS, servers, options), tmp_path)) == 1000
    fill(servers, topic, 2)
    rows = run(_with(spark.readStream, _OURS, servers, options), tmp_path)
    assert len(rows) == 2000
    assert rows == rows_of(read(spark, _THEIRS, servers, subscribe=topic))


def run(stream: "DataFrame", home: Path) -> list[Any]:
    """Everything; what the runs of this directory have written so far."""
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(home / "out"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    return rows_of(stream.sparkSession.read.parquet(str(home / "out")))


# -- transactions and compaction, on Apache Kafka --------------------------------------------------


def test_what_was_aborted_or_is_open_is_left_out_alike(
    spark: "SparkSession", kafka: KafkaServer
) -> None:
    topic = make_topic(kafka.address, partitions=2)
    sent = fill_with_transactions(kafka.address, topic)
    rows = assert_same(
        spark, kafka.address, subscribe=topic, kafka__isolation__level="read_committed"
    )
    assert {bytes(row.value) for row in rows} == set(sent)
    everything = assert_same(spark, kafka.address, subscribe=topic)
    assert len(everything) > len(rows)
    # Ranges that start and end within transactions, aborted and committed ones.
    for start, end in ((3, 20), (7, 9), (11, 31)):
        bounds = {
            "startingOffsets": f'{{"{topic}":{{"0":{start},"1":-2}}}}',
            "endingOffsets": f'{{"{topic}":{{"0":{end},"1":-1}}}}',
        }
        committed = {"kafka.isolation.level": "read_committed", **bounds}
        assert_same(spark, kafka.address, subscribe=topic, **committed)
        assert_same(spark, kafka.address, subscribe=topic, minPartitions="5", **committed)


def fill_with_transactions(servers: str, topic: str) -> list[bytes]:
    """Two producers at a time, every third transaction aborted, the last one open."""
    committed: list[bytes] = []
    producers = []
    for name in ("a", "b"):
        producer = Producer({"bootstrap.servers": servers, "transactional.id": f"{topic}-{name}"})
        producer.init_transactions(60)
        producers.append(producer)
    plain = Producer({"bootstrap.servers": servers})
    for number in range(9):
        written = []
        for index, producer in enumerate(producers):
            producer.begin_transaction()
            for record in range(4):
                value = b"%d-%d-%d" % (number, index, record)
                producer.produce(topic, value, partition=record % 2)
                written.append((producer, value))
            producer.flush(60)
            between = b"plain-%d-%d" % (number, index)
            plain.produce(topic, between, partition=0)
            plain.flush(60)
            committed.append(between)
        for index, producer in enumerate(producers):
            if (number + index) % 3 == 0:
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
                committed += [value for owner, value in written if owner is producer]
    producers[0].begin_transaction()
    for partition in (0, 1):
        producers[0].produce(topic, b"open", partition=partition)
        producers[0].flush(60)
        plain.produce(topic, b"behind what is open", partition=partition)
    plain.flush(60)
    _open.append(producers[0])
    return committed


_open: list[Producer] = []
"""Producers with an open transaction, kept from garbage collection, which would abort it."""


def test_what_compaction_left_is_read_alike(spark: "SparkSession", kafka: KafkaServer) -> None:
    topic = make_topic(
        kafka.address,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="0",
    )
    producer = Producer({"bootstrap.servers": kafka.address})
    for number in range(400):
        value = None if number % 10 == 9 else b"%d" % number
        producer.produce(topic, value, key=b"%d" % (number % 20))
        if number % 50 == 49:
            producer.flush(60)
            time.sleep(0.15)  # Kafka begins a new segment by time
    producer.flush(60)

    def compacted() -> bool:
        return len(rows_of(read(spark, _THEIRS, kafka.address, subscribe=topic))) < 200

    wait_for(compacted)
    rows = assert_same(spark, kafka.address, subscribe=topic)
    assert 0 < len(rows) < 200
    assert_same(
        spark,
        kafka.address,
        subscribe=topic,
        startingOffsets=f'{{"{topic}":{{"0":5}}}}',
        endingOffsets=f'{{"{topic}":{{"0":395}}}}',
        minPartitions="3",
    )


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + _COMPACTED_S
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(1)


def test_records_that_are_gone_are_told_of_and_skipped_alike(
    spark: "SparkSession", servers: str
) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    topic = make_topic(servers)
    fill(servers, topic, 1)
    admin = AdminClient({"bootstrap.servers": servers})
    where = TopicPartition(topic, 0, 600)
    for done in admin.delete_records([where]).values():
        done.result(60)
    bounds = {"startingOffsets": f'{{"{topic}":{{"0":100}}}}'}
    for source in (_OURS, _THEIRS):
        with pytest.raises((PySparkException, Py4JJavaError)):
            read(spark, source, servers, subscribe=topic, **bounds).collect()
    rows = assert_same(spark, servers, subscribe=topic, failOnDataLoss="false", **bounds)
    assert len(rows) == 400


# -- settings --------------------------------------------------------------------------------------


def test_every_setting_of_kafkas_consumer_is_in_the_table() -> None:
    names = run_java(str(Path(__file__).parent / "ConsumerKeys.java")).split()
    assert len(names) > 80
    assert [name for name in names if find(KAFKA + name, Use.STREAM) is None] == []


def test_a_token_lets_a_query_in(
    spark: "SparkSession", kafka: KafkaServer, token_port: int
) -> None:
    topic = make_topic(kafka.address)
    fill(kafka.address, topic, 1)
    options = log_in("alice")
    address = f"127.0.0.1:{token_port}"
    rows = rows_of(read(spark, _OURS, address, subscribe=topic, **options))
    assert len(rows) == 1000


def log_in(subject: str) -> dict[str, str]:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    return {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": f'{module} required unsecuredLoginStringClaim_sub="{subject}";',
    }


def test_a_token_that_is_refused_is_told(
    kafka: KafkaServer, token_port: int, tmp_path: Path
) -> None:
    from suwi.client.security import AuthenticationFailed
    from tests.spark.readers import read_batch, stop_readers

    token = tmp_path / "token"
    token.write_text("no.token")
    options = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": token.as_uri(),
    }
    address = f"127.0.0.1:{token_port}"
    try:
        with pytest.raises(AuthenticationFailed):
            read_batch(address, subscribe="any", **options)
    finally:
        stop_readers()
