"""Forwards requests that only the active controller can serve, so that clients may use any broker.

`Forwarding.wrap` wraps the handlers of such APIs: the request is sent to the controller in an
Envelope request, unchanged and with its principal, and the response is returned unchanged.
`create_topic` is for automatic topic creation.
Invariant: a request is forwarded at most once: the receiver of an Envelope serves or refuses it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.client.errors import error_from
from suwi.controller.controller_election import ControllerElection
from suwi.handlers.audit_log import AuditLog
from suwi.handlers.envelope import Envelope
from suwi.metadata.image import NewTopic
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import Unavailable
from suwi.model.errors import BrokerError, NotController, TopicAlreadyExists
from suwi.model.ids import NodeId
from suwi.model.topic_names import INTERNAL_TOPICS
from suwi.net.answers import Answer, Exclusive, NoReply, Reply, reply_of
from suwi.net.client_quota_manager import ClientQuotaManager, mutating
from suwi.net.dispatch import Handler, Request
from suwi.replica.peers import Peers
from suwi.security.principal import BROKER
from suwi.wire.codec import encode_request, read_response
from suwi.wire.errors import MalformedResponse
from suwi.wire.headers import read_response_header, request_header
from suwi.wire.throttle_time import throttle_time_of
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


@dataclass(eq=False)
class Forwarding:
    _controller_election: ControllerElection
    _peers: Peers
    _follower: MetadataFollower
    _quotas: ClientQuotaManager
    _audit: AuditLog | None = None
    _connection: PeerConnection | None = None
    _controller: NodeId | None = None
    _connecting: asyncio.Lock = field(default_factory=asyncio.Lock)

    def wrap(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers, with those that need the controller wrapped, and one for Envelope."""
        forwarded = {key: each for key, each in handlers.items() if APIS[key].is_forwarded}
        wrapped = {key: self._wrap(handler) for key, handler in forwarded.items()}
        election = self._controller_election
        envelope = Envelope(forwarded, lambda: election.is_active_controller, self._quotas)
        return {**handlers, **wrapped, ApiKey.ENVELOPE: envelope}

    def _wrap(self, handler: Handler) -> Handler:
        def handle(request: Request) -> Answer | Coroutine[Any, Any, Reply | NoReply]:
            if self._controller_election.is_active_controller:
                return handler(request)
            return Exclusive(self._forward(handler, request, bytes(request.body)))

        return handle

    async def create_topic(self, new: NewTopic, request: Request) -> None:
        """Create a topic on behalf of `request`. Raises a `BrokerError`."""
        is_own = new.name in INTERNAL_TOPICS
        if self._controller_election.is_active_controller:
            quota = None if is_own else request.quota
            with mutating(quota, lambda: new.partitions, is_strict=True):
                await self._controller_election.active.topics.create(new)
            if self._audit is not None:
                self._audit.topic_created(
                    request, new.name, BROKER if is_own else request.client.principal
                )
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
        # A client that may find a coordinator needs no right to create the topic of it, nor quota.
        response = await self._send_to_controller(
            ApiKey.CREATE_TOPICS, _CREATE_VERSION, body, request, is_own=is_own
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
        return await reply_of(handler(request))

    async def _send_to_controller(
        self, api_key: int, version: int, body: bytes, request: Request, *, is_own: bool = False
    ) -> memoryview | None:
        """The controller's response; None if there is none, or this broker became the controller.

        `request` gives the principal and the client's address; `is_own`: of the broker itself.
        """
        header = request_header(api_key, version, request.correlation_id, request.client_id)
        envelope = {
            "request_data": header + body,
            "request_principal": str(BROKER if is_own else request.client.principal).encode(),
            "client_host_address": request.client.host.encode(),
        }
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
                        told = await connection.call(ApiKey.ENVELOPE, _ENVELOPE_VERSION, envelope)
                    if told.error_code != ErrorCode.none or told.response_data is None:
                        raise error_from(told.error_code)
                    data = memoryview(told.response_data)
                    response = data[read_response_header(api_key, version, data)[1] :]
                    _throttle(request, throttle_time_of(api_key, version, response))
                    return response
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


def _throttle(request: Request, throttle_ms: int) -> None:
    """The controller has counted what the client did; this broker throttles the client."""
    if throttle_ms:
        request.connection.mute(throttle_ms)
        if request.quota is not None:
            request.quota.throttle_ms = throttle_ms


def _response_s_max(request: Request) -> float:
    timeout = getattr(request.message, "timeout", None)
    asked_s = 0.0 if timeout is None else timeout.total_seconds()
    return max(_RESPONSE_S_MAX, asked_s) + _RESPONSE_MARGIN_S
