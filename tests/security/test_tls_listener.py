"""TLS listeners: principals from certificates, reloading, peers without a complete handshake."""

import asyncio
import errno
import os
import re
import shutil
import socket
import ssl
import struct
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from suwi.env import LocalDisk
from suwi.net.answers import Answer, Reply
from suwi.net.connection import Connection
from suwi.net.limits import Limits
from suwi.net.listener import Budget, Listener
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.security.principal import ANONYMOUS, Principal, user
from suwi.security.tls import RenewedContext, Store, TlsSettings
from suwi.wire.codec import encode_request
from suwi.wire.versions import ApiKey
from tests.broker_process import unique_name
from tests.net.support import until
from tests.raw_client import RawClient, fetch_fields
from tests.security.certificates import Authority, Identity
from tests.security.secure_broker import SecureBroker


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    return authority.issue("listener")


def contexts(authority: Authority, server: Identity, client_auth: str = "none") -> RenewedContext:
    keys = Store("ssl.keystore", location=str(server.both))
    trusted = Store("ssl.truststore", location=str(authority.certificate))
    return RenewedContext("TEST", TlsSettings(keys, trusted, client_auth), LocalDisk())


def trusting(authority: Authority, identity: Identity | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.certificate)
    if identity is not None:
        context.load_cert_chain(identity.certificate, identity.key)
    return context


def serving(tls: RenewedContext, limits: Limits | None = None) -> Listener:
    """A listener that answers every frame with its peer's name."""

    def dispatch(connection: Connection, frame: memoryview) -> tuple[bytes, Answer]:
        return b"", Reply([str(connection.client.principal).encode()])

    return Listener("TEST", "127.0.0.1", 0, dispatch, Budget(limits or Limits()), tls=tls)


async def ask_name(listener: Listener, context: ssl.SSLContext) -> str:
    reader, writer = await asyncio.open_connection("localhost", listener.port, ssl=context)
    try:
        writer.write(struct.pack(">i", 4) + b"name")
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return (await reader.readexactly(size)).decode()
    finally:
        writer.transport.abort()


# -- principals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client_auth", "shows", "principal"),
    [
        ("none", False, ANONYMOUS),
        ("none", True, ANONYMOUS),
        ("requested", False, ANONYMOUS),
        ("requested", True, user("CN=alice,O=Example")),
        ("required", True, user("CN=alice,O=Example")),
    ],
)
def test_the_subject_of_a_requested_certificate_is_the_principal(
    authority: Authority, server: Identity, client_auth: str, shows: bool, principal: Principal
) -> None:
    identity = authority.issue(unique_name("alice"), "/O=Example/CN=alice") if shows else None

    async def scenario() -> None:
        listener = serving(contexts(authority, server, client_auth))
        await listener.start()
        assert await ask_name(listener, trusting(authority, identity)) == str(principal)
        await listener.stop(0)

    run(scenario())


@pytest.mark.parametrize("client_auth", ["requested", "required"])
def test_an_expired_certificate_is_refused_even_if_none_is_required(
    authority: Authority, server: Identity, client_auth: str
) -> None:
    identity = authority.issue(unique_name("old"), "/CN=alice", expired=True)

    async def scenario() -> None:
        listener = serving(contexts(authority, server, client_auth))
        await listener.start()
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await ask_name(listener, trusting(authority, identity))
        await until(lambda: not listener.connections)
        await listener.stop(0)

    run(scenario())


# -- peers without a complete handshake -----------------------------------------------------------


