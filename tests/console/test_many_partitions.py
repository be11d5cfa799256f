"""The overview and the list of topics ask as much of a large cluster as of a small one."""

import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest

from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.versioned_connection import VersionedConnection
from suwi.console.clusters import ShownCluster
from suwi.console.overview import read_overview
from suwi.console.page import Query, Read
from suwi.console.topics import read_topics
from suwi.sim import Simulation
from suwi.sim.clock import ManualClock
from suwi.sim.cluster import SimCluster
from suwi.wire.versions import ApiKey


class Shown:
    """What pages need of a cluster. Nothing is kept."""

    def __init__(self, client: Cluster) -> None:
        self.client = client
        self.clock = ManualClock(0)

    async def keep(self, _key: Any, _age_s_max: float, read: Any) -> Any:
        return await read()

    def command(self, *_: object, **__: object) -> str:
        return ""


def requests_of(read: Read, topics: int, monkeypatch: pytest.MonkeyPatch) -> Counter[ApiKey]:
    """How often each API is used for a page that is opened for the first time."""
    sent: Counter[ApiKey] = Counter()
    own_thread = threading.get_ident()

    def counted(send: Callable[..., Any]) -> Callable[..., Any]:
        def counting(self: VersionedConnection, api: ApiKey, *given: Any, **how: Any) -> Any:
            if threading.get_ident() == own_thread:  # Consoles of other tests run in theirs.
                sent[api] += 1
            return send(self, api, *given, **how)

        return counting

    async def main() -> None:
        cluster = SimCluster(simulation, brokers=3)
        await cluster.start()
        async with cluster.client("admin") as client:
            for number in range(topics):
                await Admin(client).create_topic(f"t{number}", partitions=10)
        async with cluster.client("console") as client:
            times_s = count(step=0.5)  # the answers take long
            with monkeypatch.context() as patched:
                for name in ("call", "send"):
                    plain = getattr(VersionedConnection, name)
                    patched.setattr(VersionedConnection, name, counted(plain))
                patched.setattr(client, "_now_s", lambda: float(next(times_s)))
                await read(cast(ShownCluster, Shown(client)), Query({}))

    simulation = Simulation(1)
    simulation.run(main())
    return sent


@pytest.mark.parametrize("read", [read_overview, read_topics])
def test_the_number_of_requests_does_not_depend_on_the_number_of_partitions(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (requests_of(read, topics, monkeypatch) for topics in (1, 12))
    assert few == many
    assert many[ApiKey.METADATA] == 1
