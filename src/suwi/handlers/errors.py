"""Encodes a response of an API."""

from typing import Any

from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.wire.codec import encode_response


def reply(request: Request, fields: dict[str, Any]) -> Reply:
    """Encode a response; `fields` has those of all versions (`wire.codec.encode_response`)."""
    if request.throttle_ms and "throttle_time" in fields:
        fields = {**fields, "throttle_time": request.throttle_ms}
    return Reply([encode_response(request.api_key, request.version, fields)])
