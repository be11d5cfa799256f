"""Clusters for tests of the test kit, and for tests of brokers that use it."""

from collections.abc import Iterator

import pytest

from suwi.testing import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as running:
        yield running
