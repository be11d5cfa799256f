"""A run's status reaches its cluster, and a cluster that is away does not disturb the run."""

import asyncio
import logging
from pathlib import Path

import pytest

pytest.importorskip("yaml")
pytest.importorskip("pyspark")

from suwi.client.addresses import parse_addresses
from suwi.client.cluster import Cluster as Client
from suwi.client.pipeline_status import RUNNING, WAITING, PipelineStatus, read_statuses
from suwi.env import local_env
from suwi.spark.pipeline.progress import Watch
from suwi.spark.pipeline.publishing import Publisher
from suwi.spark.pipeline.reading import read_pipeline
from suwi.testing import Cluster

PIPELINE = """\
name: orders
source: {servers: "SERVERS", topics: orders}
decode: string
sink: {delta: /lake}
checkpoint: /checkpoint
dead_letters: drop
"""


def publisher_of(folder: Path, servers: str, more: str = "") -> Publisher:
    file = folder / "pipeline.yaml"
    file.write_text(PIPELINE.replace("SERVERS", servers) + more)
    return Publisher(read_pipeline(str(file)))


def published(servers: str) -> list[PipelineStatus]:
    env = local_env()

    async def read() -> list[PipelineStatus]:
        async with Client(parse_addresses(servers), random=env.random) as client:
            return await read_statuses(client, env.clock.now_ms())

    return asyncio.run(read())


def test_the_status_is_published_unless_the_file_says_no(tmp_path: Path) -> None:
    watch = Watch("orders", local_env().clock, "topic orders → /lake")
    with Cluster(brokers=1) as cluster:
        servers = cluster.bootstrap_servers
        silent = publisher_of(tmp_path, servers, "status: false\n")
        silent.publish(RUNNING, [(watch, None)], 0)
        silent.close()
        assert published(servers) == []
        publisher = publisher_of(tmp_path, servers)
        publisher.publish(RUNNING, [(watch, None)], 0)
        publisher.failed("no such table")
        publisher.publish(WAITING, [(watch, None)], 1)
        publisher.close()
        (status,) = published(servers)
    assert (status.pipeline, status.state, status.restarts) == ("orders", WAITING, 1)
    assert status.error == "no such table"
    assert [query.about for query in status.queries] == [watch.about]


def test_a_cluster_that_is_away_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = publisher_of(tmp_path, "127.0.0.1:1", "status: true\n")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            publisher.publish(RUNNING, [], 0)
    publisher.close()
    assert [each.message for each in caplog.records] == ["status not published"]


def test_the_status_is_true_or_false(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="status: true or false"):
        publisher_of(tmp_path, "127.0.0.1:1", "status: sometimes\n")
