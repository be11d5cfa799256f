"""The configuration keys of TLS and SASL: for all listeners, one listener, or one mechanism of it.

`ssl.client.auth` applies to all listeners, `listener.name.outside.ssl.client.auth` to the listener
OUTSIDE, and `listener.name.outside.plain.sasl.jaas.config` to PLAIN on it. The most specific key
takes precedence.
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
        text(), "PEM", "The format of the broker's certificate and key: PEM."
    )
    ssl_keystore_location: str = key(
        text(),
        "",
        "A PEM file with the broker's certificate chain and its private key. Checked for each new "
        "connection: a replaced file takes effect at once.",
    )
    ssl_keystore_certificate_chain: str = key(
        text(), "", "The certificate chain itself, instead of a file."
    )
    ssl_keystore_key: Password = key(
        password(), NO_PASSWORD, "The private key itself, instead of a file."
    )
    ssl_key_password: Password = key(
        password(), NO_PASSWORD, "The password of an encrypted private key."
    )
    ssl_truststore_type: str = key(text(), "PEM", "The format of the trusted certificates: PEM.")
    ssl_truststore_location: str = key(
        text(),
        "",
        "A PEM file with the trusted certificates: those that issue the clients' certificates.",
    )
    ssl_truststore_certificates: str = key(
        text(), "", "The trusted certificates themselves, instead of a file."
    )
    ssl_client_auth: str = key(
        one_of("none", "requested", "required"),
        "none",
        "Whether clients present a certificate, whose subject becomes their principal. On SASL_SSL "
        "listeners only if it is set for that listener.",
    )
    ssl_enabled_protocols: tuple[str, ...] = key(
        list_of("TLSv1.2", "TLSv1.3"), ("TLSv1.2", "TLSv1.3"), "The enabled TLS versions."
    )
    ssl_cipher_suites: tuple[str, ...] = key(
        list_of(), (), "The allowed cipher suites, by their standard names; default: OpenSSL's."
    )
    sasl_enabled_mechanisms: tuple[str, ...] = key(
        list_of(*SASL_MECHANISMS), (), "The SASL mechanisms with which clients may authenticate."
    )
    sasl_jaas_config: Password = key(
        password(),
        NO_PASSWORD,
        "The users of PLAIN, given for a listener (`listener.name.NAME.plain.sasl.jaas.config`): "
        '`PlainLoginModule required user_NAME="password";`. SCRAM needs none: its users are '
        "stored in the metadata (`suwi users`).",
    )
    sasl_server_max_receive_size: int = key(
        int32(1), 524_288, "The largest request of a client that is not authenticated yet."
    )
    connections_max_reauth_ms: int = key(
        int64(0),
        0,
        "How long a SASL authentication is valid: a client must authenticate again in time, or its "
        "connection is closed at its next request; 0: as long as the connection.",
    )
    connection_failed_authentication_delay_ms: int = key(
        int32(0), 100, "How long the response to a failed authentication is delayed."
    )


SECURITY_KEYS = keys_of(SecurityConfig)
MECHANISM_KEYS = frozenset({"sasl.jaas.config", "connections.max.reauth.ms"})
"""The keys that may also be set for one mechanism of a listener."""


class Scope(NamedTuple):
    """What a key is set for: a listener, or a mechanism of it if `mechanism` is not empty."""

    listener: str
    mechanism: str = ""


def split_scope(name: str) -> tuple[Scope, str] | None:
    """`listener.name.outside.plain.sasl.jaas.config` -> OUTSIDE, PLAIN and `sasl.jaas.config`.

    None if it is not such a key.
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
