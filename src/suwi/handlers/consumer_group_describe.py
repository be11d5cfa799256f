"""ConsumerGroupDescribe v0-v1 (KIP-848). v1: which members use the classic protocol."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import coordinator_error
from suwi.coordinator.topics import Topics
from suwi.env.slices import Slices
from suwi.group.consumer_group import (
    NO_ASSIGNMENT,
    ConsumerGroup,
    ConsumerGroupMember,
    Target,
    partitions_of,
)
from suwi.group.group_coordinator_shard import GroupRuntime
from suwi.group.target_assignment import preferred_assignor
from suwi.handlers.authorization import authorized_operations
from suwi.handlers.coordinator_requests import hashing
from suwi.handlers.slices import (
    SLICE_PARTITIONS,
    Sliced,
    SlicedItems,
    SlicedResponse,
    each_once,
    sliced_handler,
)
from suwi.model.errors import shortened
from suwi.model.ids import TopicId
from suwi.net.dispatch import Request
from suwi.security.acls import Operation, ResourceType

_PARTITIONS_OF_AN_ITEM: Final = 16
"""So many partitions of a member cost as much as an item of a slice."""
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


_Described: TypeAlias = tuple[dict[str, Any], Sequence[tuple[ConsumerGroupMember, Target]]]
"""The fields of a group, and its members, each with its target."""


@sliced_handler
def consumer_group_describe(
    groups: GroupRuntime, topics_now: Callable[[], Topics], request: Request
) -> Sliced:
    asked = request.message
    response = SlicedResponse(request, arrays=("groups", "members"))
    for group_id in each_once(asked.group_ids):
        for _ in (None, *hashing(group_id or "")):
            if response.count():
                yield
        if group_id is None:
            continue
        fields, members = yield from _describe(groups, request, group_id)
        topics = topics_now()
        if request.authorizer is not None and (yield from _hides(request, members, topics)):
            message = "The group has topics that the client is not authorized to describe."
            fields = _refused(group_id, ErrorCode.topic_authorization_failed, message)
            members = ()
        is_told = asked.include_authorized_operations and not fields["error_code"]
        operations = authorized_operations(request, ResourceType.GROUP, group_id, asked=is_told)
        if response.begin_topic(**fields, authorized_operations=operations):
            yield
        # One by one: the group may change in between, this description does not.
        for member, target in members:
            assigned = yield from partitions_of(member.current.assigned)
            partitions = sum(map(len, (*assigned.values(), *target.values())))
            now = yield from _assignment(request, "assignment", assigned, topics)
            later = yield from _assignment(request, "target_assignment", target, topics)
            described = _member(member, now, later)
            if response.add(described, 1 + partitions // _PARTITIONS_OF_AN_ITEM):
                yield
    return response.reply()


def _describe(groups: GroupRuntime, request: Request, group_id: str) -> Slices[_Described]:
    if request.refuses(Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return _refused(group_id, ErrorCode.group_authorization_failed, None), ()
    if not group_id:
        return _refused(group_id, ErrorCode.invalid_group_id, None), ()
    try:
        shard = yield from groups.shard_to_read(group_id)
    except Exception as error:
        return _refused(group_id, coordinator_error(error), None), ()
    machine = shard.machine
    group = machine.group(group_id)
    if not isinstance(group, ConsumerGroup):
        # Kafka's Admin asks with DescribeGroups then.
        message = f"Group {group_id} not found."
        if group is not None:
            message = f"Group {group_id} is not a consumer group."
        return _refused(group_id, ErrorCode.group_id_not_found, message), ()
    fields = {
        **_refused(group_id, ErrorCode.none, None),
        "group_state": group.state.value,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": preferred_assignor(group.assignors, machine.config.consumer_of(group_id)),
    }
    targets = [
        (member, group.targets.get(member.member_id, NO_ASSIGNMENT))
        for member in group.members.values()
    ]
    return fields, targets


def _hides(
    request: Request, members: Sequence[tuple[ConsumerGroupMember, Target]], topics: Topics
) -> Slices[bool]:
    """Whether a member has, or will have, partitions of a topic that the client may not see."""
    checked: set[TopicId] = set()
    for member, target in members:
        assigned = yield from partitions_of(member.current.assigned)
        for topic_id in {*assigned, *target} - checked:
            checked.add(topic_id)
            topic = topics.by_id(topic_id)
            if topic is not None and request.refuses(
                Operation.DESCRIBE, ResourceType.TOPIC, topic.name
            ):
                return True
        yield
    return False


def _refused(group_id: str, error: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "error_code": error,
        "error_message": shortened(message),
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
    }


def _member(
    member: ConsumerGroupMember, assigned: dict[str, Any], target: dict[str, Any]
) -> dict[str, Any]:
    value = member.subscription
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": value.rack_id if value is not None else None,
        "member_epoch": member.epoch,
        "client_id": value.client_id if value is not None else "",
        "client_host": value.client_host if value is not None else "",
        "subscribed_topic_names": member.topic_names,
        "subscribed_topic_regex": member.topic_regex,
        "assignment": assigned,
        "target_assignment": target,
        "member_type": _CLASSIC_MEMBER if member.uses_classic_protocol else _CONSUMER_MEMBER,
    }


def _assignment(
    request: Request, name: str, partitions: Target, topics: Topics
) -> Slices[dict[str, Any]]:
    """Without topics that are gone: they have no names."""
    path = ("groups", "members", name, "topic_partitions")
    listed = SlicedItems(request, path)
    for number, (topic_id, indexes) in enumerate(partitions.items(), 1):
        topic = topics.by_id(topic_id)
        if topic is not None:
            listed.add(
                {
                    "topic_id": topic.topic_id,
                    "topic_name": topic.name,
                    "partitions": sorted(indexes),
                }
            )
        if number % SLICE_PARTITIONS == 0:
            listed.encode()
            yield
    return {path[-1]: listed.take()}
