"""DescribeClientQuotas and AlterClientQuotas v0-v1: quotas of users, client ids and addresses."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.authorization import check
from suwi.handlers.errors import error_fields, reply
from suwi.handlers.slices import Sliced, SlicedItems, list_in_slices, sliced, sliced_handler
from suwi.model.errors import BrokerError, InvalidRequest, UnsupportedVersion
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import CLUSTER_NAME, Operation, ResourceType
from suwi.security.client_quotas import CLIENT_ID, IP, USER, Entity, canonical

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2
_ANY_NAME: Final = object()
_PARTS_MAX: Final = 10
_OPS_MAX: Final = 100


@sliced_handler
def describe_client_quotas(replicas: ReplicaManager, request: Request) -> Sliced:
    try:
        wanted = _wanted(request.message.components)
    except BrokerError as error:
        return reply(request, {**error_fields(error), "entries": None})
    found = _found(replicas, wanted, is_strict=request.message.strict)
    return (yield from list_in_slices(request, "entries", found, error_fields(None)))


def _found(
    replicas: ReplicaManager, wanted: dict[str, Any], *, is_strict: bool
) -> Iterator[dict[str, Any] | None]:
    for entity, quotas in replicas.image.client_quotas.items():
        names = dict(entity)
        matches = (not is_strict or len(names) == len(wanted)) and all(
            kind in names and name in (_ANY_NAME, names[kind]) for kind, name in wanted.items()
        )
        yield (
            None
            if not matches
            else {
                "entity": _entity_fields(entity),
                "values": [{"key": key, "value": value} for key, value in quotas.items()],
            }
        )


def _wanted(components: Iterable[Any]) -> dict[str, Any]:
    """The name that an entity must have, by type. Raises InvalidRequest, UnsupportedVersion."""
    wanted: dict[str, Any] = {}
    for component in components:
        kind, name = component.entity_type, component.match
        if not kind:
            raise InvalidRequest("Invalid empty entity type.")
        if kind in wanted:
            raise InvalidRequest(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            raise UnsupportedVersion(f"Unsupported entity type {kind}")
        if component.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise InvalidRequest(f"Unknown match type {component.match_type}")
        if (name is not None) != (component.match_type == _EXACT):
            raise InvalidRequest("a name is given with the match type 0 (exact), and only with it")
        is_any = component.match_type == _SPECIFIED
        wanted[kind] = _ANY_NAME if is_any else canonical(kind, name)
    if IP in wanted and len(wanted) > 1:
        raise InvalidRequest(
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component."
        )
    return wanted


async def alter_client_quotas(controller: ControllerElection, request: Request) -> Reply:
    asked = request.message
    changes: dict[Entity, dict[str, float | None]] = {}
    results: dict[Entity, BrokerError | None] = {}
    async for entry in sliced(request, asked.entries):
        parts = entry.entity[:_PARTS_MAX]
        names = [(e.entity_type, canonical(e.entity_type, e.entity_name)) for e in parts]
        entity = tuple(sorted(names, key=str))
        if len(entry.ops) > _OPS_MAX or len(entry.entity) > _PARTS_MAX:
            results[entity] = InvalidRequest("there are not so many types or keys of quotas")
            continue
        values = {op.key: None if op.remove else op.value for op in entry.ops}
        if entity in results or entity in changes:
            changes.pop(entity, None)
            results[entity] = InvalidRequest("the entity is named more than once")
        elif len(values) < len(entry.ops):
            results[entity] = InvalidRequest("a quota key is named more than once")
        else:
            changes[entity] = values
    try:
        check(request, Operation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
        results |= await controller.active.client_quotas.alter(
            changes, validate_only=asked.validate_only
        )
    except BrokerError as error:
        results = dict.fromkeys((*results, *changes), error)
    answers = SlicedItems(request, ("entries",))
    for entity, problem in results.items():
        await answers.put({**error_fields(problem), "entity": _entity_fields(entity)})
    return answers.reply()


def _entity_fields(entity: Entity) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity]
