"""ConsumerGroupDescribe v0-v1 (KIP-848). v1: which members use the classic protocol."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import coordinator_error
from suwi.coordinator.topics import Topic, Topics
from suwi.env.slices import Slices
from suwi.group.consumer_describe import describe
from suwi.group.consumer_group import ConsumerGroup
from suwi.group.consumer_messages import DescribedGroup, DescribedMember
from suwi.group.coordinator_shard import GroupRuntime
from suwi.handlers.authorized_operations import on_group
from suwi.handlers.coordinator_requests import hashing
from suwi.handlers.slices import Sliced, SlicedResponse, each_once, in_slices
from suwi.model.errors import shortened
from suwi.net.answers import Answer
from suwi.net.dispatch import Request

_PARTITIONS_OF_AN_ITEM: Final = 16
"""So many partitions of a member cost as much as an item of a slice."""
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


class ConsumerGroupDescribe:
    def __init__(self, groups: GroupRuntime, topics: Callable[[], Topics]) -> None:
        self._groups = groups
        self._topics = topics

    def __call__(self, request: Request) -> Answer:
        return in_slices(request, self._describe_all(request))

    def _describe_all(self, request: Request) -> Sliced:
        asked = request.message
        operations = on_group(asked.include_authorized_operations)
        response = SlicedResponse(request, arrays=("groups", "members"))
        for group_id in each_once(asked.group_ids):
            for _ in (None, *hashing(group_id or "")):
                if response.count():
                    yield
            if group_id is None:
                continue
            group, members = yield from self._describe(group_id)
            if response.begin_topic(**group, authorized_operations=operations):
                yield
            for member in members:
                partitions = sum(len(parts) for _, parts in (*member.assignment, *member.target))
                if response.add(_member(member), 1 + partitions // _PARTITIONS_OF_AN_ITEM):
                    yield
        return response.reply()

    def _describe(self, group_id: str) -> Slices[tuple[dict[str, Any], Iterable[DescribedMember]]]:
        if not group_id:
            return _refused(group_id, ErrorCode.invalid_group_id, None), ()
        try:
            shard = yield from self._groups.shard_to_read(group_id)
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
        described = describe(group, machine.config.consumer_of(group_id), self._topics())
        return _described(described), described.members


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


def _described(group: DescribedGroup) -> dict[str, Any]:
    return {
        **_refused(group.group_id, ErrorCode.none, None),
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
    }


def _member(member: DescribedMember) -> dict[str, Any]:
    kind = _CLASSIC_MEMBER if member.uses_classic_protocol else _CONSUMER_MEMBER
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.topic_names,
        "subscribed_topic_regex": member.topic_regex,
        "assignment": _assignment(member.assignment),
        "target_assignment": _assignment(member.target),
        "member_type": kind,
    }


def _assignment(partitions: Sequence[tuple[Topic, Sequence[int]]]) -> dict[str, Any]:
    topics = [
        {"topic_id": topic.topic_id, "topic_name": topic.name, "partitions": sorted(indexes)}
        for topic, indexes in partitions
    ]
    return {"topic_partitions": topics}
