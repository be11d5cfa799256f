"""SaslHandshake v0-v1. The client chooses a mechanism. v0: tokens follow without a header."""

import asyncio

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import reply
from suwi.model.errors import IllegalSaslState, UnsupportedSaslMechanism
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.net.sasl_gate import answer_and_close, refused

_REQUESTS_FROM = 1


def sasl_handshake(request: Request) -> Answer:
    session = request.connection.sasl
    if session is None:  # SASL is not enabled on this listener
        fields = {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": []}
        return reply(request, fields)
    fields = {"error_code": ErrorCode.none, "mechanisms": list(session.rules.mechanisms)}
    try:
        session.choose(
            request.message.mechanism,
            asyncio.get_running_loop().time(),
            bare_tokens=request.version < _REQUESTS_FROM,
        )
    except IllegalSaslState as error:
        return reply(request, {"error_code": error.code, "mechanisms": []})
    except UnsupportedSaslMechanism as error:
        refused(request.connection, session, error)
        return answer_and_close(
            request.connection, reply(request, {**fields, "error_code": error.code})
        )
    return reply(request, fields)
