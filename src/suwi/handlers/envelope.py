"""Envelope v0, between brokers (KIP-590): a client's request that another broker has forwarded.

The request inside is carried out as if its client had sent it here: under its principal, client id
and host. The principal is `User:alice` in UTF-8, and so is the host.
"""

import inspect
from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import reply
from suwi.net.answers import Answer, CloseConnection, Exclusive, Later, Reply
from suwi.net.client_identity import ClientIdentity
from suwi.net.dispatch import Handler, Request
from suwi.security.principal import parse_principal
from suwi.wire.codec import read_request
from suwi.wire.headers import read_request_header, response_header
from suwi.wire.versions import APIS


class Envelope:
    def __init__(self, handlers: Mapping[int, Handler]) -> None:
        """Of the requests that may be forwarded; they are not forwarded again."""
        self._handlers = handlers

    def __call__(self, request: Request) -> Answer:
        inner = self._open(request)
        return Exclusive(self._serve(inner, request))

    def _open(self, request: Request) -> Request:
        """Raises CloseConnection, MalformedRequest."""
        frame = memoryview(request.message.request_data)
        api_key, version, correlation_id, client_id, body_at = read_request_header(frame)
        if api_key not in self._handlers or not APIS[api_key].serves(version):
            raise CloseConnection(f"version {version} of API {api_key} in an envelope")
        try:
            client = ClientIdentity(
                request.listener,
                request.message.client_host_address.decode(),
                parse_principal((request.message.request_principal or b"").decode()),
            )
        except ValueError as error:
            raise CloseConnection(f"an envelope from nobody: {error}") from error
        message = read_request(api_key, version, frame, body_at)
        return Request(
            api_key,
            version,
            correlation_id,
            client_id,
            frame[body_at:],
            message,
            request.connection,
            client,
        )

    async def _serve(self, inner: Request, request: Request) -> Reply:
        answer = self._handlers[inner.api_key](inner)
        if isinstance(answer, Later | Exclusive):
            answer = await answer.reply
        elif inspect.iscoroutine(answer):
            answer = await answer
        assert isinstance(answer, Reply)
        header = response_header(inner.api_key, inner.version, inner.correlation_id)
        # What is forwarded is answered from memory.
        data = b"".join([header, *answer.chunks])  # type: ignore[list-item]
        return reply(request, {"response_data": data, "error_code": ErrorCode.none})
