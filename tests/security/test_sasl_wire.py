"""SASL on the wire: what is served before and after authentication, and for how long."""

import struct
import time
from typing import Any

import pytest

from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.security.scram import ScramClient, ScramMechanism
from suwi.wire.versions import APIS, ApiKey
from tests.broker_process import unique_name
from tests.raw_client import RawClient
from tests.security.secure_broker import (
    FAILURE_DELAY_MS,
    PASSWORDS,
    SCRAM_PASSWORDS,
    SESSION_MS,
    SecureBroker,
)
from tests.testing.clients import until

UNSUPPORTED_MECHANISM, ILLEGAL_STATE, FAILED = 33, 34, 58
USER, PASSWORD = next(iter(PASSWORDS.items()))
TOKEN = f"\0{USER}\0{PASSWORD}".encode()
BAD_TOKEN = f"\0{USER}\0wrong".encode()
RECEIVE_BYTES_MAX = 524_288


def handshake(client: RawClient, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return client.ask(ApiKey.SASL_HANDSHAKE, version, {"mechanism": mechanism})


def authenticate(client: RawClient, token: bytes, version: int = 2) -> Any:
    return client.ask(ApiKey.SASL_AUTHENTICATE, version, {"auth_bytes": token})


def metadata(client: RawClient) -> Any:
    return client.ask(ApiKey.METADATA, 4, {"topics": [], "allow_auto_topic_creation": False})


@pytest.fixture
def address(broker: SecureBroker) -> str:
    return broker.at("SASL_PLAINTEXT")


# -- before authentication ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "api",
    [a for a in APIS.values() if "Sasl" not in a.name and a.name != "ApiVersions"],
    ids=lambda api: api.name,
)
def test_nothing_is_served_before_authentication(address: str, api: Any) -> None:
    with RawClient(address) as client:
        client.send_request(api.key, api.max_version, b"")
        assert client.is_closed_by_broker


@pytest.mark.parametrize("frame", [b"", b"\0", b"\xff\xff", bytes(100), b"\x16\x03\x01\x02\0\x01"])
def test_a_malformed_frame_closes_the_connection(address: str, frame: bytes) -> None:
    with RawClient(address) as client:
        client.send_frame(frame)
        assert client.is_closed_by_broker


def test_api_versions_is_served_before_authentication(address: str) -> None:
    with RawClient(address) as client:
        for _ in range(2):
            answer = client.ask(ApiKey.API_VERSIONS, 0, {})
            served = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        assert served[ApiKey.SASL_HANDSHAKE] == (0, 1)
        assert served[ApiKey.SASL_AUTHENTICATE] == (0, 2)
        assert handshake(client).error_code == 0


@pytest.mark.parametrize("size_bytes", [RECEIVE_BYTES_MAX + 1, 100_000_000, -1])
def test_a_large_frame_before_authentication_closes_the_connection(
    address: str, size_bytes: int
) -> None:
    with RawClient(address) as client:
        client.send(struct.pack(">i", size_bytes))
        assert client.is_closed_by_broker


def test_a_large_request_after_authentication_is_served(address: str) -> None:
    name = unique_name("large")
    with RawClient(address) as client:
        handshake(client)
        assert authenticate(client, TOKEN).error_code == 0
        client.create_topic(name)
        large = build_batch([Record(value=bytes(RECEIVE_BYTES_MAX + 100_000))])
        assert client.produce(name, large) == (0, 0)


def test_a_token_without_a_handshake_is_illegal(address: str) -> None:
    with RawClient(address) as client:
        assert authenticate(client, TOKEN).error_code == ILLEGAL_STATE
        client.send_request(ApiKey.METADATA, 12, b"")
        assert client.is_closed_by_broker


# -- with requests --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_authenticated_client_is_served(address: str, version: int) -> None:
    with RawClient(address) as client:
        answer = handshake(client)
        assert answer.error_code == 0
        assert list(answer.mechanisms) == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        answer = authenticate(client, TOKEN, version)
        assert (answer.error_code, answer.auth_bytes) == (0, b"")
        if version >= 1:
            assert answer.session_lifetime.total_seconds() == 0
        assert metadata(client).brokers


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_scram_needs_two_tokens(address: str, mechanism: ScramMechanism) -> None:
    user, password = next(iter(SCRAM_PASSWORDS.items()))
    machine = ScramClient(mechanism, user, password, "a nonce")
    with RawClient(address) as client:
        handshake(client, mechanism.sasl_name)
        first = authenticate(client, machine.first())
        final = machine.respond(first.auth_bytes)
        assert final is not None
        done = authenticate(client, final)
        assert done.error_code == 0
        assert machine.respond(done.auth_bytes) is None
        assert metadata(client).brokers


def test_between_two_tokens_nothing_is_served(address: str) -> None:
    machine = ScramClient(ScramMechanism.SHA_256, "carol", "whatever", "a nonce")
    with RawClient(address) as client:
        handshake(client, "SCRAM-SHA-256")
        authenticate(client, machine.first())
        client.send_request(ApiKey.METADATA, 12, b"")
        assert client.is_closed_by_broker


