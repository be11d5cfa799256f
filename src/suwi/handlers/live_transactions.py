"""LiveTransactions v0, Suwi's own and never advertised: whether a transaction has not ended.

Request and response are JSON: `{"producer_id": 7, "topic": "orders", "partition": 0}`, and
`{"shards": [0, 3], "live": ["bank"]}`: the partitions of `__transaction_state` that this broker can
answer for, and the transactional ids whose transaction with that producer has the partition and is
in an Ongoing or Prepare state.
"""

from suwi.handlers.json_body import json_reply, read_json
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.net.answers import CloseConnection, Reply
from suwi.net.dispatch import Request
from suwi.transaction.transaction_coordinator_shard import TransactionRuntime
from suwi.transaction.transaction_search import live_ids


async def live_transactions(transactions: TransactionRuntime, request: Request) -> Reply:
    asked = read_json(request)
    try:
        partition = TopicPartition(str(asked["topic"]), PartitionIndex(int(asked["partition"])))
        producer_id = int(asked["producer_id"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CloseConnection(f"LiveTransactions: {error!r}") from error
    found = await live_ids(transactions, producer_id, partition)
    return json_reply(found._asdict())
