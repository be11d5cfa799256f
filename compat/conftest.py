"""A broker of ours for Kafka's tools; tests that need Kafka are skipped, with the reason.

A module that does not need it has `NEEDS_KAFKA = False`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.kafka import Unavailable, kafka_classpath
from suwi.local_cluster import zookeeper
from suwi.local_cluster.cluster import LocalCluster
from suwi.local_cluster.layout import Layout
from tests.broker_process import BrokerProcess
from tests.local_cluster.ports import free_ports


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    needy = [item for item in here if getattr(_module(item), "NEEDS_KAFKA", True)]
    if not needy:
        return
    try:
        kafka_classpath()
    except Unavailable as reason:
        for item in needy:
            item.add_marker(pytest.mark.skip(reason=f"Apache Kafka is not available: {reason}"))


def _module(item: pytest.Item) -> object:
    module = item.getparent(pytest.Module)
    return None if module is None else module.obj


@pytest.fixture(scope="session")
def suwi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests; each uses its own topics."""
    broker = BrokerProcess(tmp_path_factory.mktemp("suwi") / "data").start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers and a ZooKeeper server, each a process; each test uses its own topics."""
    reason = zookeeper.why_unavailable()
    if reason is not None:
        pytest.skip(f"there is no ZooKeeper: {reason}")
    settings = {"auto.leader.rebalance.enable": "false", "group.initial.rebalance.delay.ms": "0"}
    cluster = LocalCluster(str(tmp_path_factory.mktemp("cluster")))
    try:
        cluster.start(Layout(3, 1, "", free_ports(), has_links=True, settings=settings))
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name: str = request.node.name
    return "".join(c if c.isalnum() else "-" for c in name)[:100]
