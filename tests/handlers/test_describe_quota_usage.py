"""DescribeQuotaUsage: the clients that are closest to their quotas, and how many are left off."""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from suwi.handlers.describe_quota_usage import describe_quota_usage
from suwi.net.answers import CloseConnection, Exclusive
from suwi.net.client_quota_manager import QuotaUsage
from suwi.security.client_quotas import CLIENT_ID, IP, PRODUCER_BYTE_RATE, USER
from suwi.wire.versions import ApiKey
from tests.handlers.requests import request_of


def usages() -> Iterator[QuotaUsage]:
    for number in range(1000):
        entity = (CLIENT_ID, f"c{number}"), (USER, "alice")
        yield QuotaUsage(entity, PRODUCER_BYTE_RATE, 1000.0, number % 500 + 1.0, 0.0)
    yield QuotaUsage(((IP, "::1"),), PRODUCER_BYTE_RATE, 1000.0, 0.0, 0.5)
    yield QuotaUsage(((USER, "idle"),), PRODUCER_BYTE_RATE, 1000.0, 0.01, 0.0)


async def ask(**fields: Any) -> Any:
    quotas = cast(Any, SimpleNamespace(usages=usages))
    body = bytearray(json.dumps(fields).encode())
    asked = request_of(ApiKey.DESCRIBE_QUOTA_USAGE, 0, body, None)
    answer = describe_quota_usage(quotas, asked)
    assert isinstance(answer, Exclusive)
    reply: Any = await cast(Any, answer.reply)
    return json.loads(b"".join(reply.chunks))


def test_those_that_are_closest_to_their_limits_come_first() -> None:
    told = asyncio.run(ask(usages_max=3))
    assert [each["used"] for each in told["usages"]] == [500, 500, 499]
    assert told["usages"][0] == {
        "user": "alice",
        "client_id": "c499",
        "ip": None,
        "key": "producer_byte_rate",
        "limit": 1000.0,
        "used": 500.0,
        "throttle_ms": 0,
    }
    assert told["left_off"] == 1001 - 3


def test_the_reply_is_bounded() -> None:
    told = asyncio.run(ask(usages_max=10**9))
    assert (len(told["usages"]), told["left_off"]) == (200, 801)


def test_what_is_no_number_closes_the_connection() -> None:
    with pytest.raises(CloseConnection):
        asyncio.run(ask(usages_max="all"))
