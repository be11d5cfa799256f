"""Client quotas: change and list them, and how close clients are to them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from suwi.client.cluster import Cluster
from suwi.client.errors import check
from suwi.client.own_apis import ask_brokers
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.security.client_quotas import Entity
from suwi.wire.versions import ApiKey

_EXACT, _DEFAULT = 0, 1


class QuotaUsage(NamedTuple):
    """What the clients that share a quota use of it on one broker."""

    user: str | None
    """None if it is not of a user, as for the other names."""
    client_id: str | None
    ip: str | None
    key: str
    limit: float
    used: float
    """Per second, of late."""
    throttle_ms: int
    """How long they are throttled from now on."""


class BrokerUsages(NamedTuple):
    usages: Sequence[QuotaUsage]
    """Those that are closest to their limits first."""
    left_off: int


class ClientQuotas:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def alter(self, entity: Entity, quotas: Mapping[str, float | None]) -> None:
        """Set quotas, or remove those whose value is None. Raises InvalidRequest."""
        ops = [
            {"key": key, "value": value or 0.0, "remove": value is None}
            for key, value in quotas.items()
        ]
        fields = {"entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity]}
        answer = await self._cluster.call_controller(
            ApiKey.ALTER_CLIENT_QUOTAS,
            {"entries": [{**fields, "ops": ops}], "validate_only": False},
        )
        for result in answer.entries:
            check(result)

    async def describe(self, wanted: Entity = ()) -> dict[Entity, dict[str, float]]:
        """The quotas of all entities that have these types and names."""
        components = [
            {"entity_type": kind, "match_type": _DEFAULT if name is None else _EXACT, "match": name}
            for kind, name in wanted
        ]
        answer = await self._cluster.call(
            ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": components, "strict": False}
        )
        check(answer)
        return {
            tuple((part.entity_type, part.entity_name) for part in entry.entity): {
                each.key: each.value for each in entry.values
            }
            for entry in answer.entries or ()
        }

    async def usages(self) -> dict[NodeId, BrokerUsages | OSError | BrokerError]:
        """Of each broker, or why it does not tell it."""
        answers = await ask_brokers(self._cluster, ApiKey.DESCRIBE_QUOTA_USAGE, {})
        return {
            node: _usages(told) if isinstance(told, dict) else told
            for node, told in answers.items()
        }


def _usages(told: Mapping[str, Any]) -> BrokerUsages:
    return BrokerUsages(
        [QuotaUsage(*(each[field] for field in QuotaUsage._fields)) for each in told["usages"]],
        told["left_off"],
    )
