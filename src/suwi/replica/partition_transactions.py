"""The transactions of one partition on its leader: verified appends, and markers (KIP-890).

The first transactional batch of a producer is appended after the transaction coordinator has
confirmed that the partition is part of an open transaction: `begin_verification` returns a guard,
`append` takes it. `append_marker` ends a transaction.
Invariant: no batch opens a transaction unless it comes with the producer's current guard, compared
in the same step as the append; any transactional append and any marker makes the guard void (T2).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from suwi.log.partition_log import Appended
from suwi.log.producer_state import ProducerStates
from suwi.model.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    NotLeaderOrFollower,
    OutOfOrderSequence,
)
from suwi.model.ids import NO_SEQUENCE, Offset, ProducerId
from suwi.records.batch import BatchHeader, read_header
from suwi.records.builder import build_marker
from suwi.records.record import MarkerType
from suwi.replica.replica_log import ReplicaLog

CheckProducers: TypeAlias = Callable[[ProducerStates], None]
_GUARDS_MAX: Final = 10_000
"""Of producers that never append what they asked to verify, the oldest are forgotten."""
_STRICT_MARKERS_FROM: Final = 2


class TxnMarker(NamedTuple):
    producer_id: ProducerId
    producer_epoch: int
    coordinator_epoch: int
    commits: bool
    transaction_version: int
    """0 or 1 also for the markers of administrators."""
    coordinator_epoch_max: int | None = None
    """The highest that a coordinator can have, where that is known. A partition with a greater one
    has it from somebody else, and accepts the marker all the same."""


@dataclass(slots=True, eq=False, repr=False)
class VerificationGuard:
    """Stands for a verification that has begun. Compared by identity."""

    epoch: int
    lowest_sequence: int
    """The lowest that was seen: a later batch must not overtake a refused one (T3)."""
    leader_epoch: int
    is_implicit: bool = field(kw_only=True)
    """Transaction version 2: verification adds the partition to the transaction."""


NOT_VERIFIED: Final = VerificationGuard(-1, NO_SEQUENCE, -1, is_implicit=False)
"""In place of a guard where `transaction.partition.verification.enable` is false."""


@dataclass(slots=True, eq=False)
class PartitionTransactions:
    _replica_log: ReplicaLog
    _append: Callable[[memoryview, BatchHeader, int, CheckProducers | None], Appended]
    _check_enough_replicas: Callable[[], None]
    """Both functions are the `Partition`'s."""
    _guards: dict[int, VerificationGuard] = field(default_factory=dict)

    # -- verification --------------------------------------------------------------------------

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, is_implicit: bool
    ) -> VerificationGuard | None:
        """The guard for a batch that must be verified; None if its transaction is already open.

        Raises a `BrokerError` if this broker is not the leader or the log is not ready.
        """
        producer = self._replica_log.get_ready().producers.get(ProducerId(producer_id))
        if producer is not None and producer.has_open_txn_in(epoch):
            return None
        leader_epoch = self._replica_log.leader_epoch
        guard = self._guards.get(producer_id)
        if guard is None or guard.leader_epoch != leader_epoch:
            self._guards.pop(producer_id, None)
            if len(self._guards) >= _GUARDS_MAX:
                del self._guards[next(iter(self._guards))]
            guard = VerificationGuard(epoch, sequence, leader_epoch, is_implicit=is_implicit)
            self._guards[producer_id] = guard
        elif epoch > guard.epoch:
            guard.epoch, guard.lowest_sequence = epoch, sequence
            guard.is_implicit = is_implicit
        elif epoch == guard.epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        return guard

    def check(
        self, producer_id: int, epoch: int, sequence: int, guard: VerificationGuard | None
    ) -> None:
        """Whether a batch may be appended. Raises InvalidTxnState or OutOfOrderSequence."""
        replica_log = self._replica_log
        producer = replica_log.get_ready().producers.get(ProducerId(producer_id))
        if guard is NOT_VERIFIED or (producer is not None and producer.has_open_txn_in(epoch)):
            return
        if guard is not None and guard.leader_epoch != replica_log.leader_epoch:
            raise NotLeaderOrFollower(f"{replica_log.partition} has a new leader epoch")
        if guard is None or self._guards.get(producer_id) is not guard:
            raise InvalidTxnState(f"the batch is not part of an open transaction of {producer_id}")
        if epoch != guard.epoch:
            raise InvalidProducerEpoch(
                f"epoch {epoch} of {producer_id}, its newest is {guard.epoch}"
            )
        if sequence == NO_SEQUENCE:
            return
        if sequence > guard.lowest_sequence:
            raise OutOfOrderSequence(
                f"producer {producer_id} sent sequence {sequence}, but not {guard.lowest_sequence}"
            )
        if guard.is_implicit and sequence != 0 and (producer is None or not producer.batches):
            raise OutOfOrderSequence(
                f"producer {producer_id} must start epoch {epoch} with sequence 0, not {sequence}"
            )

    # -- appending -----------------------------------------------------------------------------

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        now_ms: int,
        guard: VerificationGuard | None,
        check_first: CheckProducers | None = None,
    ) -> Appended:
        """As `Partition.append`, for a transactional batch."""
        producer_id, epoch = header.producer_id, header.producer_epoch

        def check(producers: ProducerStates) -> None:
            if check_first is not None:
                check_first(producers)
            # What the log finds comes first: a retry is answered, also of an ended transaction.
            if producers.check(header) is None:
                self.check(producer_id, epoch, header.base_sequence, guard)

        appended = self._append(batch, header, now_ms, check)
        if not appended.is_duplicate:
            self._guards.pop(producer_id, None)
        return appended

    def append_marker(self, marker: TxnMarker, now_ms: int) -> Offset | None:
        """Append a marker; the offset after it, or None if it is there already. Raises a
        `BrokerError`, as `ProducerStates.check_marker` does."""
        replica_log = self._replica_log
        if replica_log.leader_replica is None:
            raise NotLeaderOrFollower(f"{replica_log.partition} is not led by this broker")
        self._check_enough_replicas()
        producers = replica_log.get_ready().producers
        is_strict = marker.transaction_version >= _STRICT_MARKERS_FROM
        is_new = producers.check_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            is_strict=is_strict,
            coordinator_epoch_max=marker.coordinator_epoch_max,
        )
        self._void_guard(marker, has_next_epoch=is_strict)
        if not is_new:
            return None
        producers.forget_ended_txns(replica_log.high_watermark)
        batch = memoryview(
            build_marker(
                MarkerType.COMMIT if marker.commits else MarkerType.ABORT,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                timestamp=now_ms,
            )
        )
        return Offset(self._append(batch, read_header(batch), now_ms, None).last_offset + 1)

    def _void_guard(self, marker: TxnMarker, *, has_next_epoch: bool) -> None:
        """A late batch must not open what the marker ended, even where nothing was open (T1, T2).

        With TV2 the marker has the epoch of the next transaction, and a batch of that one may be
        here first, while the coordinator lets it wait for this marker (ADR 17).
        """
        guard = self._guards.get(marker.producer_id)
        if guard is None or guard.epoch > marker.producer_epoch:
            return
        is_of_next = has_next_epoch and guard.is_implicit and guard.epoch == marker.producer_epoch
        if not is_of_next:
            del self._guards[marker.producer_id]
