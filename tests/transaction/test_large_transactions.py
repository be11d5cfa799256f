"""Transactions with thousands of partitions and offsets: others run while one of them is handled.

A broker of production code, under simulated time.
"""

import asyncio
from typing import Any

from suwi.coordinator.event import Call
from suwi.coordinator.shard import Shard
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.replica.partition_transactions import TxnMarker
from suwi.transaction.transaction_coordinator_shard import TransactionCoordinatorShard
from suwi.transaction.transaction_metadata import AddPartitionsRequest, EndTxnRequest, Producer
from suwi.wire.versions import ApiKey
from tests.handlers.requests import request, response_to
from tests.transaction.wire import GROUP, ID, Wire, on_broker

OFFSETS = PARTITIONS = 5_000
AT_ONCE = 500
"""No more of them are handled in one turn of the event loop."""


def offset_fetch() -> Any:
    fields = {"group_id": GROUP, "topics": None, "require_stable": True}
    return request(ApiKey.OFFSET_FETCH, 7, fields)


async def commit_offsets(wire: Wire, producer: Producer) -> None:
    assert await wire.add_offsets(producer) == 0
    partitions = [
        {
            "partition_index": index,
            "committed_offset": index,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        for index in range(OFFSETS)
    ]
    fields = {
        "transactional_id": ID,
        "group_id": GROUP,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "many", "partitions": partitions}],
    }
    answer = await wire.client.call(ApiKey.TXN_OFFSET_COMMIT, 3, fields)
    assert {each.error_code for each in answer.topics[0].partitions} == {0}


def group_shard(wire: Wire) -> Shard:
    assert wire.broker.broker is not None
    return wire.broker.broker.groups.runtime.shard_of(GROUP)


def test_a_fetch_of_offsets_waits_for_the_end_of_the_replay_of_a_marker() -> None:
    """It would be refused again and again by a shard with many large events."""

    async def scenario(wire: Wire) -> None:
        await wire.create_topic("many", OFFSETS)
        producer = await wire.producer()
        await commit_offsets(wire, producer)
        assert wire.broker.broker is not None
        fetch = wire.broker.broker._apis().handlers()[ApiKey.OFFSET_FETCH]
        shard = group_shard(wire)
        shard.append_marker(TxnMarker(*producer, 0, True, 0))
        assert shard._is_replaying
        asked = offset_fetch()
        answer = await response_to(asked, fetch(asked))
        assert answer.error_code == 0
        assert sum(len(topic.partitions) for topic in answer.topics) == OFFSETS

    on_broker(scenario)


async def turns_of(shard: Shard[Any], call: Call[Any]) -> int:
    """How often others could run before this event was written."""
    shard.submit(call)
    turns = 0
    while shard._is_closed:
        turns += 1
        await asyncio.sleep(0)
    return turns


def test_others_run_while_a_transaction_gets_many_partitions_and_ends() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create_topic("many", PARTITIONS)
        producer = await wire.producer()
        assert wire.broker.broker is not None
        shard = wire.broker.broker.transactions.runtime.shard_of(ID)
        partitions = tuple(TopicPartition("many", PartitionIndex(n)) for n in range(PARTITIONS))
        added = AddPartitionsRequest(ID, producer, partitions)
        ended = EndTxnRequest(ID, producer, is_commit=True)
        assert (
            await turns_of(shard, Call(TransactionCoordinatorShard.add_partitions, added))
            >= PARTITIONS // AT_ONCE
        )
        before = shard.partition.log.end_offset
        assert (
            await turns_of(shard, Call(TransactionCoordinatorShard.end_transaction, ended))
            >= PARTITIONS // AT_ONCE
        )
        assert shard.partition.log.end_offset == before + 1
        assert (await wire.until("CompleteCommit")).topics == ()

    on_broker(scenario)


def test_others_run_while_a_large_transaction_is_loaded() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.create_topic("many", PARTITIONS)
        producer = await wire.producer()
        assert set((await wire.add(producer, {"many": list(range(PARTITIONS))})).values()) == {0}
        assert wire.broker.broker is not None
        shard = wire.broker.broker.transactions.runtime.shard_of(ID)
        shard.follow(shard.epoch)
        shard._reset()
        turns, machine = 0, shard.machine
        asyncio.get_running_loop().job_delay_s_max = 0  # type: ignore[attr-defined]
        shard.lead(shard.epoch)
        # Nothing of it is read from a file before the first turn.
        while ID not in machine.transactions or not machine.transactions[ID].partitions:
            turns += shard._reader is not None and ID in machine.transactions
            await asyncio.sleep(0)
            machine = shard.machine
        assert turns >= PARTITIONS // AT_ONCE

    on_broker(scenario)
