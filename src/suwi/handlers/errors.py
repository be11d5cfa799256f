"""Encodes a response of an API, and the error of what a request asked for."""

from collections.abc import Awaitable
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.model.errors import BrokerError, error_of
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.wire.codec import encode_response


def reply(request: Request, fields: dict[str, Any]) -> Reply:
    """Encode a response; `fields` has those of all versions (`wire.codec.encode_response`)."""
    return Reply([encode_response(request.api_key, request.version, fields)])


def error_fields(error: Exception | None) -> dict[str, Any]:
    code, message = (ErrorCode.none, None) if error is None else error_of(error)
    return {"error_code": code, "error_message": message}


async def outcome(change: Awaitable[object]) -> dict[str, Any]:
    """The error fields of a change, after it was made or refused with a `BrokerError`."""
    try:
        await change
    except BrokerError as error:
        return error_fields(error)
    return error_fields(None)
