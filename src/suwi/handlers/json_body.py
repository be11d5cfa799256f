"""The JSON bodies of Suwi's own APIs.

A request is parsed on the event loop, before the handler awaits, so its size is limited. A long
array of a response is encoded in slices.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from suwi.net.answers import CloseConnection, Reply
from suwi.net.dispatch import Request
from suwi.wire.versions import APIS, CLIENT_JSON_BYTES_MAX, SMALL_REQUEST_BYTES_MAX

_SLICE_S: Final = 0.002


def read_json(request: Request) -> dict[str, Any]:
    """Raises CloseConnection."""
    name, body = APIS[request.api_key].name, request.body
    bytes_max = SMALL_REQUEST_BYTES_MAX if request.client.is_peer else CLIENT_JSON_BYTES_MAX
    if len(body) > bytes_max:
        raise CloseConnection(f"a request of {len(body)} bytes is too large for {name}")
    try:
        value = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise CloseConnection(f"{name}: {error}") from error
    if not isinstance(value, dict):
        raise CloseConnection(f"{name}: the body is not a JSON object")
    return value


def json_reply(fields: Mapping[str, Any]) -> Reply:
    return Reply([json.dumps(fields).encode()])


async def long_json_reply(arrays: Mapping[str, Iterable[Any]], **fields: Any) -> Reply:
    """With long arrays. Other tasks run after each slice, and may change what the next values are
    made of."""
    loop = asyncio.get_running_loop()
    parts = [json.dumps(fields)[1:-1]] if fields else []
    slice_ends_s = loop.time() + _SLICE_S
    for name, values in arrays.items():
        texts: list[str] = []
        for value in values:
            texts.append(json.dumps(value))
            if loop.time() > slice_ends_s:
                await asyncio.sleep(0)
                slice_ends_s = loop.time() + _SLICE_S
        parts.append(f"{json.dumps(name)}: [{', '.join(texts)}]")
    return Reply([f"{{{', '.join(parts)}}}".encode()])
