"""The configuration keys of TLS and SASL, for the whole broker, a listener or a mechanism of one.

`ssl.client.auth` holds for all listeners, `listener.name.outside.ssl.client.auth` for the listener
OUTSIDE, and `listener.name.outside.plain.sasl.jaas.config` for PLAIN on it. The narrower one wins.
"""

from dataclasses import dataclass
from typing import NamedTuple

from suwi.model.config_kinds import (
    NO_PASSWORD,
    Password,
    int32,
    int64,
    key,
    keys_of,
    list_of,
    one_of,
    password,
    text,
)

LISTENER_PREFIX = "listener.name."
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    ssl_keystore_type: str = key(
        "ssl.keystore.type", text(), "PEM", "The form of the broker's certificate and key: PEM."
    )
    ssl_keystore_location: str = key(
        "ssl.keystore.location",
        text(),
        "",
        "A PEM file with the broker's certificate chain and its private key. Looked at for each "
        "new connection: a file that was replaced takes effect at once.",
    )
    ssl_keystore_certificate_chain: str = key(
        "ssl.keystore.certificate.chain",
        text(),
        "",
        "The certificate chain itself, in place of a file.",
    )
    ssl_keystore_key: Password = key(
        "ssl.keystore.key", password(), NO_PASSWORD, "The private key itself, in place of a file."
    )
    ssl_key_password: Password = key(
        "ssl.key.password", password(), NO_PASSWORD, "The password of an encrypted private key."
    )
    ssl_truststore_type: str = key(
        "ssl.truststore.type", text(), "PEM", "The form of the certificates to trust: PEM."
    )
    ssl_truststore_location: str = key(
        "ssl.truststore.location",
        text(),
        "",
        "A PEM file with the certificates that clients' certificates must come from.",
    )
    ssl_truststore_certificates: str = key(
        "ssl.truststore.certificates",
        text(),
        "",
        "The certificates to trust themselves, in place of a file.",
    )
    ssl_client_auth: str = key(
        "ssl.client.auth",
        one_of("none", "requested", "required"),
        "none",
        "Whether clients show a certificate, which names their principal. On SASL_SSL listeners "
        "only where it is set for that listener.",
    )
    ssl_enabled_protocols: tuple[str, ...] = key(
        "ssl.enabled.protocols",
        list_of("TLSv1.2", "TLSv1.3"),
        ("TLSv1.2", "TLSv1.3"),
        "The versions of TLS that are spoken.",
    )
    ssl_cipher_suites: tuple[str, ...] = key(
        "ssl.cipher.suites",
        list_of(),
        (),
        "The cipher suites that are allowed, by their standard names; default: OpenSSL's.",
    )
    sasl_enabled_mechanisms: tuple[str, ...] = key(
        "sasl.enabled.mechanisms",
        list_of(*SASL_MECHANISMS),
        (),
        "How clients of SASL listeners may show who they are.",
    )
    sasl_jaas_config: Password = key(
        "sasl.jaas.config",
        password(),
        NO_PASSWORD,
        "The users of PLAIN, given for a listener (`listener.name.NAME.plain.sasl.jaas.config`): "
        '`PlainLoginModule required user_NAME="password";`. SCRAM needs none: its users are kept '
        "in the metadata (`suwi users`).",
    )
    sasl_server_max_receive_size: int = key(
        "sasl.server.max.receive.size",
        int32(1),
        524_288,
        "The largest request before a client has shown who it is.",
    )
    connections_max_reauth_ms: int = key(
        "connections.max.reauth.ms",
        int64(0),
        0,
        "How long a SASL authentication holds: a client must repeat it in time, or its connection "
        "is closed at its next request; 0: as long as the connection.",
    )
    connection_failed_authentication_delay_ms: int = key(
        "connection.failed.authentication.delay.ms",
        int32(0),
        100,
        "How long the answer to a failed authentication is held back.",
    )


SECURITY_KEYS = keys_of(SecurityConfig)
MECHANISM_KEYS = frozenset({"sasl.jaas.config", "connections.max.reauth.ms"})
"""Those that may also be set for one mechanism of a listener."""


class Scope(NamedTuple):
    """For whom a key is set: a listener, or (where not empty) a mechanism of it."""

    listener: str
    mechanism: str = ""


def split_scope(name: str) -> tuple[Scope, str] | None:
    """`listener.name.outside.plain.sasl.jaas.config` -> OUTSIDE, PLAIN and `sasl.jaas.config`.

    None where it is no such key.
    """
    if not name.startswith(LISTENER_PREFIX):
        return None
    listener, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    if rest in SECURITY_KEYS:
        return Scope(listener.upper()), rest
    mechanism, _, rest = rest.partition(".")
    if mechanism.upper() in SASL_MECHANISMS and rest in MECHANISM_KEYS:
        return Scope(listener.upper(), mechanism.upper()), rest
    return None
