"""The settings of the connection to ZooKeeper, from the broker's configuration."""

import ssl
from functools import partial

from suwi.client.zookeeper_servers import parse_connect
from suwi.env import Env
from suwi.metadata.zookeeper_connection import ZookeeperSettings
from suwi.model.broker_config import BrokerConfig
from suwi.model.config_kinds import BadConfig
from suwi.model.listener_config import parse_listeners
from suwi.security.tls import BadTls, Store, TlsSettings, make_client_context

_SCHEMES = ("digest",)


def zookeeper_settings(config: BrokerConfig, env: Env) -> ZookeeperSettings:
    """Raises `BadConfig`."""
    try:
        ensemble = parse_connect(config.zookeeper_connect)
    except ValueError as error:
        raise BadConfig(f"zookeeper.connect {error}") from None
    auth = _credentials(config, env)
    copied_listeners = None
    if config.zookeeper_copy_enable:
        if auth is None:
            raise BadConfig(
                "zookeeper.copy.enable needs zookeeper.auth or zookeeper.auth.file: without "
                "credentials anybody could change the copy"
            )
        copied_listeners = {spec.name: spec.protocol for spec in parse_listeners(config)}
    return ZookeeperSettings(
        ensemble.hosts,
        root=f"/{ensemble.chroot}/suwi" if ensemble.chroot else "/suwi",
        session_timeout_s=config.zookeeper_session_timeout_ms / 1000,
        auth=auth,
        make_tls_context=_tls(config, env),
        copied_listeners=copied_listeners,
    )


def _credentials(config: BrokerConfig, env: Env) -> tuple[str, str] | None:
    given, source = config.zookeeper_auth.secret, "zookeeper.auth"
    if config.zookeeper_auth_file:
        source = f"zookeeper.auth.file {config.zookeeper_auth_file}"
        try:
            given = env.disk.read_bytes(config.zookeeper_auth_file).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(f"{source}: {getattr(error, 'strerror', None) or error}") from None
    if not given:
        return None
    scheme, _, credentials = given.partition(":")
    user, colon, _ = credentials.partition(":")
    if scheme not in _SCHEMES or not (user and colon):
        raise BadConfig(f"{source}: give it as digest:USER:PASSWORD")
    return scheme, credentials


def _tls(config: BrokerConfig, env: Env) -> partial[ssl.SSLContext] | None:
    if not config.zookeeper_ssl_client_enable:
        return None
    # Made for each connection: certificates may be replaced while the broker runs.
    make_context = partial(
        make_client_context,
        TlsSettings(
            Store(
                "zookeeper.ssl.keystore",
                location=config.zookeeper_ssl_keystore_location,
                key_password=config.zookeeper_ssl_keystore_password.secret,
            ),
            Store("zookeeper.ssl.truststore", location=config.zookeeper_ssl_truststore_location),
            versions=config.zookeeper_ssl_enabled_protocols,
        ),
        env.disk,
        check_host_name=bool(config.zookeeper_ssl_endpoint_identification_algorithm),
    )
    try:
        make_context()
    except BadTls as error:
        raise BadConfig(str(error)) from None
    return make_context
