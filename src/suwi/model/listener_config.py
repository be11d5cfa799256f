"""Parses Kafka's listener keys: the addresses a broker binds and those it advertises."""

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from suwi.model.broker_config import BrokerConfig
from suwi.model.config_kinds import BadConfig

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PORT_MAX = 65535


class ListenerSpec(NamedTuple):
    name: str
    host: str
    port: int
    advertised_host: str | None = None
    """None: the bound address is advertised."""
    advertised_port: int | None = None
    protocol: str = "PLAINTEXT"

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def address(self) -> str:
        return address(self.host, self.port)

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def address(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_listeners(config: BrokerConfig) -> list[ListenerSpec]:
    """Raises `BadConfig`."""
    protocols = _protocol_map(config)
    specs = [
        spec._replace(protocol=_protocol(spec.name, protocols.get(spec.name, spec.name)))
        for spec in [_parse("listeners", text) for text in config.listeners]
    ]
    if not specs:
        raise BadConfig("listeners is empty: give at least one NAME://HOST:PORT")
    _check_unique("listeners", [spec.name for spec in specs])
    undefined = {scope.listener for scope in config.scoped} - {spec.name for spec in specs}
    if undefined:
        raise BadConfig(
            f"there are settings for listener {min(undefined)}, which is not in listeners"
        )
    advertised = {}
    for text in config.advertised_listeners:
        spec = _parse("advertised.listeners", text)
        if spec.host in ("0.0.0.0", "::", ""):
            raise BadConfig(f"advertised.listeners: clients cannot connect to {text!r}")
        advertised[spec.name] = spec
    unknown = advertised.keys() - {spec.name for spec in specs}
    if unknown:
        raise BadConfig(f"advertised.listeners names {min(unknown)}, which is not in listeners")
    return [_with_advertised(spec, advertised.get(spec.name)) for spec in specs]


def _protocol(name: str, protocol: str) -> str:
    if protocol in _PROTOCOLS:
        return protocol
    supported = f"supported: {', '.join(_PROTOCOLS)}"
    if protocol != name:
        raise BadConfig(f"listener {name}: {protocol!r} is not a security protocol; {supported}")
    raise BadConfig(
        f"listener {name}: its security protocol is not set; "
        f"set listener.security.protocol.map={name}:PLAINTEXT"
    )


def _with_advertised(spec: ListenerSpec, advertised: ListenerSpec | None) -> ListenerSpec:
    if advertised is None:
        return spec
    return spec._replace(advertised_host=advertised.host, advertised_port=advertised.port)


def _parse(key: str, text: str) -> ListenerSpec:
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")  # IPv6
    if not (separator and colon and name):
        raise BadConfig(f"invalid value {text!r} in {key}: allowed: NAME://HOST:PORT")
    if not (port.isascii() and port.isdigit()) or int(port) > _PORT_MAX:
        raise BadConfig(
            f"invalid port {port!r} in {key}: allowed: a whole number from 0 to {_PORT_MAX}"
        )
    return ListenerSpec(name.upper(), host or "0.0.0.0", int(port))


def _protocol_map(config: BrokerConfig) -> dict[str, str]:
    pairs = {}
    for text in config.listener_security_protocol_map:
        name, colon, protocol = text.partition(":")
        if not colon:
            raise BadConfig(
                f"invalid value {text!r} in listener.security.protocol.map: allowed: NAME:PROTOCOL"
            )
        pairs[name.upper()] = protocol.upper()
    return pairs


def _check_unique(key: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise BadConfig(f"{key} names {name} twice")


def refuse_plain_text_beyond_loopback(specs: Sequence[ListenerSpec]) -> None:
    """Raises `BadConfig` if a listener would send data over a network without encryption."""
    for spec in specs:
        if not (spec.is_loopback or spec.uses_tls):
            how = ", passwords included" if spec.uses_sasl else ", without authentication"
            raise BadConfig(
                f"listener {spec.name}://{spec.address} would serve other machines in plain text"
                f"{how}; listen on 127.0.0.1, use the protocol SSL or SASL_SSL, or add "
                "--insecure to allow it"
            )
