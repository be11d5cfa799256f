"""WriteTxnMarkers with very many partitions: a client that is refused keeps nobody waiting."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from suwi.handlers.hanging_transactions import HangingTransactions
from suwi.handlers.write_txn_markers import write_txn_markers
from suwi.net.connection import ClientIdentity
from suwi.security.authorizer import AclIndex, Authorizer
from suwi.security.principal import user
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

    def name(self) -> str:
        turns = self

        class Name(str):
            """Of a topic; it is hashed with each of its partitions."""

            __slots__ = ()

            def __hash__(self) -> int:
                turns.done[turns._turn] += 1
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
    asked.authorizer = Authorizer(AclIndex) if has_rules else None
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
