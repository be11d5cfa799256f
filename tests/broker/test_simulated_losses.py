"""Power losses, unclean elections and deleted topics: what is lost, and what is reported
(hazard Z17)."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from suwi.client.admin import Admin
from suwi.client.connection import PeerConnection
from suwi.metadata.cluster_events import (
    RECORDS_LOST,
    SUSPECT_ELECTION,
    UNCLEAN_ELECTION,
    Event,
    events,
)
from suwi.model.ids import NO_NODE, NodeId, Offset, PartitionIndex, TopicPartition
from suwi.sim.cluster import DATA, PORT, SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.simulated import fetch, produce
from tests.broker.test_simulated_cluster import SEEDS, controller, create, image, run, state, until

ONE_BY_ONE = {"replica.lag.time.max.ms": "1000"}


async def write(cluster: SimCluster, number: int, values: Sequence[bytes], acks: int = -1) -> int:
    """Produce to the leader; returns the error code."""
    connection = await PeerConnection.open(f"b{number}", PORT)
    try:
        return (await produce(connection, "orders", values, acks=acks)).error_code
    finally:
        await connection.close()


async def read(cluster: SimCluster, number: int) -> list[bytes | None]:
    """The values that consumers can read from a leader, once its high watermark is up to date."""
    await asyncio.sleep(1)
    connection = await PeerConnection.open(f"b{number}", PORT)
    try:
        return [record.value for record in await fetch(connection, "orders", 0)]
    finally:
        await connection.close()


async def lead(cluster: SimCluster, number: int) -> None:
    """Wait until a broker leads the topic according to its own image."""
    await until(lambda: state(cluster, seen_by=number).leader == number)
    broker = cluster[number].broker
    assert broker is not None
    await until(lambda: any(p.partition.topic == "orders" for p in broker.replicas.led()))


def events_of_kind(cluster: SimCluster, number: int, kind: str) -> list[Event]:
    return [event for event in events(image(cluster, number)) if event.kind == kind]


async def create_orders(cluster: SimCluster, replicas: list[int], **configs: str) -> None:
    async with cluster.client("setup") as client:
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        created = await create(client, assignments=[replicas], configs=settings)
        assert created.error_code == 0, created
    await lead(cluster, replicas[0])


async def make_controller(cluster: SimCluster, number: int) -> None:
    view = cluster[number].view
    assert view is not None
    while controller(cluster) != number:
        elected = cluster.store.ledger.controller
        if elected is not None:
            await view.depose(elected.epoch)
        await asyncio.sleep(0.1)
    await until(lambda: image(cluster, 1).controller == number)


async def lose_all(cluster: SimCluster) -> None:
    """Both replicas of a topic lose power; the first is started again."""
    await create_orders(cluster, [1, 2], min_insync_replicas="2")
    assert await write(cluster, 1, [b"a", b"b"]) == 0
    cluster[1].power_off()
    cluster[2].power_off()
    await until(lambda: state(cluster, seen_by=3).leader == NO_NODE)
    await cluster[1].start()


# -- power loss ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_hazard_12_after_a_power_loss_a_replica_without_one_becomes_leader(
    seed: int,
) -> None:
    """Two replicas with min.insync.replicas=2: the second crashes, the first loses power, the
    second returns."""

    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, [1, 2], min_insync_replicas="2")
        assert await write(cluster, 1, [b"a", b"b"]) == 0
        cluster[2].kill()
        await until(lambda: state(cluster).isr == (1,))
        assert state(cluster).elr == (2,)
        assert await write(cluster, 1, [b"refused"]) != 0
        cluster[1].power_off()
        await cluster[2].start()
        await until(lambda: state(cluster, seen_by=3).leader == NO_NODE)
        await cluster[1].start()
        await lead(cluster, 2)
        await until(lambda: len(state(cluster, seen_by=2).isr) == 2)
        assert (await read(cluster, 2))[:2] == [b"a", b"b"]
        assert not events(image(cluster, 3))

    run(scenario, seed, ONE_BY_ONE)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_whose_process_crashed_leads_again_without_loss(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, [1, 2], min_insync_replicas="1")
        cluster[2].kill()
        await until(lambda: state(cluster).isr == (1,))
        assert await write(cluster, 1, [b"a", b"b"]) == 0
        cluster[1].kill()
        await cluster[2].start()
        await until(lambda: state(cluster, seen_by=3).leader == NO_NODE)
        await cluster[1].start()
        await lead(cluster, 1)
        assert await read(cluster, 1) == [b"a", b"b"]
        assert not events(image(cluster, 3))

    run(scenario, seed, ONE_BY_ONE)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_power_loss_of_all_replicas_the_longest_log_leads_and_it_is_reported(
    seed: int,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await lose_all(cluster)
        await asyncio.sleep(5)
        waiting = state(cluster, seen_by=3)
        assert (waiting.leader, waiting.unclean_shutdown_replicas) == (NO_NODE, (1,))
        await cluster[2].start()
        await until(lambda: state(cluster, seen_by=3).leader != NO_NODE)
        leader = state(cluster, seen_by=3).leader
        ends = {}
        for number in (1, 2):
            broker = cluster[number].broker
            assert broker is not None
            (partition,) = broker.replicas
            ends[number] = partition.log.end_offset
        assert ends[leader] == max(ends.values())
        (told,) = events_of_kind(cluster, 3, SUSPECT_ELECTION)
        assert told.facts["partition"] == "orders-0"
        assert told.facts["leader"] == leader
        assert told.facts["recovery_point"] <= told.facts["log_end"]

    run(scenario, seed)


def test_a_partition_with_one_replica_leads_again_at_once_after_a_power_loss() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, [2])
        assert await write(cluster, 2, [b"a"]) == 0
        cluster[2].power_off()
        await until(lambda: state(cluster, seen_by=3).leader == NO_NODE)
        await cluster[2].start()
        await lead(cluster, 2)
        (told,) = events_of_kind(cluster, 2, SUSPECT_ELECTION)
        assert told.facts["partition"] == "orders-0"

    run(scenario)


def test_a_power_loss_after_a_clean_shutdown_is_not_an_unclean_shutdown() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, [2])
        assert await write(cluster, 2, [b"a"]) == 0
        assert await cluster[2].stop()
        cluster[2].power_off()
        await cluster[2].start()
        await lead(cluster, 2)
        assert await read(cluster, 2) == [b"a"]
        assert not events(image(cluster, 2))

    run(scenario)


def test_an_unclean_shutdown_is_reported_even_after_another_crash() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, [2])
        cluster[2].power_off()
        await until(lambda: state(cluster).leader == NO_NODE)
        for number in (1, 3):
            cluster[number].cut_store()  # so that its registration cannot be written
        starting = cluster[2].begin()
        await until(lambda: "brokers/2" in cluster.store.ledger.registrations)
        assert not starting.done()
        cluster[2].kill()
        for number in (1, 3):
            cluster[number].heal_store()
        await cluster[2].start()
        await lead(cluster, 2)
        assert len(events_of_kind(cluster, 2, SUSPECT_ELECTION)) == 1

    run(scenario)


# -- unclean elections ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_an_unclean_election_and_the_returning_replica_report_the_lost_records(
    seed: int,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, [1, 2, 3], unclean_leader_election_enable="true")
        assert await write(cluster, 1, [b"a", b"b"]) == 0
        cluster[3].kill()
        await until(lambda: set(state(cluster).isr) == {1, 2})
        assert await write(cluster, 1, [b"c", b"d", b"e"]) == 0
        await asyncio.sleep(2)  # The second replica gets the high watermark.
        cluster[2].power_off()
        await until(lambda: state(cluster).isr == (1,))
        cluster[1].kill()
        await cluster[3].start()
        await lead(cluster, 3)
        assert state(cluster, seen_by=3).is_recovering or len(state(cluster, seen_by=3).isr) > 1
        assert await read(cluster, 3) == [b"a", b"b"]
        (told,) = events_of_kind(cluster, 3, UNCLEAN_ELECTION)
        assert (told.facts["leader"], told.facts["partition"]) == (3, "orders-0")
        await cluster[1].start()
        await until(lambda: len(state(cluster, seen_by=3).isr) > 1)
        await until(lambda: bool(events_of_kind(cluster, 3, RECORDS_LOST)))
        (exactly,) = events_of_kind(cluster, 3, RECORDS_LOST)
        assert (exactly.facts["broker"], exactly.facts["partition"]) == (1, "orders-0")
        (lost,) = exactly.facts["ranges"]
        assert (lost["first"], lost["end"]) == (2, 5)
        assert exactly.facts["committed_below"] <= 5  # the value of its last checkpoint
        connection = await PeerConnection.open("b3", PORT)
        answer = await connection.send(ApiKey.DESCRIBE_EVENTS, 0, [b"{}"])
        kinds = [event["kind"] for event in json.loads(bytes(answer))["events"]]
        assert kinds == [UNCLEAN_ELECTION, RECORDS_LOST]
        await connection.close()

    run(scenario, seed, ONE_BY_ONE)


def test_a_replica_returning_after_later_elections_reports_all_truncated_records() -> None:
    """By then the partition has recovered, and another replica leads than the one that was elected
    uncleanly."""

    async def scenario(cluster: SimCluster) -> None:
        await make_controller(cluster, 4)
        await create_orders(cluster, [1, 2, 3], unclean_leader_election_enable="true")
        assert await write(cluster, 1, [b"a", b"b"]) == 0
        for number in (2, 3):
            cluster[number].kill()
        await until(lambda: state(cluster, seen_by=4).isr == (1,))
        assert await write(cluster, 1, [b"c", b"d", b"e"]) == 0
        cluster[1].kill()
        await cluster[2].start()
        await lead(cluster, 2)
        await cluster[3].start()
        await until(lambda: set(state(cluster, seen_by=4).isr) == {2, 3})
        assert await write(cluster, 2, [b"f"]) == 0
        cluster[2].kill()
        await lead(cluster, 3)
        assert not state(cluster, seen_by=3).is_recovering
        await cluster[1].start()
        await until(lambda: bool(events_of_kind(cluster, 3, RECORDS_LOST)))
        (exactly,) = events_of_kind(cluster, 3, RECORDS_LOST)
        assert exactly.facts["broker"] == 1
        assert exactly.facts["ranges"] == [{"epoch": 0, "first": 2, "end": 5}]

    run(scenario, 3, ONE_BY_ONE, brokers=4)


def test_an_unclean_election_reports_the_committed_records_of_live_replicas() -> None:
    """The replica elected by assignment order has fewer records than another live one, which
    reports them."""

    async def scenario(cluster: SimCluster) -> None:
        await make_controller(cluster, 4)
        await create_orders(cluster, [1, 2, 3], unclean_leader_election_enable="true")
        cluster[2].kill()
        await until(lambda: set(state(cluster).isr) == {1, 3})
        assert await write(cluster, 1, [b"a", b"b", b"c"]) == 0
        await asyncio.sleep(2)
        cluster.simulation.network.partition(["b1"], ["b3"])
        assert await write(cluster, 1, [b"d"], acks=1) == 0
        await until(lambda: state(cluster).isr == (1,))
        cluster.simulation.network.partition(["b1"], ["b2"])
        await cluster[2].start()
        assert state(cluster).isr == (1,)
        cluster[1].power_off()
        await lead(cluster, 2)
        (told,) = events_of_kind(cluster, 2, UNCLEAN_ELECTION)
        assert told.facts["lost_at_least"] == [0, 3]

    run(scenario, 2, ONE_BY_ONE, brokers=4)


# -- topics deleted while a broker is down -------------------------------------------------------


@pytest.mark.parametrize("has_lost_its_name", [False, True])
def test_a_topic_deleted_while_a_broker_is_down_is_deleted_there_when_it_returns(
    has_lost_its_name: bool,
) -> None:
    """Found by the simulation: after a power loss the records survived, `partition.metadata` did
    not."""

    async def scenario(cluster: SimCluster) -> None:
        away = next(n for n in (1, 2, 3) if n != controller(cluster))
        await create_orders(cluster, [away, 1 + away % 3])
        assert await write(cluster, away, [b"a"]) == 0
        cluster[away].kill()
        await until(
            lambda: NodeId(away) not in image(cluster, controller(cluster)).registered_brokers
        )
        async with cluster.client("admin") as client:
            answer = await client.call(
                ApiKey.DELETE_TOPICS,
                {
                    "topics": [{"name": "orders", "topic_id": None}],
                    "topic_names": ["orders"],
                    "timeout": 10_000,
                },
            )
            assert answer.responses[0].error_code == 0
        assert NodeId(away) in image(cluster, controller(cluster)).deletions
        disk = cluster[away].machine.disk
        assert "orders-0" in disk.list_dir(DATA)
        if has_lost_its_name:
            disk.remove(f"{DATA}/orders-0/partition.metadata")
        await cluster[away].start()
        assert "orders-0" not in disk.list_dir(DATA)
        await until(lambda: not image(cluster, away).deletions)

    run(scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_hazard_21_a_recreated_topic_does_not_have_the_old_records(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        active = controller(cluster)
        away = next(n for n in (1, 2, 3) if n != active)
        await create_orders(cluster, [active, away])
        assert await write(cluster, active, [b"old"]) == 0
        cluster[away].kill()
        await until(lambda: NodeId(away) not in image(cluster, active).registered_brokers)
        async with cluster.client("admin") as client:
            await client.call(
                ApiKey.DELETE_TOPICS,
                {
                    "topics": [{"name": "orders", "topic_id": None}],
                    "topic_names": ["orders"],
                    "timeout": 10_000,
                },
            )
        await cluster[away].start()
        await create_orders(cluster, [away, active])
        assert await read(cluster, away) == []
        assert await write(cluster, away, [b"new"]) == 0
        assert await read(cluster, away) == [b"new"]

    run(scenario, seed)


def test_a_replica_that_returns_after_all_records_were_deleted_knows_their_producers() -> None:
    """Earlier it discarded its log, and with it what a retry is recognised by."""

    async def scenario(cluster: SimCluster) -> None:
        async def send(number: int) -> int:
            connection = await PeerConnection.open(f"b{number}", PORT)
            try:
                sent = await produce(connection, "orders", [b"a", b"b"], producer=(7, 0, 0))
                assert sent.error_code == 0
                return sent.base_offset
            finally:
                await connection.close()

        await create_orders(cluster, [2, 1])
        assert await send(2) == 0
        cluster[2].kill()
        await lead(cluster, 1)
        async with cluster.client("deletion") as client:
            orders = TopicPartition("orders", PartitionIndex(0))
            await Admin(client).delete_records({orders: Offset(2)})
        await cluster[2].start()
        await until(lambda: set(state(cluster).isr) == {1, 2})
        cluster[1].kill()
        await lead(cluster, 2)
        assert await send(2) == 0, "a retry must be recognised"

    run(scenario)
