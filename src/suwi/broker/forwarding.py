"""Requests that only the controller can carry out, on a broker that is not it.

`Forwarding.wrap` gives such handlers a way to the controller: the request goes there in an
envelope, as it came and with who sent it, and the answer comes back as it is. So a client may ask
any broker. `create_topic` is for topics that are made because somebody asked about them.
Invariant: nothing is forwarded twice: what was forwarded is carried out here or refused.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.broker.controller_election import ControllerElection
from suwi.client.connection import PeerConnection
from suwi.client.errors import error_from
from suwi.controller.topic_control import NewTopic
from suwi.handlers.envelope import Envelope
from suwi.metadata.follower import MetadataFollower
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

_PATIENCE_S = 5.0
"""For how long a controller is looked for."""
_ANSWER_S = 30.0
_PAUSE_S = 0.05
_SEE_S = 1.0
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
        self._to: NodeId | None = None
        self._dialling = asyncio.Lock()

    def wrap(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers, and the controller's where only it can carry a request out."""
        forwarded = {key: each for key, each in handlers.items() if APIS[key].is_forwarded}
        wrapped = {key: self._wrap(handler) for key, handler in forwarded.items()}
        return {**handlers, **wrapped, ApiKey.ENVELOPE: Envelope(forwarded)}

    def _wrap(self, handler: Handler) -> Handler:
        def handle(request: Request) -> Answer | Coroutine[Any, Any, Reply | NoReply]:
            if self._controller_election.is_active_controller:
                return handler(request)
            return Exclusive(self._forward(handler, request, bytes(request.body)))

        return handle

    async def create_topic(self, new: NewTopic, request: Request) -> None:
        """Because of that request. Raises a `BrokerError`."""
        if self._controller_election.is_active_controller:
            await self._controller_election.topics.create(new)
            return
        asked = {
            "name": new.name,
            "num_partitions": new.partitions,
            "replication_factor": new.replication_factor,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in new.configs.items()],
        }
        fields = {"topics": [asked], "timeout": 30_000, "validate_only": False}
        body = encode_request(ApiKey.CREATE_TOPICS, _CREATE_VERSION, fields)
        answer = await self._ask(ApiKey.CREATE_TOPICS, _CREATE_VERSION, body, request)
        if answer is None:
            raise NotController("the controller cannot be reached")
        (created,) = read_response(ApiKey.CREATE_TOPICS, _CREATE_VERSION, answer).topics
        if created.error_code not in (ErrorCode.none, TopicAlreadyExists.code):
            raise error_from(created.error_code, created.error_message)
        await self._see()

    async def stop(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    async def _forward(self, handler: Handler, request: Request, body: bytes) -> Reply | NoReply:
        answer = await self._ask(request.api_key, request.version, body, request)
        if answer is not None:
            await self._see()
            return Reply([answer])
        # By now this may be the controller; else the handler says in its own way that it is not.
        local = handler(request)
        if inspect.iscoroutine(local):
            return await local  # type: ignore[no-any-return]
        assert isinstance(local, Reply)
        return local

    async def _ask(
        self, api_key: int, version: int, body: bytes, request: Request
    ) -> memoryview | None:
        """The controller's answer; None where there is none, or this broker has become it.

        `request` says for whom it is asked.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _PATIENCE_S
        while not self._controller_election.is_active_controller:
            try:
                async with asyncio.timeout_at(end_s):
                    connection = await self._connect()
            except OSError as error:
                if loop.time() + _PAUSE_S >= end_s:
                    log.warning("controller not reached", extra={"reason": str(error)})
                    return None
                await asyncio.sleep(_PAUSE_S)
                continue
            try:
                async with asyncio.timeout(_ANSWER_S):
                    return await _send(connection, api_key, version, body, request)
            except (OSError, MalformedResponse, BrokerError) as error:
                # It may have been carried out: that is for the client to find out.
                connection.abort()
                log.warning("forwarded request lost", extra={"reason": str(error)})
                return None
        return None

    async def _connect(self) -> PeerConnection:
        async with self._dialling:
            controller = self._follower.image.controller
            if self._connection is None or not self._connection.is_open or self._to != controller:
                if self._connection is not None:
                    self._connection.abort()
                self._to = controller
                self._connection = await self._peers.connect_to_controller()
            return self._connection

    async def _see(self) -> None:
        """What the client has been told is done should show here too, if it can."""
        with contextlib.suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(_SEE_S):
                await self._follower.synced()


async def _send(
    connection: PeerConnection, api_key: int, version: int, body: bytes, request: Request
) -> memoryview:
    """Raises OSError, MalformedResponse, BrokerError."""
    header = request_header(api_key, version, request.correlation_id, request.client_id)
    answer = await connection.call(
        ApiKey.ENVELOPE,
        _ENVELOPE_VERSION,
        {
            "request_data": header + body,
            "request_principal": str(request.principal).encode(),
            "client_host_address": request.client_host.encode(),
        },
    )
    if answer.error_code != ErrorCode.none or answer.response_data is None:
        raise error_from(answer.error_code)
    data = memoryview(answer.response_data)
    return data[read_response_header(api_key, version, data)[1] :]
