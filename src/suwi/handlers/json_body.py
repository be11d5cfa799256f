"""Reads the JSON bodies of Suwi's own APIs.

A body is parsed on the event loop, before the handler awaits, so its size is limited.
"""

import json
from typing import Any

from suwi.net.answers import CloseConnection
from suwi.net.dispatch import Request
from suwi.wire.versions import APIS, CLIENT_JSON_BYTES_MAX, SMALL_REQUEST_BYTES_MAX


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
