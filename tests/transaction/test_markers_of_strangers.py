"""WriteTxnMarkers from others than brokers: what ends a hanging transaction, and nothing else
(hazards T24 and T25)."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from suwi.client.connection import PeerConnection
from suwi.model.errors import NotLeaderOrFollower
from suwi.model.ids import NodeId, ProducerId
from suwi.replica.partition_transactions import PartitionTransactions, TxnMarker
from suwi.wire.versions import ApiKey
from tests.transaction.test_partitions_wire import TV1, TV2, Client, new_client, read
from tests.transaction.wire import GROUP, TOPIC, Wire, on_broker

OFFSETS = "__consumer_offsets"
NOT_AUTHORIZED, INVALID_REQUEST, INVALID_STATE, INVALID_EPOCH, FENCED = 31, 42, 48, 47, 52
EPOCH_MAX = 2**31 - 1
UNVERIFIED = {"transaction_partition_verification_enable": "false"}
"""Without verification a late write leaves a transaction that hangs."""


def marker(
    client: Client,
    *partitions: tuple[str, int],
    commits: bool = False,
    epoch: int | None = None,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> dict[str, Any]:
    producer = client.producer
    return {
        "producer_id": producer.id,
        "producer_epoch": producer.epoch if epoch is None else epoch,
        "transaction_result": commits,
        "topics": [
            {"name": name, "partition_indexes": [index]}
            for name, index in partitions or [(TOPIC, 0)]
        ],
        "coordinator_epoch": coordinator_epoch,
        "transaction_version": transaction_version,
    }


async def write(
    client: Client, *markers: dict[str, Any], to: PeerConnection | None = None, version: int = 2
) -> dict[tuple[int, str, int], int]:
    """The errors, of a stranger unless `to` is a broker's connection."""
    fields = {"markers": list(markers)}
    answer = await (to or client.wire.client).call(ApiKey.WRITE_TXN_MARKERS, version, fields)
    return {
        (result.producer_id, topic.name, each.partition_index): int(each.error_code)
        for result in answer.markers
        for topic in result.topics
        for each in topic.partitions
    }


async def error_of(client: Client, **how: Any) -> int:
    (error,) = (await write(client, marker(client, **how))).values()
    return error


async def as_broker(wire: Wire) -> PeerConnection:
    assert wire.broker.broker is not None
    return await wire.broker.broker.peers.connect(NodeId(0))


def partition_of(wire: Wire, topic: str = TOPIC) -> Any:
    assert wire.broker.broker is not None
    return wire.broker.broker.replicas.leader_of(topic, 0)


def producer_in(client: Client, topic: str = TOPIC) -> Any:
    return partition_of(client.wire, topic).log.producers.get(ProducerId(client.producer.id))


async def hanging(wire: Wire) -> Client:
    """Its transaction has been committed, and a write came afterwards."""
    client = await new_client(wire, TV1)
    await client.begin()
    assert await client.send("a") == 0
    await client.end()
    assert await client.send("late") == 0
    assert producer_in(client).has_open_txn
    return client


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("commits", [True, False])
def test_a_stranger_cannot_end_a_part_of_an_open_transaction(version: int, commits: bool) -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, version)
        await client.begin(0, 1)
        for partition in (0, 1):
            assert await client.send("a", partition=partition, sequence=0) == 0
        end = partition_of(wire).log.end_offset
        for coordinator_epoch in (0, EPOCH_MAX):
            how: Any = {"commits": commits, "coordinator_epoch": coordinator_epoch}
            assert await error_of(client, **how) in (NOT_AUTHORIZED, INVALID_REQUEST, INVALID_STATE)
        expected = NOT_AUTHORIZED if commits else INVALID_STATE
        assert await error_of(client, commits=commits) == expected
        assert partition_of(wire).log.end_offset == end
        assert await read(wire) == []
        await client.end(commit=False)
        assert await read(wire) == []

    on_broker(scenario)


def test_nor_one_to_which_the_partition_was_added_before_the_first_write() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV1)
        await client.begin()
        end = partition_of(wire).log.end_offset
        assert await error_of(client) == INVALID_STATE
        assert partition_of(wire).log.end_offset == end
        assert await client.send("a") == 0
        await client.end()
        assert await read(wire) == ["a"]

    on_broker(scenario)


def test_nor_the_offsets_of_a_group() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV1)
        assert await wire.add_offsets(client.producer) == 0
        assert await client.commit_offset(7) == 0
        place = (client.producer.id, OFFSETS, 0)
        assert await write(client, marker(client, (OFFSETS, 0))) == {place: INVALID_STATE}
        await client.end()

    on_broker(scenario)


def test_a_hanging_transaction_is_ended_and_the_coordinators_epoch_stays() -> None:
    async def scenario(wire: Wire) -> None:
        client = await hanging(wire)
        assert await read(wire) == ["a"]
        assert await error_of(client, commits=True) == NOT_AUTHORIZED
        assert await error_of(client, coordinator_epoch=1) == INVALID_REQUEST
        assert await error_of(client, coordinator_epoch=EPOCH_MAX) == INVALID_REQUEST
        assert await error_of(client, coordinator_epoch=-1) == FENCED
        assert await error_of(client, epoch=-1) == INVALID_REQUEST
        for epoch in (client.producer.epoch + 1, 32_767):
            assert await error_of(client, epoch=epoch) == INVALID_EPOCH
        assert producer_in(client).has_open_txn
        assert await error_of(client, transaction_version=2) == 0
        assert not producer_in(client).has_open_txn
        assert producer_in(client).coordinator_epoch == 0
        end = partition_of(wire).log.end_offset
        # Again, as after a lost reply.
        assert await error_of(client) == 0
        assert partition_of(wire).log.end_offset == end
        # And the producer goes on.
        await client.begin()
        assert await client.send("b") == 0
        await client.end()
        assert await read(wire) == ["a", "b"]

    on_broker(scenario, **UNVERIFIED)


