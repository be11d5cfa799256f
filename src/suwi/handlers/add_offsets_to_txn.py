"""AddOffsetsToTxn v0-v4. v2: PRODUCER_FENCED.

A group's offsets are part of a transaction by the partition of `__consumer_offsets` that has them.
Some clients look for the coordinator of the group only after this, so it may be the first to need
that topic.
"""

from typing import Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import coordinator_error
from suwi.handlers.errors import reply
from suwi.handlers.find_coordinator import CoordinatorTopic
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.transaction.transaction_coordinator_shard import TransactionRuntime
from suwi.transaction.transaction_metadata import AddPartitionsRequest, Producer
from suwi.transaction.transaction_requests import add_partitions, fenced_as

_PRODUCER_FENCED_FROM: Final = 2


class AddOffsetsToTxn:
    def __init__(self, transactions: TransactionRuntime, groups: CoordinatorTopic) -> None:
        self._transactions = transactions
        self._groups = groups

    async def __call__(self, request: Request) -> Reply:
        error = fenced_as(await self._add(request), request.version, _PRODUCER_FENCED_FROM)
        return reply(request, {"throttle_time": 0, "error_code": error})

    async def _add(self, request: Request) -> ErrorCode:
        asked = request.message
        if not self._groups.exists:
            await self._groups.create(request)
        try:
            partition = self._groups.runtime.partition_of(asked.group_id)
        except Exception as error:
            return coordinator_error(error)
        producer = Producer(asked.producer_id, asked.producer_epoch)
        errors = await add_partitions(
            self._transactions,
            AddPartitionsRequest(asked.transactional_id, producer, (partition,)),
        )
        return errors[partition]
