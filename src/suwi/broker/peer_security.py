"""How this broker shows itself to the others: as their listener between brokers asks for it."""

from suwi.broker.listeners import ListenerSpec
from suwi.client.addresses import Address
from suwi.client.connection import PeerConnection
from suwi.client.security import connect_securely, read_client_security
from suwi.env import Env
from suwi.metadata.image import Endpoint
from suwi.model.broker_config import BrokerConfig
from suwi.model.config_kinds import BadConfig
from suwi.model.errors import BrokerError
from suwi.replica.peers import Connect


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


def connect_to_peers(
    config: BrokerConfig, spec: ListenerSpec, env: Env, client_id: str | None = None
) -> Connect:
    """Connections to the same listener of other brokers.

    What is missing for them is said with the first: a broker that is alone needs nothing.
    """
    properties = _client_properties(config, spec)

    async def connect(endpoint: Endpoint) -> PeerConnection:
        try:
            # Read each time: certificates are replaced while a broker runs.
            security = read_client_security(properties, env.disk, env.random)
            return await connect_securely(security, client_id or f"suwi-{config.node_id}")(
                Address(endpoint.host, endpoint.port)
            )
        except BadConfig as error:
            raise ConnectionError(f"brokers cannot log in to {spec.name}: {error}") from error
        except BrokerError as error:
            raise ConnectionError(f"not let in: {error}") from error

    return connect


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
