"""SaslAuthenticate v0-v2. One step of a SASL mechanism. v1: session lifetime (KIP-368)."""

import asyncio

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import reply
from suwi.model.errors import IllegalSaslState
from suwi.net.answers import Answer, Reply
from suwi.net.dispatch import Request
from suwi.net.sasl_gate import answer_and_close, refused
from suwi.security.mechanism import Authenticated, Refused


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
        refused(connection, session, error)
        failure = _failure(request, ErrorCode.sasl_authentication_failed, str(error))
        return answer_and_close(connection, failure)
    lifetime_ms = 0
    if isinstance(step, Authenticated):
        assert session.principal is not None
        connection.authenticated(session.principal, is_peer=session.is_peer)
        lifetime_ms = session.lifetime_ms
    return reply(
        request,
        {
            "error_code": ErrorCode.none,
            "error_message": None,
            "auth_bytes": step.token,
            "session_lifetime": lifetime_ms,
        },
    )


def _failure(request: Request, code: ErrorCode, message: str) -> Reply:
    fields = {"error_code": code, "error_message": message, "auth_bytes": b""}
    return reply(request, fields)
