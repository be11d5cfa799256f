"""The test kit: a real cluster in a test, with fault injection. See docs/testing.md.

Its exports are imported lazily: pytest loads the plugin of this package in every run, even if the
run does not use it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suwi.testing.brokers import NotInTime
    from suwi.testing.cluster import AsyncCluster, Cluster, ClusterSnapshot
    from suwi.testing.kafka_container import KafkaContainer

__all__ = ["AsyncCluster", "Cluster", "ClusterSnapshot", "KafkaContainer", "NotInTime"]

_MODULES = {
    "AsyncCluster": "suwi.testing.cluster",
    "Cluster": "suwi.testing.cluster",
    "ClusterSnapshot": "suwi.testing.cluster",
    "KafkaContainer": "suwi.testing.kafka_container",
    "NotInTime": "suwi.testing.brokers",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
