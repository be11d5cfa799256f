"""What Prometheus sees of consumer groups."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from suwi.broker import group_metrics
from suwi.broker.broker import Broker
from suwi.broker.group_metrics import GroupFigures
from suwi.client.addresses import Address
from suwi.client.cluster import Cluster
from suwi.client.connection import PeerConnection
from suwi.client.group_offsets import commit_offsets
from suwi.coordinator.record import RecordFacts
from suwi.coordinator.shard_replica import Status
from suwi.env import SystemRandom, local_env
from suwi.group.classic_group import ClassicState
from suwi.group.offset_manager import OffsetManager
from suwi.group.offset_records import OffsetCommitKey, OffsetCommitValue
from suwi.metadata.memory import MemoryStore
from suwi.model.broker_config import parse_broker_config
from suwi.model.ids import NodeId, Offset, PartitionIndex, TopicPartition
from suwi.sim import SimRandom
from suwi.sim.cluster import SimCluster
from tests.broker.simulated import create_topic, produce
from tests.broker.test_simulated_cluster import create, run

PLACE = TopicPartition("orders", PartitionIndex(0))

Scenario = Callable[[Broker, Cluster], Awaitable[None]]


def with_broker(directory: Path, scenario: Scenario) -> None:
    """A broker whose topic `orders` has three records."""

    async def main() -> None:
        properties = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory),
            "offsets.topic.num.partitions": "3",
            "offsets.topic.replication.factor": "1",
        }
        config = parse_broker_config(properties).config
        broker = Broker(local_env(), config, MemoryStore(SimRandom(0)).view())
        await broker.start()
        port = broker.listeners[0].port
        client = await PeerConnection.open("127.0.0.1", port)
        await create_topic(client, "orders")
        await produce(client, "orders", [b"a", b"b", b"c"])
        async with Cluster([Address("127.0.0.1", port)], random=SystemRandom()) as cluster:
            await scenario(broker, cluster)
        await client.close()
        await broker.stop()

    asyncio.run(main())


async def samples(figures: GroupFigures) -> dict[tuple[str, ...], float]:
    """By name and values of labels."""
    await figures.refresh()
    families = [*figures.collect(), *text_string_to_metric_families(figures.text.decode())]
    return {(s.name, *s.labels.values()): s.value for f in families for s in f.samples}


def test_groups_are_counted_by_state_and_their_lag_is_told(tmp_path: Path) -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        await commit_offsets(cluster, "billing", {PLACE: Offset(1)})
        await commit_offsets(cluster, 'odd "name"\n', {PLACE: Offset(3)})
        found = await samples(GroupFigures(broker))
        assert found["suwi_groups", "Empty"] == 2
        assert found["suwi_groups", "Stable"] == 0
        assert found["suwi_group_lag", "billing", "orders", "0"] == 2
        assert found["suwi_group_lag", 'odd "name"\n', "orders", "0"] == 0
        assert found[("suwi_group_offsets_committed_total",)] == 2
        assert found["suwi_group_coordinator_shards", "active"] == 3
        assert found[("suwi_group_coordinator_loads_total",)] == 3
        assert found[("suwi_group_coordinator_failures_total",)] == 0
        assert found["suwi_group_rebalances_total", "session timeout"] == 0

    with_broker(tmp_path, scenario)


def test_scrapes_that_follow_each_other_closely_tell_the_same(tmp_path: Path) -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        await commit_offsets(cluster, "billing", {PLACE: Offset(1)})
        figures = GroupFigures(broker)
        first = await samples(figures)
        await commit_offsets(cluster, "billing", {PLACE: Offset(2)})
        second = await samples(figures)
        assert second["suwi_group_lag", "billing", "orders", "0"] == 2
        assert second["suwi_groups", "Empty"] == first["suwi_groups", "Empty"] == 1
        assert (await samples(GroupFigures(broker)))[
            "suwi_group_lag", "billing", "orders", "0"
        ] == 1

    with_broker(tmp_path, scenario)


def test_of_many_groups_those_that_are_most_behind_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_metrics, "SERIES_MAX", 2)
    monkeypatch.setattr(group_metrics, "_ITEMS_PER_SLICE", 1)

    async def scenario(broker: Broker, cluster: Cluster) -> None:
        for number in range(6):
            await commit_offsets(cluster, f"g{number}", {PLACE: Offset(3 if number < 4 else 0)})
        await commit_offsets(cluster, "x" * 300, {PLACE: Offset(0)})
        found = await samples(GroupFigures(broker))
        assert {key[1] for key in found if key[0] == "suwi_group_lag"} == {"g4", "g5"}
        assert found[("suwi_group_series_left_out",)] == 5
        assert found["suwi_groups", "Empty"] == 7

    with_broker(tmp_path, scenario)


def test_the_lag_of_partitions_that_other_brokers_lead_is_told() -> None:
    topics = {NodeId(number): f"t{number}" for number in (1, 2, 3)}

    async def lags(figures: GroupFigures) -> dict[str, float]:
        found = await samples(figures)
        return {key[2]: lag for key, lag in found.items() if key[0] == "suwi_group_lag"}

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("test") as client:
            for node, topic in topics.items():
                await create(client, name=topic, assignments=[[node]])
                broker = cluster[node].broker
                assert broker is not None
                while not broker.replicas.led():  # noqa: ASYNC110 - virtual time costs nothing
                    await asyncio.sleep(0.05)
                await produce(await broker.peers.connect(node), topic, [b"a", b"b", b"c"])
            offsets = {
                TopicPartition(topic, PartitionIndex(0)): Offset(1) for topic in topics.values()
            }
            await commit_offsets(client, "billing", offsets)
        expected = dict.fromkeys(topics.values(), 2.0)
        told: dict[NodeId, GroupFigures] = {}
        for node in topics:
            broker = cluster[node].broker
            assert broker is not None
            figures = GroupFigures(broker)
            if found := await cluster[node].machine.spawn(lags(figures)):
                assert found == expected
                told[node] = figures
        ((coordinator, figures),) = told.items()
        cluster[next(node for node in topics if node != coordinator)].kill()
        await asyncio.sleep(20)  # what is told is gathered again
        assert await cluster[coordinator].machine.spawn(lags(figures)) == expected

    run(scenario, settings={"offsets.topic.replication.factor": "1"})


def test_a_group_with_many_offsets_is_gathered_in_slices() -> None:
    offsets, many = OffsetManager(), 10_000
    for index in range(many):
        key = OffsetCommitKey("g", "t", index)
        offsets.replay(key, OffsetCommitValue(0, 0, "", 0), RecordFacts(index))
    machine = SimpleNamespace(
        offsets=offsets,
        groups=SimpleNamespace(ids=lambda: ["g"]),
        group=lambda _: SimpleNamespace(state=ClassicState.EMPTY, members={}),
    )
    shard = SimpleNamespace(machine=machine, status=Status.ACTIVE)
    runtime = SimpleNamespace(active=lambda: [shard])
    broker: Any = SimpleNamespace(groups=SimpleNamespace(runtime=runtime))
    gathered = group_metrics._Gathered()
    assert sum(1 for _ in gathered.find_partitions(broker)) >= many // 500
    assert len(gathered.partitions) == many
    ends: Any = dict.fromkeys(gathered.partitions, Offset(1))
    assert sum(1 for _ in gathered.gather(broker, ends)) >= many // 500
    text, left_out = gathered.text()
    assert text.count(b"suwi_group_lag{") == group_metrics.SERIES_MAX
    assert left_out == many - group_metrics.SERIES_MAX
