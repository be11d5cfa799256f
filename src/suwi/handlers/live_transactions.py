"""LiveTransactions v0, Suwi's own and never advertised: whether a transaction has not ended.

Request and response are JSON: `{"producer_id": 7, "topic": "orders", "partition": 0}`, and
`{"shards": [0, 3], "live": ["bank"]}`: the partitions of `__transaction_state` that this broker can
answer for, and the transactional ids whose transaction with that producer has the partition and is
in an Ongoing or Prepare state.
"""

import asyncio
import json
from contextlib import suppress
from typing import NamedTuple

from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.handlers.json_body import read_json
from suwi.model.errors import BrokerError
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.net.answers import CloseConnection, Reply
from suwi.net.dispatch import Request
from suwi.transaction.coordinator_shard import TransactionCoordinatorShard


class LiveIds(NamedTuple):
    shards: list[int]
    live: list[str]


async def live_ids(
    transactions: CoordinatorRuntime, producer_id: int, partition: TopicPartition
) -> LiveIds:
    """Of the shards that this broker serves, one in each iteration of the event loop."""
    found = LiveIds([], [])
    for shard in transactions.active():
        await asyncio.sleep(0)
        with suppress(BrokerError):
            for _ in shard.until_readable():
                await asyncio.sleep(0)
            machine: TransactionCoordinatorShard = shard.machine
            for transactional_id in machine.not_ended():
                metadata = machine.transactions[transactional_id]
                if metadata.producer_id == producer_id and partition in metadata.partitions:
                    found.live.append(transactional_id)
            found.shards.append(shard.partition.partition.partition)
    return found


class LiveTransactions:
    def __init__(self, transactions: CoordinatorRuntime) -> None:
        self._transactions = transactions

    async def __call__(self, request: Request) -> Reply:
        asked = read_json(request)
        try:
            partition = TopicPartition(str(asked["topic"]), PartitionIndex(int(asked["partition"])))
            producer_id = int(asked["producer_id"])
        except (KeyError, TypeError, ValueError) as error:
            raise CloseConnection(f"LiveTransactions: {error!r}") from error
        found = await live_ids(self._transactions, producer_id, partition)
        return Reply([json.dumps(found._asdict()).encode()])
