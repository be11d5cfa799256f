"""WriteTxnMarkers with very many partitions or markers: what is refused keeps nobody waiting."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from suwi.handlers.hanging_transactions import HangingTransactions
from suwi.handlers.write_txn_markers import write_txn_markers
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.net.connection import ClientIdentity
from suwi.security.authorizer import Authorizer
from suwi.security.principal import user
from suwi.transaction.marker_appender import TxnMarkers
from suwi.wire.versions import ApiKey
from tests.handlers.requests import request_of, response_to

PARTITIONS = 20_000
AT_ONCE_MAX = 4_000
INVALID_REQUEST, CLUSTER_AUTHORIZATION_FAILED = 42, 31


class Turns:
    """Counts what is done in each iteration of the event loop."""

    def __init__(self) -> None:
        self.done: Counter[int] = Counter()
        self._turn = 0

    def tick(self) -> None:
        self._turn += 1
        asyncio.get_running_loop().call_soon(self.tick)

    def count(self) -> None:
        self.done[self._turn] += 1

    def name(self) -> str:
        turns = self

        class Name(str):
            """Of a topic; it is hashed with each of its partitions."""

            __slots__ = ()

            def __hash__(self) -> int:
                turns.count()
                return super().__hash__()

        return Name("t")


@pytest.mark.parametrize("has_rules", [False, True])
@pytest.mark.parametrize("markers", [1, 3])
def test_the_partitions_of_a_client_that_is_refused_are_answered_in_slices(
    has_rules: bool, markers: int
) -> None:
    turns = Turns()
    topic = SimpleNamespace(name=turns.name(), partition_indexes=range(PARTITIONS))
    marker = SimpleNamespace(
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        transaction_result=False,
        topics=[topic],
    )
    message = SimpleNamespace(markers=[marker] * markers)
    asked = request_of(ApiKey.WRITE_TXN_MARKERS, 1, b"", message)
    asked.client = ClientIdentity("PLAINTEXT", "127.0.0.1", user("alice"))
    asked.authorizer = Authorizer() if has_rules else None
    nobody = cast(Any, None)
    hanging = HangingTransactions(nobody, nobody, nobody)

    async def run() -> Any:
        turns.tick()
        return await response_to(asked, write_txn_markers(nobody, hanging, asked))

    (answered,) = asyncio.run(run()).markers
    (found,) = answered.topics
    assert [each.partition_index for each in found.partitions] == list(range(PARTITIONS))
    code = CLUSTER_AUTHORIZATION_FAILED if has_rules else INVALID_REQUEST
    assert {int(each.error_code) for each in found.partitions} == {code}
    assert max(turns.done.values()) < AT_ONCE_MAX


def test_the_markers_that_a_partition_fences_are_written_again_in_slices() -> None:
    turns = Turns()
    first = TopicPartition("t", PartitionIndex(0))

    class Fenced:
        def _replace(self, **_changed: int) -> "Fenced":
            turns.count()
            return self

    class Appender(TxnMarkers):
        async def _append_all(self, markers: Any) -> Any:
            return [{first: ErrorCode.transaction_coordinator_fenced} for _ in markers]

    class Search:
        async def newest_coordinator_epoch(self) -> int:
            return 7

    nobody = cast(Any, None)
    appender = Appender(nobody, nobody, nobody, cast(Any, Search))
    asked: Any = [(Fenced(), [first])] * PARTITIONS

    async def run() -> Any:
        turns.tick()
        return await appender.append_all(asked)

    assert len(asyncio.run(run())) == turns.done.total() == PARTITIONS
    assert max(turns.done.values()) < AT_ONCE_MAX
