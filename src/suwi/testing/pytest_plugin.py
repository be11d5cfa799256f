"""Fixtures for pytest: `suwi`, a cluster for the whole run, and `suwi_cluster`, one for one test.

pytest finds this module by itself (entry point `pytest11`); nothing heavy is imported before a
test asks for a fixture. Under pytest-xdist each worker has clusters of its own.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from suwi.testing.cluster import Cluster

_NAME_CHARACTERS_MAX = 60
_numbers = count(1)


class Suwi:
    """The cluster of the whole run, with names of topics that no other test uses."""

    def __init__(self, cluster: "Cluster", test: str) -> None:
        self.cluster = cluster
        # Kafka takes a.b and a_b for too similar; letters, digits and hyphens are never.
        readable = re.sub(r"[^A-Za-z0-9]+", "-", test)[:_NAME_CHARACTERS_MAX].strip("-")
        self.prefix = f"{readable}-{next(_numbers)}-"

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    def topic(self, name: str = "topic") -> str:
        """A name for a topic of this test's own; the topic is made when it is first used."""
        return self.prefix + name

    def create_topic(
        self, name: str = "topic", partitions: int = 1, configs: Mapping[str, object] | None = None
    ) -> str:
        """Make a topic of this test's own; its name."""
        return self.cluster.create_topic(self.topic(name), partitions, configs=configs)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("suwi_brokers", "How many brokers the fixture `suwi` has.", default="3")
    parser.addini(
        "suwi_settings", "Kafka's broker keys for `suwi`, KEY=VALUE.", type="linelist", default=[]
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "suwi(brokers=3, settings={...}, ...): how `suwi_cluster` makes its cluster"
    )


@pytest.fixture(scope="session")
def _suwi_of_the_run(pytestconfig: pytest.Config) -> "Iterator[Cluster]":
    from suwi.testing.cluster import Cluster

    settings: dict[str, object] = {}
    for line in pytestconfig.getini("suwi_settings"):
        key, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"suwi_settings: {line!r}: give it as KEY=VALUE")
        settings[key.strip()] = value.strip()
    with Cluster(brokers=int(pytestconfig.getini("suwi_brokers")), settings=settings) as cluster:
        yield cluster


@pytest.fixture
def suwi(_suwi_of_the_run: "Cluster", request: pytest.FixtureRequest) -> Iterator[Suwi]:
    """A running cluster, shared by all tests of the run. Do it no harm."""
    mine = Suwi(_suwi_of_the_run, request.node.name)
    yield mine
    for topic in mine.cluster.topics():
        if topic.startswith(mine.prefix):
            mine.cluster.delete_topic(topic)


@pytest.fixture
def suwi_cluster(request: pytest.FixtureRequest) -> "Iterator[Cluster]":
    """A cluster for this test alone: kill it, cut it, fill its disks."""
    from suwi.testing.cluster import Cluster

    marker = request.node.get_closest_marker("suwi")
    options: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    with Cluster(**options) as cluster:
        yield cluster
