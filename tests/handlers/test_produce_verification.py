"""Which batches of a produce request wait for the transaction coordinator."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.handlers.verification import (
    ProduceVerification,
    produce_refusal,
    txn_offset_commit_refusal,
)
from suwi.model.errors import NotEnoughReplicas, NotLeaderOrFollower
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.wire.produce import ProduceRequest

GUARD = object()
VERIFIER: Any = SimpleNamespace(is_enabled=True)


def test_a_partition_that_is_not_led_when_verification_begins_is_refused_as_such() -> None:
    """Even if it is led here when the coordinator has answered for the others: the client must not
    be told that its transaction is wrong."""
    batch = memoryview(
        build_batch(
            [Record(value=b"x")],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )
    asked = ProduceRequest("copier", -1, 1000, [("orders", None, [(0, batch), (1, batch)])])

    def find(_name: str | None, _topic_id: UUID | None, index: int) -> Any:
        if index == 1:
            raise NotLeaderOrFollower("not yet")
        return SimpleNamespace(
            partition=TopicPartition("orders", PartitionIndex(index)),
            transactions=SimpleNamespace(begin_verification=lambda *_, **__: GUARD),
        )

    verification = ProduceVerification(11, VERIFIER)
    assert verification.begin(asked, find)
    assert verification.verified[0, 0] is GUARD
    assert isinstance(verification.verified[0, 1], NotLeaderOrFollower)


def test_a_batch_that_was_not_verified_because_of_another_is_sent_again() -> None:
    """OPERATION_NOT_ATTEMPTED: the coordinator refused another partition of the request."""
    code = ErrorCode.operation_not_attempted
    assert isinstance(produce_refusal(code, 12), NotEnoughReplicas)
    assert txn_offset_commit_refusal(code, 5) is ErrorCode.coordinator_load_in_progress
