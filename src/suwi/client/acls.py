"""Access rules: create, list and delete them."""

from collections.abc import Sequence
from typing import Any

from suwi.client.cluster import Cluster
from suwi.client.errors import check
from suwi.client.versioned_connection import VersionedConnection
from suwi.security.acls import AclBinding, AclFilter, binding_of
from suwi.wire.versions import ApiKey

_RULES_PER_REQUEST = 1000


class Acls:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(self, rules: Sequence[AclBinding]) -> None:
        """Raises the first error, for example `SecurityDisabled`; other rules may be created."""
        for first in range(0, len(rules), _RULES_PER_REQUEST):
            creations = [
                {
                    "resource_type": rule.resource_type,
                    "resource_name": rule.name,
                    "resource_pattern_type": rule.pattern_type,
                    "principal": rule.principal,
                    "host": rule.host,
                    "operation": rule.operation,
                    "permission_type": rule.permission,
                }
                for rule in rules[first : first + _RULES_PER_REQUEST]
            ]
            answer = await self._cluster.call_controller(
                ApiKey.CREATE_ACLS, {"creations": creations}
            )
            for result in answer.results:
                check(result)

    async def describe(
        self, wanted: AclFilter, link: VersionedConnection | None = None
    ) -> list[AclBinding]:
        """As any broker has them, or the one of `link`."""
        answer = await (link or self._cluster).call(ApiKey.DESCRIBE_ACLS, _fields(wanted))
        check(answer)
        return sorted(
            binding_of(resource, resource.pattern_type, entry)
            for resource in answer.resources
            for entry in resource.acls
        )

    async def delete(self, filters: Sequence[AclFilter]) -> list[AclBinding]:
        """Returns the rules that were deleted. Raises the first error; others may be deleted."""
        answer = await self._cluster.call_controller(
            ApiKey.DELETE_ACLS, {"filters": [_fields(wanted) for wanted in filters]}
        )
        deleted = []
        for result in answer.filter_results:
            check(result)
            for found in result.matching_acls:
                check(found)
                deleted.append(binding_of(found, found.pattern_type, found))
        return deleted


def _fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }
