"""Dispatch of a frame to its handler: request header, version check, broker-only check, body.

A connection calls a `Dispatcher` for each frame. Handlers are functions of a `Request`; the answer
of a coroutine function is `Exclusive`. A large body is decoded in slices, from a copy, while the
connection waits, when `large_requests` has room for it. The first request of a version waits until
a thread has loaded its schema.
Invariants: a frame ends in a handler call, an error response or `CloseConnection`, never in another
exception of the decoder; broker-only APIs are called only by authenticated brokers.
"""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from suwi.net.answers import (
    Answer,
    CloseConnection,
    Exclusive,
    Later,
    NoReply,
    Promise,
    Reply,
)
from suwi.net.buffer_pool import KeptBytes
from suwi.net.client_quota_manager import (
    BEFORE_LOG_IN,
    PRODUCE,
    ClientQuotaManager,
    RequestQuota,
)
from suwi.net.connection import ClientBuckets, ClientIdentity, Connection
from suwi.net.large_requests import items_of
from suwi.security.acls import CLUSTER_NAME, Operation, ResourceType
from suwi.security.authorizer import Authorizer
from suwi.wire.codec import (
    LARGE_BYTES,
    encode_refusal,
    is_read_in_slices,
    load,
    read_request,
    reading_request,
    uses_schema,
)
from suwi.wire.errors import MalformedRequest, RequestTooLarge
from suwi.wire.headers import read_request_header
from suwi.wire.versions import APIS, ApiKey, Audience

log = logging.getLogger(__name__)

_UNSUPPORTED_VERSION: Final = 35
_CLUSTER_AUTHORIZATION_FAILED: Final = 31
_INVALID_REQUEST: Final = 42
_FOR_BROKERS: Final = "for brokers only"
_CORRELATION_ID: Final = struct.Struct(">i")
_ANSWERS: Final = (Reply, Later, Exclusive, NoReply)  # not a union, which is built on each call


