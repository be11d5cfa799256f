"""Envelope v0, between brokers (KIP-590): a client's request that another broker forwards.

The inner request is handled as if its client had sent it to this broker: with the client's
principal, client id and host. Principal (`User:alice`) and host are UTF-8; with the principal
`BROKER` it is the forwarding broker's own request. A broker that is not the active controller, or
not yet, answers NOT_CONTROLLER to the forwarding broker, which tries again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import reply
from suwi.net.answers import Answer, CloseConnection, Exclusive, Reply, reply_of
from suwi.net.client_quota_manager import ClientQuotaManager, stamped
from suwi.net.connection import ClientIdentity
from suwi.net.dispatch import Handler, Request, decode
from suwi.security.principal import BROKER, parse_principal
from suwi.wire.errors import MalformedRequest
from suwi.wire.headers import read_request_header, response_header
from suwi.wire.versions import APIS


@dataclass(eq=False)
class Envelope:
    _handlers: Mapping[int, Handler]
    """Those of the forwardable requests; these do not forward again."""
    _is_active: Callable[[], bool]
    """Whether this broker is the active controller."""
    _quotas: ClientQuotaManager

    def __call__(self, request: Request) -> Answer:
        return Exclusive(self._serve(self._open(request), request))

    def _open(self, request: Request) -> Request:
        """The inner request, not decoded. Raises CloseConnection, MalformedRequest."""
        frame = memoryview(request.message.request_data)
        api_key, version, correlation_id, client_id, body_at = read_request_header(frame)
        if api_key not in self._handlers or not APIS[api_key].serves(version):
            raise CloseConnection(f"API {api_key} v{version} cannot be forwarded in an envelope")
        try:
            client = ClientIdentity(
                request.client.listener,
                request.message.client_host_address.decode(),
                parse_principal((request.message.request_principal or b"").decode()),
            )
            if client.principal == BROKER:
                client = client._replace(is_peer=True)
        except ValueError as error:
            raise CloseConnection(f"invalid client in an envelope: {error}") from error
        return Request(
            api_key,
            version,
            correlation_id,
            client_id,
            frame[body_at:],
            None,
            request.connection,
            client,
            request.authorizer,
            self._quotas.of(client, client_id, api_key),
        )

    async def _serve(self, inner: Request, request: Request) -> Reply:
        try:
            inner.message = await decode(inner)
        except MalformedRequest as error:
            raise CloseConnection(str(error)) from error
        if not self._is_active():
            return reply(request, {"response_data": None, "error_code": ErrorCode.not_controller})
        answer = await reply_of(self._handlers[inner.api_key](inner))
        assert isinstance(answer, Reply)
        if inner.quota is not None:  # The broker that forwarded the request mutes the client.
            answer = stamped(answer, (inner.api_key, inner.version), inner.quota.throttle_ms)
        header = response_header(inner.api_key, inner.version, inner.correlation_id)
        # Responses of forwardable requests have no chunks in files.
        data = b"".join([header, *answer.chunks])  # type: ignore[list-item]
        return reply(request, {"response_data": data, "error_code": ErrorCode.none})
