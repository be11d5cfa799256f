"""One partition live, in the simulation, while what is watched goes away, moves or begins anew."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from suwi.client.addresses import Address
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.cluster_status import read_events
from suwi.client.own_apis import PartitionWatch, Watched
from suwi.client.versioned_connection import VersionedConnection
from suwi.console import live
from suwi.console.clusters import ClusterAddress, ShownCluster
from suwi.console.live import LiveStep, follow_live
from suwi.console.page import Query
from suwi.env import local_env
from suwi.lab.events import Election, Fault, Replicas, Send, read
from suwi.model.errors import UnknownTopicOrPartition
from suwi.model.ids import NO_NODE
from suwi.sim import Simulation
from suwi.sim.cluster import PORT, SimCluster
from tests.broker.test_simulated_cluster import controller, create, state, until
from tests.broker.test_simulated_losses import lead, write
from tests.broker.test_simulated_reassignment import moved

NAME = "orders-0"


class OpenPage:
    """A page of `orders-0`: all that the console has streamed to it, added up."""

    def __init__(self, cluster: SimCluster) -> None:
        addresses = [Address(node.name, PORT) for node in cluster.nodes.values()]
        self._shown = ShownCluster(ClusterAddress("sim", addresses, None, ()), local_env())
        self._lines: list[str] = []
        self.texts: list[str] = []
        self.total = Replicas()
        self.stream = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        async with self._shown.client:
            async for name, step in follow_live(self._shown, Query({"topic": "orders"})):
                assert name in ("live", "")
                if isinstance(step, LiveStep):
                    self._add(step)

    def _add(self, step: LiveStep) -> None:
        if step.begin is not None:
            self._lines.append(json.dumps(step.begin.head))
        for fields, text in step.events:
            self._lines.append(json.dumps(fields))
            self.texts.append(text)
            (event,) = read([self._lines[0], self._lines[-1]]).events
            self.total.add(event)

    @property
    def brokers(self) -> set[int]:
        """Those with a row."""
        return {broker for _, broker in self.total.replicas}

    @property
    def ends(self) -> set[int]:
        return {view.end for view in self.total.replicas.values()}

    def of(self, *kinds: type) -> list[object]:
        return [event for event in read(self._lines).events if isinstance(event, kinds)]

    async def close(self) -> None:
        self.stream.cancel()
        await asyncio.gather(self.stream, return_exceptions=True)


def run(
    scenario: Callable[[SimCluster, Cluster, OpenPage], Awaitable[None]],
    session_timeout_s: float = 2.0,
) -> None:
    """Four brokers. `orders-0` is on the first three, has a record, and is watched."""
    simulation = Simulation(1)

    async def main() -> None:
        cluster = SimCluster(simulation, brokers=4, session_timeout_s=session_timeout_s)
        await cluster.start()
        async with cluster.client("admin") as client:
            await create(client, assignments=[[1, 2, 3]])
            await lead(cluster, 1)
            assert await write(cluster, 1, [b"a"]) == 0
            page = OpenPage(cluster)
            await until(lambda: page.brokers == {1, 2, 3} and page.ends == {1})
            await scenario(cluster, client, page)
            await page.close()

    simulation.run(main())


def test_the_stream_of_a_topic_ends_when_it_is_deleted() -> None:
    async def scenario(_: SimCluster, client: Cluster, page: OpenPage) -> None:
        await Admin(client).delete_topic("orders")
        with pytest.raises(UnknownTopicOrPartition, match="'orders' does not exist"):
            async with asyncio.timeout(30):
                await page.stream

    run(scenario)


def test_a_topic_that_is_created_again_is_not_shown_as_the_one_before() -> None:
    async def scenario(cluster: SimCluster, client: Cluster, page: OpenPage) -> None:
        cluster[1].kill()  # The first topic has a higher leader epoch.
        await lead(cluster, 2)
        await until(lambda: page.total.leaders[NAME] == (2, 1))
        await Admin(client).delete_topic("orders")
        await create(client, assignments=[[3, 2]])
        await lead(cluster, 3)
        with suppress(UnknownTopicOrPartition):  # If it was looked for between the two.
            async with asyncio.timeout(30):
                await page.stream  # It ends, and a browser asks again.
        again = OpenPage(cluster)
        await until(lambda: again.brokers == {2, 3} and again.ends == {0})
        assert again.total.leaders[NAME] == (3, 0)
        await again.close()

    run(scenario)


def test_metadata_are_asked_for_when_they_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    async def read_events_and_count(link: VersionedConnection) -> list[dict[str, Any]]:
        asked.append(asyncio.get_running_loop().time())
        return await read_events(link)

    monkeypatch.setattr(live, "read_events", read_events_and_count)

    async def scenario(_cluster: SimCluster, client: Cluster, _page: OpenPage) -> None:
        await asyncio.sleep(10)
        before = len(asked)
        assert before > 0
        await asyncio.sleep(10)
        assert len(asked) == before
        await create(client, name="payments")
        await until(lambda: len(asked) == before + 2)  # Once more, for a broker that lags.
        await asyncio.sleep(10)
        assert len(asked) == before + 2
        await until(lambda: len(asked) > before + 2)  # In case no broker says what has changed.
        assert asked[-1] - asked[-2] > 20

    run(scenario)


def test_a_busy_broker_that_answers_late_is_not_shown_as_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_now = PartitionWatch.read

    async def read_late(self: PartitionWatch, link: VersionedConnection) -> Watched:
        await asyncio.sleep(0.3)  # in virtual time
        return await read_now(self, link)

    monkeypatch.setattr(PartitionWatch, "read", read_late)

    async def scenario(cluster: SimCluster, _client: Cluster, page: OpenPage) -> None:
        for _ in range(50):
            errors = await asyncio.gather(*(write(cluster, 1, [b"b"]) for _ in range(3)))
            assert errors == [0, 0, 0]
            await asyncio.sleep(0.1)
        assert any(event.times > 1 for event in page.of(Send) if isinstance(event, Send))
        assert page.of(Fault) == []
        cluster[3].kill()
        await until(lambda: page.total.down == {3})

    run(scenario)


def test_a_page_hears_of_a_deletion_from_a_broker_that_hears_of_it_late() -> None:
    async def scenario(cluster: SimCluster, _client: Cluster, _page: OpenPage) -> None:
        cluster[1].kill()
        await until(lambda: controller(cluster) not in (1, NO_NODE))
        await cluster[1].start()
        await until(lambda: len(state(cluster).isr) == 3)
        page = OpenPage(cluster)  # It asks the first broker for metadata.
        await until(lambda: page.brokers == {1, 2, 3})
        cluster[1].cut_store()
        address = [Address("b2", PORT)]
        async with Cluster(address, random=cluster.simulation.workload.stream("other")) as other:
            await Admin(other).delete_topic("orders")
        await asyncio.sleep(6)
        assert not page.stream.done()
        cluster[1].heal_store()
        with pytest.raises(UnknownTopicOrPartition, match="'orders' does not exist"):
            async with asyncio.timeout(10):
                await page.stream

    run(scenario, session_timeout_s=10.0)


def test_a_partition_is_followed_to_the_brokers_that_it_is_moved_to() -> None:
    async def scenario(cluster: SimCluster, client: Cluster, page: OpenPage) -> None:
        await moved(Admin(client), 4, 2)
        await until(lambda: page.brokers == {2, 4})
        assert f"b1 {NAME}: has no replica any more" in page.texts
        await until(lambda: page.total.leaders[NAME][0] in (2, 4))
        await until(lambda: set(page.total.in_sync[NAME]) == {2, 4})
        leader = page.total.leaders[NAME][0]
        assert leader is not None
        assert await write(cluster, leader, [b"b"]) == 0
        await until(lambda: page.ends == {2})
        cluster[1].kill()  # Nobody asks it any more.
        await asyncio.sleep(5)
        assert page.of(Fault) == []
        assert page.brokers == {2, 4}

    run(scenario)


def test_the_replica_of_a_broker_that_never_comes_back_goes_with_its_assignment() -> None:
    async def scenario(cluster: SimCluster, client: Cluster, page: OpenPage) -> None:
        cluster[3].kill()
        await until(lambda: page.total.down == {3})
        assert page.brokers == {1, 2, 3}
        await moved(Admin(client), 1, 2, 4)
        await until(lambda: page.brokers == {1, 2, 4})
        await until(lambda: set(page.total.in_sync[NAME]) == {1, 2, 4})

    run(scenario)


def test_a_broker_that_is_restarted_goes_on_where_it_was() -> None:
    async def scenario(cluster: SimCluster, client: Cluster, page: OpenPage) -> None:
        for node, other in ((1, 2), (2, 1)):
            cluster[node].kill()
            await lead(cluster, other)
            assert await write(cluster, other, [b"b"]) == 0
            await cluster[node].start()
            await until(lambda other=other: len(state(cluster, seen_by=other).isr) == 3)
        await until(lambda: page.ends == {3} and not page.total.down)
        elections = [e for e in page.of(Election) if isinstance(e, Election) and e.partition]
        assert [(each.broker, each.epoch) for each in elections] == [(1, 0), (2, 1), (1, 2)]
        assert {view.epochs for view in page.total.replicas.values()} == {((0, 0), (1, 1), (2, 2))}

    run(scenario)


def test_no_broker_is_shown_as_the_controller_that_is_not() -> None:
    async def scenario(cluster: SimCluster, client: Cluster, page: OpenPage) -> None:
        first = controller(cluster)
        await until(lambda: bool(page.of(Election)))
        cluster[first].kill()
        await until(lambda: controller(cluster) != first)
        second = controller(cluster)
        await asyncio.sleep(5)
        elected = [
            e.broker for e in page.of(Election) if isinstance(e, Election) and not e.partition
        ]
        assert [each for each in elected if each is not None] == [first, second]

    run(scenario)


def test_two_pages_see_the_same() -> None:
    async def scenario(cluster: SimCluster, client: Cluster, page: OpenPage) -> None:
        other = OpenPage(cluster)
        await until(lambda: other.brokers == {1, 2, 3})
        assert await write(cluster, 1, [b"b"]) == 0
        await until(lambda: page.ends == other.ends == {2})
        await other.close()
        assert await write(cluster, 1, [b"c"]) == 0
        await until(lambda: page.ends == {3})
        await asyncio.sleep(6)  # The watch of the one that was closed does not end the other's.
        broker = cluster[1].broker
        assert broker is not None
        assert broker.replicas.replica_of("orders", 0).watched_by is not None
        await page.close()
        await asyncio.sleep(6)
        assert broker.replicas.replica_of("orders", 0).watched_by is None

    run(scenario)
