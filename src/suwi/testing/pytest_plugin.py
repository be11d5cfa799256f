"""pytest fixtures: `suwi`, a cluster for the whole run, and `suwi_cluster`, one for a single test.

With `@pytest.mark.suwi(prepare=function)` one cluster is prepared, and each test gets a fork of it.
pytest finds this module through the entry point `pytest11`; heavy modules are imported only when a
test uses a fixture. With pytest-xdist each worker has its own clusters.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from suwi.testing.cluster import Cluster, ClusterSnapshot

_NAME_CHARACTERS_MAX = 60
_numbers = count(1)


class Suwi:
    """The cluster of the whole run, with topic names that no other test uses."""

    def __init__(self, cluster: "Cluster", test: str) -> None:
        self.cluster = cluster
        # In Kafka a.b and a_b collide; letters, digits and hyphens never do.
        readable = re.sub(r"[^A-Za-z0-9]+", "-", test)[:_NAME_CHARACTERS_MAX].strip("-")
        self.prefix = f"{readable}-{next(_numbers)}-"

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    def topic(self, name: str = "topic") -> str:
        """The name of a topic for this test only; the topic is created at its first use."""
        return self.prefix + name

    def create_topic(
        self, name: str = "topic", partitions: int = 1, configs: Mapping[str, object] | None = None
    ) -> str:
        """Create a topic for this test only. Returns its name."""
        return self.cluster.create_topic(self.topic(name), partitions, configs=configs)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("suwi_brokers", "The number of brokers of the fixture `suwi`.", default="3")
    parser.addini(
        "suwi_settings",
        "Broker settings of `suwi` with Kafka's keys, KEY=VALUE.",
        type="linelist",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "suwi(prepare=function, brokers=3, settings={...}, ...): options for the cluster of "
        "`suwi_cluster`; prepare(cluster) is called once, and each test gets a fork of its result",
    )


@pytest.fixture(scope="session")
def _suwi_session_cluster(pytestconfig: pytest.Config) -> "Iterator[Cluster]":
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
def suwi(_suwi_session_cluster: "Cluster", request: pytest.FixtureRequest) -> Iterator[Suwi]:
    """A running cluster, shared by all tests of the run. Do not inject faults into it."""
    mine = Suwi(_suwi_session_cluster, request.node.name)
    yield mine
    for topic in mine.cluster.topics():
        if topic.startswith(mine.prefix):
            mine.cluster.delete_topic(topic)


@pytest.fixture(scope="session")
def _suwi_snapshots() -> "Iterator[dict[object, ClusterSnapshot]]":
    """By the function that prepared the cluster, and its options."""
    snapshots: dict[object, ClusterSnapshot] = {}
    yield snapshots
    for snapshot in snapshots.values():
        snapshot.remove()


@pytest.fixture
def suwi_cluster(
    request: pytest.FixtureRequest, _suwi_snapshots: "dict[object, ClusterSnapshot]"
) -> "Iterator[Cluster]":
    """A cluster for this test only, for fault injection."""
    from suwi.testing.cluster import Cluster

    marker = request.node.get_closest_marker("suwi")
    options: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    prepare: Callable[[Cluster], object] | None = options.pop("prepare", None)
    if prepare is None:
        cluster = Cluster(**options)
    else:
        key = prepare, repr(sorted(options.items()))
        if key not in _suwi_snapshots:
            with Cluster(**options) as original:
                prepare(original)
                _suwi_snapshots[key] = original.snapshot()
        cluster = _suwi_snapshots[key].fork()
    with cluster:
        yield cluster
