"""DescribeQuotaUsage v0, Suwi's own and never advertised: how close clients are to their quotas.

Request and response are JSON: `{"usages_max": 100}`, optional, and `{"usages": [{"user": "alice",
"client_id": null, "ip": null, "key": "producer_byte_rate", "limit": 1000000.0, "used": 900000.0,
"throttle_ms": 0}, …], "left_off": 0}`, those that are closest to their limits first. `used` is what
was used per second of late, on this broker; clients that have used next to nothing are left out.
"""

import asyncio
import heapq
import math
from typing import Any, Final

from suwi.env.slices import Pace
from suwi.handlers.json_body import long_json_reply, read_json
from suwi.net.answers import Answer, CloseConnection, Exclusive, Reply
from suwi.net.client_quota_manager import ClientQuotaManager, QuotaUsage
from suwi.net.dispatch import Request
from suwi.security.client_quotas import CLIENT_ID, IP, USER

_USAGES_MAX: Final = 200
_SHARE_MIN: Final = 0.0001
_STEPS: Final = 5  # of a microsecond, for each


def describe_quota_usage(quotas: ClientQuotaManager, request: Request) -> Answer:
    usages_max = read_json(request).get("usages_max", _USAGES_MAX)
    if type(usages_max) is not int:
        raise CloseConnection("DescribeQuotaUsage: usages_max must be a number")
    return Exclusive(_answer(quotas, max(1, min(usages_max, _USAGES_MAX))))


async def _answer(quotas: ClientQuotaManager, usages_max: int) -> Reply:
    pace, found = Pace(), list[QuotaUsage]()
    for usage in quotas.usages():
        if usage.throttle_s > 0 or _share(usage) >= _SHARE_MIN:
            found.append(usage)
        if pace.is_over(_STEPS):
            await asyncio.sleep(0)
    closest = heapq.nlargest(usages_max, found, key=_share)
    left_off = len(found) - len(closest)
    return await long_json_reply({"usages": map(_fields, closest)}, left_off=left_off)


def _share(usage: QuotaUsage) -> float:
    return usage.used / usage.limit


def _fields(usage: QuotaUsage) -> dict[str, Any]:
    names = dict(usage.entity)
    return {
        "user": names.get(USER),
        "client_id": names.get(CLIENT_ID),
        "ip": names.get(IP),
        "key": usage.key,
        "limit": usage.limit,
        "used": usage.used,
        "throttle_ms": math.ceil(usage.throttle_s * 1000),
    }
