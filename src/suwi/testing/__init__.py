"""The test kit: a real cluster in a test, and faults at will. docs/testing.md shows how."""

from suwi.testing.async_cluster import AsyncCluster
from suwi.testing.brokers import NotInTime
from suwi.testing.cluster import Cluster

__all__ = ["AsyncCluster", "Cluster", "NotInTime"]
