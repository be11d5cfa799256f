"""The test kit: a real cluster in a test, and faults at will. docs/testing.md shows how.

What it exports is imported when it is asked for: pytest loads the plugin beside it in every run,
also in those that use nothing of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suwi.testing.async_cluster import AsyncCluster
    from suwi.testing.brokers import NotInTime
    from suwi.testing.cluster import Cluster

__all__ = ["AsyncCluster", "Cluster", "NotInTime"]

_HOMES = {
    "AsyncCluster": "suwi.testing.async_cluster",
    "Cluster": "suwi.testing.cluster",
    "NotInTime": "suwi.testing.brokers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
