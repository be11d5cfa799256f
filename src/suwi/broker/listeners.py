"""Where a broker listens and what it tells clients: Kafka's listener keys, understood."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from suwi.model.broker_config import BrokerConfig
from suwi.model.config_kinds import BadConfig

_PROTOCOLS = ("PLAINTEXT",)


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    name: str
    host: str
    port: int
    advertised_host: str | None = None
    """What clients are told; None: the address that was bound."""
    advertised_port: int | None = None

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_listeners(config: BrokerConfig) -> list[ListenerSpec]:
    """Raises `BadConfig`."""
    specs = [_parse("listeners", text) for text in config.listeners]
    if not specs:
        raise BadConfig("listeners is empty: give at least one NAME://HOST:PORT")
    _refuse_repetition("listeners", [spec.name for spec in specs])
    protocols = _protocol_map(config)
    for spec in specs:
        protocol = protocols.get(spec.name, spec.name)
        if protocol not in _PROTOCOLS:
            raise BadConfig(
                f"listener {spec.name} has the security protocol {protocol}; "
                f"supported: {', '.join(_PROTOCOLS)}"
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


def _with_advertised(spec: ListenerSpec, advertised: ListenerSpec | None) -> ListenerSpec:
    if advertised is None:
        return spec
    return ListenerSpec(spec.name, spec.host, spec.port, advertised.host, advertised.port)


def _parse(key: str, text: str) -> ListenerSpec:
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")  # IPv6
    if not (separator and colon and name) or not port.isdigit() or int(port) > 65535:
        raise BadConfig(f"invalid value {text!r} in {key}: allowed: NAME://HOST:PORT")
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


def _refuse_repetition(key: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise BadConfig(f"{key} names {name} twice")


def refuse_plain_text_beyond_loopback(specs: Sequence[ListenerSpec]) -> None:
    """Raises `BadConfig` where a listener would send data unencrypted through a network."""
    for spec in specs:
        if not spec.is_loopback:
            raise BadConfig(
                f"listener {spec.name}://{spec.host}:{spec.port} would serve other machines in "
                "plain text, without authentication; if that is what you want, add --insecure"
            )
