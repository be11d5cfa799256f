"""Damaged logs on three brokers: a damaged replica is replaced, but never the last copy."""

import asyncio
import errno
from collections.abc import Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.controller import proposed_isr
from suwi.env.problems import Problem
from suwi.log import names
from suwi.metadata.image import PartitionState
from suwi.model.ids import (
    NO_NODE,
    LeaderEpoch,
    NodeId,
    PartitionIndex,
    TopicPartition,
)
from suwi.records.batch import batches
from suwi.replica import damaged_replicas
from suwi.replica.damaged_replicas import Step, is_replaced, next_step
from suwi.replica.leader_state import UNKNOWN_EPOCH
from suwi.sim.cluster import DATA, PORT, SimCluster
from tests.broker.simulated import fetch_once, produce, read_all
from tests.broker.test_simulated_cluster import create, image, run, state, until
from tests.broker.test_simulated_losses import create_orders, make_controller, write
from tests.replica.test_replica_selector import RACKS
from tests.replica.test_replica_selector import fetch as fetch_from_rack
from tests.sim.mutants.damage import DISCARDS_IN_THE_SAME_EPOCH

SCRUBBING = {
    "log.scrubber.io.max.bytes.per.second": "1000000",
    "log.scrubber.interval.ms": "500",
    "auto.leader.rebalance.enable": "false",
}
VALUES = [b"%0100d" % number for number in range(31)]
SEEDS = range(4)


async def filled(cluster: SimCluster, replicas: list[int], **configs: str) -> None:
    """Ten batches in each closed segment; all replicas have all of them."""
    configs |= {"segment_bytes": "1720", "retention_ms": "-1"}
    await create_orders(cluster, replicas, **configs)
    for value in VALUES:
        assert await write(cluster, replicas[0], [value]) == ErrorCode.none
    await until(lambda: all(len(segments_of(cluster, number)) == 4 for number in replicas))


def segments_of(cluster: SimCluster, number: int, ending: str = names.LOG) -> list[str]:
    disk = cluster[number].machine.disk
    if not disk.exists(f"{DATA}/orders-0"):
        return []
    return [name for name in disk.list_dir(f"{DATA}/orders-0") if name.endswith(ending)]


def content_of(cluster: SimCluster, number: int) -> bytes:
    disk = cluster[number].machine.disk
    return b"".join(
        disk.read_bytes(f"{DATA}/orders-0/{name}") for name in segments_of(cluster, number)
    )


def damage(cluster: SimCluster, number: int, offset: int, values: Sequence[bytes] = VALUES) -> None:
    disk = cluster[number].machine.disk
    path = f"{DATA}/orders-0/{segments_of(cluster, number)[offset // 10]}"
    disk.overwrite(path, b"\xff", disk.read_bytes(path).index(values[offset]) + 50)


def problems_of(cluster: SimCluster, number: int) -> list[Problem]:
    broker = cluster[number].broker
    assert broker is not None
    return list(broker.problems)


def damages_found(cluster: SimCluster, number: int) -> int:
    broker = cluster[number].broker
    assert broker is not None
    return broker.log_manager.log_scrubber.damages_found


async def values_from(number: int) -> list[bytes | None]:
    connection = await PeerConnection.open(f"b{number}", PORT)
    try:
        return [record.value for record in await read_all(connection, "orders")]
    finally:
        await connection.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_follower_leaves_the_isr_and_is_fetched_anew(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2, 3], min_insync_replicas="2")
        whole = content_of(cluster, 1)
        epoch = state(cluster).leader_epoch
        damage(cluster, 3, 15)
        assert content_of(cluster, 3) != whole
        await until(lambda: damages_found(cluster, 3) == 1)
        await until(lambda: state(cluster).leader_epoch > epoch)
        assert state(cluster).leader == 1
        await until(lambda: content_of(cluster, 3) == whole)
        await until(lambda: set(state(cluster).isr) == {1, 2, 3})
        assert problems_of(cluster, 3) == []
        await until(lambda: not segments_of(cluster, 3, names.DAMAGED))
        assert state(cluster).leader_epoch == epoch + 1
        assert await write(cluster, 1, [b"more"]) == ErrorCode.none

    run(scenario, seed, SCRUBBING)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_leader_hands_over_and_is_fetched_anew(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2, 3], min_insync_replicas="2")
        whole = content_of(cluster, 2)
        damage(cluster, 1, 15)
        await until(lambda: state(cluster).leader == 2)
        await until(lambda: set(state(cluster).isr) == {1, 2, 3})
        assert content_of(cluster, 1) == whole
        assert problems_of(cluster, 1) == []
        assert await values_from(2) == VALUES

    run(scenario, seed, SCRUBBING)


