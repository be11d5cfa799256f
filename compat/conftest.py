"""A broker of ours for Kafka's tools; everything is skipped, with a word, where Kafka is absent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.kafka import Unavailable, kafka_classpath
from tests.broker_process import BrokerProcess


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        kafka_classpath()
    except Unavailable as reason:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"Apache Kafka is not available: {reason}"))


@pytest.fixture(scope="session")
def suwi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests; each uses topics of its own."""
    broker = BrokerProcess(tmp_path_factory.mktemp("suwi") / "data").start()
    yield broker
    broker.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name: str = request.node.name
    return "".join(c if c.isalnum() else "-" for c in name)[:100]
