"""Authentication between brokers on the inter-broker listener.

On a SASL listener brokers log in as a user (`sasl.mechanism.inter.broker.protocol`): the one whose
password they have, or whom their token is for. On any other listener they prove that they know a
secret from the metadata store: see `security.peer_proof`. A TLS certificate does not identify a
broker: each broker may have a different name in its certificate, and client certificates may not
be required.
"""

from contextlib import suppress

from suwi.client.addresses import Address
from suwi.client.connection import PeerConnection
from suwi.client.security import (
    PasswordLogin,
    connect_securely,
    read_client_security,
    read_sasl_login,
)
from suwi.env import Disk, Env
from suwi.metadata.image import Endpoint
from suwi.model.broker_config import BrokerConfig
from suwi.model.config_kinds import BadConfig
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.model.listener_config import ListenerSpec
from suwi.replica.peers import Connect, Prove
from suwi.security.jwt_validator import BadToken, user_of_own_token
from suwi.security.mechanism import Refused
from suwi.security.oauthbearer import OAUTHBEARER
from suwi.security.peer_proof import PeerProver
from suwi.security.principal import user
from suwi.security.sasl_session import PeerLogIn
from suwi.wire.versions import ApiKey

_MECHANISM_KEY = "sasl.mechanism.inter.broker.protocol"
_TOKEN_KEY = "sasl.oauthbearer.token.endpoint.url"


def find_inter_broker_listener(config: BrokerConfig, specs: list[ListenerSpec]) -> ListenerSpec:
    """The listener with the configured name, else the first with the configured protocol, else the
    first.

    Raises `BadConfig`.
    """
    name, protocol = config.inter_broker_listener_name, config.security_inter_broker_protocol
    if name and protocol:
        raise BadConfig(
            "inter.broker.listener.name and security.inter.broker.protocol: set one of them"
        )
    for spec in specs:
        if name in ("", spec.name) and protocol in ("", spec.protocol):
            return spec
    wanted = f"inter.broker.listener.name={name}" if name else f"the protocol {protocol}"
    names = ", ".join(f"{spec.name} ({spec.protocol})" for spec in specs)
    raise BadConfig(f"no listener matches {wanted}; the listeners are {names}")


def peer_log_in(config: BrokerConfig, spec: ListenerSpec, disk: Disk) -> PeerLogIn | None:
    """How brokers log in to the inter-broker listener; None if they do not or cannot."""
    with suppress(BadConfig):
        return _read_log_in(config, spec, disk) if spec.uses_sasl else None
    return None


def _read_log_in(config: BrokerConfig, spec: ListenerSpec, disk: Disk) -> PeerLogIn:
    """Raises `BadConfig`."""
    if config.sasl_mechanism_inter_broker_protocol == OAUTHBEARER:
        return PeerLogIn(OAUTHBEARER, user(_token_user(config, spec, disk)))
    log_in = read_sasl_login(_client_properties(config, spec))
    assert isinstance(log_in, PasswordLogin)
    return PeerLogIn(log_in.mechanism, user(log_in.user))


def _token_user(config: BrokerConfig, spec: ListenerSpec, disk: Disk) -> str:
    from suwi.client.tokens import FileTokens, NoToken, read_tokens  # imports urllib, which is slow

    own = config.security_of(spec.name, OAUTHBEARER)
    url = own.sasl_oauthbearer_token_endpoint_url
    if not url.startswith("file:"):
        raise BadConfig(f"{_TOKEN_KEY}={url}: brokers have their token in a file; give file:///…")
    tokens = read_tokens({_TOKEN_KEY: url}, {})
    assert isinstance(tokens, FileTokens)
    try:
        return user_of_own_token(tokens.read(disk), own.sasl_oauthbearer_sub_claim_name)
    except (NoToken, BadToken) as error:
        raise BadConfig(f"{_TOKEN_KEY}={url}: {error}") from None


def check_peers_can_log_in(config: BrokerConfig, spec: ListenerSpec, disk: Disk) -> None:
    """Raises `BadConfig` if brokers cannot log in to each other. For clusters, not one broker."""
    if not spec.uses_sasl:
        return
    if not config.sasl_mechanism_inter_broker_protocol:
        raise BadConfig(
            f"listener {spec.name}: brokers have to log in to each other; set {_MECHANISM_KEY}, "
            f"and user and password in listener.name.{spec.name.lower()}.MECHANISM.sasl.jaas.config"
        )
    try:
        _read_log_in(config, spec, disk)
    except BadConfig as error:
        raise BadConfig(f"listener {spec.name}: brokers cannot log in: {error}") from None


def connect_to_peers(config: BrokerConfig, spec: ListenerSpec, env: Env) -> Connect:
    """A function that connects to the same listener of another broker."""
    properties = _client_properties(config, spec)

    async def connect(endpoint: Endpoint) -> PeerConnection:
        try:
            # Read for each connection: certificates may be replaced while the broker runs.
            security = read_client_security(properties, env.disk, env.random)
            return await connect_securely(security, f"suwi-{config.node_id}")(
                Address(endpoint.host, endpoint.port)
            )
        except BadConfig as error:
            raise ConnectionError(f"brokers cannot log in to {spec.name}: {error}") from error
        except BrokerError as error:
            raise ConnectionError(f"authentication failed: {error}") from error

    return connect


def prove_to_peers(spec: ListenerSpec, prover: PeerProver) -> Prove:
    """A function that proves this broker's identity on a new connection to another broker."""

    async def prove(connection: PeerConnection, to: NodeId) -> None:
        if spec.uses_sasl:
            return
        try:
            hello = prover.hello()
            answer = await connection.send(ApiKey.PEER_CHALLENGE, 0, [hello])
            proof = prover.respond(to, hello, bytes(answer))
            # Without waiting for a response: the caller's first request follows at once.
            connection.send_unanswered(ApiKey.PEER_PROOF, 0, [proof])
        except Refused as error:
            connection.abort()
            raise ConnectionError(str(error)) from None
        except BaseException:
            connection.abort()
            raise

    return prove


def _client_properties(config: BrokerConfig, spec: ListenerSpec) -> dict[str, str]:
    """The listener's settings as client properties, for connections to the same listener of other
    brokers."""
    settings = config.security_of(spec.name)
    properties = {
        "security.protocol": spec.protocol,
        "ssl.keystore.type": settings.ssl_keystore_type,
        "ssl.keystore.location": settings.ssl_keystore_location,
        "ssl.keystore.certificate.chain": settings.ssl_keystore_certificate_chain,
        "ssl.keystore.key": settings.ssl_keystore_key.secret,
        "ssl.key.password": settings.ssl_key_password.secret,
        "ssl.truststore.type": settings.ssl_truststore_type,
        "ssl.truststore.location": settings.ssl_truststore_location,
        "ssl.truststore.certificates": settings.ssl_truststore_certificates,
        "ssl.enabled.protocols": ",".join(settings.ssl_enabled_protocols),
        "ssl.cipher.suites": ",".join(settings.ssl_cipher_suites),
        "ssl.endpoint.identification.algorithm": config.ssl_endpoint_identification_algorithm,
    }
    if spec.uses_sasl:
        mechanism = config.sasl_mechanism_inter_broker_protocol
        own = config.security_of(spec.name, mechanism)
        properties["sasl.mechanism"] = mechanism
        if mechanism == OAUTHBEARER:
            properties[_TOKEN_KEY] = own.sasl_oauthbearer_token_endpoint_url
        else:
            properties["sasl.jaas.config"] = own.sasl_jaas_config.secret
    return properties