def test_the_last_copy_is_kept_and_only_the_damaged_range_is_refused() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1])
        damage(cluster, 1, 13)
        await until(lambda: bool(damages_found(cluster, 1)))
        before = content_of(cluster, 1)
        await asyncio.sleep(20)
        assert content_of(cluster, 1) == before
        assert state(cluster).leader == 1
        connection = await PeerConnection.open("b1", PORT)
        for offset in range(len(VALUES)):
            fetched = await fetch_once(connection, "orders", offset)
            is_damaged = fetched.error_code == ErrorCode.kafka_storage_error
            assert is_damaged == (offset == 13)
        await connection.close()
        assert await write(cluster, 1, [b"more"]) == ErrorCode.none

    run(scenario, 1, SCRUBBING)


@pytest.mark.parametrize("damaged", [[1], [1, 2]])
def test_a_copy_that_cannot_be_spared_is_kept_in_sync_but_does_not_lead(
    damaged: list[int],
) -> None:
    """min.insync.replicas needs both."""

    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2], min_insync_replicas="2")
        for number in damaged:
            damage(cluster, number, 10 + 3 * number)
        await until(lambda: all(damages_found(cluster, number) for number in damaged))
        before = [content_of(cluster, number) for number in (1, 2)]
        await asyncio.sleep(20)
        epoch = state(cluster).leader_epoch
        assert set(state(cluster).isr) == {1, 2}
        assert waits_for(cluster, 1) == "enough other replicas in sync"
        if damaged == [1]:
            assert state(cluster).leader == 2
            assert await values_from(2) == VALUES
        await asyncio.sleep(60)
        assert state(cluster).leader_epoch == epoch, "they do not hand over again and again"
        assert [content_of(cluster, number) for number in (1, 2)] == before
        assert await write(cluster, state(cluster).leader, [b"more"]) == ErrorCode.none

    run(scenario, 1, SCRUBBING)


def test_two_replicas_damaged_in_different_places_are_replaced_one_after_the_other() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2, 3], min_insync_replicas="2")
        whole = content_of(cluster, 1)
        damage(cluster, 2, 5)
        damage(cluster, 3, 15)
        await until(lambda: damages_found(cluster, 2) + damages_found(cluster, 3) == 2)
        await until(
            lambda: (
                all(content_of(cluster, n) == whole for n in (2, 3))
                and set(state(cluster).isr) == {1, 2, 3}
            )
        )
        assert await values_from(1) == VALUES

    run(scenario, 2, SCRUBBING)


def test_a_copy_of_a_damaged_leader_stops_before_the_damage_and_keeps_the_old_files() -> None:
    """All copies are damaged in other places: what was set aside still has the leader's range."""

    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2], min_insync_replicas="1")
        damage(cluster, 1, 5)
        damage(cluster, 2, 15)
        await until(lambda: bool(damages_found(cluster, 1) and damages_found(cluster, 2)))
        await asyncio.sleep(30)
        leader = state(cluster).leader
        follower = 3 - leader
        disk = cluster[follower].machine.disk
        aside = b"".join(
            disk.read_bytes(f"{DATA}/orders-0/{name}")
            for name in segments_of(cluster, follower, names.LOG + names.DAMAGED)
        )
        copies = content_of(cluster, leader) + aside
        assert all(value in copies for value in VALUES)

    run(scenario, 3, SCRUBBING)


def late_fetch() -> None:
    """A fetch of the damaged follower arrives at the leader after its log is gone."""

    async def scenario(cluster: SimCluster) -> None:
        await make_controller(cluster, 2)
        await filled(cluster, [1, 2, 3], min_insync_replicas="2")
        whole = content_of(cluster, 1)
        cluster.simulation.network.set_delay("b3", "b1", 5000, 5000)
        await asyncio.sleep(1)
        damage(cluster, 3, 15)
        await until(lambda: 3 not in state(cluster).isr)
        await until(lambda: bool(segments_of(cluster, 3, names.DAMAGED)))
        for _ in range(400):
            await asyncio.sleep(0.05)
            is_member = 3 in state(cluster).isr
            assert content_of(cluster, 3) == whole or not is_member
        cluster.simulation.network.set_delay("b3", "b1", 1, 1)
        await until(lambda: 3 in state(cluster).isr)

    run(scenario, 1, SCRUBBING)


