"""What a consumer group refuses: malformed heartbeats, unknown or fenced members, stale commits.

The first two raise `Refused`; commits and fetches are answered with a code each.
"""

from collections.abc import Collection
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from suwi.group.classic_group import Committer
from suwi.group.consumer_group import (
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerGroupMember,
    HeartbeatRequest,
    MemberState,
    Owned,
    OwnedPartitions,
)
from suwi.model.ids import TopicId

_COMMIT_VERSION_MIN = 9
"""The first version of OffsetCommit for members of the consumer protocol."""


class Refused(Exception):
    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


def _invalid(message: str) -> Refused:
    return Refused(ErrorCode.invalid_request, message)


def check_request(request: HeartbeatRequest, assignors: Collection[str]) -> None:
    epoch = request.member_epoch
    if not request.group_id:
        raise _invalid("GroupId can't be empty.")
    if not request.member_id and (request.must_bring_its_id or epoch != 0):
        raise _invalid("MemberId can't be empty.")
    if request.instance_id == "":
        raise _invalid("InstanceId can't be empty.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if epoch == 0:
        _check_join(request)
    elif epoch == LEAVE_STATIC_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_EPOCH:
        raise _invalid(f"MemberEpoch is {epoch}.")
    assignor = request.server_assignor
    if assignor is not None and assignor not in assignors:
        raise Refused(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {assignor} is not supported. Supported: {', '.join(assignors)}.",
        )


def _check_join(request: HeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be given when joining.")
    # G19: a member that joins owns nothing.
    if request.owned is None or any(request.owned.values()):
        raise _invalid("TopicPartitions must be empty when joining.")
    if request.topic_names is None and request.topic_regex is None:
        raise _invalid("SubscribedTopicNames or SubscribedTopicRegex must be given when joining.")


def unknown_member(member_id: str, group_id: str) -> Refused:
    message = f"Member {member_id} is not a member of group {group_id}."
    return Refused(ErrorCode.unknown_member_id, message)


def find_static(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerGroupMember:
    """Returns the member that holds the instance id. Raises `Refused` if it has another member
    id."""
    member = group.static_member(instance_id)
    if member is None:
        message = f"Instance id {instance_id} is unknown."
        raise Refused(ErrorCode.unknown_member_id, message)
    if member.member_id != member_id:
        raise Refused(
            ErrorCode.fenced_instance_id,
            f"Member {member_id} with instance id {instance_id} was fenced by {member.member_id}.",
        )
    return member


def find_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> ConsumerGroupMember:
    if instance_id is not None:
        return find_static(group, member_id, instance_id)
    member = group.members.get(member_id)
    if member is None:
        raise unknown_member(member_id, group.group_id)
    return member


def check_epoch(member: ConsumerGroupMember, epoch: int, owned: OwnedPartitions | None) -> None:
    """Checks the epoch of a heartbeat. The previous epoch is accepted if the last reply may have
    been lost (G19)."""
    if member.current.state is MemberState.UNKNOWN and (owned is None or any(owned.values())):
        raise _fenced("The member's state is unknown here.")
    if epoch == 0 or epoch == member.epoch:
        return  # KAFKA-19233: a fenced member has given up everything, and may come back.
    behind = epoch == member.current.previous_epoch and epoch < member.epoch
    if not behind or not _is_subset(owned, member.current.assigned):
        raise _fenced(f"Member epoch {epoch}, known is {member.epoch}.")


def _fenced(reason: str) -> Refused:
    message = f"{reason} The member must abandon all its partitions and rejoin."
    return Refused(ErrorCode.fenced_member_epoch, message)


def _is_subset(owned: OwnedPartitions | None, assigned: Owned) -> bool:
    return owned is not None and all(
        partition in assigned.get(topic_id, ())
        for topic_id, partitions in owned.items()
        for partition in partitions
    )


def check_unreleased(member: ConsumerGroupMember, member_id: str) -> None:
    """G22: a static member is replaced if it has left, or if it is of the classic protocol."""
    if member.epoch != LEAVE_STATIC_EPOCH and not member.uses_classic_protocol:
        raise Refused(
            ErrorCode.unreleased_instance_id,
            f"Member {member_id} cannot join: instance id {member.instance_id} "
            f"is owned by member {member.member_id}.",
        )


# -- offsets -------------------------------------------------------------------------------------


class CommitFence(NamedTuple):
    """Whether a member may commit: as a whole, and for each partition (KIP-1251, G20)."""

    error: ErrorCode
    stale: ErrorCode = ErrorCode.none
    """The error of a partition that it may not commit in this epoch."""
    member: ConsumerGroupMember | None = None
    """Set if the epoch is an older one: then each partition must be checked."""
    epoch: int = -1

    def of(self, topic_id: TopicId, partition: int) -> ErrorCode:
        if self.error is not ErrorCode.none or self.member is None:
            return self.error
        assigned_in = self.member.partition_epoch(topic_id, partition)
        if assigned_in is not None and assigned_in <= self.epoch:
            return ErrorCode.none
        return self.stale


def _stale(member: ConsumerGroupMember) -> ErrorCode:
    if member.uses_classic_protocol:
        return ErrorCode.illegal_generation
    return ErrorCode.stale_member_epoch


def fence_commit(group: ConsumerGroup, who: Committer) -> CommitFence:
    """Checks OffsetCommit, or TxnOffsetCommit, whose clients do not know code 113."""
    epoch, is_transactional = who.generation, who.producer is not None
    if epoch < 0 and group.is_empty:
        return CommitFence(ErrorCode.none)
    if is_transactional and epoch == -1 and not who.member_id and who.instance_id is None:
        return CommitFence(ErrorCode.none)
    member = group.members.get(who.member_id)
    if member is None:
        return CommitFence(ErrorCode.unknown_member_id)
    is_old = not is_transactional and who.version < _COMMIT_VERSION_MIN
    if is_old and not member.uses_classic_protocol:
        return CommitFence(ErrorCode.unsupported_version)
    if epoch == member.epoch:
        return CommitFence(ErrorCode.none)
    stale = ErrorCode.illegal_generation if is_transactional else _stale(member)
    if epoch > member.epoch:
        return CommitFence(stale)
    return CommitFence(ErrorCode.none, stale, member, epoch)


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """Checks OffsetFetch, which may name a member from version 9 on."""
    if member_id is None and epoch < 0:
        return ErrorCode.none
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.unknown_member_id
    return ErrorCode.none if epoch == member.epoch else _stale(member)
