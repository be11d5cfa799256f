"""From a frame to its handler: header, version check, body.

A `Dispatcher` is what a `Listener` calls for each frame. Handlers are plain functions of a
`Request`; one written as a coroutine function is exclusive.
Invariant: a peer's bytes end in a handler call or in `CloseConnection`, never in anything else.
"""

import struct
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeAlias

from suwi.net.answers import Answer, CloseConnection, Exclusive, Later, NoReply, Reply
from suwi.net.connection import Connection
from suwi.wire.codec import read_request
from suwi.wire.errors import MalformedRequest
from suwi.wire.headers import read_request_header
from suwi.wire.versions import APIS, RAW_BODY, SMALL_REQUEST_BYTES_MAX, ApiKey

_UNSUPPORTED_VERSION: Final = 35
_CORRELATION_ID: Final = struct.Struct(">i")
_ANSWERS: Final = (Reply, Later, Exclusive, NoReply)  # made once: a union would be made each time


class Request:
    """One request, as its handler sees it."""

    __slots__ = (
        "api_key",
        "body",
        "client_id",
        "connection",
        "correlation_id",
        "message",
        "version",
    )

    def __init__(
        self,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        body: memoryview,
        message: Any,
        connection: Connection,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body = body  # receive memory, writable, valid only until the handler returns
        self.message = message  # kio's entity; None for APIs in RAW_BODY
        self.connection = connection

    def __repr__(self) -> str:
        name = APIS[self.api_key].name
        return f"<{name} v{self.version} of {self.client_id!r} at {self.connection}>"


Handler: TypeAlias = Callable[[Request], Answer | Coroutine[Any, Any, Reply | NoReply]]


class Dispatcher:
    """Calls the handler of each frame's API; serves exactly the APIs it has handlers for."""

    def __init__(self, handlers: Mapping[int, Handler]) -> None:
        self._handlers = {int(key): handler for key, handler in handlers.items()}
        # One look-up on the hot path: whether a version is served and by whom, whether the handler
        # reads the body itself, and the (empty) tag section that may end the response header.
        self._routes = {
            (key, version): (
                handler,
                key in RAW_BODY,
                b"\0" if APIS[key].response_header_has_tags(version) else b"",
            )
            for key, handler in self._handlers.items()
            for version in range(APIS[key].min_version, APIS[key].max_version + 1)
        }

    def __call__(self, connection: Connection, frame: memoryview) -> tuple[bytes, Answer]:
        try:
            api_key, version, correlation_id, client_id, body_at = read_request_header(frame)
            route = self._routes.get((api_key, version))
            if route is None:
                return self._refuse_version(api_key, version, correlation_id)
            handler, takes_raw_body, end_of_header = route
            body, message = frame[body_at:], None
            if not takes_raw_body:
                _check_size(api_key, len(frame))
                message = read_request(api_key, version, frame, body_at)
            answer = handler(
                Request(api_key, version, correlation_id, client_id, body, message, connection)
            )
        except MalformedRequest as error:
            raise CloseConnection(str(error)) from error
        if not isinstance(answer, _ANSWERS):
            answer = Exclusive(answer)
        return _CORRELATION_ID.pack(correlation_id) + end_of_header, answer

    def _refuse_version(
        self, api_key: int, version: int, correlation_id: int
    ) -> tuple[bytes, Answer]:
        if api_key != ApiKey.API_VERSIONS or api_key not in self._handlers:
            raise CloseConnection(f"version {version} of API {api_key} is not served")
        # KIP-511: a newer client learns from the version 0 form which version to ask with.
        api = APIS[api_key]
        body = struct.pack(
            ">hihhh", _UNSUPPORTED_VERSION, 1, api_key, api.advertised_from, api.max_version
        )
        return _CORRELATION_ID.pack(correlation_id), Reply([body])


def _check_size(api_key: int, size_bytes: int) -> None:
    if size_bytes > SMALL_REQUEST_BYTES_MAX:
        raise CloseConnection(f"a request of {size_bytes} bytes to {APIS[api_key].name}")