def test_a_late_fetch_does_not_bring_a_discarded_replica_back_into_the_isr() -> None:
    late_fetch()
    with DISCARDS_IN_THE_SAME_EPOCH.applied(), pytest.raises(AssertionError):
        late_fetch()


def test_a_missing_segment_of_a_follower_is_found_when_it_restarts_and_fetched_anew() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2, 3], min_insync_replicas="2")
        whole = content_of(cluster, 1)
        await cluster[3].stop()
        gone = segments_of(cluster, 3)[1].removesuffix(names.LOG)
        for suffix in (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX):
            cluster[3].machine.disk.remove(f"{DATA}/orders-0/{gone}{suffix}")
        await cluster[3].start()
        await until(lambda: content_of(cluster, 3) == whole)
        await until(lambda: set(state(cluster).isr) == {1, 2, 3})
        assert problems_of(cluster, 3) == []

    run(scenario)


@pytest.mark.parametrize("offset", [15, 25, 32])
def test_a_replica_that_was_damaged_while_all_were_killed_takes_nothing_from_the_others(
    offset: int,
) -> None:
    """Nothing was synced: the recovery of broker 1 meets the damage, in a closed segment or in the
    active one. It starts first, is in sync, and is preferred."""

    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2, 3], min_insync_replicas="2")
        more = [b"%0100d" % number for number in range(31, 36)]
        for value in more:
            assert await write(cluster, 1, [value]) == ErrorCode.none
        whole = content_of(cluster, 1)
        await until(lambda: all(content_of(cluster, number) == whole for number in (2, 3)))
        for number in (1, 2, 3):
            cluster[number].kill()
        damage(cluster, 1, offset, [*VALUES, *more])
        for number in (1, 2, 3):
            await cluster[number].start()
        await until(lambda: set(state(cluster).isr) == {1, 2, 3})
        await until(lambda: all(content_of(cluster, number) == whole for number in (1, 2, 3)))
        assert await values_from(state(cluster).leader) == [*VALUES, *more]

    run(scenario, 1, SCRUBBING)


def step_of(
    node: int, leader: int, isr: tuple[int, ...], stopped_in: int | None = None, insync_min: int = 1
) -> Step:
    replicas = tuple(NodeId(number) for number in (1, 2, 3))
    members = tuple(NodeId(number) for number in isr)
    partition = PartitionState(NodeId(leader), LeaderEpoch(7), 0, replicas, members)
    stopped = None if stopped_in is None else LeaderEpoch(stopped_in)
    return next_step(NodeId(node), partition, insync_min, stopped)


def test_the_steps_of_a_damaged_replica() -> None:
    assert step_of(1, 1, (1, 2)) is Step.RESIGN
    assert step_of(1, 1, (1,)) is Step.KEEP
    assert step_of(1, 1, (1, 2), insync_min=2) is Step.HAND_OVER
    assert step_of(2, 1, (1, 2)) is Step.LEAVE
    assert step_of(2, 1, (1, 2), insync_min=2) is Step.KEEP
    assert step_of(2, 1, (1, 2, 3), insync_min=2) is Step.LEAVE
    # A fetch of this epoch may be under way.
    assert step_of(2, 1, (1, 3), stopped_in=7) is Step.LEAVE
    assert step_of(2, 1, (1, 3), stopped_in=6) is Step.DISCARD
    assert step_of(2, 1, (1, 2, 3), stopped_in=6) is Step.LEAVE
    assert step_of(2, 1, (1,), stopped_in=6, insync_min=2) is Step.KEEP
    assert step_of(2, NO_NODE, (1, 3), stopped_in=6) is Step.KEEP
    assert step_of(2, NO_NODE, (2,)) is Step.KEEP


def test_the_old_files_stay_until_the_copy_is_in_sync() -> None:
    replicas = (NodeId(1), NodeId(2))

    def state(leader: int, isr: tuple[int, ...], **more: Any) -> PartitionState:
        members = tuple(map(NodeId, isr))
        return PartitionState(NodeId(leader), LeaderEpoch(7), 0, replicas, members, **more)

    assert is_replaced(NodeId(2), state(1, (1, 2)))
    assert not is_replaced(NodeId(2), state(1, (1,)))
    # Simulation seed 1570: the copy is in sync, and elected by preference before anybody looks.
    # Its files stayed for ever, and other damaged replicas of the directory waited for them.
    assert is_replaced(NodeId(2), state(2, (1, 2)))
    # Elected unclean, with a part of the copy: the old files may be the last complete ones.
    assert not is_replaced(NodeId(2), state(2, (1, 2), unclean_epoch=LeaderEpoch(6)))
    assert not is_replaced(NodeId(2), state(2, (2,)))
    assert not is_replaced(NodeId(2), state(1, (1, 2), is_recovering=True))
    assert not is_replaced(NodeId(2), state(NO_NODE, (1, 2)))


