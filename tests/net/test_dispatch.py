"""From frames to handlers and back, with real headers."""

import asyncio
import logging
import struct

import pytest

from suwi.net.answers import NO_REPLY, Answer, CloseConnection, Exclusive, Reply
from suwi.net.connection import Connection
from suwi.net.dispatch import Dispatcher, Request
from suwi.security.principal import ANONYMOUS, user
from suwi.wire.codec import encode_refusal, encode_request, encode_response, read_response
from suwi.wire.errors import MalformedRequest
from suwi.wire.headers import read_response_header, request_header
from suwi.wire.versions import APIS, SMALL_REQUEST_BYTES_MAX, ApiKey, Audience
from tests.net.support import connect, settle


def frame(
    api_key: int, version: int, body: bytes, correlation_id: int = 7, client_id: str | None = "me"
) -> bytes:
    data = request_header(api_key, version, correlation_id, client_id) + body
    return struct.pack(">i", len(data)) + data


def heartbeat(version: int) -> bytes:
    fields = {"group_id": "g", "generation_id": 3, "member_id": "m"}
    return frame(ApiKey.HEARTBEAT, version, encode_request(ApiKey.HEARTBEAT, version, fields))


class Handlers:
    """Remembers what was asked."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.bodies: list[bytes] = []

    def heartbeat(self, request: Request) -> Answer:
        self.requests.append(request)
        fields = {"error_code": 0, "throttle_time": 0}
        return Reply([encode_response(request.api_key, request.version, fields)])

    def produce(self, request: Request) -> Answer:
        self.requests.append(request)
        self.bodies.append(bytes(request.body))
        request.body[:2] = b"ok"  # the receive buffer is ours until we return
        return NO_REPLY

    async def metadata(self, request: Request) -> Reply:
        self.requests.append(request)
        await asyncio.sleep(0)
        return Reply([b"metadata"])

    def dispatcher(self) -> Dispatcher:
        return Dispatcher(
            {
                ApiKey.HEARTBEAT: self.heartbeat,
                ApiKey.PRODUCE: self.produce,
                ApiKey.METADATA: self.metadata,
                ApiKey.API_VERSIONS: self.heartbeat,
            }
        )


async def load_for(dispatcher: Dispatcher, one: bytes) -> None:
    """The request does not wait for its schema then."""
    if len(one) >= 8:
        await dispatcher.load(*struct.unpack_from(">hh", one, 4))


def converse(dispatcher: Dispatcher, *frames: bytes) -> tuple[bytes, bool]:
    """What is sent back, and whether the connection was closed."""
    result: list[tuple[bytes, bool]] = []

    async def scenario() -> None:
        _, wire = connect(dispatcher)
        for one in frames:
            await load_for(dispatcher, one)
            wire.deliver(one)
        await settle()
        result.append((bytes(wire.sent), wire.lost))

    asyncio.run(scenario())
    return result[0]


@pytest.mark.parametrize("version", range(APIS[ApiKey.HEARTBEAT].max_version + 1))
def test_a_handler_gets_the_message_and_its_reply_the_right_header(version: int) -> None:
    handlers = Handlers()
    sent, lost = converse(handlers.dispatcher(), heartbeat(version))
    assert not lost
    [request] = handlers.requests
    assert (request.version, request.correlation_id, request.client_id) == (version, 7, "me")
    assert request.message.generation_id == 3
    assert (request.client.host, request.client.listener) == ("10.0.0.1", "TEST")
    assert (request.client.principal, request.quota) == (ANONYMOUS, None)
    assert "Heartbeat" in repr(request)
    assert struct.unpack_from(">i", sent)[0] == len(sent) - 4
    correlation_id, at = read_response_header(ApiKey.HEARTBEAT, version, sent[4:])
    assert correlation_id == 7
    assert read_response(ApiKey.HEARTBEAT, version, sent[4:], at).error_code == 0


def test_produce_gets_its_body_as_writable_receive_memory() -> None:
    handlers = Handlers()
    _, lost = converse(handlers.dispatcher(), frame(ApiKey.PRODUCE, 9, b"records"))
    assert not lost
    assert handlers.bodies == [b"records"]
    assert handlers.requests[0].message is None


def test_a_coroutine_handler_is_exclusive() -> None:
    handlers = Handlers()
    fields = {
        "topics": None,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    body = encode_request(ApiKey.METADATA, 9, fields)
    one = frame(ApiKey.METADATA, 9, body)
    dispatcher = handlers.dispatcher()
    sent, lost = converse(dispatcher, one + one)
    assert not lost
    assert sent == (struct.pack(">ii", 13, 7) + b"\0metadata") * 2
    connection = handlers.requests[0].connection
    answer = dispatcher(connection, memoryview(one)[4:])[1]
    assert isinstance(answer, Exclusive)
    answer.reply.close()  # type: ignore[attr-defined]


def test_api_versions_of_an_unknown_version_is_answered_in_the_form_of_version_0() -> None:
    handlers = Handlers()
    sent, lost = converse(handlers.dispatcher(), frame(ApiKey.API_VERSIONS, 99, b"\0\0\0"))
    assert not lost
    assert handlers.requests == []
    answer = read_response(ApiKey.API_VERSIONS, 0, sent, 8)
    assert answer.error_code == 35
    [api] = answer.api_keys
    assert (api.api_key, api.min_version, api.max_version) == (18, 0, 4)


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack(">i", 0),
        struct.pack(">ihh", 4, 12, 0),
        frame(ApiKey.HEARTBEAT, 0, b""),
        frame(ApiKey.HEARTBEAT, 5, b""),
        frame(ApiKey.PRODUCE, 2, b""),
        frame(ApiKey.FETCH, 12, b"no handler"),
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, 12, -1, 1, -1),
        struct.pack(">ihhih", 10, 12, 0, 1, 500),
        heartbeat(0)[:-3] + b"\xff\xff\xff",
    ],
    ids=lambda data: f"{len(data)} bytes {data[:14].hex()}",
)
def test_bad_bytes_close_the_connection_and_reach_no_handler(
    bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Handlers()
    with caplog.at_level(logging.INFO):
        sent, lost = converse(handlers.dispatcher(), bad)
    assert (sent, lost) == (b"", True)
    assert handlers.requests == []
    # Consoles of other tests may run in this process, and log.
    own = [record for record in caplog.records if record.name.startswith("suwi.net")]
    assert [record.levelname for record in own] == ["INFO"]


def test_a_request_that_is_too_large_gets_an_error_where_the_response_has_one() -> None:
    handlers = Handlers()
    large = frame(ApiKey.HEARTBEAT, 0, bytes(SMALL_REQUEST_BYTES_MAX + 1))
    sent, lost = converse(handlers.dispatcher(), large + heartbeat(0))
    assert not lost
    assert [request.api_key for request in handlers.requests] == [ApiKey.HEARTBEAT]
    assert sent == struct.pack(">iihiih", 6, 7, 42, 6, 7, 0)
    # Metadata has an error for each topic only, up to v12.
    large = frame(ApiKey.METADATA, 12, bytes(SMALL_REQUEST_BYTES_MAX + 1))
    assert converse(handlers.dispatcher(), large) == (b"", True)


@pytest.mark.parametrize("api_key", [key for key in APIS if key < ApiKey.DESCRIBE_REPLICAS])
def test_every_response_with_an_error_for_all_can_be_a_refusal(api_key: int) -> None:
    for version in range(APIS[api_key].min_version, APIS[api_key].max_version + 1):
        body = encode_refusal(api_key, version, 42)
        if body is not None:
            assert read_response(api_key, version, body).error_code == 42


def test_a_body_that_a_handler_cannot_parse_is_the_peers_fault() -> None:
    def produce(request: Request) -> Answer:
        raise MalformedRequest("count beyond the bytes left")

    def dispatch(connection: Connection) -> None:
        Dispatcher({ApiKey.PRODUCE: produce})(
            connection, memoryview(frame(ApiKey.PRODUCE, 9, b"x"))[4:]
        )

    async def scenario() -> None:
        connection, _ = connect(Dispatcher({}))
        with pytest.raises(CloseConnection, match="count beyond"):
            dispatch(connection)

    asyncio.run(scenario())


# -- whom an API is for ----------------------------------------------------------------------------

_FOR_PEERS = {
    ApiKey.ALTER_PARTITION: {"broker_id": 1, "broker_epoch": 2, "topics": []},
    ApiKey.BROKER_HEARTBEAT: {
        "broker_id": 1,
        "broker_epoch": 2,
        "current_metadata_offset": 0,
        "want_fence": False,
        "want_shut_down": True,
    },
    ApiKey.ALLOCATE_PRODUCER_IDS: {"broker_id": 1, "broker_epoch": 2},
    ApiKey.ENVELOPE: {
        "request_data": b"x",
        "request_principal": b"User:admin",
        "client_host_address": b"",
    },
}
_CASES = [
    (key, version)
    for key in _FOR_PEERS
    for version in range(APIS[key].min_version, APIS[key].max_version + 1)
]


def ask(api_key: int, version: int, body: bytes, *, is_peer: bool) -> tuple[bytes, bool, int]:
    """What is sent back, whether the connection was closed, and how often a handler was called."""
    calls: list[Request] = []

    def handle(request: Request) -> Answer:
        calls.append(request)
        return Reply([b"done"])

    async def scenario() -> tuple[bytes, bool, int]:
        dispatcher, one = Dispatcher({api_key: handle}), frame(api_key, version, body)
        connection, wire = connect(dispatcher)
        if is_peer:
            connection.authenticated(user("broker"), is_peer=True)
        await load_for(dispatcher, one)
        wire.deliver(one)
        await settle()
        return bytes(wire.sent), wire.lost, len(calls)

    return asyncio.run(scenario())


def test_every_api_for_peers_is_tried_below() -> None:
    for_peers = {api.key for api in APIS.values() if api.audience is Audience.PEERS}
    assert for_peers == {*_FOR_PEERS, ApiKey.REPORT_LOSS}


@pytest.mark.parametrize(("api_key", "version"), _CASES)
def test_what_is_for_brokers_is_refused_in_its_own_form_to_anybody_else(
    api_key: ApiKey, version: int
) -> None:
    body = encode_request(api_key, version, _FOR_PEERS[api_key])
    sent, lost, calls = ask(api_key, version, body, is_peer=False)
    assert (lost, calls) == (False, 0)
    _, at = read_response_header(api_key, version, sent[4:])
    assert read_response(api_key, version, sent[4:], at).error_code == 31
    sent, lost, calls = ask(api_key, version, body, is_peer=True)
    assert (sent[-4:], lost, calls) == (b"done", False, 1)


def test_what_is_ours_and_for_brokers_closes_the_connection_of_anybody_else() -> None:
    assert ask(ApiKey.REPORT_LOSS, 0, b"{}", is_peer=False) == (b"", True, 0)
    assert ask(ApiKey.REPORT_LOSS, 0, b"{}", is_peer=True)[1:] == (False, 1)
