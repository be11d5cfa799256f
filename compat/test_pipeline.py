"""A pipeline on Apache Kafka: its progress is a consumer group, and the lag reaches 0."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")
pytest.importorskip("yaml", reason="PyYAML is not installed: pip install .[spark]")

from deltalake import DeltaTable

from compat.kafka import KafkaServer, run_java
from suwi.client.addresses import parse_addresses
from suwi.client.cluster import Cluster
from suwi.client.group_offsets import commit_offsets, fetch_offsets
from suwi.env import local_env
from suwi.model.ids import Offset, TopicPartition
from suwi.spark import commit_progress, read_topics
from suwi.spark.pipeline.program import load_program
from suwi.spark.pipeline.reading import read_pipeline
from suwi.spark.pipeline.running import Runner, RunSettings, lags_of
from suwi.spark.pipeline.steps import Variation
from suwi.spark.spark_session import open_session
from tests.broker_process import SOURCE
from tests.spark.topics import fill, make_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_PATIENCE_S = 120


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    server = KafkaServer(tmp_path_factory.mktemp("kafka"), heap="512m")
    server.format()
    server.start()
    yield server
    server.stop()


def lag(kafka: KafkaServer, group: str) -> dict[tuple[str, int], tuple[int, int]]:
    """The committed offset and the lag by partition, according to Apache Kafka's own tool."""
    said = run_java(_GROUPS, "--bootstrap-server", kafka.address, "--describe", "--group", group)
    found = {}
    for line in said.splitlines():
        words = line.split()
        if words[:1] == [group]:
            found[words[1], int(words[2])] = int(words[3]), int(words[5])
    return found


def test_offsets_are_committed_by_one_who_is_no_member(kafka: KafkaServer) -> None:
    topic = make_topic(kafka.address, partitions=2)
    fill(kafka.address, topic, [b"a", b"b", b"c"])
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def work() -> dict[TopicPartition, Offset]:
        addresses = parse_addresses(kafka.address)
        async with Cluster(addresses, random=local_env().random) as cluster:
            assert await fetch_offsets(cluster, "readers", [first, second]) == {}
            await commit_offsets(cluster, "readers", {first: Offset(2), second: Offset(0)})
            return await fetch_offsets(cluster, "readers", [first, second])

    assert asyncio.run(work()) == {first: 2, second: 0}
    assert lag(kafka, "readers") == {(topic, 0): (2, 1), (topic, 1): (0, 0)}


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = open_session("orders", master="local[2]")
    yield session
    session.stop()


PIPELINE = """\
name: orders
source: {{servers: "{broker}", topics: {topic}}}
decode: {{json: id BIGINT}}
sink: {{delta: {folder}/table}}
dead_letters: {{topic: {bad}}}
checkpoint: {folder}/checkpoint
group: {topic}-group
"""


def test_lag_reaches_0_after_a_run_once_and_on_an_idle_stream(
    kafka: KafkaServer, spark: "SparkSession", tmp_path: Path
) -> None:
    topic, bad = make_topic(kafka.address, partitions=2), make_topic(kafka.address)
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.format(broker=kafka.address, topic=topic, bad=bad, folder=tmp_path))
    pipeline, group = read_pipeline(str(file)), f"{topic}-group"
    fill(kafka.address, topic, [b'{"id": 1}', b"nonsense"])

    def runner(variation: Variation) -> Runner:
        program = load_program(pipeline, variation)
        settings = RunSettings(retries=0, look_every_s=0.1, lag_every_s=0.2)
        return Runner(pipeline, program, spark, lags_of(pipeline), settings, say=said.append)

    said: list[str] = []
    assert asyncio.run(runner(Variation(once=True)).run()) == 0, said
    assert lag(kafka, group) == {(topic, 0): (2, 0), (topic, 1): (0, 0)}
    assert lag(kafka, f"{group}-dead-letters") == {(topic, 0): (2, 0), (topic, 1): (0, 0)}

    fill(kafka.address, topic, [b'{"id": 2}'], partition=1)
    assert lag(kafka, group) == {(topic, 0): (2, 0), (topic, 1): (0, 1)}

    async def until_idle() -> int:
        running = runner(Variation())
        run = asyncio.create_task(running.run())
        async with asyncio.timeout(_PATIENCE_S):
            while not all(watch.rows == 1 and watch.lag_total == 0 for watch in running.watches):
                await asyncio.sleep(0.1)
                assert not run.done(), said
        running.stop()
        return await run

    assert asyncio.run(until_idle()) == 0, said
    assert lag(kafka, group) == {(topic, 0): (2, 0), (topic, 1): (1, 0)}
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in rows) == [1, 2]


def test_any_query_can_tell_its_place_as_a_group(
    kafka: KafkaServer, spark: "SparkSession", tmp_path: Path
) -> None:
    topic = make_topic(kafka.address)
    fill(kafka.address, topic, [b"a", b"b"])
    rows = read_topics(spark, kafka.address, topic, starting="earliest")
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        commit_progress(query, kafka.address, "readers-of-" + topic)
        end = time.monotonic() + _PATIENCE_S
        while lag(kafka, "readers-of-" + topic) != {(topic, 0): (2, 0)}:
            assert query.exception() is None
            assert time.monotonic() < end
    finally:
        query.stop()
