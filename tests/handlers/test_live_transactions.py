"""LiveTransactions: what a client asks with."""

import asyncio
from typing import cast

import pytest

from suwi.handlers.live_transactions import live_transactions
from suwi.net.answers import CloseConnection
from suwi.transaction.transaction_coordinator_shard import TransactionRuntime
from suwi.wire.versions import ApiKey
from tests.handlers.requests import request_of


@pytest.mark.parametrize("partition", ["1e400", "-Infinity", "NaN", "null", "[0]", '"x"'])
def test_what_is_not_a_number_closes_the_connection(partition: str) -> None:
    body = f'{{"topic": "t", "partition": {partition}, "producer_id": 1}}'.encode()
    request = request_of(ApiKey.LIVE_TRANSACTIONS, 0, bytearray(body))
    with pytest.raises(CloseConnection, match="LiveTransactions"):
        asyncio.run(live_transactions(cast(TransactionRuntime, None), request))
