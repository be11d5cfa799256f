"""How this broker shows the others that it is one of them, and how they are known here.

With SASL by the user that brokers log in as (`sasl.mechanism.inter.broker.protocol`), on every
other listener between brokers by a secret of the metadata store: see `security.peer_proof`. A
certificate proves no broker: each may have a name of its own in it, and clients may need none.
"""

from suwi.broker.listeners import ListenerSpec
from suwi.client.addresses import Address
from suwi.client.connection import PeerConnection
from suwi.client.sasl_login import PasswordLogin, read_sasl_login
from suwi.client.security import connect_securely, read_client_security
from suwi.env import Env
from suwi.metadata.image import Endpoint
from suwi.model.broker_config import BrokerConfig
from suwi.model.config_kinds import BadConfig
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.replica.peers import Connect, Prove
from suwi.security.mechanism import Refused
from suwi.security.peer_proof import PeerProver
from suwi.security.principal import user
from suwi.security.sasl_session import PeerLogIn
from suwi.wire.versions import ApiKey

_MECHANISM_KEY = "sasl.mechanism.inter.broker.protocol"


def listener_between_brokers(config: BrokerConfig, specs: list[ListenerSpec]) -> ListenerSpec:
    """The one that is named, else the first with the protocol that is named, else the first.

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
    raise BadConfig(f"no listener is meant by {wanted}: there are {_names(specs)}")


def _names(specs: list[ListenerSpec]) -> str:
    return ", ".join(f"{spec.name} ({spec.protocol})" for spec in specs)


def peer_log_in(config: BrokerConfig, spec: ListenerSpec) -> PeerLogIn | None:
    """How brokers log in to a listener between brokers; None where they do not, or cannot."""
    if not spec.uses_sasl:
        return None
    try:
        log_in = read_sasl_login(_client_properties(config, spec))
    except BadConfig:
        return None
    if not isinstance(log_in, PasswordLogin):
        return None
    return PeerLogIn(log_in.mechanism, user(log_in.user))


def check_peers_can_log_in(config: BrokerConfig, spec: ListenerSpec) -> None:
    """Raises `BadConfig` where brokers could not replicate: for one that is not alone."""
    if not spec.uses_sasl:
        return
    if not config.sasl_mechanism_inter_broker_protocol:
        raise BadConfig(
            f"listener {spec.name}: brokers have to log in to each other; set {_MECHANISM_KEY}, "
            f"and user and password in listener.name.{spec.name.lower()}.MECHANISM.sasl.jaas.config"
        )
    try:
        log_in = read_sasl_login(_client_properties(config, spec))
    except BadConfig as error:
        raise BadConfig(f"listener {spec.name}: brokers cannot log in: {error}") from None
    if not isinstance(log_in, PasswordLogin):
        raise BadConfig(f"{_MECHANISM_KEY}: brokers cannot log in with a token")


def connect_to_peers(config: BrokerConfig, spec: ListenerSpec, env: Env) -> Connect:
    """Connections to the same listener of other brokers."""
    properties = _client_properties(config, spec)

    async def connect(endpoint: Endpoint) -> PeerConnection:
        try:
            # Read each time: certificates are replaced while a broker runs.
            security = read_client_security(properties, env.disk, env.random)
            return await connect_securely(security, f"suwi-{config.node_id}")(
                Address(endpoint.host, endpoint.port)
            )
        except BadConfig as error:
            raise ConnectionError(f"brokers cannot log in to {spec.name}: {error}") from error
        except BrokerError as error:
            raise ConnectionError(f"not let in: {error}") from error

    return connect


def prove_to_peers(spec: ListenerSpec, prover: PeerProver) -> Prove:
    """The proof over a new connection to the same listener of another broker."""

    async def prove(connection: PeerConnection, to: NodeId) -> None:
        if spec.uses_sasl:
            return
        try:
            hello = prover.hello()
            answer = await connection.send(ApiKey.PEER_CHALLENGE, 0, [hello])
            proof = prover.respond(to, hello, bytes(answer))
            # Nothing is awaited for it: the caller's first request follows at once.
            connection.send_unanswered(ApiKey.PEER_PROOF, 0, [proof])
        except Refused as error:
            connection.abort()
            raise ConnectionError(str(error)) from None
        except BaseException:
            connection.abort()
            raise

    return prove


def _client_properties(config: BrokerConfig, spec: ListenerSpec) -> dict[str, str]:
    """A listener's settings as those of a client of the same listener elsewhere."""
    settings = config.security_of(spec.name)
    given = {
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
        given["sasl.mechanism"] = mechanism
        given["sasl.jaas.config"] = own.sasl_jaas_config.secret
    return given
