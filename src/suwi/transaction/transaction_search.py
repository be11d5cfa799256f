"""Asks all transaction coordinators whether they know a transaction that has not ended.

A marker names its producer by id, which does not tell who coordinates it. So the leaders of all
partitions of `__transaction_state` are asked (LiveTransactions), one question at a time.
Invariant: without an answer for each of these partitions there is no result.
"""

import asyncio
import json
import logging
from contextlib import suppress
from typing import Final, NamedTuple

from suwi.env.problems import because
from suwi.metadata.store import Unavailable
from suwi.model.errors import BrokerError, CoordinatorNotAvailable
from suwi.model.ids import NO_NODE, NodeId, TopicPartition
from suwi.replica.peers import Peers
from suwi.transaction.marker_sender import Metadata
from suwi.transaction.transaction_coordinator_shard import TransactionRuntime
from suwi.wire.versions import ApiKey

log = logging.getLogger(__name__)

_SYNC_S_MAX: Final = 5.0
_RESPONSE_S_MAX: Final = 5.0


class SearchResult(NamedTuple):
    ids: list[str]
    coordinator_epoch_max: int


class LiveIds(NamedTuple):
    shards: list[int]
    live: list[str]


async def live_ids(
    transactions: TransactionRuntime, producer_id: int, partition: TopicPartition
) -> LiveIds:
    """Of the shards that this broker serves, one in each iteration of the event loop."""
    found = LiveIds([], [])
    for shard in transactions.active():
        await asyncio.sleep(0)
        with suppress(BrokerError):
            for _ in shard.until_readable():
                await asyncio.sleep(0)
            machine = shard.machine
            for transactional_id in machine.not_ended():
                metadata = machine.transactions[transactional_id]
                if metadata.producer_id == producer_id and partition in metadata.partitions:
                    found.live.append(transactional_id)
            found.shards.append(shard.partition.partition.partition)
    return found


class TransactionSearch:
    def __init__(
        self, node_id: NodeId, metadata: Metadata, transactions: TransactionRuntime, peers: Peers
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._transactions = transactions
        self._peers = peers
        self._asking = asyncio.Lock()

    async def find(self, producer_id: int, partition: TopicPartition) -> SearchResult:
        """The transactional ids whose transaction with that producer has the partition and has not
        ended, and the newest coordinator epoch. Raises CoordinatorNotAvailable."""
        async with self._asking:
            try:
                epoch_max = await self.newest_coordinator_epoch()
            except Unavailable as error:
                raise CoordinatorNotAvailable(str(error)) from error
            topic = self._metadata.image.topics.get(self._transactions.topic)
            if topic is None:
                return SearchResult([], epoch_max)
            leaders = {state.leader for state in topic.partitions} - {NO_NODE}
            answers = await asyncio.gather(
                *(self._ask(node, producer_id, partition) for node in sorted(leaders))
            )
        live = sorted({name for answer in answers for name in answer.live})
        answered = {shard for answer in answers for shard in answer.shards}
        silent = [index for index in range(len(topic.partitions)) if index not in answered]
        if silent and not live:
            raise CoordinatorNotAvailable(
                f"the coordinator of {topic.name}-{silent[0]} has not answered"
            )
        return SearchResult(live, epoch_max)

    async def newest_coordinator_epoch(self) -> int:
        """No coordinator has a greater epoch; -1 if there are none. Raises `Unavailable`."""
        await self._metadata.synced(_SYNC_S_MAX)
        topic = self._metadata.image.topics.get(self._transactions.topic)
        return max((state.leader_epoch for state in topic.partitions), default=-1) if topic else -1

    async def _ask(self, node: NodeId, producer_id: int, partition: TopicPartition) -> LiveIds:
        if node == self._node_id:
            return await live_ids(self._transactions, producer_id, partition)
        asked = {"producer_id": producer_id, **partition._asdict()}
        try:
            async with asyncio.timeout(_RESPONSE_S_MAX):
                connection = await self._peers.connect(node)
                try:
                    body = json.dumps(asked).encode()
                    response = await connection.send(ApiKey.LIVE_TRANSACTIONS, 0, [body])
                finally:
                    connection.abort()
            return LiveIds(**json.loads(bytes(response)))
        except (OSError, ValueError, TypeError) as error:
            log.info("transaction coordinator not reached", extra=because(error, broker=node))
            return LiveIds([], [])
