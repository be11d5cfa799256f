"""The records of a consumer group as decisions append them."""

from collections.abc import Iterable, Mapping

from suwi.coordinator.decision import Decision, Pace, Steps
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


def append_epoch(decision: Decision, group_id: str, epoch: int, metadata_hash: int) -> None:
    value = ConsumerGroupMetadataValue(epoch, metadata_hash)
    decision.append(ConsumerGroupMetadataKey(group_id), value)


def append_subscription(
    decision: Decision, group_id: str, member_id: str, value: ConsumerGroupMemberMetadataValue
) -> None:
    decision.append(ConsumerGroupMemberMetadataKey(group_id, member_id), value)


def append_current(
    decision: Decision, group_id: str, member_id: str, current: CurrentAssignment
) -> Steps[None]:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id)
    decision.append(key, (yield from current.value()))


def append_target(decision: Decision, group_id: str, member_id: str, target: Target) -> Steps[None]:
    pace, partitions = Pace(), []
    for topic_id, found in target.items():
        partitions.append(TopicPartitions(topic_id, found))
        if pace.is_over(2):
            yield
    decision.append(
        ConsumerGroupTargetAssignmentMemberKey(group_id, member_id),
        ConsumerGroupTargetAssignmentMemberValue(tuple(partitions)),
    )


def append_assignment_epoch(
    decision: Decision, group_id: str, epoch: int, timestamp_ms: int
) -> None:
    decision.append(
        ConsumerGroupTargetAssignmentMetadataKey(group_id),
        ConsumerGroupTargetAssignmentMetadataValue(epoch, timestamp_ms),
    )


def append_assignment(
    decision: Decision,
    group_id: str,
    assignment: Mapping[str, Target],
    targets: Mapping[str, Target],
    epoch: int,
    now_ms: int,
) -> Steps[None]:
    """Only what differs from the present targets."""
    pace = Pace()
    for member_id, target in assignment.items():
        if targets.get(member_id) != target:
            yield from append_target(decision, group_id, member_id, target)
        if pace.is_over(len(target) + 1):
            yield
    append_assignment_epoch(decision, group_id, epoch, now_ms)


def append_regex(
    decision: Decision,
    group_id: str,
    regex: str,
    value: ConsumerGroupRegularExpressionValue | None,
) -> None:
    decision.append(ConsumerGroupRegularExpressionKey(group_id, regex), value)


def append_member_tombstones(decision: Decision, group_id: str, member_ids: Iterable[str]) -> None:
    for member_id in member_ids:
        decision.append(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None)
        decision.append(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None)
        decision.append(ConsumerGroupMemberMetadataKey(group_id, member_id), None)


def append_group_tombstones(decision: Decision, group: ConsumerGroup) -> None:
    """All that the log has of this group; its own record is the last."""
    member_ids = {**group.members, **group.targets}
    append_member_tombstones(decision, group.group_id, member_ids)
    decision.append(ConsumerGroupTargetAssignmentMetadataKey(group.group_id), None)
    for regex in group.regexes:
        append_regex(decision, group.group_id, regex, None)
    decision.append(ConsumerGroupPartitionMetadataKey(group.group_id), None)
    decision.append(ConsumerGroupMetadataKey(group.group_id), None)
