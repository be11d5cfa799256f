"""WriteTxnMarkers v1-v2. Ends transactions in partitions. v2: transaction version (KIP-890).

Sent by transaction coordinators, and by administrators to end one hanging transaction.
"""

from collections.abc import Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import reply
from suwi.handlers.hanging_transactions import HangingTransactions
from suwi.handlers.slices import SlicedItems, SlicedResponse, by_topic, sliced
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.net.answers import Exclusive, Reply
from suwi.net.dispatch import Request
from suwi.replica.partition_transactions import TxnMarker
from suwi.transaction.marker_appender import TxnMarkers


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
                    TopicPartition(name, PartitionIndex(index))
                    async for name, index in sliced(request, _named(marker))
                ],
            )
            async for marker in sliced(request, request.message.markers)
        ]
        is_of_broker = request.client.is_peer
        results = await (
            self._txn_markers.append_all(asked) if is_of_broker else self._hanging.abort(asked)
        )
        # By producer: a request may have several markers of one, and the response has one entry.
        by_producer: dict[int, dict[TopicPartition, ErrorCode]] = {}
        async for (marker, _), errors in sliced(request, zip(asked, results, strict=True)):
            by_producer.setdefault(marker.producer_id, {}).update(errors)
        markers = SlicedItems(request, ("markers",))
        topics = SlicedResponse(request, ("markers",))
        for producer_id, errors in by_producer.items():
            for name, partitions in (await by_topic(request, errors.items())).items():
                if topics.begin_topic(name=name):
                    await request.next_slice()
                for index, error in partitions:
                    if topics.add({"partition_index": index, "error_code": error}):
                        await request.next_slice()
            await markers.put({"producer_id": producer_id, "topics": topics.topics()})
        return reply(request, {"markers": markers.take()})


def _named(marker: Any) -> Iterator[tuple[str, int]]:
    return ((topic.name, index) for topic in marker.topics for index in topic.partition_indexes)
