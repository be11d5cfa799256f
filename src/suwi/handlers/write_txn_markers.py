"""WriteTxnMarkers v1-v2. Ends transactions in partitions. v2: transaction version (KIP-890).

Sent by transaction coordinators, and by administrators to end one hanging transaction.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from suwi.env.slices import free_in_slices
from suwi.handlers.hanging_transactions import HangingTransactions
from suwi.handlers.slices import SlicedItems, SlicedResponse, sliced
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.partition_transactions import TxnMarker
from suwi.security.acls import CLUSTER_NAME, Operation, ResourceType
from suwi.transaction.marker_appender import Errors, TxnMarkers

_RIGHTS = (Operation.ALTER, Operation.CLUSTER_ACTION)
"""One of them is enough."""


async def write_txn_markers(
    txn_markers: TxnMarkers, hanging: HangingTransactions, request: Request
) -> Reply:
    asked = [
        (
            TxnMarker(
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                marker.transaction_result,
                getattr(marker, "transaction_version", 0),
            ),
            [
                TopicPartition(name, PartitionIndex(index))
                async for name, index in sliced(
                    request,
                    ((t.name, index) for t in marker.topics for index in t.partition_indexes),
                )
            ],
        )
        async for marker in sliced(request, request.message.markers)
    ]
    if request.client.is_peer:
        results = await txn_markers.append_all(asked)
    elif any(request.may(right, ResourceType.CLUSTER, CLUSTER_NAME) for right in _RIGHTS):
        results = await hanging.abort(asked)
    else:
        request.refuses(_RIGHTS[0], ResourceType.CLUSTER, CLUSTER_NAME)
        refused = ErrorCode.cluster_authorization_failed
        results = [
            {tp: refused async for tp in sliced(request, partitions)}
            async for _, partitions in sliced(request, asked)
        ]
    # By producer: a request may have several markers of one, and the response has one entry.
    by_producer: dict[int, Errors] = {}
    async for (marker, _), errors in sliced(request, zip(asked, results, strict=True)):
        known = by_producer.setdefault(marker.producer_id, errors)
        if known is not errors:
            async for tp, error in sliced(request, errors.items()):
                known[tp] = error
    markers = SlicedItems(request, ("markers",))
    topics = SlicedResponse(request, ("markers",))
    for producer_id, errors in by_producer.items():
        await topics.put_by_topic("name", errors.items(), _answer)
        await markers.put({"producer_id": producer_id, "topics": topics.topics()})
    async for (_, partitions), errors in sliced(request, zip(asked, results, strict=True)):
        free_in_slices(partitions)
        free_in_slices(errors)
    for large in (asked, results, by_producer):
        free_in_slices(large)
    return markers.reply()


def _answer(index: int, error: ErrorCode) -> dict[str, Any]:
    return {"partition_index": index, "error_code": error}