def test_a_peer_without_a_handshake_counts_as_a_connection_and_is_disconnected(
    authority: Authority, server: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        limits = Limits(connections_max=1, authenticate_ms_max=200)
        listener = serving(contexts(authority, server), limits)
        await listener.start()
        loop = asyncio.get_running_loop()
        silent = socket.create_connection(("127.0.0.1", listener.port))
        second = socket.create_connection(("127.0.0.1", listener.port))
        for peer in (silent, second):
            peer.setblocking(False)
        # The second is refused while the first is in its handshake; then that times out too.
        assert await _ends(loop, second)
        assert "too many connections: 1 are open" in _reasons(caplog)
        assert await _ends(loop, silent)
        await until(lambda: not listener._handshakes)
        while not await _is_served(listener, trusting(authority)):
            pass
        await until(lambda: not listener.connections)
        assert listener._budget.connections == 0
        await listener.stop(0)
        silent.close()
        second.close()

    run(scenario())


async def _is_served(listener: Listener, context: ssl.SSLContext) -> bool:
    """Not, if this process gets no CPU for as long as a handshake may take."""
    try:
        return await ask_name(listener, context) == str(ANONYMOUS)
    except (OSError, asyncio.IncompleteReadError):
        return False


async def _ends(loop: asyncio.AbstractEventLoop, peer: socket.socket) -> bool:
    try:
        return await loop.sock_recv(peer, 1) == b""
    except ConnectionError:
        return True


def _reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "reason", "") for record in caplog.records]


