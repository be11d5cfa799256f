"""Client quotas: what an entity may use per second, and which of them applies to a client.

An entity is a user, a client id, both, or an address. The name None is the default of all that have
no quota of their own. Names and precedence are Kafka's.
"""

import ipaddress
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

CLIENT_KEYS: Final = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
)
IP_KEYS: Final = (CONNECTION_CREATION_RATE,)
_WHOLE_MAX: Final = {
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    CONNECTION_CREATION_RATE: 2**31 - 1,
}
"""The keys whose values are whole numbers, and the largest."""
_ENTITY_BYTES_MAX: Final = 2048

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Types with names, sorted by type."""
Quotas: TypeAlias = Mapping[str, float]
"""By key."""


def check_entity(entity: Entity) -> None:
    """Raises ValueError."""
    kinds = [kind for kind, _ in entity]
    if not entity:
        raise ValueError("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise ValueError(f"Unhandled client quota entity type: {kind}")
        if kinds.count(kind) > 1:
            raise ValueError(f"Invalid client quota entity, duplicate entity entry {kind}")
        if name == "":
            raise ValueError(f"Empty {kind} not supported")
        if kind == IP and name is not None and not _is_address(name):
            raise ValueError(f"{name} is not a valid IP")
    if IP in kinds and len(kinds) > 1:
        raise ValueError(
            "Invalid quota entity combination, IP entity should not be combined with User or "
            "ClientId"
        )
    if len(encode_entity(entity)) > _ENTITY_BYTES_MAX:
        raise ValueError(f"the entity takes more than {_ENTITY_BYTES_MAX} bytes")


def check_quota(entity: Entity, key: str, value: float) -> None:
    """Raises ValueError."""
    if key not in (IP_KEYS if entity[0][0] == IP else CLIENT_KEYS):
        raise ValueError(f"Invalid configuration key {key}")
    if not value > 0 or math.isinf(value):
        raise ValueError(f"Quota {key} must be greater than 0")
    if key in _WHOLE_MAX:
        if value > float(_WHOLE_MAX[key]):
            raise ValueError(f"Proposed value for {key} is too large")
        if value != int(value):
            raise ValueError(f"{key} cannot be a fractional value.")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def canonical(kind: str, name: str | None) -> str | None:
    """An address as that of a connection is written: `2001:db8::1`, and `10.0.0.7` for
    `::ffff:10.0.0.7`."""
    if kind != IP or name is None or not _is_address(name):
        return name
    address = ipaddress.ip_address(name)
    return str(getattr(address, "ipv4_mapped", None) or address)


def encode_entity(entity: Entity) -> str:
    return json.dumps(entity, separators=(",", ":"))


def decode_entity(text: str) -> Entity:
    return tuple((kind, name) for kind, name in json.loads(text))


class Limit(NamedTuple):
    rate: float
    shared_by: Entity
    """All clients with the same one share the quota: those of a user, for example."""


class ClientQuotaIndex:
    """All quotas. Never changed: `replaced` returns another one."""

    def __init__(self, quotas: Mapping[Entity, Quotas] | None = None) -> None:
        self._quotas = quotas or {}
        self.keys_in_use = frozenset(key for each in self._quotas.values() for key in each)

    def of(self, entity: Entity) -> Quotas:
        return self._quotas.get(entity, {})

    def items(self) -> Iterable[tuple[Entity, Quotas]]:
        return self._quotas.items()

    def replaced(self, changes: Iterable[tuple[Entity, Quotas | None]]) -> "ClientQuotaIndex":
        quotas = dict(self._quotas)
        for entity, values in changes:
            if values:
                quotas[entity] = values
            else:
                quotas.pop(entity, None)
        return ClientQuotaIndex(quotas)

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """The most specific quota of a client; None if it has none. As in Kafka, no quota of client
        ids applies to a client that sends none."""
        if key not in self.keys_in_use:
            return None
        for entity, shared_by in _levels(user, client_id):
            rate = self.of(entity).get(key)
            if rate is not None:
                return Limit(rate, shared_by)
        return None

    def shared_limit(self, key: str, shared_by: Entity) -> float | None:
        """The limit of the clients that share a quota; None if it does not apply to them now."""
        names = {kind: name or "" for kind, name in shared_by}
        if IP in names:
            return self.connection_rate(names[IP])
        limit = self.limit(key, names.get(USER, ""), names.get(CLIENT_ID, ""))
        return limit.rate if limit is not None and limit.shared_by == shared_by else None

    def connection_rate(self, address: str) -> float | None:
        own = self.of(((IP, address),)) or self.of(((IP, None),))
        return own.get(CONNECTION_CREATION_RATE)


def _levels(user: str, client_id: str) -> Iterator[tuple[Entity, Entity]]:
    """The entities that a client belongs to, the most specific first, with who shares the quota."""
    for name in (user, None):
        if client_id:
            both = (CLIENT_ID, client_id), (USER, user)
            yield ((CLIENT_ID, client_id), (USER, name)), both
            yield ((CLIENT_ID, None), (USER, name)), both
        yield ((USER, name),), ((USER, user),)
    if client_id:
        yield ((CLIENT_ID, client_id),), ((CLIENT_ID, client_id),)
        yield ((CLIENT_ID, None),), ((CLIENT_ID, client_id),)


NO_QUOTAS: Final = ClientQuotaIndex()
