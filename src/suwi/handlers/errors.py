"""Maps exceptions to the error codes and messages of responses."""

import logging
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.model.errors import BrokerError
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.wire.codec import encode_response

log = logging.getLogger(__name__)

# A message often quotes the request, which may be long, and one request may cause many errors.
_TEXT_CHARACTERS_MAX = 500


def error_of(error: Exception) -> tuple[ErrorCode, str | None]:
    """The code and message of an error. One without a code is a bug of the broker and is logged."""
    if isinstance(error, BrokerError):
        return error.code, shortened(error.message)
    log.error("unexpected error while handling a request", exc_info=error)
    return ErrorCode.unknown_server_error, None


def shortened(message: str | None) -> str | None:
    """A message that is short enough for any response."""
    if message is not None and len(message) > _TEXT_CHARACTERS_MAX:
        return f"{message[:_TEXT_CHARACTERS_MAX]} ..."
    return message


def reply(request: Request, fields: dict[str, Any]) -> Reply:
    """Encode a response; `fields` has those of all versions (`wire.codec.encode_response`)."""
    if request.throttle_ms and "throttle_time" in fields:
        fields = {**fields, "throttle_time": request.throttle_ms}
    return Reply([encode_response(request.api_key, request.version, fields)])
