"""Client quotas: validates changes and writes them. An entity is one entry of the store.

Invariant: the quotas of an entity are changed together, or not at all.
"""

import json
import logging
from collections.abc import Mapping
from functools import partial

from suwi.controller.metadata_writer import MetadataWriter
from suwi.env.slices import in_slices
from suwi.metadata.image import client_quotas_key
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import Delete, Operation, Put
from suwi.model.errors import BrokerError, InvalidRequest
from suwi.security.client_quotas import Entity, check_entity, check_quota

log = logging.getLogger(__name__)

ENTITIES_MAX = 10_000
"""Of one request, as in Kafka."""
_CHECKED_AT_ONCE = 100
_WRITTEN_AT_ONCE = 500
"""What is written at once is applied at once."""


class ClientQuotaControl:
    def __init__(self, writer: MetadataWriter, follower: MetadataFollower) -> None:
        self._writer = writer
        self._follower = follower

    async def alter(
        self, changes: Mapping[Entity, Mapping[str, float | None]], *, validate_only: bool
    ) -> dict[Entity, BrokerError | None]:
        """The result of each entity. The value None removes a quota. Some at a time are a decision
        of their own; after the first that fails, the others are not tried."""
        if len(changes) > ENTITIES_MAX:
            raise InvalidRequest(f"a request changes the quotas of at most {ENTITIES_MAX} entities")
        results: dict[Entity, BrokerError | None] = {}
        async for entity, quotas in in_slices(changes.items(), _CHECKED_AT_ONCE):
            results[entity] = _problem(entity, quotas)
        valid = [entity for entity, problem in results.items() if problem is None]
        while valid and not validate_only:
            some = {entity: changes[entity] for entity in valid[:_WRITTEN_AT_ONCE]}
            try:
                await self._writer.run_exclusively(partial(self._alter, some))
            except BrokerError as error:
                results |= dict.fromkeys(valid, error)
                break
            valid = valid[len(some) :]
        return results

    async def _alter(self, changes: Mapping[Entity, Mapping[str, float | None]]) -> None:
        operations: list[Operation] = []
        known = self._follower.image.client_quotas
        async for entity, quotas in in_slices(changes.items(), _CHECKED_AT_ONCE):
            before = dict(known.of(entity))
            after = {k: value for k, value in {**before, **quotas}.items() if value is not None}
            if after != before:
                key, value = client_quotas_key(entity), json.dumps(after).encode()
                operations.append(Put(key, value) if after else Delete(key))
        if operations:
            await self._writer.write(operations)
            log.info("client quotas changed", extra={"entities": list(map(str, changes))})


def _problem(entity: Entity, quotas: Mapping[str, float | None]) -> BrokerError | None:
    try:
        check_entity(entity)
        for key, value in quotas.items():
            if value is not None:  # As in Kafka, any key can be removed.
                check_quota(entity, key, value)
    except ValueError as error:
        return InvalidRequest(str(error))
    return None
