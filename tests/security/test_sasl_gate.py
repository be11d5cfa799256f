"""The SASL gate of a listener, with a fake clock."""

import asyncio
import struct

import pytest

from suwi.net.answers import Answer, CloseConnection, Reply
from suwi.net.buffer_pool import BufferPool
from suwi.net.connection import Connection
from suwi.net.fair_turns import Turns
from suwi.net.limits import Limits
from suwi.net.output import UnsentBytesBudget
from suwi.net.sasl_gate import SaslGate
from suwi.security.plain import PlainServer, PlainUsers
from suwi.security.principal import ANONYMOUS, user
from suwi.security.sasl_session import MechanismRules, SaslRules, SaslSession
from suwi.wire.versions import ApiKey
from tests.net.support import Wire

USERS = PlainUsers({"alice": "secret"}, b"key")
ALICE = b"\0alice\0secret"
SESSION_S = 60


class ConnectionRegistry:
    def opened(self, connection: Connection) -> str | None:
        return None

    def closed(self, connection: Connection) -> None: ...


class GatedConnection:
    """A gate, a connection, and the requests that passed the gate."""

    def __init__(self, reauthenticate_ms: int = SESSION_S * 1000) -> None:
        rules = SaslRules({"PLAIN": MechanismRules(lambda: PlainServer(USERS), reauthenticate_ms)})
        self.now_s = 1000.0
        self.served: list[int] = []
        self.gate = SaslGate(self._serve, rules, lambda: self.now_s)
        full = Limits(request_bytes_max=100_000_000)
        self.connection = Connection(
            asyncio.new_event_loop(),
            "TEST",
            self.gate,
            full.before_authentication(512_000),
            BufferPool(1 << 20),
            UnsentBytesBudget(1 << 20),
            Turns(100, 2.0),
            ConnectionRegistry(),
        )
        self.connection._loop.close()

    def _serve(self, connection: Connection, frame: memoryview) -> tuple[bytes, Answer]:
        self.served.append(struct.unpack_from(">h", frame)[0])
        return b"header", Reply([b"body"])

    def send(self, api_key: int) -> None:
        self.gate(self.connection, memoryview(bytearray(struct.pack(">hhi", api_key, 0, 1))))

    def is_closed_by(self, api_key: int) -> bool:
        try:
            self.send(api_key)
        except CloseConnection:
            return True
        return False

    @property
    def session(self) -> SaslSession:
        assert self.connection.sasl is not None
        return self.connection.sasl

    def log_in(self) -> None:
        """Authenticate as the two SASL handlers do."""
        self.session.choose("PLAIN", self.now_s, bare_tokens=False)
        self.session.respond(ALICE, self.now_s)


def test_only_three_apis_are_served_before_authentication() -> None:
    allowed = [key for key in ApiKey if not GatedConnection().is_closed_by(key)]
    assert allowed == [ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE]


def test_a_frame_too_short_for_an_api_is_not_served() -> None:
    door = GatedConnection()
    for frame in (b"", b"\0"):
        with pytest.raises(CloseConnection):
            door.gate(door.connection, memoryview(bytearray(frame)))


def test_every_api_is_served_after_authentication() -> None:
    door = GatedConnection()
    door.send(ApiKey.SASL_HANDSHAKE)
    door.log_in()
    for key in ApiKey:
        door.send(key)
    assert door.served[1:] == list(ApiKey)


def test_an_authentication_is_valid_until_its_end() -> None:
    door = GatedConnection()
    door.send(ApiKey.API_VERSIONS)
    door.log_in()
    door.now_s += SESSION_S - 0.001
    assert not door.is_closed_by(ApiKey.METADATA)
    door.now_s += 0.001
    for key in ApiKey:
        allowed = key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
        assert door.is_closed_by(key) is not allowed


def test_a_reauthentication_extends_the_validity() -> None:
    door = GatedConnection()
    door.send(ApiKey.API_VERSIONS)
    door.log_in()
    for _ in range(3):
        door.now_s += SESSION_S - 1
        door.log_in()
    door.now_s += SESSION_S - 1
    assert not door.is_closed_by(ApiKey.METADATA)


def test_after_a_refusal_nothing_is_served() -> None:
    door = GatedConnection()
    door.send(ApiKey.API_VERSIONS)
    door.session.choose("PLAIN", door.now_s, bare_tokens=False)
    with pytest.raises(Exception, match="Invalid username or password"):
        door.session.respond(b"\0alice\0guess", door.now_s)
    assert all(door.is_closed_by(key) for key in ApiKey)


def test_a_bare_token_reaches_no_handler() -> None:
    door = GatedConnection(reauthenticate_ms=0)
    door.send(ApiKey.SASL_HANDSHAKE)
    door.session.choose("PLAIN", door.now_s, bare_tokens=True)
    assert door.connection.client.principal == ANONYMOUS
    header, answer = door.gate(door.connection, memoryview(bytearray(ALICE)))
    assert header == b""
    assert isinstance(answer, Reply)
    assert list(answer.chunks) == [b""]
    assert door.connection.client.principal == user("alice")
    assert door.served == [ApiKey.SASL_HANDSHAKE]
    door.send(ApiKey.METADATA)
    assert door.served == [ApiKey.SASL_HANDSHAKE, ApiKey.METADATA]


def test_limits_are_lower_until_the_peer_is_authenticated() -> None:
    connection = GatedConnection().connection
    assert connection._limits.request_bytes_max == 512_000
    connection.authenticated(user("alice"))
    assert connection._limits.request_bytes_max == 100_000_000
    assert connection._limits.authenticated is None


def test_a_peer_that_does_not_authenticate_is_disconnected() -> None:
    async def scenario() -> None:
        connection, wire = GatedConnection().connection, Wire()
        wire.connect(connection)
        opened_s = connection._opened_at
        limit_s = Limits().authenticate_ms_max / 1000
        connection.check_time(opened_s + limit_s)
        assert not wire.is_closing()
        connection.check_time(opened_s + limit_s + 0.001)
        assert wire.is_closing()

    asyncio.run(scenario())