# -- what a replacement waits for -----------------------------------------------------------------


def waits_for(cluster: SimCluster, number: int) -> str | None:
    """What the replacement of a damaged replica waits for, as the problem says."""
    for problem in problems_of(cluster, number):
        _, _, obstacle = problem.reason.partition("; its replacement waits for ")
        if obstacle:
            return obstacle
    return None


async def replaced_after_waiting(cluster: SimCluster, whole: bytes) -> None:
    await until(lambda: content_of(cluster, 3) == whole)
    await until(lambda: set(state(cluster).isr) == {1, 2, 3})
    await until(lambda: not segments_of(cluster, 3, names.DAMAGED))
    assert problems_of(cluster, 3) == []


def test_a_damaged_replica_is_not_discarded_while_the_disk_has_no_space_for_its_copy() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2, 3], min_insync_replicas="2")
        whole, disk = content_of(cluster, 1), cluster[3].machine.disk
        disk.fill(1 << 20)
        damage(cluster, 3, 15)
        await until(lambda: damages_found(cluster, 3) == 1)
        await asyncio.sleep(20)
        assert not segments_of(cluster, 3, names.DAMAGED)
        assert set(state(cluster).isr) == {1, 2, 3}, "it goes on fetching"
        assert waits_for(cluster, 3) == f"free space in {DATA} for a second copy of the log"
        assert await write(cluster, 1, [b"more"]) == ErrorCode.none
        disk.free()
        await replaced_after_waiting(cluster, content_of(cluster, 1))
        assert whole in content_of(cluster, 3)

    run(scenario, 1, SCRUBBING)


def test_a_damaged_leader_hands_over_while_the_disk_has_no_space_for_its_copy() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2, 3], min_insync_replicas="2")
        disk = cluster[1].machine.disk
        disk.fill(1 << 20)
        damage(cluster, 1, 15)
        await until(lambda: state(cluster).leader == 2)
        await until(lambda: set(state(cluster).isr) == {1, 2, 3})
        await asyncio.sleep(20)
        assert not segments_of(cluster, 1, names.DAMAGED)
        assert waits_for(cluster, 1) is not None
        assert set(state(cluster).isr) == {1, 2, 3}
        assert await values_from(2) == VALUES

    run(scenario, 1, SCRUBBING)


def test_damaged_replicas_of_one_data_directory_are_replaced_one_after_the_other() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2, 3], min_insync_replicas="2")
        whole = content_of(cluster, 1)
        broker = cluster[3].broker
        assert broker is not None
        other = TopicPartition("other", PartitionIndex(0))
        aside = next(iter(broker.directories)).state.set_aside
        aside[other] = None
        damage(cluster, 3, 15)
        await until(lambda: damages_found(cluster, 3) == 1)
        await asyncio.sleep(20)
        assert not segments_of(cluster, 3, names.DAMAGED)
        assert waits_for(cluster, 3) == f"the replacement of {other} in the same data directory"
        del aside[other]
        await replaced_after_waiting(cluster, whole)

    run(scenario, 1, SCRUBBING)


def test_replicas_that_are_damaged_at_the_same_time_are_not_copied_at_the_same_time() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2, 3], min_insync_replicas="2")
        configs = {"segment.bytes": "1720", "retention.ms": "-1", "min.insync.replicas": "2"}
        async with cluster.client("setup") as client:
            await create(client, name="payments", assignments=[[1, 2, 3]], configs=configs)
        await until(lambda: "payments" in image(cluster, 1).topics)
        connection = await PeerConnection.open("b1", PORT)
        for value in VALUES:
            while (await produce(connection, "payments", [value])).error_code:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        disk = cluster[3].machine.disk
        paths = [f"{DATA}/{name}-0" for name in ("orders", "payments")]

        def has(path: str, ending: str) -> bool:
            return any(name.endswith(ending) for name in disk.list_dir(path))

        await asyncio.sleep(5)
        for path in paths:
            (_, log, *_) = [name for name in disk.list_dir(path) if name.endswith(names.LOG)]
            position = disk.read_bytes(f"{path}/{log}").index(VALUES[15])
            disk.overwrite(f"{path}/{log}", b"\xff", position + 50)
        both, seen = False, set()
        for _ in range(6_000):
            aside = [path for path in paths if has(path, names.DAMAGED)]
            both |= len(aside) == 2
            seen |= set(aside)
            await asyncio.sleep(0.01)
        assert seen == set(paths)
        assert not both
        assert problems_of(cluster, 3) == []

    run(scenario, 1, SCRUBBING)