def test_one_abort_at_a_time() -> None:
    async def scenario(wire: Wire) -> None:
        client = await hanging(wire)
        one = marker(client)
        several = (
            [marker(client, (TOPIC, 0), (TOPIC, 1))],
            [one, one],
            [one, {**one, "producer_id": 999}],
            [marker(client, (TOPIC, 0), (TOPIC, 0))],
        )
        for markers in several:
            errors = await write(client, *markers)
            assert set(errors.values()) == {INVALID_REQUEST}
        assert producer_in(client).has_open_txn
        assert await write(client, one, version=1) == {(client.producer.id, TOPIC, 0): 0}
        assert await write(client) == {}

    on_broker(scenario, **UNVERIFIED)


def test_nothing_is_written_where_nothing_is_open() -> None:
    """A marker would fence the producer with its epoch."""

    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV1)
        await client.begin()
        assert await client.send("a") == 0
        await client.end()
        end = partition_of(wire).log.end_offset
        assert await error_of(client, epoch=32_767) == 0
        assert partition_of(wire).log.end_offset == end
        await client.begin()
        assert await client.send("b") == 0
        await client.end()

    on_broker(scenario)


def test_a_producer_that_writes_while_the_coordinators_are_asked_is_alive() -> None:
    async def scenario(wire: Wire) -> None:
        client = await hanging(wire)
        assert wire.broker.broker is not None
        search = wire.broker.broker.transactions.search
        find, asked, answer = search.find, asyncio.Event(), asyncio.Event()

        async def slow_find(*about: Any) -> Any:
            found = await find(*about)
            asked.set()
            await answer.wait()
            return found

        search.find = slow_find  # type: ignore[method-assign]
        connection = await PeerConnection.open("b1", 9092, client_id="stranger")
        aborting = asyncio.ensure_future(write(client, marker(client), to=connection))
        await asked.wait()
        await client.begin()
        assert await client.send("b") == 0
        answer.set()
        assert set((await aborting).values()) == {INVALID_STATE}
        search.find = find  # type: ignore[method-assign]
        await client.end()
        assert await read(wire) == ["a", "late", "b"]

    on_broker(scenario, **UNVERIFIED)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("commits", [True, False])
def test_an_id_is_not_stuck_where_a_stranger_has_raised_the_coordinators_epoch(
    restarts: bool, commits: bool
) -> None:
    """As brokers have allowed it before."""

    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV1)
        await client.begin()
        assert await client.send("a") == 0
        poison = TxnMarker(
            ProducerId(client.producer.id), client.producer.epoch, EPOCH_MAX, False, 0
        )
        partition_of(wire).transactions.append_marker(poison, wire.broker.machine.clock.now_ms())
        assert producer_in(client).coordinator_epoch == EPOCH_MAX
        answer = await wire.end(client.producer, commit=commits)
        assert answer.error_code == 0
        if restarts:
            wire.broker.kill()
            await wire.broker.start()
            await wire.connect()
            await wire.until_served()
        await wire.until("CompleteCommit" if commits else "CompleteAbort")
        assert 0 <= producer_in(client).coordinator_epoch < EPOCH_MAX

    on_broker(scenario)


def test_a_coordinator_that_another_has_replaced_stays_fenced() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV1)
        await client.begin()
        assert await client.send("a") == 0
        await client.end()
        broker = await as_broker(wire)
        (error,) = (await write(client, marker(client, coordinator_epoch=-1), to=broker)).values()
        assert error == FENCED

    on_broker(scenario)


def test_a_hanging_transaction_with_an_impossible_coordinator_epoch_is_ended_too() -> None:
    async def scenario(wire: Wire) -> None:
        client = await hanging(wire)
        producer_in(client).coordinator_epoch = EPOCH_MAX
        assert await error_of(client, coordinator_epoch=EPOCH_MAX) == 0
        assert not producer_in(client).has_open_txn
        assert producer_in(client).coordinator_epoch == 0

    on_broker(scenario, **UNVERIFIED)


def test_offsets_of_a_hanging_transaction_are_dropped() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV1)
        assert await wire.add_offsets(client.producer) == 0
        assert await client.commit_offset(7) == 0
        await client.end()
        assert await client.commit_offset(8) == 0
        assert producer_in(client, OFFSETS).has_open_txn
        place = (client.producer.id, OFFSETS, 0)
        assert await write(client, marker(client, (OFFSETS, 0))) == {place: 0}
        assert not producer_in(client, OFFSETS).has_open_txn
        assert wire.broker.broker is not None
        machine = wire.broker.broker.groups.runtime.shard_of(GROUP).machine
        assert machine.group(GROUP) is not None

    on_broker(scenario, **UNVERIFIED)


@pytest.mark.parametrize("commits", [True, False])
def test_nor_one_that_is_decided_and_waits_for_its_markers(commits: bool) -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV1)
        await client.begin()
        assert await client.send("a") == 0
        refuse = patch.object(
            PartitionTransactions, "append_marker", side_effect=NotLeaderOrFollower("as wanted")
        )
        with refuse:
            assert (await wire.end(client.producer, commit=commits)).error_code == 0
            await wire.until("PrepareCommit" if commits else "PrepareAbort")
            assert await error_of(client) == INVALID_STATE
        await wire.until("CompleteCommit" if commits else "CompleteAbort")
        assert await read(wire) == (["a"] if commits else [])

    on_broker(scenario)