def test_a_proof_that_was_used_before_is_refused(address: str) -> None:
    user, password = next(iter(SCRAM_PASSWORDS.items()))
    machine = ScramClient(ScramMechanism.SHA_256, user, password, "a nonce")
    with RawClient(address) as client:
        handshake(client, "SCRAM-SHA-256")
        final = machine.respond(authenticate(client, machine.first()).auth_bytes)
        assert final is not None
        assert authenticate(client, final).error_code == 0
    with RawClient(address) as client:
        handshake(client, "SCRAM-SHA-256")
        authenticate(client, machine.first())
        assert authenticate(client, final).error_code == FAILED
        assert client.is_closed_by_broker


def test_a_failed_authentication_is_delayed_and_closes_the_connection(address: str) -> None:
    with RawClient(address) as client:
        handshake(client)
        began_s = time.monotonic()
        answer = authenticate(client, BAD_TOKEN)
        assert time.monotonic() - began_s >= FAILURE_DELAY_MS / 1000
        assert answer.error_code == FAILED
        assert answer.error_message == "Authentication failed: Invalid username or password"
        assert client.is_closed_by_broker


def test_requests_behind_a_refused_token_are_not_served(address: str) -> None:
    with RawClient(address) as client:
        handshake(client)
        client.send_request(ApiKey.SASL_AUTHENTICATE, 0, struct.pack(">i", 3) + b"bad")
        client.send_request(ApiKey.SASL_AUTHENTICATE, 0, struct.pack(">i", len(TOKEN)) + TOKEN)
        client.send_request(ApiKey.METADATA, 0, bytes(4))
        assert client.read_frame() is not None
        assert client.is_closed_by_broker


def test_an_unknown_mechanism_gets_the_enabled_ones(address: str) -> None:
    with RawClient(address) as client:
        answer = handshake(client, "GSSAPI")
        assert answer.error_code == UNSUPPORTED_MECHANISM
        assert list(answer.mechanisms) == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        assert client.is_closed_by_broker


def test_an_authenticated_connection_cannot_start_another_handshake(address: str) -> None:
    with RawClient(address) as client:
        handshake(client)
        authenticate(client, TOKEN)
        assert handshake(client).error_code == ILLEGAL_STATE
        assert authenticate(client, TOKEN).error_code == ILLEGAL_STATE
        assert metadata(client).brokers


# -- bare tokens, as with the oldest clients ------------------------------------------------------


def test_bare_tokens_after_the_oldest_handshake(address: str) -> None:
    with RawClient(address) as client:
        assert handshake(client, version=0).error_code == 0
        client.send_frame(TOKEN)
        assert client.read_frame() == b""
        assert metadata(client).brokers


def test_bare_tokens_of_scram(address: str) -> None:
    user, password = next(iter(SCRAM_PASSWORDS.items()))
    machine = ScramClient(ScramMechanism.SHA_512, user, password, "a nonce")
    with RawClient(address) as client:
        handshake(client, "SCRAM-SHA-512", version=0)
        client.send_frame(machine.first())
        final = machine.respond(client.read_frame() or b"")
        assert final is not None
        client.send_frame(final)
        assert machine.respond(client.read_frame() or b"") is None
        assert metadata(client).brokers


def test_a_bad_bare_token_closes_the_connection_late(address: str) -> None:
    with RawClient(address) as client:
        handshake(client, version=0)
        began_s = time.monotonic()
        client.send_frame(BAD_TOKEN)
        assert client.is_closed_by_broker
        assert time.monotonic() - began_s >= FAILURE_DELAY_MS / 1000


# -- sessions that expire (KIP-368) ---------------------------------------------------------------


def until_the_end_of_a_session(client: RawClient) -> None:
    handshake(client)
    answer = authenticate(client, TOKEN)
    assert answer.session_lifetime.total_seconds() * 1000 == SESSION_MS
    time.sleep(SESSION_MS / 1000 + 0.05)


def test_a_session_ends_unless_it_is_renewed(broker: SecureBroker) -> None:
    with RawClient(broker.at("SHORT")) as client:
        until_the_end_of_a_session(client)
        client.send_request(ApiKey.METADATA, 12, b"")
        assert client.is_closed_by_broker


def test_a_session_that_has_ended_may_still_be_renewed(broker: SecureBroker) -> None:
    def is_served() -> bool:
        """Not, if the request comes so late that the new session has ended, too."""
        with RawClient(broker.at("SHORT")) as client:
            until_the_end_of_a_session(client)
            assert handshake(client).error_code == 0
            assert authenticate(client, TOKEN).error_code == 0
            client.send_request(ApiKey.METADATA, 0, bytes(4))
            return client.read_frame() is not None

    until(is_served)


# -- a listener without SASL ----------------------------------------------------------------------


def test_a_listener_without_sasl_refuses_sasl_requests(broker: SecureBroker) -> None:
    with RawClient(broker.address) as client:
        for version in (0, 1):
            answer = handshake(client, version=version)
            assert (answer.error_code, list(answer.mechanisms)) == (ILLEGAL_STATE, [])
        for version in (0, 1, 2):
            assert authenticate(client, TOKEN, version).error_code == ILLEGAL_STATE
        assert metadata(client).brokers
