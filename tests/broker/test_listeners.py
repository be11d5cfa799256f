"""Kafka's listener keys, and the messages for invalid ones."""

import errno
import socket

import pytest

from suwi.broker.socket_server import bind_problem
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.config_kinds import BadConfig
from suwi.model.listener_config import (
    ListenerSpec,
    parse_listeners,
    refuse_plain_text_beyond_loopback,
)

INSIDE = "INSIDE://127.0.0.1:9092"
OUTSIDE = "OUTSIDE://0.0.0.0:9093"
BOTH_PLAIN = ("INSIDE:PLAINTEXT", "OUTSIDE:PLAINTEXT")


def test_several_listeners_have_their_own_advertised_names() -> None:
    config = BrokerConfig(
        listeners=(INSIDE, OUTSIDE),
        advertised_listeners=("OUTSIDE://kafka.example:19093",),
        listener_security_protocol_map=BOTH_PLAIN,
    )
    assert parse_listeners(config) == [
        ListenerSpec("INSIDE", "127.0.0.1", 9092),
        ListenerSpec("OUTSIDE", "0.0.0.0", 9093, "kafka.example", 19093),
    ]


def test_an_ipv6_address_has_brackets() -> None:
    (spec,) = parse_listeners(BrokerConfig(listeners=("PLAINTEXT://[::1]:9092",)))
    assert (spec.host, spec.address, spec.is_loopback) == ("::1", "[::1]:9092", True)


@pytest.mark.parametrize(
    ("listeners", "protocols", "message"),
    [
        ((), (), "listeners is empty"),
        (("FOO",), (), "NAME://HOST:PORT"),
        (("PLAINTEXT://localhost",), (), "NAME://HOST:PORT"),
        (("PLAINTEXT://localhost:99999",), (), "invalid port '99999'"),
        (("PLAINTEXT://localhost:x",), (), "invalid port 'x'"),
        ((INSIDE,), (), r"set listener\.security\.protocol\.map=INSIDE:PLAINTEXT"),
        (
            (INSIDE,),
            ("INSIDE:PLAIN",),
            "'PLAIN' is not a security protocol; supported: PLAINTEXT, SSL",
        ),
        ((INSIDE,), ("INSIDE",), "NAME:PROTOCOL"),
        ((INSIDE, "INSIDE://127.0.0.1:9093"), BOTH_PLAIN, "names INSIDE twice"),
    ],
)
def test_invalid_listeners_are_refused_with_a_reason(
    listeners: tuple[str, ...], protocols: tuple[str, ...], message: str
) -> None:
    config = BrokerConfig(listeners=listeners, listener_security_protocol_map=protocols)
    with pytest.raises(BadConfig, match=message):
        parse_listeners(config)


@pytest.mark.parametrize(
    ("advertised", "message"),
    [
        ("PLAINTEXT://0.0.0.0:9092", "clients cannot connect"),
        ("OTHER://kafka.example:9092", "names OTHER, which is not in listeners"),
    ],
)
def test_invalid_advertised_listeners_are_refused(advertised: str, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        parse_listeners(BrokerConfig(advertised_listeners=(advertised,)))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost"])
def test_plain_text_on_loopback_is_allowed(host: str) -> None:
    specs = parse_listeners(BrokerConfig(listeners=(f"PLAINTEXT://{host}:9092",)))
    refuse_plain_text_beyond_loopback(specs)


@pytest.mark.parametrize("host", ["0.0.0.0", "", "[::]", "192.168.1.5", "kafka.example"])
def test_plain_text_beyond_loopback_is_refused(host: str) -> None:
    specs = parse_listeners(BrokerConfig(listeners=(f"PLAINTEXT://{host}:9092",)))
    with pytest.raises(BadConfig, match="--insecure"):
        refuse_plain_text_beyond_loopback(specs)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_encrypted_listeners_may_serve_other_machines(protocol: str) -> None:
    (spec,) = parse_listeners(BrokerConfig(listeners=(f"{protocol}://0.0.0.0:9093",)))
    assert spec.protocol == protocol
    refuse_plain_text_beyond_loopback([spec])


def test_passwords_in_plain_text_beyond_loopback_are_refused() -> None:
    specs = parse_listeners(BrokerConfig(listeners=("SASL_PLAINTEXT://0.0.0.0:9093",)))
    with pytest.raises(BadConfig, match=r"plain text, passwords included; .*--insecure"):
        refuse_plain_text_beyond_loopback(specs)


def test_settings_of_a_listener_that_does_not_exist_are_refused() -> None:
    config = parse_broker_config({"listener.name.outsid.ssl.client.auth": "required"}).config
    with pytest.raises(BadConfig, match="for listener OUTSID, which is not in listeners"):
        parse_listeners(config)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EADDRINUSE, "in use"), "another program"),
        (OSError(errno.EADDRNOTAVAIL, "not available"), "does not have that address"),
        (PermissionError(errno.EACCES, "denied"), "permission denied"),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), "the host name 'kafka.example' cannot be"),
    ],
)
def test_a_failed_bind_has_a_clear_message(error: OSError, words: str) -> None:
    problem = bind_problem(ListenerSpec("PLAINTEXT", "kafka.example", 80), error)
    assert problem is not None
    assert problem.startswith("cannot listen on kafka.example:80: ")
    assert words in problem


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "full"), PermissionError(errno.EACCES, "denied", "data/.lock")],
)
def test_file_errors_are_not_bind_problems(error: OSError) -> None:
    assert bind_problem(ListenerSpec("PLAINTEXT", "localhost", 9092), error) is None
