"""Which batches of a produce request wait for the transaction coordinator."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from suwi.handlers.produce_verification import ProduceVerification
from suwi.model.errors import NotLeaderOrFollower
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

    verification = ProduceVerification(asked, 11, VERIFIER)
    assert verification.begin(find)
    assert verification.verified[0, 0] is GUARD
    assert isinstance(verification.verified[0, 1], NotLeaderOrFollower)
