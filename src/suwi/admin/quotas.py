"""Client quotas as people write them, and how close clients are to theirs.

An entity is a user, a client id, both, or an address; the name `*` is the default of all that have
no quota of their own. A quota holds on each broker by itself, so what matters is the broker where a
client is closest to it.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from suwi.admin.failure import Failure
from suwi.client.cluster import Cluster
from suwi.client.own_apis import why_silent
from suwi.client.quotas import BrokerUsages, ClientQuotas, QuotaUsage
from suwi.model.config_kinds import did_you_mean
from suwi.model.ids import NodeId
from suwi.security.client_quotas import (
    CLIENT_ID,
    CLIENT_KEYS,
    IP,
    IP_KEYS,
    USER,
    Entity,
    check_entity,
    check_quota,
)

DEFAULT: Final = "*"
KEYS: Final = (*CLIENT_KEYS, *IP_KEYS)


def read_entity(user: str | None, client_id: str | None, ip: str | None) -> Entity:
    """Raises Failure."""
    named = ((CLIENT_ID, client_id), (IP, ip), (USER, user))
    entity = tuple(
        (kind, None if name == DEFAULT else name) for kind, name in named if name is not None
    )
    if not entity:
        raise Failure("name whose quotas: --user, --client-id, both, or --ip")
    try:
        check_entity(entity)
    except ValueError as error:
        raise Failure(str(error)) from None
    return entity


def entity_text(entity: Entity) -> str:
    return " ".join(f"{kind}:{DEFAULT if name is None else name}" for kind, name in entity)


def read_key(key: str) -> str:
    """Raises Failure."""
    if key not in KEYS:
        hint = did_you_mean(key, KEYS)
        raise Failure(f"{key!r} is not a quota{hint}; allowed: {', '.join(KEYS)}")
    return key


def read_quotas(entity: Entity, texts: Sequence[str]) -> dict[str, float]:
    """From `KEY=VALUE`. Raises Failure."""
    values = {}
    for text in texts:
        key, _, value = text.partition("=")
        try:
            values[read_key(key)] = float(value)
        except ValueError:
            raise Failure(f"{text!r} is not a quota; write KEY=NUMBER") from None
    try:
        for key, number in values.items():
            check_quota(entity, key, number)
    except ValueError as error:
        raise Failure(str(error)) from None
    return values


def number_text(value: float) -> str:
    return f"{value:.15g}"


# -- how close clients are -------------------------------------------------------------------------


class ClosestUsage(NamedTuple):
    """What the clients that share a quota use of it, on the broker where they are closest to it."""

    entity: str
    key: str
    limit: float
    used: float
    """Per second, of late."""
    node: int
    throttle_ms: int
    """The longest of all brokers."""


class Usages(NamedTuple):
    rows: Sequence[ClosestUsage]
    """Those that are closest to their limits first."""
    left_off: int
    """How many others there are, of a broker that tells only the first."""
    silent: Mapping[NodeId, str]
    """The brokers that do not tell it, and why."""


async def read_usages(cluster: Cluster) -> Usages:
    closest: dict[tuple[str, str], ClosestUsage] = {}
    silent: dict[NodeId, str] = {}
    left_off = 0
    for node, told in (await ClientQuotas(cluster).usages()).items():
        if not isinstance(told, BrokerUsages):
            silent[node] = why_silent(told)
            continue
        left_off += told.left_off
        for usage in told.usages:
            new = ClosestUsage(_client(usage), *usage[3:6], node, usage.throttle_ms)
            old = closest.get(new[:2], new)
            throttle_ms = max(old.throttle_ms, new.throttle_ms)
            closest[new[:2]] = max(old, new, key=_share)._replace(throttle_ms=throttle_ms)
    return Usages(sorted(closest.values(), key=_share, reverse=True), left_off, silent)


def _client(usage: QuotaUsage) -> str:
    named = ((CLIENT_ID, usage.client_id), (IP, usage.ip), (USER, usage.user))
    return " ".join(f"{kind}:{name}" for kind, name in named if name is not None)


def _share(usage: ClosestUsage) -> float:
    return usage.used / usage.limit
