"""CreateAcls, DescribeAcls and DeleteAcls v1-v3: access rules, an error for each of them.

SECURITY_DISABLED without an authorizer, after the client's rights were checked as for others.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from suwi.controller.acl_control import Deleted
from suwi.controller.controller_election import ControllerElection
from suwi.handlers.authorization import check
from suwi.handlers.errors import error_fields
from suwi.handlers.slices import Sliced, SlicedItems, SlicedResponse, sliced, sliced_handler
from suwi.model.errors import BrokerError, InvalidRequest, SecurityDisabled
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import (
    CLUSTER_NAME,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    binding_of,
    of_number,
)

_DISABLED: Final = "No Authorizer is configured."


@sliced_handler
def describe_acls(replicas: ReplicaManager, request: Request) -> Sliced:
    response = SlicedResponse(request, arrays=("resources", "acls"))
    wanted = _filter(request.message)
    if request.authorizer is None:
        return response.reply(**error_fields(SecurityDisabled(_DISABLED)))
    if wanted.has_unknown:
        return response.reply(**error_fields(InvalidRequest("an element is unknown")))
    pattern = None
    # The rules of a pattern follow one another.
    for rule in replicas.image.acls:
        if not wanted.matches(rule):
            if response.count():
                yield
            continue
        if rule[:3] != pattern:
            pattern = rule[:3]
            resource = dict(zip(_RESOURCE, pattern, strict=True))
            if response.begin_topic(**resource):
                yield
        if response.add(dict(zip(_ENTRY, rule[3:], strict=True))):
            yield
    return response.reply(**error_fields(None))


_RESOURCE: Final = ("resource_type", "pattern_type", "resource_name")
_ENTRY: Final = ("principal", "host", "operation", "permission_type")


async def create_acls(controller: ControllerElection, request: Request) -> Reply:
    asked = request.message.creations
    try:
        _check_enabled(request)
        rules = [
            binding_of(each, each.resource_pattern_type, each)
            async for each in sliced(request, asked)
        ]
        problems: Iterable[BrokerError | None] = await controller.active.acls.create(rules)
    except BrokerError as error:
        problems = [error] * len(asked)
    results = SlicedItems(request, ("results",))
    for problem in problems:
        await results.put(error_fields(problem))
    return results.reply()


async def delete_acls(controller: ControllerElection, request: Request) -> Reply:
    asked = request.message.filters
    deleted: Sequence[Deleted]
    try:
        _check_enabled(request)
        filters = [_filter(each) async for each in sliced(request, asked)]
        deleted = await controller.active.acls.delete(filters)
    except BrokerError as error:
        deleted = [error] * len(asked)
    response = SlicedResponse(request, arrays=("filter_results", "matching_acls"))
    for found in deleted:
        problem = found if isinstance(found, BrokerError) else None
        if response.begin_topic(**error_fields(problem)):
            await request.next_slice()
        for rule, left in () if isinstance(found, BrokerError) else found:
            fields = zip((*_RESOURCE, *_ENTRY), rule, strict=True)
            if response.add({**dict(fields), **error_fields(left)}):
                await request.next_slice()
    return response.reply()


def _check_enabled(request: Request) -> None:
    check(request, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    if request.authorizer is None:
        raise SecurityDisabled(_DISABLED)


def _filter(asked: Any) -> AclFilter:
    return AclFilter(
        of_number(ResourceType, asked.resource_type_filter),
        of_number(PatternType, asked.pattern_type_filter),
        asked.resource_name_filter,
        asked.principal_filter,
        asked.host_filter,
        of_number(Operation, asked.operation),
        of_number(Permission, asked.permission_type),
    )
