"""A broker of ours for Kafka's tools; tests that need Kafka are skipped, with the reason.

A module that does not need it has `NEEDS_KAFKA = False`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.kafka import Unavailable, kafka_classpath
from tests.broker_process import BrokerProcess


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


@pytest.fixture
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name: str = request.node.name
    return "".join(c if c.isalnum() else "-" for c in name)[:100]
