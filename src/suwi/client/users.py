"""SCRAM users: add, list and remove them.

A password is salted and hashed here and never leaves this process.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from suwi.client.cluster import Cluster
from suwi.client.errors import check
from suwi.model.errors import ResourceNotFound
from suwi.security.scram import MECHANISM_NUMBERS, SALT_BYTES, ScramMechanism
from suwi.wire.versions import ApiKey


class ScramUser(NamedTuple):
    name: str
    iterations: dict[str, int]
    """By mechanism."""


class Users:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def describe(self, names: Sequence[str] = ()) -> list[ScramUser]:
        """All users, or the existing ones with these names."""
        asked = [{"name": name} for name in names] or None
        answer = await self._cluster.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": asked})
        check(answer)
        found = []
        for result in answer.results:
            if result.error_code == ResourceNotFound.code:
                continue
            check(result)
            infos = {
                _mechanism_name(info.mechanism): info.iterations for info in result.credential_infos
            }
            found.append(ScramUser(result.user, infos))
        return sorted(found)

    async def set(
        self, name: str, password: str, mechanisms: Sequence[ScramMechanism], iterations: int
    ) -> None:
        """Add a user, or change its password for these mechanisms."""
        upsertions = []
        for mechanism in mechanisms:
            salt = self._cluster.random.token(SALT_BYTES)
            upsertions.append(
                {
                    "name": name,
                    "mechanism": mechanism.number,
                    "iterations": iterations,
                    "salt": salt,
                    "salted_password": mechanism.salted_password(password, salt, iterations),
                }
            )
        await self._alter({"deletions": [], "upsertions": upsertions})

    async def remove(self, name: str, mechanisms: Sequence[ScramMechanism]) -> None:
        """Raises `ResourceNotFound` if the user has no password for one of the mechanisms."""
        deletions = [{"name": name, "mechanism": mechanism.number} for mechanism in mechanisms]
        await self._alter({"deletions": deletions, "upsertions": []})

    async def _alter(self, fields: dict[str, Any]) -> None:
        answer = await self._cluster.call_controller(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, fields)
        for result in answer.results:
            check(result)


def _mechanism_name(number: int) -> str:
    known = MECHANISM_NUMBERS.get(number)
    return known.sasl_name if known else f"mechanism {number}"
