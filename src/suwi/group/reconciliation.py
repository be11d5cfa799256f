"""One step of a member towards its target assignment (Kafka's CurrentAssignmentBuilder). Pure.

A member revokes first, is given the target's epoch next, and gets partitions as soon as nobody
else has them. It stays in its epoch while it has something to revoke (G18): only an explicit list
of what it owns, without those partitions, ends that; a heartbeat without a list does not (G17).
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from suwi.group.consumer_group import (
    NOTHING_OWNED,
    ConsumerGroupMember,
    CurrentAssignment,
    MemberState,
    Owned,
    Target,
)
from suwi.group.consumer_messages import OwnedPartitions
from suwi.model.ids import TopicId


class UnknownMemberState(Exception):
    """The member's state is of a later version: it has to rejoin without partitions."""


def reconcile(
    member: ConsumerGroupMember,
    target_epoch: int,
    target: Target,
    subscribed: Collection[TopicId],
    reported: OwnedPartitions | None,
    owner: Callable[[TopicId, int], str | None],
    *,
    subscription_changed: bool = False,
) -> CurrentAssignment:
    """The same object if nothing changes. Whatever the target says, a topic that the member is no
    longer subscribed to is revoked."""
    current = member.current
    wanted = {topic_id: parts for topic_id, parts in target.items() if topic_id in subscribed}
    match current.state:
        case MemberState.STABLE if current.epoch == target_epoch:
            if not subscription_changed:
                return current
            return _unsubscribe(current, subscribed, reported)
        case MemberState.UNREVOKED_PARTITIONS if _reports(reported, current.pending_revocation):
            if not subscription_changed:
                return current
            return _unsubscribe(current, subscribed, reported)
        case MemberState.UNKNOWN if reported is None or any(reported.values()):
            raise UnknownMemberState(member.member_id)
    return _next(member, target_epoch, wanted, reported, owner)


def _reports(reported: OwnedPartitions | None, pending: Owned) -> bool:
    """Whether the member may still use one of these."""
    if reported is None:
        return True
    return any(
        partition in pending.get(topic_id, ())
        for topic_id, partitions in reported.items()
        for partition in partitions
    )


def _changed(current: CurrentAssignment, after: CurrentAssignment) -> CurrentAssignment:
    same = replace(after, previous_epoch=current.previous_epoch) == current
    return current if same else after


def _unsubscribe(
    current: CurrentAssignment, subscribed: Collection[TopicId], reported: OwnedPartitions | None
) -> CurrentAssignment:
    """Without waiting for a new target, it gives up what it is no longer subscribed to."""
    kept = {t: epochs for t, epochs in current.assigned.items() if t in subscribed}
    if len(kept) == len(current.assigned):
        return current
    pending = {t: dict(epochs) for t, epochs in current.pending_revocation.items()}
    for topic_id, epochs in current.assigned.items():
        if topic_id not in subscribed:
            pending.setdefault(topic_id, {}).update(epochs)
    if not _reports(reported, pending):
        pending = {}
    state = MemberState.UNREVOKED_PARTITIONS if pending else current.state
    return CurrentAssignment(current.epoch, current.epoch, state, kept, pending)


def _next(
    member: ConsumerGroupMember,
    target_epoch: int,
    wanted: Target,
    reported: OwnedPartitions | None,
    owner: Callable[[TopicId, int], str | None],
) -> CurrentAssignment:
    current = member.current
    assigned: dict[TopicId, dict[int, int]] = {}
    revoking: dict[TopicId, dict[int, int]] = {}
    for topic_id, epochs in current.assigned.items():
        wants = frozenset(wanted.get(topic_id, ()))
        for partition, epoch in epochs.items():
            where = assigned if partition in wants else revoking
            where.setdefault(topic_id, {})[partition] = epoch
    if revoking and _reports(reported, revoking):
        unrevoked = MemberState.UNREVOKED_PARTITIONS
        epoch = current.epoch
        return _changed(current, CurrentAssignment(epoch, epoch, unrevoked, assigned, revoking))
    unreleased = False
    for topic_id, partitions in wanted.items():
        has = assigned.get(topic_id, {})
        for partition in partitions:
            if partition in has:
                continue
            if owner(topic_id, partition) in (None, member.member_id):
                assigned.setdefault(topic_id, {})[partition] = target_epoch
            else:
                unreleased = True
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    return _changed(
        current, CurrentAssignment(target_epoch, current.epoch, state, assigned, NOTHING_OWNED)
    )
