"""The security of one listener, from Kafka's configuration keys: TLS, SASL and its users.

`ListenerSecurity.of` checks the settings; an error is raised before the listener is opened.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from suwi.env import Disk, Env
from suwi.model.broker_config import BrokerConfig
from suwi.model.config_kinds import BadConfig
from suwi.model.listener_config import ListenerSpec
from suwi.model.security_config import Scope, SecurityConfig
from suwi.net.connection import Dispatch
from suwi.net.limits import Limits
from suwi.net.sasl_gate import SaslGate
from suwi.replica.peers import HasImage
from suwi.security.jaas import BadJaas, parse_jaas
from suwi.security.plain import PLAIN, PlainServer, PlainUsers
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

_PLAIN_MODULE = "PlainLoginModule"
_KEY_BYTES = 32


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

    @classmethod
    def of(
        cls,
        spec: ListenerSpec,
        config: BrokerConfig,
        env: Env,
        users: ScramUsers,
        peer: PeerLogIn | None = None,
    ) -> "ListenerSecurity":
        """`peer`: how other brokers log in to this listener. Raises `BadConfig`."""
        settings = config.security_of(spec.name)
        return cls(
            _tls(spec, settings, config, env.disk) if spec.uses_tls else None,
            _sasl(spec, settings, config, env, users, peer) if spec.uses_sasl else None,
            settings.sasl_server_max_receive_size,
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
    peer: PeerLogIn | None,
) -> SaslRules:
    if not settings.sasl_enabled_mechanisms:
        raise BadConfig(
            f"listener {spec.name}: no SASL mechanism is enabled; set for example "
            "sasl.enabled.mechanisms=SCRAM-SHA-512"
        )
    rules = {}
    for name in settings.sasl_enabled_mechanisms:
        own = config.security_of(spec.name, name)
        start = (
            partial(PlainServer, _plain_users(spec, config, env))
            if name == PLAIN
            else partial(_start_scram, MECHANISMS[name], users, env)
        )
        rules[name] = MechanismRules(start, own.connections_max_reauth_ms)
    return SaslRules(rules, settings.connection_failed_authentication_delay_ms, peer)


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
