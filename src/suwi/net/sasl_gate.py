"""SASL listeners: no request is served before the peer has authenticated.

A `SaslGate` wraps the dispatch function of a listener. The authentication itself is in
`security.sasl_session`; SaslHandshake and SaslAuthenticate have handlers like other requests.
Invariant: without a valid authentication only ApiVersions and the SASL requests reach a handler.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Final

from suwi.model.errors import IllegalSaslState
from suwi.net.answers import Answer, CloseConnection, Exclusive, Reply
from suwi.net.connection import Connection, Dispatch
from suwi.security.mechanism import Challenge, Refused
from suwi.security.principal import ANONYMOUS
from suwi.security.sasl_session import SaslRules, SaslSession
from suwi.wire.versions import ApiKey

_UNAUTHENTICATED_APIS: Final = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
)
_REAUTHENTICATION_APIS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
_CLOSE_DELAY_S: Final = 0.05
_NO_MECHANISM: Final = "unknown"
_read_api_key = struct.Struct(">h").unpack_from


class SaslGate:
    def __init__(self, dispatch: Dispatch, rules: SaslRules, now_s: Callable[[], float]) -> None:
        """`now_s` is the event loop's clock."""
        self._dispatch = dispatch
        self._rules = rules
        self._now_s = now_s

    def __call__(self, connection: Connection, frame: memoryview) -> tuple[bytes, Answer]:
        session = connection.sasl
        if session is None:
            session = connection.sasl = SaslSession(self._rules)
        if session.open_until_s <= self._now_s():
            if session.expects_bare_token:
                return b"", self._take_bare_token(connection, session, bytes(frame))
            self._check_allowed(session, frame)
        return self._dispatch(connection, frame)

    def _check_allowed(self, session: SaslSession, frame: memoryview) -> None:
        if session.is_refused:
            raise CloseConnection("request after a failed authentication")
        api_key = _read_api_key(frame)[0] if len(frame) >= 2 else -1
        if session.principal is None:
            if api_key not in _UNAUTHENTICATED_APIS:
                raise CloseConnection(f"request to API {api_key} before authentication")
        elif api_key not in _REAUTHENTICATION_APIS:
            raise CloseConnection("the authentication has expired")

    def _take_bare_token(
        self, connection: Connection, session: SaslSession, token: bytes
    ) -> Answer:
        try:
            step = session.respond(token, self._now_s())
        except (Refused, IllegalSaslState) as error:
            note_refusal(connection, session, error)
            return answer_and_close(connection, None)
        if isinstance(step, Challenge):
            note_refusal(connection, session, step.refused)
        elif session.principal is not None:
            connection.authenticated(session.principal, is_peer=session.is_peer)
        return Reply([step.token])


def note_refusal(connection: Connection, session: SaslSession, error: Exception | None) -> None:
    """Count and log a failed authentication once, with the user name if the mechanism sends one.
    None: it has not failed."""
    if error is None:
        return
    user, reason = "", str(error)
    if isinstance(error, Refused):
        if error.is_noted:
            return
        error.is_noted = True
        user, reason = error.user, error.reason
    mechanism, principal = session.mechanism or _NO_MECHANISM, session.principal or ANONYMOUS
    connection.authentication_failed(mechanism, reason, user, principal)


def answer_and_close(connection: Connection, reply: Reply | None) -> Exclusive:
    """Reply after `connection.failed.authentication.delay.ms`, which slows down guessing, and
    close. None: close without a reply."""
    delay_ms = connection.sasl.rules.failure_delay_ms if connection.sasl is not None else 0

    async def answer() -> Reply:
        await asyncio.sleep(delay_ms / 1000)
        if reply is None:
            raise CloseConnection("authentication failed")
        # Some clients ignore a reply that arrives together with the end of the stream.
        asyncio.get_running_loop().call_later(_CLOSE_DELAY_S, connection.stop)
        return reply

    return Exclusive(answer())