@dataclass(slots=True, eq=False)
class Request:
    """One request as seen by its handler. Includes what Kafka has in RequestContext.

    Of a forwarded request, `client` is the original client and `connection` that of the broker
    that forwarded it.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: memoryview  # writable receive memory, valid only until the handler returns
    # kio's entity, for Fetch and OffsetCommit our own; None if the handler decodes the body.
    message: Any
    connection: Connection
    client: ClientIdentity
    authorizer: Authorizer | None = None  # None: every client may do everything
    quotas: ClientBuckets | None = None  # None: its client has no quotas
    used_quota: RequestQuota | None = None  # None: nothing has asked for `quota` yet
    was_refused: bool = False  # something that it named, which was noted

    @property
    def quota(self) -> RequestQuota | None:
        """What it uses of its client's quotas; None if there are none."""
        if self.used_quota is None and self.quotas is not None:
            api = self.api_key, self.version
            self.used_quota = RequestQuota(self.quotas, self.connection, api)
        return self.used_quota

    def may(self, operation: Operation, kind: ResourceType, name: str | None) -> bool:
        """Whether its client may do this; see `Authorizer.may`. Brokers may do everything."""
        authorizer, client = self.authorizer, self.client
        if authorizer is None or client.is_peer:
            return True
        return authorizer.may(client.principal, client.host, operation, kind, name)

    def refuses(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether its client may not do this to something that it named, which is noted then."""
        if self.may(operation, kind, name):
            return False
        self.was_refused = True
        authorizer, client = self.authorizer, self.client
        if authorizer is not None:
            why = authorizer.why_not(client.principal, client.host, operation, kind, name)
            authorizer.on_refusal(self, operation, kind, name, why)
        return True

    def refused_as_broker(self) -> None:
        """Its client asks for what only brokers may, whatever rules there are. It is noted."""
        if self.authorizer is not None:
            asked = Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
            self.authorizer.on_refusal(self, *asked, _FOR_BROKERS)

    def next_slice(self) -> Awaitable[None]:
        """Wait until the next slice of work may begin, in turn with those of other requests."""
        return self.connection.slices.next()

    def __repr__(self) -> str:
        name = APIS[self.api_key].name
        return f"<{name} v{self.version} of {self.client_id!r} at {self.connection}>"


Handler: TypeAlias = Callable[[Request], Answer | Coroutine[Any, Any, Reply | NoReply]]


class Dispatcher:
    """Calls the handler of each request; serves exactly the APIs it has handlers for."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        authorizer: Authorizer | None = None,
        quotas: ClientQuotaManager | None = None,
    ) -> None:
        self._authorizer = authorizer
        self._quotas = quotas or ClientQuotaManager()
        self._handlers = {int(key): handler for key, handler in handlers.items()}
        # One look-up on the hot path: the handler of a supported version, the maximum request size
        # (None if the handler decodes the body), whether large bodies are decoded in slices, the
        # empty tagged fields that end the response header in flexible versions, and whether quotas
        # apply to it.
        routes = {
            (key, version): (
                _for_peers(handler) if APIS[key].audience is Audience.PEERS else handler,
                APIS[key].parsed_bytes_max,
                is_read_in_slices(key),
                b"\0" if APIS[key].response_header_has_tags(version) else b"",
                key not in BEFORE_LOG_IN,
            )
            for key, handler in self._handlers.items()
            for version in range(APIS[key].min_version, APIS[key].max_version + 1)
        }
        self._routes = {key: route for key, route in routes.items() if not uses_schema(key[0])}
        self._unloaded = {key: route for key, route in routes.items() if uses_schema(key[0])}
        """Those of requests that nobody has sent yet, whose schemas may not be loaded."""

    def __call__(self, connection: Connection, frame: memoryview) -> tuple[bytes, Answer]:
        try:
            api_key, version, correlation_id, client_id, body_at = read_request_header(frame)
        except MalformedRequest as error:
            raise CloseConnection(str(error)) from error
        route = self._routes.get((api_key, version))
        if route is None:
            route = self._unloaded.get((api_key, version))
            if route is None:
                return self._refuse_version(api_key, version, correlation_id)
            header = _CORRELATION_ID.pack(correlation_id) + route[3]
            return header, self._load_first(connection, frame, api_key, version)
        handler, parsed_bytes_max, in_slices, end_of_header, has_quotas = route
        is_large = in_slices and len(frame) > LARGE_BYTES
        message = quotas = None
        epoch = self._quotas.epoch
        if epoch is not None and has_quotas:
            quotas, of_client_id, at_epoch = connection.quotas
            if at_epoch != epoch or of_client_id != client_id:
                quotas = self._quotas.of_connection(connection, client_id)
        try:
            if parsed_bytes_max is not None:
                if len(frame) > parsed_bytes_max:
                    raise RequestTooLarge(f"{APIS[api_key].name} request of {len(frame)} bytes")
                if not is_large:
                    message = read_request(api_key, version, frame, body_at)
            request = Request(
                api_key,
                version,
                correlation_id,
                client_id,
                frame[body_at:],
                message,
                connection,
                connection.client,
                self._authorizer,
                quotas,
            )
            if is_large:
                handler = partial(_handle_large, handler)
            if quotas is None:
                answer = handler(request)
            else:
                answer = _handle_within(quotas, handler, request, len(frame))
        except RequestTooLarge as error:
            answer = refuse_too_large(api_key, version, error)
        except MalformedRequest as error:
            raise CloseConnection(str(error)) from error
        if type(answer) is not Reply and not isinstance(answer, _ANSWERS):
            answer = Exclusive(answer)
        return _CORRELATION_ID.pack(correlation_id) + end_of_header, answer

    async def load(self, api_key: int, version: int) -> None:
        """Load the schema of this version: its next request does not wait for it."""
        if (api_key, version) in self._unloaded:
            await load(api_key, version)
            route = self._unloaded.pop((api_key, version), None)
            if route is not None:  # Several may wait for the same version.
                self._routes[api_key, version] = route

    def _load_first(
        self, connection: Connection, frame: memoryview, api_key: int, version: int
    ) -> Exclusive:
        loop, kept = asyncio.get_running_loop(), connection.keep(frame)
        until = loop.create_future()
        work = self._load_and_dispatch(connection, kept, api_key, version, until)
        reply = loop.create_task(work)  # owner: the connection
        reply.add_done_callback(
            lambda _: kept.release()
        )  # also if it was cancelled before it began
        return Exclusive(reply, until)

    async def _load_and_dispatch(
        self,
        connection: Connection,
        kept: KeptBytes,
        api_key: int,
        version: int,
        until: "asyncio.Future[None]",
    ) -> Reply | NoReply:
        await self.load(api_key, version)
        connection.began_s = connection.time_s()  # The wait is not the client's.
        _, answer = self(connection, kept.view)
        kept.release()
        return await _reply_of(answer, until)

    def _refuse_version(
        self, api_key: int, version: int, correlation_id: int
    ) -> tuple[bytes, Answer]:
        if api_key != ApiKey.API_VERSIONS or api_key not in self._handlers:
            raise CloseConnection(f"version {version} of API {api_key} is not supported")
        # KIP-511: the v0 response tells a newer client which versions are supported.
        api = APIS[api_key]
        body = struct.pack(
            ">hihhh", _UNSUPPORTED_VERSION, 1, api_key, api.advertised_from, api.max_version
        )
        return _CORRELATION_ID.pack(correlation_id), Reply([body])


def _handle_within(
    quotas: ClientBuckets, handler: Handler, request: Request, request_bytes: int
) -> Answer:
    """Handle a request of a client that has quotas, and count what it uses of them."""
    connection, time = request.connection, quotas.request
    is_produce = request.api_key == PRODUCE
    produce = quotas.produce if is_produce else None
    is_within, spent = True, 0.0
    try:
        answer = handler(request)
    finally:
        now_s = connection.time_s()
        if produce is not None:
            left = produce.left - request_bytes
            if left >= 0 and now_s <= produce.until_s:
                produce.left = left
            else:
                produce.record(request_bytes, now_s)
                is_within = produce.left >= 0
        if time is not None:
            spent = (now_s - connection.began_s) * 100
            left = time.left - spent
            if left >= 0 and now_s <= time.until_s:
                time.left = left
            else:
                spent = time.record(spent, now_s)
                is_within = is_within and time.left >= 0
    if is_within:  # Mostly there is nothing to tell, and all is counted.
        if type(answer) is Reply:
            used = request.used_quota
            if used is None or used.throttle_ms == 0:
                return answer
        elif is_produce and type(answer) is Later and type(answer.reply) is Promise:
            return answer
    quota = request.quota
    assert quota is not None
    return quota.settle(answer, spent, now_s)


