"""The records of a consumer group as decisions append them."""

from collections.abc import Iterable, Mapping

from suwi.coordinator.event import Event
from suwi.env.slices import Pace, Slices
from suwi.group.consumer_group import ConsumerGroup, CurrentAssignment, Target
from suwi.group.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartitions,
)


def append_epoch(event: Event, group_id: str, epoch: int, metadata_hash: int) -> None:
    value = ConsumerGroupMetadataValue(epoch, metadata_hash)
    event.append(ConsumerGroupMetadataKey(group_id), value)


def append_subscription(
    event: Event, group_id: str, member_id: str, value: ConsumerGroupMemberMetadataValue
) -> None:
    event.append(ConsumerGroupMemberMetadataKey(group_id, member_id), value)


def append_current(
    event: Event, group_id: str, member_id: str, current: CurrentAssignment
) -> Slices[None]:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id)
    event.append(key, (yield from current.value()))


def append_target(event: Event, group_id: str, member_id: str, target: Target) -> Slices[None]:
    pace, partitions = Pace(), []
    for topic_id, found in target.items():
        partitions.append(TopicPartitions(topic_id, found))
        if pace.is_over(2):
            yield
    event.append(
        ConsumerGroupTargetAssignmentMemberKey(group_id, member_id),
        ConsumerGroupTargetAssignmentMemberValue(tuple(partitions)),
    )


def append_assignment_epoch(event: Event, group_id: str, epoch: int, timestamp_ms: int) -> None:
    event.append(
        ConsumerGroupTargetAssignmentMetadataKey(group_id),
        ConsumerGroupTargetAssignmentMetadataValue(epoch, timestamp_ms),
    )


def append_assignment(
    event: Event,
    group_id: str,
    assignment: Mapping[str, Target],
    targets: Mapping[str, Target],
    epoch: int,
) -> Slices[None]:
    """Only what differs from the present targets."""
    pace = Pace()
    for member_id, target in assignment.items():
        if targets.get(member_id) != target:
            yield from append_target(event, group_id, member_id, target)
        if pace.is_over(len(target) + 1):
            yield
    append_assignment_epoch(event, group_id, epoch, event.now_ms)


def append_regex(
    event: Event,
    group_id: str,
    regex: str,
    value: ConsumerGroupRegularExpressionValue | None,
) -> None:
    event.append(ConsumerGroupRegularExpressionKey(group_id, regex), value)


def append_member_tombstones(event: Event, group_id: str, member_ids: Iterable[str]) -> None:
    for member_id in member_ids:
        event.append(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None)
        event.append(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None)
        event.append(ConsumerGroupMemberMetadataKey(group_id, member_id), None)


def append_group_tombstones(event: Event, group: ConsumerGroup) -> None:
    """All that the log has of this group; its own record is the last."""
    member_ids = {**group.members, **group.targets}
    append_member_tombstones(event, group.group_id, member_ids)
    event.append(ConsumerGroupTargetAssignmentMetadataKey(group.group_id), None)
    for regex in group.regexes:
        append_regex(event, group.group_id, regex, None)
    event.append(ConsumerGroupPartitionMetadataKey(group.group_id), None)
    event.append(ConsumerGroupMetadataKey(group.group_id), None)
