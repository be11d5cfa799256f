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
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_HANDLER = "org.apache.kafka.common.security.oauthbearer.{}OAuthBearerValidatorCallbackHandler"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    ssl_keystore_type: str = key(text(), "PEM").doc(
        "The format of the broker's certificate and key: PEM."
    )
    ssl_keystore_location: str = key(text(), "").doc(
        "A PEM file with the broker's certificate chain and its private key. Checked for each new "
        "connection: a replaced file takes effect at once."
    )
    ssl_keystore_certificate_chain: str = key(text(), "").doc(
        "The certificate chain itself, instead of a file."
    )
    ssl_keystore_key: Password = key(password(), NO_PASSWORD).doc(
        "The private key itself, instead of a file."
    )
    ssl_key_password: Password = key(password(), NO_PASSWORD).doc(
        "The password of an encrypted private key."
    )
    ssl_truststore_type: str = key(text(), "PEM").doc(
        "The format of the trusted certificates: PEM."
    )
    ssl_truststore_location: str = key(text(), "").doc(
        "A PEM file with the trusted certificates: those that issue the clients' certificates."
    )
    ssl_truststore_certificates: str = key(text(), "").doc(
        "The trusted certificates themselves, instead of a file."
    )
    ssl_client_auth: str = key(one_of("none", "requested", "required"), "none").doc(
        "Whether clients present a certificate, whose subject becomes their principal. On SASL_SSL "
        "listeners only if it is set for that listener."
    )
    ssl_enabled_protocols: tuple[str, ...] = key(
        list_of("TLSv1.2", "TLSv1.3"), ("TLSv1.2", "TLSv1.3")
    ).doc("The enabled TLS versions.")
    ssl_cipher_suites: tuple[str, ...] = key(list_of(), ()).doc(
        "The allowed cipher suites, by their standard names; default: OpenSSL's."
    )
    sasl_enabled_mechanisms: tuple[str, ...] = key(list_of(*SASL_MECHANISMS), ()).doc(
        "The SASL mechanisms with which clients may authenticate."
    )
    sasl_jaas_config: Password = key(password(), NO_PASSWORD).doc(
        "The users of PLAIN, given for a listener (`listener.name.NAME.plain.sasl.jaas.config`): "
        '`PlainLoginModule required user_NAME="password";`. SCRAM needs none: its users are '
        "stored in the metadata (`suwi users`). OAUTHBEARER needs none either."
    )
    sasl_server_callback_handler_class: str = key(
        one_of("", _HANDLER.format(""), _HANDLER.format("secured.")), ""
    ).doc("Kafka's class that checks the tokens of OAUTHBEARER.")
    sasl_oauthbearer_token_endpoint_url: str = key(text(), "").doc(
        "The file (`file:///…`) with the token that the broker logs in to other brokers with, if "
        "they use OAUTHBEARER. Read at each log-in: another program renews it."
    )
    sasl_oauthbearer_jwks_endpoint_url: str = key(text(), "").doc(
        "The public keys of the tokens' issuer (JWKS), which OAUTHBEARER needs: `file:///…`, or a "
        "URL of `org.apache.kafka.sasl.oauthbearer.allowed.urls`."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = key(int64(1_000), 3_600_000).doc(
        "How often the keys are read again; a token with an unknown key causes it, too."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = key(int64(1), 100).doc(
        "The pause after the keys could not be read; it doubles with each failure."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = key(int64(1), 10_000).doc(
        "The longest of these pauses."
    )
    sasl_oauthbearer_expected_issuer: str = key(text(), "").doc(
        "The `iss` that a token must have; empty: any."
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = key(list_of(), ()).doc(
        "A token must have one of these as its `aud`; empty: any."
    )
    sasl_oauthbearer_expected_scope: tuple[str, ...] = key(list_of(), ()).doc(
        "A token must have all of these scopes; empty: none. An addition of Suwi."
    )
    sasl_oauthbearer_scope_claim_name: str = key(text(), "scope").doc(
        "The claim with the scopes: a list, or words in a text."
    )
    sasl_oauthbearer_sub_claim_name: str = key(text(), "sub").doc(
        "The claim with the name of the user."
    )
    sasl_oauthbearer_clock_skew_seconds: int = key(int32(0), 30).doc(
        "How far the clocks of issuer and broker may differ."
    )
    sasl_server_max_receive_size: int = key(int32(1), 524_288).doc(
        "The largest request of a client that is not authenticated yet."
    )
    connections_max_reauth_ms: int = key(int64(0), 0).doc(
        "How long a SASL authentication is valid: a client must authenticate again in time, or its "
        "connection is closed at its next request; 0: as long as the connection."
    )
    connection_failed_authentication_delay_ms: int = key(int32(0), 100).doc(
        "How long the response to a failed authentication is delayed."
    )


SECURITY_KEYS = keys_of(SecurityConfig)
OAUTHBEARER_KEYS = frozenset(
    name
    for name in SECURITY_KEYS
    if name.startswith(("sasl.oauthbearer.", "sasl.server.callback."))
)
MECHANISM_KEYS = OAUTHBEARER_KEYS | {"sasl.jaas.config", "connections.max.reauth.ms"}
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
