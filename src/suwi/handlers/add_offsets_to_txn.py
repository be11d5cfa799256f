"""AddOffsetsToTxn v0-v4. v2: PRODUCER_FENCED.

A group's offsets are part of a transaction by the partition of `__consumer_offsets` that has them.
Some clients look for the coordinator of the group only after this, so it may be the first to need
that topic.
"""

from typing import Final

from suwi.coordinator.runtime import coordinator_error
from suwi.handlers.errors import reply
from suwi.handlers.find_coordinator import CoordinatorTopic
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.transaction.transaction_coordinator_shard import TransactionRuntime
from suwi.transaction.transaction_metadata import AddPartitionsRequest, Producer
from suwi.transaction.transaction_requests import add_partitions, fenced_as

_PRODUCER_FENCED_FROM: Final = 2


async def add_offsets_to_txn(
    transactions: TransactionRuntime, groups: CoordinatorTopic, request: Request
) -> Reply:
    asked = request.message
    if not groups.exists:
        await groups.create(request)
    try:
        partition = groups.runtime.partition_of(asked.group_id)
    except Exception as error:
        return reply(request, {"error_code": coordinator_error(error)})
    producer = Producer(asked.producer_id, asked.producer_epoch)
    wanted = AddPartitionsRequest(asked.transactional_id, producer, (partition,))
    errors = await add_partitions(transactions, wanted)
    told = fenced_as(errors[partition], request.version, _PRODUCER_FENCED_FROM)
    return reply(request, {"error_code": told})