def _handle_large(
    handler: Handler, request: Request
) -> Answer | Coroutine[Any, Any, Reply | NoReply]:
    """Decode one slice of a large request. If that is not all, the rest is decoded later."""
    kept = request.connection.keep(request.body)
    request.body = kept.view
    work = reading_request(request.api_key, request.version, kept.view)
    try:
        next(work)
    except StopIteration as done:
        request.message = done.value
        try:
            return handler(request)
        finally:
            kept.release()
    except BaseException:
        kept.release()
        raise
    loop = asyncio.get_running_loop()
    until = loop.create_future()
    rest = _handle_in_slices(handler, request, work, kept, until)
    if request.quota is not None:
        rest = request.quota.timed(rest)
    reply = loop.create_task(rest)  # owner: the connection
    reply.add_done_callback(lambda _: kept.release())  # also if it was cancelled before it began
    return Exclusive(reply, until)


async def _handle_in_slices(
    handler: Handler,
    request: Request,
    work: Generator[None, None, Any],
    kept: KeptBytes,
    until: "asyncio.Future[None]",
) -> Reply | NoReply:
    """Decode the rest of a large request and handle it. `until` is done with its side effects."""
    # Brokers do not wait for clients: replication would stand still.
    if request.client.is_peer:
        answer = await _decode_and_handle(handler, request, work, kept, nullcontext(), until)
        return await _reply_of(answer, until)
    slices = request.connection.slices
    share = await slices.large_requests.acquire(items_of(len(kept.view)))
    try:
        lock = slices.large_request
        answer = await _decode_and_handle(handler, request, work, kept, lock, until)
        if isinstance(answer, Later):
            share.release()
        elif isinstance(answer, Exclusive) and answer.give_way is not None:
            share.lend(answer.give_way)
        return await _reply_of(answer, until)
    finally:
        share.release()


async def _decode_and_handle(
    handler: Handler,
    request: Request,
    work: Generator[None, None, Any],
    kept: KeptBytes,
    lock: AbstractAsyncContextManager[None],
    until: "asyncio.Future[None]",
) -> Answer:
    # One at a time, so that the first is complete soon. A handler that waits for others must not
    # make these wait.
    async with lock:
        try:
            request.message = await request.connection.slices.run(work)
        except RequestTooLarge as error:
            await load(request.api_key, request.version)  # Others of this version may not need it.
            return refuse_too_large(request.api_key, request.version, error)
        except MalformedRequest as error:
            raise CloseConnection(str(error)) from error
        answer = handler(request)
        kept.release()
        if not isinstance(answer, _ANSWERS):
            answer = Exclusive(answer)
        if isinstance(answer, Exclusive) and answer.waits_for_slices_only:
            return await answer.reply
        return answer


async def _reply_of(answer: Answer, until: "asyncio.Future[None]") -> Reply | NoReply:
    if isinstance(answer, Exclusive):
        if answer.until is not None:
            answer.until.add_done_callback(lambda _: until.set_result(None))
            return await answer.reply
        answer = await answer.reply
    until.set_result(None)
    return await answer.reply if isinstance(answer, Later) else answer


async def decode(request: Request) -> Any:
    """Decode the body of a request that came inside of another one. Raises `MalformedRequest`."""
    api_key, version, body = request.api_key, request.version, request.body
    await load(api_key, version)
    if len(body) <= LARGE_BYTES:
        return read_request(api_key, version, body)
    slices = request.connection.slices
    async with slices.large_request:
        return await slices.run(reading_request(api_key, version, body))


def _for_peers(handler: Handler) -> Handler:
    def handle(request: Request) -> Answer | Coroutine[Any, Any, Reply | NoReply]:
        return handler(request) if request.client.is_peer else _refuse(request)

    return handle


def _refuse(request: Request) -> Reply:
    """CLUSTER_AUTHORIZATION_FAILED, if it is one of Kafka's APIs."""
    request.refused_as_broker()
    if not APIS[request.api_key].is_kafkas:
        raise CloseConnection(f"{APIS[request.api_key].name} is {_FOR_BROKERS}")
    body = encode_refusal(request.api_key, request.version, _CLUSTER_AUTHORIZATION_FAILED)
    assert body is not None, "every response of a broker-only API has an error code"
    return Reply([body])


def refuse_too_large(api_key: int, version: int, error: RequestTooLarge) -> Reply:
    """INVALID_REQUEST. Raises CloseConnection if the response has an error for each item only."""
    body = encode_refusal(api_key, version, _INVALID_REQUEST)
    if body is None:
        raise CloseConnection(str(error)) from error
    log.info("request refused", extra={"reason": str(error)})
    return Reply([body])