@pytest.mark.parametrize(
    "sent", [b"\0\0\0\x10" + bytes(16), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" * 100]
)
def test_bytes_that_are_not_tls_close_the_connection(
    authority: Authority, server: Identity, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        listener = serving(contexts(authority, server))
        await listener.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(sent)
        await reader.read()
        writer.close()
        await until(lambda: not listener._handshakes)
        assert listener._budget.connections == 0
        assert await ask_name(listener, trusting(authority)) == str(ANONYMOUS)
        await listener.stop(0)

    run(scenario())
    assert any(reason.startswith("TLS handshake failed: ") for reason in _reasons(caplog))


def test_a_listener_stops_during_tls_handshakes(authority: Authority, server: Identity) -> None:
    async def scenario() -> None:
        listener = serving(contexts(authority, server))
        await listener.start()
        peer = socket.create_connection(("127.0.0.1", listener.port))
        await until(lambda: bool(listener._handshakes))
        await listener.stop(0)
        await until(lambda: not listener._handshakes)
        assert listener._budget.connections == 0
        peer.close()

    run(scenario())


def test_a_peer_that_connects_while_the_listener_stops_is_disconnected(
    authority: Authority, server: Identity
) -> None:
    async def scenario() -> None:
        listener = serving(contexts(authority, server))
        await listener.start()
        peer = socket.create_connection(("127.0.0.1", listener.port))
        peer.setblocking(False)
        while not listener._handshakes:  # noqa: ASYNC110 (there is no event)
            await asyncio.sleep(0)  # just accepted: its handshake has not started
        await listener.stop(0)
        assert await _ends(asyncio.get_running_loop(), peer)
        assert listener._budget.connections == 0
        peer.close()

    run(scenario())


def test_a_peer_is_disconnected_if_no_file_descriptor_is_left(
    authority: Authority, server: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario() -> None:
        listener = serving(contexts(authority, server))
        await listener.start()
        with monkeypatch.context() as patched:
            patched.setattr("os.dup", none_left)
            with pytest.raises(ConnectionError):
                await ask_name(listener, trusting(authority))
        assert listener._budget.connections == 0
        assert await ask_name(listener, trusting(authority)) == str(ANONYMOUS)
        await listener.stop(0)

    run(scenario())


# -- a broker process -----------------------------------------------------------------------------


class TlsClient(RawClient):
    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        super().__init__(address)
        self._socket = context.wrap_socket(self._socket, server_hostname="localhost")

    @property
    def serial(self) -> str:
        certificate = self._socket.getpeercert()  # type: ignore[attr-defined]
        serial: str = certificate["serialNumber"]
        return serial


def test_fetched_records_are_the_same_with_and_without_tls(
    broker: SecureBroker, authority: Authority
) -> None:
    name = unique_name("files")
    with (
        RawClient(broker.address) as plain,
        TlsClient(broker.at("SSL"), trusting(authority)) as secured,
    ):
        plain.create_topic(name)
        for number in range(12):
            value = os.urandom(40_000 * (number + 1) % 700_000)
            plain.produce(name, build_batch([Record(value=value)]))
        for size_bytes in (1, 30_000, 33_000, 500_000, 50_000_000):
            fields = fetch_fields(12, name, 0, partition_max_bytes=size_bytes, max_bytes=size_bytes)
            frames = []
            for client in (plain, secured):
                client._correlation_id = 0
                client.send_request(ApiKey.FETCH, 12, encode_request(ApiKey.FETCH, 12, fields))
                frames.append(client.read_frame())
            assert frames[0] == frames[1]
            assert frames[0] is not None
            assert len(frames[0]) > 30_000


def test_a_certificate_is_reloaded_while_a_client_is_connected(
    authority: Authority, tmp_path: Path
) -> None:
    first, second = authority.issue("first"), authority.issue("second")
    with SecureBroker(tmp_path, authority, first) as broker:
        with TlsClient(broker.at("SSL"), trusting(authority)) as connected:
            name = unique_name("renewed")
            connected.create_topic(name)
            # Replaced in place, as a mounted secret is.
            shutil.copy(second.both, tmp_path / "next.pem")
            os.replace(tmp_path / "next.pem", broker.key_store)
            with TlsClient(broker.at("SSL"), trusting(authority)) as late:
                assert late.serial != connected.serial
                renewed = late.serial
            assert connected.produce(name, build_batch([Record(value=b"still here")])) == (0, 0)
            # An invalid one changes nothing.
            broker.key_store.write_text("-----BEGIN nothing")
            for _ in range(2):
                with TlsClient(broker.at("SSL"), trusting(authority)) as late:
                    assert late.serial == renewed
            assert b"still here" in connected.fetch(name, 0).records
        assert broker.log.count("certificates reloaded") == 1
        # Each listener that has read the invalid file logs it once.
        assert broker.log.count("the old ones stay") == 1
        assert "Traceback" not in broker.log


def test_an_expired_certificate_of_the_broker_is_not_trusted(
    authority: Authority, tmp_path: Path
) -> None:
    expired = authority.issue("expired", "/CN=localhost", expired=True)
    with (
        SecureBroker(tmp_path, authority, expired) as broker,
        pytest.raises(ssl.SSLCertVerificationError, match="expired"),
    ):
        TlsClient(broker.at("SSL"), trusting(authority))


# -- alerts ---------------------------------------------------------------------------------------


def _refusal(port: int, context: ssl.SSLContext) -> str:
    """The TLS alert that a blocking client gets, in its handshake or (TLS 1.3) after it."""
    with socket.create_connection(("localhost", port), timeout=60) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as tls:
                tls.sendall(struct.pack(">i", 4) + b"name")
                return "answered" if tls.recv(1) else "end of stream"
        except ssl.SSLError as error:
            return error.reason or str(error)
        except OSError as error:
            return repr(error)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("shows", "told"),
    [
        ("nothing", "CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE"),
        ("a stranger's", "UNKNOWN_CA"),
        ("an expired one", "CERTIFICATE_EXPIRED"),
    ],
)
def test_a_peer_whose_handshake_fails_gets_a_tls_alert(
    authority: Authority,
    server: Identity,
    tmp_path: Path,
    version: ssl.TLSVersion,
    shows: str,
    told: str,
) -> None:
    context = trusting(authority)
    context.maximum_version = context.minimum_version = version
    if shows == "a stranger's":
        other = Authority(tmp_path / "other").issue("mallory")
        context.load_cert_chain(other.certificate, other.key)
    elif shows == "an expired one":
        late = authority.issue(unique_name("late"), "/CN=late", expired=True)
        context.load_cert_chain(late.certificate, late.key)

    async def scenario() -> None:
        listener = serving(contexts(authority, server, "required"))
        await listener.start()
        loop = asyncio.get_running_loop()
        reason = await loop.run_in_executor(None, _refusal, listener.port, context)
        assert re.search(told, reason)
        await until(lambda: not listener._handshakes)
        assert listener.failed_authentications.by_mechanism == {"TLS": 1}
        await listener.stop(0)

    run(scenario())


def test_a_peer_with_an_old_tls_version_gets_a_tls_alert(
    authority: Authority, server: Identity
) -> None:
    context = trusting(authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def scenario() -> None:
        tls = contexts(authority, server)
        tls.current().minimum_version = ssl.TLSVersion.TLSv1_3
        listener = serving(tls)
        await listener.start()
        loop = asyncio.get_running_loop()
        reason = await loop.run_in_executor(None, _refusal, listener.port, context)
        assert reason == "TLSV1_ALERT_PROTOCOL_VERSION"
        await listener.stop(0)

    run(scenario())
