"""WriteTxnMarkers v1-v2. Ends transactions in partitions. v2: transaction version (KIP-890).

Sent by transaction coordinators, and by administrators to end one hanging transaction.
"""

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import reply
from suwi.handlers.hanging_transactions import HangingTransactions
from suwi.handlers.txn_markers import TxnMarkers
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.net.answers import Exclusive, Reply
from suwi.net.dispatch import Request
from suwi.replica.partition_transactions import TxnMarker


class WriteTxnMarkers:
    def __init__(self, txn_markers: TxnMarkers, hanging: HangingTransactions) -> None:
        self._txn_markers = txn_markers
        self._hanging = hanging

    def __call__(self, request: Request) -> Exclusive:
        return Exclusive(self._answer(request))

    async def _answer(self, request: Request) -> Reply:
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
                    TopicPartition(topic.name, PartitionIndex(index))
                    for topic in marker.topics
                    for index in topic.partition_indexes
                ],
            )
            for marker in request.message.markers
        ]
        is_of_broker = request.client.is_peer
        results = await (
            self._txn_markers.append_all(asked) if is_of_broker else self._hanging.abort(asked)
        )
        # By producer: a request may have several markers of one, and the response has one entry.
        by_producer: dict[int, dict[TopicPartition, ErrorCode]] = {}
        for (marker, _), errors in zip(asked, results, strict=True):
            by_producer.setdefault(marker.producer_id, {}).update(errors)
        return reply(
            request,
            {
                "markers": [
                    {"producer_id": producer_id, "topics": _by_topic(errors)}
                    for producer_id, errors in by_producer.items()
                ]
            },
        )


def _by_topic(errors: dict[TopicPartition, ErrorCode]) -> list[dict[str, object]]:
    topics: dict[str, list[dict[str, object]]] = {}
    for (name, index), error in errors.items():
        topics.setdefault(name, []).append({"partition_index": index, "error_code": error})
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
