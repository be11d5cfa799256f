"""Connections with TLS and SASL, configured with the keys of Kafka's clients.

`read_client_security` checks the settings, `connect_securely` makes connections. `read_sasl_login`
reads the credentials only: user and password, or OAuth tokens. If a broker requires
re-authentication (KIP-368), it happens in time, between two requests.
Invariant: no error text and no `repr` has secrets.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from suwi.client.addresses import Address
from suwi.client.connection import PeerConnection
from suwi.client.errors import error_from
from suwi.client.versioned_connection import Connect
from suwi.env import Disk, Env, Random, SystemClock
from suwi.model.config_kinds import BadConfig, did_you_mean
from suwi.model.errors import BrokerError, UnsupportedSaslMechanism
from suwi.security.jaas import BadJaas, LoginModule, parse_jaas
from suwi.security.mechanism import ClientMechanism, Refused
from suwi.security.oauthbearer import OAUTHBEARER, OAuthBearerClient
from suwi.security.plain import PLAIN, PlainClient
from suwi.security.scram import MECHANISMS, NONCE_BYTES, ScramClient, new_nonce
from suwi.security.tls import VERSIONS, BadTls, Store, TlsSettings, make_client_context
from suwi.wire.versions import ApiKey

if TYPE_CHECKING:
    from suwi.client.tokens import Tokens

log = logging.getLogger(__name__)

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_KEYS: Final = frozenset(
    """
    security.protocol sasl.mechanism sasl.jaas.config sasl.oauthbearer.token.endpoint.url
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.scope
    ssl.keystore.type ssl.keystore.location ssl.keystore.certificate.chain ssl.keystore.key
    ssl.key.password ssl.truststore.type ssl.truststore.location ssl.truststore.certificates
    ssl.endpoint.identification.algorithm ssl.enabled.protocols ssl.cipher.suites
    """.split()
)
_PREFIXES: Final = ("security.", "ssl.", "sasl.")
# Keys of Kafka's clients, or their prefixes, that have no effect here.
_WITHOUT_EFFECT: Final = tuple(
    """
    security.providers sasl.client.callback.handler.class sasl.kerberos. sasl.login.
    sasl.oauthbearer.
    ssl.engine.factory.class ssl.keymanager.algorithm ssl.keystore.password ssl.protocol
    ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.password
    """.split()
)
_JAAS: Final = "sasl.jaas.config"
_SASL_MECHANISMS: Final = (PLAIN, *MECHANISMS, OAUTHBEARER)
_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 1  # supported by older brokers; has the session lifetime
# Share of the session lifetime: Kafka's clients re-authenticate between 85 and 95 %.
_REAUTHENTICATE_AT: Final = 0.85


class AuthenticationFailed(BrokerError):
    """The broker rejected the authentication."""

    code = ErrorCode.sasl_authentication_failed


class SaslLogin(Protocol):
    async def start(self, env: Env) -> ClientMechanism:
        """Raises `NoToken`."""


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    mechanism: str
    user: str
    password: str = field(repr=False)

    async def start(self, env: Env) -> ClientMechanism:
        if self.mechanism == PLAIN:
            return PlainClient(self.user, self.password)
        nonce = new_nonce(env.random.token(NONCE_BYTES))
        return ScramClient(MECHANISMS[self.mechanism], self.user, self.password, nonce)


class TokenLogin(NamedTuple):
    tokens: "Tokens"

    async def start(self, env: Env) -> ClientMechanism:
        return OAuthBearerClient(await self.tokens.token(env))


def read_sasl_login(given: Mapping[str, str]) -> SaslLogin:
    """Raises `BadConfig`."""
    mechanism = given.get("sasl.mechanism", "")
    if mechanism not in _SASL_MECHANISMS:
        raise BadConfig(f"sasl.mechanism={mechanism}: allowed: {', '.join(_SASL_MECHANISMS)}")
    if mechanism == OAUTHBEARER:
        # All options have keys of their own, so sasl.jaas.config is optional.
        from suwi.client.tokens import read_tokens  # imports urllib, which is slow

        return TokenLogin(read_tokens(given, _module(given).options if _JAAS in given else {}))
    options = _module(given).options
    user, password = options.get("username"), options.get("password")
    if not user or not password:
        raise BadConfig(f'{_JAAS}: username="…" and password="…" are missing')
    return PasswordLogin(mechanism, user, password)


def _module(given: Mapping[str, str]) -> LoginModule:
    try:
        return parse_jaas(given.get(_JAAS, ""))
    except BadJaas as error:
        raise BadConfig(f"{_JAAS}: {error}") from None


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    tls: ssl.SSLContext | None = None
    log_in: Callable[[], Awaitable[ClientMechanism]] | None = field(default=None, repr=False)
    """Creates the client side of one authentication. Raises `NoToken`."""


def read_client_security(
    properties: Mapping[str, str], disk: Disk, random: Random
) -> ClientSecurity:
    """From a `client.properties`; keys that are not about security are ignored.

    Raises `BadConfig`, whose text has keys, never secrets.
    """
    given, protocol = _given(properties)
    try:
        tls = _tls(given, disk) if protocol.endswith("SSL") else None
    except BadTls as error:
        raise BadConfig(str(error)) from None
    if not protocol.startswith("SASL_"):
        return ClientSecurity(tls)
    env = Env(SystemClock(), disk, random)
    return ClientSecurity(tls, partial(read_sasl_login(given).start, env))


def connect_as_users(
    properties: Mapping[str, str], disk: Disk, random: Random, client_id: str
) -> Callable[[str, str], Connect]:
    """Makes connections as whoever gives a name and a password, with the other settings of a
    `client.properties`. Raises `BadConfig` as above, also if it has no such mechanism."""
    given, protocol = _given(properties)
    mechanism = given.get("sasl.mechanism", "")
    if not protocol.startswith("SASL_") or mechanism not in (PLAIN, *MECHANISMS):
        allowed = ", ".join((PLAIN, *MECHANISMS))
        raise BadConfig(
            f"users can log in only with security.protocol=SASL_SSL or SASL_PLAINTEXT, and with "
            f"sasl.mechanism one of {allowed}"
        )
    tls = read_client_security(properties, disk, random).tls
    env = Env(SystemClock(), disk, random)

    def connect(user: str, password: str) -> Connect:
        login = PasswordLogin(mechanism, user, password)
        return connect_securely(ClientSecurity(tls, partial(login.start, env)), client_id)

    return connect


def check_client_security(properties: Mapping[str, str]) -> None:
    """Check the settings without reading files, which may be on another machine.

    Raises `BadConfig` as above.
    """
    given, protocol = _given(properties)
    if protocol.startswith("SASL_"):
        read_sasl_login(given)


def _given(properties: Mapping[str, str]) -> tuple[dict[str, str], str]:
    for key in properties:
        if key.startswith(_PREFIXES) and key not in _KEYS and not key.startswith(_WITHOUT_EFFECT):
            raise BadConfig(f"unknown key {key!r}{did_you_mean(key, _KEYS)}")
    given = {key: value for key, value in properties.items() if key in _KEYS}
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise BadConfig(f"security.protocol={protocol}: allowed: {', '.join(_PROTOCOLS)}")
    return given, protocol


def _tls(given: Mapping[str, str], disk: Disk) -> ssl.SSLContext:
    versions = _words(given.get("ssl.enabled.protocols", "")) or list(VERSIONS)
    if not set(versions) <= VERSIONS.keys():
        raise BadConfig(f"ssl.enabled.protocols: allowed: {', '.join(VERSIONS)}")
    settings = TlsSettings(
        keys=Store(
            "ssl.keystore",
            given.get("ssl.keystore.type", "PEM"),
            given.get("ssl.keystore.location", ""),
            given.get("ssl.keystore.certificate.chain", ""),
            given.get("ssl.keystore.key", ""),
            given.get("ssl.key.password", ""),
        ),
        trusted=Store(
            "ssl.truststore",
            given.get("ssl.truststore.type", "PEM"),
            given.get("ssl.truststore.location", ""),
            given.get("ssl.truststore.certificates", ""),
        ),
        versions=versions,
        cipher_suites=_words(given.get("ssl.cipher.suites", "")),
    )
    # As in Kafka an empty value disables the check of the host name.
    checked = given.get("ssl.endpoint.identification.algorithm", "https")
    return make_client_context(settings, disk, check_host_name=checked != "")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def connect_securely(security: ClientSecurity, client_id: str) -> Connect:
    async def connect(address: Address) -> PeerConnection:
        connection = await PeerConnection.open(
            address.host, address.port, client_id=client_id, tls=security.tls
        )
        if security.log_in is not None:
            try:
                await _SaslAuthentication(connection, security.log_in).run()
            except BaseException:
                connection.abort()
                raise
        return connection

    return connect


class _SaslAuthentication:
    """Authenticates a connection, and re-authenticates it while it is open."""

    def __init__(
        self, connection: PeerConnection, new: Callable[[], Awaitable[ClientMechanism]]
    ) -> None:
        self._connection = connection
        self._new = new
        self._reauthentication: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Raises AuthenticationFailed, UnsupportedSaslMechanism, ConnectionLost, NoToken."""
        lifetime_ms = await self._authenticate(await self._new())
        if lifetime_ms > 0:
            reauthenticate_in_s = lifetime_ms / 1000 * _REAUTHENTICATE_AT
            asyncio.get_running_loop().call_later(reauthenticate_in_s, self._start_reauthentication)

    def _start_reauthentication(self) -> None:
        if self._connection.is_open:
            self._reauthentication = asyncio.get_running_loop().create_task(
                self._reauthenticate()
            )  # owner: itself

    async def _reauthenticate(self) -> None:
        try:
            await self.run()
        except (BrokerError, OSError):
            self._connection.abort()  # its user connects again and gets the error
        except Exception:
            log.exception("re-authentication failed")
            self._connection.abort()

    async def _authenticate(self, mechanism: ClientMechanism) -> int:
        async with self._connection.alone() as call:
            chosen = await call(
                ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSION, {"mechanism": mechanism.name}
            )
            if chosen.error_code == UnsupportedSaslMechanism.code:
                enabled = ", ".join(chosen.mechanisms)
                raise UnsupportedSaslMechanism(
                    f"the broker has not enabled {mechanism.name}, only {enabled}"
                )
            if chosen.error_code:
                raise error_from(
                    chosen.error_code, "SASL is not enabled on this listener of the broker"
                )
            token: bytes | None = mechanism.first()
            lifetime_ms = 0
            while token is not None:
                answer = await call(
                    ApiKey.SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, {"auth_bytes": token}
                )
                if answer.error_code:
                    raise AuthenticationFailed(answer.error_message or "authentication failed")
                lifetime_ms = round(answer.session_lifetime.total_seconds() * 1000)
                try:
                    token = mechanism.respond(answer.auth_bytes)
                except Refused as error:
                    raise AuthenticationFailed(str(error)) from None
            return lifetime_ms
