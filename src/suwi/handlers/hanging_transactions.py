"""Ends hanging transactions for administrators: WriteTxnMarkers from others than brokers.

A transaction hangs in a partition if it is open there and no coordinator knows it, so that nobody
will end it. Accepted is what `kafka-transactions abort` sends: one abort marker for one partition.
Invariants: a transaction that a coordinator knows is never ended; the marker changes neither the
epoch of the producer nor that of its coordinator.
"""

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.env.slices import in_slices
from suwi.model.errors import (
    ClusterAuthorizationFailed,
    InvalidProducerEpoch,
    InvalidRequest,
    InvalidTxnState,
    TransactionCoordinatorFenced,
    error_of,
)
from suwi.model.ids import NO_OFFSET, ProducerId, TopicPartition
from suwi.replica.partition_transactions import TxnMarker
from suwi.replica.replica_manager import ReplicaManager
from suwi.transaction.marker_appender import Errors, TxnMarkers
from suwi.transaction.transaction_search import TransactionSearch

log = logging.getLogger(__name__)

_MARKERS_PER_SLICE: Final = 1_000


class _OpenTransaction(NamedTuple):
    """An open transaction, as the partition knows it. If it changes, the producer is alive."""

    producer_epoch: int
    first_offset: int
    last_offset: int
    coordinator_epoch: int


class HangingTransactions:
    def __init__(
        self, replicas: ReplicaManager, txn_markers: TxnMarkers, search: TransactionSearch
    ) -> None:
        self._replicas = replicas
        self._txn_markers = txn_markers
        self._search = search

    async def abort(
        self, asked: Sequence[tuple[TxnMarker, Sequence[TopicPartition]]]
    ) -> list[Errors]:
        """As `TxnMarkers.append_all`."""
        try:
            if len(asked) > 1 or any(len(partitions) > 1 for _, partitions in asked):
                raise InvalidRequest("a client may end one transaction in one partition at a time")
            return [{tp: await self._abort(marker, tp) for tp in tps} for marker, tps in asked]
        except Exception as error:
            code, reason = error_of(error)
            # Java's Admin retries after NOT_LEADER_OR_FOLLOWER, but not after
            # COORDINATOR_NOT_AVAILABLE.
            if code is ErrorCode.coordinator_not_available:
                code = ErrorCode.not_leader_or_follower
            extra = {"producer_id": asked[0][0].producer_id, "reason": reason}
            log.info("transaction marker of a client refused", extra=extra)
            return [
                {tp: code async for tp in in_slices(partitions, _MARKERS_PER_SLICE)}
                async for _, partitions in in_slices(asked, _MARKERS_PER_SLICE)
            ]

    async def _abort(self, marker: TxnMarker, tp: TopicPartition) -> ErrorCode:
        """Raises a `BrokerError`."""
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            raise InvalidRequest("a marker needs a producer id and a producer epoch")
        if marker.commits:
            raise ClusterAuthorizationFailed("only coordinators commit transactions")
        await self._txn_markers.wait_until_ready([tp])
        found = self._open(tp, marker.producer_id)
        live, epoch_max = await self._search.find(marker.producer_id, tp)
        if live:
            raise InvalidTxnState(
                f"the transaction in {tp} is that of {live[0]!r}, which has not ended"
            )
        present = -1 if found is None else found.coordinator_epoch
        if marker.coordinator_epoch > max(epoch_max, present, 0):
            raise InvalidRequest(
                f"coordinator epoch {marker.coordinator_epoch} is greater than {epoch_max}, the "
                "newest of a coordinator"
            )
        if found is not None:
            _check_epochs(marker, found)
        # The coordinator epoch stays: a greater one would fence the coordinator of the producer.
        written = marker._replace(
            coordinator_epoch=max(min(present, epoch_max), 0),
            transaction_version=0,
            coordinator_epoch_max=epoch_max,
        )

        def is_open() -> bool:
            now = self._open(tp, marker.producer_id)
            if now is not None and now != found:
                raise InvalidTxnState("the producer has written meanwhile")
            return now is not None

        code = await self._txn_markers.append_if(is_open, written, tp)
        if found is not None and code is ErrorCode.none:
            log.warning(
                "hanging transaction aborted by a client",
                extra={"partition": str(tp), "producer_id": marker.producer_id},
            )
        return code

    def _open(self, tp: TopicPartition, producer_id: ProducerId) -> _OpenTransaction | None:
        """Raises a `BrokerError` if this broker does not lead the partition."""
        producer = self._replicas.leader_of(tp.topic, tp.partition).log.producers.get(producer_id)
        if producer is None or not producer.has_open_txn:
            return None
        return _OpenTransaction(
            producer.epoch,
            producer.txn_first_offset,
            producer.batches[-1].last_offset if producer.batches else NO_OFFSET,
            producer.coordinator_epoch,
        )


def _check_epochs(marker: TxnMarker, found: _OpenTransaction) -> None:
    if marker.producer_epoch != found.producer_epoch:
        raise InvalidProducerEpoch(
            f"producer epoch {marker.producer_epoch} is not {found.producer_epoch}, that of the "
            "transaction"
        )
    if marker.coordinator_epoch < found.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"coordinator epoch {marker.coordinator_epoch} is older than {found.coordinator_epoch}"
        )
