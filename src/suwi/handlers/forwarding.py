"""Forwards requests that only the active controller can serve, so that clients may use any broker.

`Forwarding.wrap` wraps the handlers of such APIs: the request is sent to the controller in an
Envelope request, unchanged and with its principal, and the response is returned unchanged.
`create_topic` is for automatic topic creation.
Invariant: a request is forwarded at most once: the receiver of an Envelope serves or refuses it.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.client.errors import error_from
from suwi.controller.controller_election import ControllerElection
from suwi.handlers.envelope import Envelope
from suwi.metadata.image import NewTopic
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import Unavailable
from suwi.model.errors import BrokerError, NotController, TopicAlreadyExists
from suwi.model.ids import NodeId
from suwi.net.answers import Answer, Exclusive, NoReply, Reply
from suwi.net.dispatch import Handler, Request
from suwi.replica.peers import Peers
from suwi.wire.codec import encode_request, read_response
from suwi.wire.errors import MalformedResponse
from suwi.wire.headers import read_response_header, request_header
from suwi.wire.versions import APIS, ApiKey

log = logging.getLogger(__name__)

_CONNECT_S_MAX = 5.0
"""For how long the broker tries to reach a controller."""
_RESPONSE_S_MAX = 30.0
"""Or the client's own limit, if that is longer. The controller answers first, hence the margin."""
_RESPONSE_MARGIN_S = 5.0
_RETRY_S = 0.05
_CATCH_UP_S_MAX = 1.0
_CREATE_VERSION = APIS[ApiKey.CREATE_TOPICS].max_version
_ENVELOPE_VERSION = APIS[ApiKey.ENVELOPE].max_version


class Forwarding:
    def __init__(
        self, controller_election: ControllerElection, peers: Peers, follower: MetadataFollower
    ) -> None:
        self._controller_election = controller_election
        self._peers = peers
        self._follower = follower
        self._connection: PeerConnection | None = None
        self._controller: NodeId | None = None
        self._connecting = asyncio.Lock()

    def wrap(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers, with those that need the controller wrapped, and one for Envelope."""
        forwarded = {key: each for key, each in handlers.items() if APIS[key].is_forwarded}
        wrapped = {key: self._wrap(handler) for key, handler in forwarded.items()}
        envelope = Envelope(forwarded, lambda: self._controller_election.is_active_controller)
        return {**handlers, **wrapped, ApiKey.ENVELOPE: envelope}

    def _wrap(self, handler: Handler) -> Handler:
        def handle(request: Request) -> Answer | Coroutine[Any, Any, Reply | NoReply]:
            if self._controller_election.is_active_controller:
                return handler(request)
            return Exclusive(self._forward(handler, request, bytes(request.body)))

        return handle

    async def create_topic(self, new: NewTopic, request: Request) -> None:
        """Create a topic on behalf of `request`. Raises a `BrokerError`."""
        if self._controller_election.is_active_controller:
            await self._controller_election.active.topics.create(new)
            return
        topic = {
            "name": new.name,
            "num_partitions": new.partitions,
            "replication_factor": new.replication_factor,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in new.configs.items()],
        }
        fields = {"topics": [topic], "timeout": 30_000, "validate_only": False}
        body = encode_request(ApiKey.CREATE_TOPICS, _CREATE_VERSION, fields)
        response = await self._send_to_controller(
            ApiKey.CREATE_TOPICS, _CREATE_VERSION, body, request
        )
        if response is None:
            raise NotController("the controller cannot be reached")
        (created,) = read_response(ApiKey.CREATE_TOPICS, _CREATE_VERSION, response).topics
        if created.error_code not in (ErrorCode.none, TopicAlreadyExists.code):
            raise error_from(created.error_code, created.error_message)
        await self._catch_up()

    async def stop(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    async def _forward(self, handler: Handler, request: Request, body: bytes) -> Reply | NoReply:
        response = await self._send_to_controller(request.api_key, request.version, body, request)
        if response is not None:
            await self._catch_up()
            return Reply([response])
        # This broker may be the controller by now; otherwise the handler returns NOT_CONTROLLER in
        # the form of its API.
        local = handler(request)
        if inspect.iscoroutine(local):
            return await local  # type: ignore[no-any-return]
        assert isinstance(local, Reply)
        return local

    async def _send_to_controller(
        self, api_key: int, version: int, body: bytes, request: Request
    ) -> memoryview | None:
        """The controller's response; None if there is none, or this broker became the controller.

        `request` gives the principal and the client's address.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _CONNECT_S_MAX
        while not self._controller_election.is_active_controller:
            try:
                async with asyncio.timeout_at(end_s):
                    connection = await self._connect()
            except OSError as error:
                problem: Exception = error
            else:
                try:
                    async with asyncio.timeout(_response_s_max(request)):
                        return await _send(connection, api_key, version, body, request)
                except NotController as error:
                    problem = error  # Elected, but not active yet: it has executed nothing.
                except (OSError, MalformedResponse, BrokerError) as error:
                    # The controller may have executed the request, so it must not be sent again
                    # here: the client decides.
                    connection.abort()
                    log.warning("forwarded request failed", extra={"reason": str(error)})
                    return None
            if loop.time() + _RETRY_S >= end_s:
                log.warning("controller unreachable", extra={"reason": str(problem)})
                return None
            await asyncio.sleep(_RETRY_S)
        return None

    async def _connect(self) -> PeerConnection:
        async with self._connecting:
            controller = self._follower.image.controller
            if (
                self._connection is None
                or not self._connection.is_open
                or self._controller != controller
            ):
                if self._connection is not None:
                    self._connection.abort()
                self._controller = controller
                self._connection = await self._peers.connect_to_controller()
            return self._connection

    async def _catch_up(self) -> None:
        """Let the image catch up, so that the client finds its change here too; best effort."""
        with contextlib.suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(_CATCH_UP_S_MAX):
                await self._follower.synced()


def _response_s_max(request: Request) -> float:
    timeout = getattr(request.message, "timeout", None)
    asked_s = 0.0 if timeout is None else timeout.total_seconds()
    return max(_RESPONSE_S_MAX, asked_s) + _RESPONSE_MARGIN_S


async def _send(
    connection: PeerConnection, api_key: int, version: int, body: bytes, request: Request
) -> memoryview:
    """Raises OSError, MalformedResponse, BrokerError."""
    header = request_header(api_key, version, request.correlation_id, request.client_id)
    response = await connection.call(
        ApiKey.ENVELOPE,
        _ENVELOPE_VERSION,
        {
            "request_data": header + body,
            "request_principal": str(request.principal).encode(),
            "client_host_address": request.client_host.encode(),
        },
    )
    if response.error_code != ErrorCode.none or response.response_data is None:
        raise error_from(response.error_code)
    data = memoryview(response.response_data)
    return data[read_response_header(api_key, version, data)[1] :]
