"""The security of one listener, from Kafka's configuration keys: TLS, SASL and its users.

`ListenerSecurity.of` checks the settings; an error is raised before the listener is opened.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple
from urllib.parse import urlsplit

from suwi.env import Disk, Env
from suwi.env.problems import Problems
from suwi.model.broker_config import BrokerConfig
from suwi.model.config_kinds import BadConfig
from suwi.model.listener_config import ListenerSpec
from suwi.model.security_config import Scope, SecurityConfig
from suwi.net.connection import Dispatch
from suwi.net.limits import Limits
from suwi.net.sasl_gate import SaslGate
from suwi.replica.peers import HasImage
from suwi.security.jaas import BadJaas, parse_jaas
from suwi.security.jwt_validator import BadKeys, JwtRules, JwtValidator
from suwi.security.mechanism import ServerMechanism
from suwi.security.oauthbearer import OAUTHBEARER, OAuthBearerServer
from suwi.security.plain import PLAIN, PlainServer, PlainUsers
from suwi.security.refreshing_jwks import JwksSource, RefreshingJwks
from suwi.security.sasl_session import MechanismRules, PeerLogIn, SaslRules
from suwi.security.scram import (
    MECHANISMS,
    NONCE_BYTES,
    Decoys,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    new_nonce,
)
from suwi.security.tls import BadTls, RenewedContext, Store, TlsSettings

log = logging.getLogger(__name__)

_PLAIN_MODULE = "PlainLoginModule"
_KEY_BYTES = 32
_JWKS_KEY = "sasl.oauthbearer.jwks.endpoint.url"


@dataclass(slots=True)
class ScramUsers:
    """Looks SCRAM credentials up in the current metadata image."""

    metadata: HasImage
    decoys: Decoys = field(default_factory=lambda: Decoys(b""))

    def look_up(self, mechanism: ScramMechanism, name: str) -> tuple[ScramCredential, bool]:
        """A credential, and whether the user exists. Takes the same time for every name."""
        scram = self.metadata.image.scram
        known: Mapping[str, ScramCredential] = scram.get(mechanism.sasl_name, {})
        template = next(iter(known.values()), None)
        decoy = self.decoys.credential(mechanism, name, template)
        return known.get(name, decoy), name in known


class ListenerSecurity(NamedTuple):
    tls: RenewedContext | None
    sasl: SaslRules | None
    unauthenticated_bytes_max: int
    token_keys: RefreshingJwks | None = None
    """Of OAUTHBEARER; to be started before the listener."""

    @classmethod
    def of(
        cls,
        spec: ListenerSpec,
        config: BrokerConfig,
        env: Env,
        users: ScramUsers,
        problems: Problems,
        peer: PeerLogIn | None = None,
    ) -> "ListenerSecurity":
        """`peer`: how other brokers log in to this listener. Raises `BadConfig`."""
        settings = config.security_of(spec.name)
        keys = None
        if spec.uses_sasl and OAUTHBEARER in settings.sasl_enabled_mechanisms:
            keys = _token_keys(spec, config, env, problems)
        return cls(
            _tls(spec, settings, config, env.disk) if spec.uses_tls else None,
            _sasl(spec, settings, config, env, users, keys, peer) if spec.uses_sasl else None,
            settings.sasl_server_max_receive_size,
            keys,
        )

    def guard(self, dispatch: Dispatch) -> Dispatch:
        """Put authentication in front of `dispatch`. Call it on the event loop."""
        if self.sasl is None:
            return dispatch
        return SaslGate(dispatch, self.sasl, asyncio.get_running_loop().time)

    def limits(self, limits: Limits) -> Limits:
        """The limits of a connection before it is authenticated."""
        if self.sasl is None:
            return limits
        return limits.before_authentication(self.unauthenticated_bytes_max)


def _tls(
    spec: ListenerSpec, settings: SecurityConfig, config: BrokerConfig, disk: Disk
) -> RenewedContext:
    client_auth = settings.ssl_client_auth
    if spec.uses_sasl and "ssl_client_auth" not in config.scoped.get(Scope(spec.name), {}):
        client_auth = "none"  # KIP-684: SASL authenticates the client
    tls = TlsSettings(
        keys=Store(
            "ssl.keystore",
            settings.ssl_keystore_type,
            settings.ssl_keystore_location,
            settings.ssl_keystore_certificate_chain,
            settings.ssl_keystore_key.secret,
            settings.ssl_key_password.secret,
        ),
        trusted=Store(
            "ssl.truststore",
            settings.ssl_truststore_type,
            settings.ssl_truststore_location,
            settings.ssl_truststore_certificates,
        ),
        client_auth=client_auth,
        versions=settings.ssl_enabled_protocols,
        cipher_suites=settings.ssl_cipher_suites,
    )
    try:
        return RenewedContext(spec.name, tls, disk)
    except BadTls as error:
        raise BadConfig(f"listener {spec.name}: {error}") from None


def _sasl(
    spec: ListenerSpec,
    settings: SecurityConfig,
    config: BrokerConfig,
    env: Env,
    users: ScramUsers,
    keys: RefreshingJwks | None,
    peer: PeerLogIn | None,
) -> SaslRules:
    if not settings.sasl_enabled_mechanisms:
        raise BadConfig(
            f"listener {spec.name}: no SASL mechanism is enabled; set for example "
            "sasl.enabled.mechanisms=SCRAM-SHA-512"
        )
    rules = {}
    start: Callable[[], ServerMechanism]
    for name in settings.sasl_enabled_mechanisms:
        own = config.security_of(spec.name, name)
        if name == PLAIN:
            start = partial(PlainServer, _plain_users(spec, config, env))
        elif name == OAUTHBEARER:
            assert keys is not None
            validator = JwtValidator(_jwt_rules(spec, own), keys.find, env.clock)
            start = partial(OAuthBearerServer, validator.validate)
        else:
            start = partial(_start_scram, MECHANISMS[name], users, env)
        rules[name] = MechanismRules(start, own.connections_max_reauth_ms)
    return SaslRules(rules, settings.connection_failed_authentication_delay_ms, peer)


def _token_keys(
    spec: ListenerSpec, config: BrokerConfig, env: Env, problems: Problems
) -> RefreshingJwks:
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        raise BadConfig("OAUTHBEARER needs more packages: pip install 'suwi[oauth]'")
    own = config.security_of(spec.name, OAUTHBEARER)
    url = own.sasl_oauthbearer_jwks_endpoint_url
    parts = urlsplit(url)
    is_usable = parts.path if parts.scheme == "file" else parts.scheme in ("http", "https")
    if not is_usable or parts.username is not None:
        raise BadConfig(
            f"listener {spec.name}: OAUTHBEARER needs the keys of the tokens' issuer; set "
            f"{_JWKS_KEY} to file:///… or https://…, without a user"
        )
    if parts.scheme != "file" and url not in config.sasl_oauthbearer_allowed_urls:
        raise BadConfig(
            f"{_JWKS_KEY}={url} is not allowed: list it in "
            "org.apache.kafka.sasl.oauthbearer.allowed.urls"
        )
    source = JwksSource(
        url,
        own.sasl_oauthbearer_jwks_endpoint_refresh_ms,
        own.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
        own.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
    )
    try:
        return RefreshingJwks(source, spec.name, env.disk, problems)
    except (BadKeys, OSError) as error:
        raise BadConfig(f"{_JWKS_KEY}={url}: {error}") from None


def _jwt_rules(spec: ListenerSpec, settings: SecurityConfig) -> JwtRules:
    rules = JwtRules(
        settings.sasl_oauthbearer_expected_issuer,
        settings.sasl_oauthbearer_expected_audience,
        settings.sasl_oauthbearer_expected_scope,
        settings.sasl_oauthbearer_sub_claim_name,
        settings.sasl_oauthbearer_scope_claim_name,
        settings.sasl_oauthbearer_clock_skew_seconds,
    )
    if not rules.audiences:
        fields = {"listener": spec.name, "do": "set sasl.oauthbearer.expected.audience"}
        log.warning("tokens for every audience are accepted", extra=fields)
    return rules


def _start_scram(mechanism: ScramMechanism, users: ScramUsers, env: Env) -> ScramServer:
    nonce = new_nonce(env.random.token(NONCE_BYTES))
    return ScramServer(mechanism, partial(users.look_up, mechanism), nonce)


def _plain_users(spec: ListenerSpec, config: BrokerConfig, env: Env) -> PlainUsers:
    key = f"listener.name.{spec.name.lower()}.plain.sasl.jaas.config"
    scoped = config.scoped.get(Scope(spec.name, PLAIN), {})
    if "sasl_jaas_config" not in scoped:
        raise BadConfig(
            f'PLAIN has no users: set {key}={_PLAIN_MODULE} required user_NAME="password";'
        )
    try:
        module = parse_jaas(scoped["sasl_jaas_config"].secret)
    except BadJaas as error:
        raise BadConfig(f"{key}: {error}") from None
    if module.name != _PLAIN_MODULE:
        raise BadConfig(f"{key}: the login module must be {_PLAIN_MODULE}")
    if not all([module.users, *module.users, *module.users.values()]):
        raise BadConfig(
            f'{key}: list the users as user_NAME="password"; names and passwords must not be empty'
        )
    return PlainUsers(module.users, env.random.token(_KEY_BYTES))
