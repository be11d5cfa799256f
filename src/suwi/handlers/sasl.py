"""SaslHandshake v0-v1 and SaslAuthenticate v0-v2: a mechanism is chosen, and its steps.

SaslHandshake v0: tokens follow without a header. SaslAuthenticate v1: session lifetime (KIP-368).
"""

import asyncio

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import reply
from suwi.model.errors import IllegalSaslState, UnsupportedSaslMechanism
from suwi.net.answers import Answer, Reply
from suwi.net.dispatch import Request
from suwi.net.sasl_gate import answer_and_close, note_refusal
from suwi.security.mechanism import Authenticated, Refused

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
        note_refusal(request.connection, session, error)
        return answer_and_close(
            request.connection, reply(request, {**fields, "error_code": error.code})
        )
    return reply(request, fields)


def sasl_authenticate(request: Request) -> Answer:
    connection = request.connection
    session = connection.sasl
    if session is None:
        return _failure(
            request, ErrorCode.illegal_sasl_state, "SASL is not enabled on this listener"
        )
    try:
        step = session.respond(request.message.auth_bytes, asyncio.get_running_loop().time())
    except IllegalSaslState as error:
        return _failure(request, error.code, str(error))
    except Refused as error:
        note_refusal(connection, session, error)
        failure = _failure(request, ErrorCode.sasl_authentication_failed, str(error))
        return answer_and_close(connection, failure)
    lifetime_ms = 0
    if isinstance(step, Authenticated):
        assert session.principal is not None
        connection.authenticated(session.principal, is_peer=session.is_peer)
        lifetime_ms = session.lifetime_ms
    else:
        note_refusal(connection, session, step.refused)
    return reply(
        request,
        {
            "error_code": ErrorCode.none,
            "error_message": "",  # as Kafka does
            "auth_bytes": step.token,
            "session_lifetime": lifetime_ms,
        },
    )


def _failure(request: Request, code: ErrorCode, message: str) -> Reply:
    fields = {"error_code": code, "error_message": message, "auth_bytes": b""}
    return reply(request, fields)