def test_a_broker_that_is_not_registered_discards_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2, 3], min_insync_replicas="2")
        whole, broker = content_of(cluster, 1), cluster[3].broker
        assert broker is not None
        damage(cluster, 3, 15)
        while 3 in state(cluster, seen_by=3).isr:  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(0.001)
        assert not segments_of(cluster, 3, names.DAMAGED)
        epoch, broker.replicas.broker_epoch = broker.replicas.broker_epoch, UNKNOWN_EPOCH
        await asyncio.sleep(20)
        assert not segments_of(cluster, 3, names.DAMAGED)
        assert waits_for(cluster, 3) == "the registration of this broker"
        broker.replicas.broker_epoch = epoch
        await replaced_after_waiting(cluster, whole)

    run(scenario, 1, SCRUBBING)


def test_damaged_files_that_cannot_be_removed_are_removed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(damaged_replicas, "_REMOVAL_RETRY_S", 60.0)

    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2, 3], min_insync_replicas="2")
        disk = cluster[3].machine.disk
        fault = disk.faults.fail("remove", errno.EPERM, path=f"*{names.DAMAGED}", times=1)
        damage(cluster, 3, 15)
        await until(lambda: bool(segments_of(cluster, 3, names.DAMAGED)))
        await until(lambda: set(state(cluster).isr) == {1, 2, 3})
        await asyncio.sleep(20)
        assert segments_of(cluster, 3, names.DAMAGED), "the removal failed"
        disk.faults.remove(fault)
        await until(lambda: not segments_of(cluster, 3, names.DAMAGED), limit_s=120)

    run(scenario, 1, SCRUBBING)


# -- readers --------------------------------------------------------------------------------------


def test_a_consumer_in_the_rack_of_a_damaged_follower_gets_the_records_from_the_leader() -> None:
    """The follower stays in the ISR because min.insync.replicas needs it. Clients go back to the
    leader after its error."""

    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2], min_insync_replicas="2")
        damage(cluster, 2, 13)
        await until(lambda: damages_found(cluster, 2) == 1)
        await asyncio.sleep(5)
        connections = {number: await PeerConnection.open(f"b{number}", PORT) for number in (1, 2)}
        from_node, offset = 1, 0
        for _ in range(100):
            response = await fetch_from_rack(connections[from_node], offset, rack="rack-2")
            (read,) = response.topics[0].partitions
            if read.error_code:
                assert (from_node, offset) == (2, 13)
                from_node = 1
            elif read.preferred_read_replica >= 0:
                from_node = read.preferred_read_replica
            elif read.records:
                for _, header in batches(memoryview(read.records)):
                    offset = header.base_offset + 1
        assert offset == len(VALUES)
        assert from_node == 2, "after the damaged range it reads from the follower again"

    run(scenario, 1, SCRUBBING | RACKS)


def test_a_damaged_follower_goes_on_fetching_if_the_controller_does_not_let_it_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A controller of an older version removes a follower without a new leader epoch, once."""
    without_damaged = proposed_isr._without_damaged
    monkeypatch.setattr(proposed_isr, "_without_damaged", proposed_isr._without_follower)
    monkeypatch.setattr(damaged_replicas, "_LEAVE_RETRY_S", 120.0)

    async def scenario(cluster: SimCluster) -> None:
        await filled(cluster, [1, 2, 3], min_insync_replicas="2")
        damage(cluster, 3, 15)
        await until(lambda: 3 not in state(cluster).isr)
        await until(lambda: 3 in state(cluster).isr)
        assert waits_for(cluster, 3) == "a controller that lets it leave the ISR"
        assert not segments_of(cluster, 3, names.DAMAGED)
        await asyncio.sleep(60)
        assert set(state(cluster).isr) == {1, 2, 3}, "it is not asked again and again"
        monkeypatch.setattr(proposed_isr, "_without_damaged", without_damaged)
        await until(lambda: bool(segments_of(cluster, 3, names.DAMAGED)), limit_s=240)
        await until(lambda: set(state(cluster).isr) == {1, 2, 3})

    run(scenario, 1, SCRUBBING)
