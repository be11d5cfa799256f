"""One step of a member towards its target assignment (Kafka's CurrentAssignmentBuilder). Pure.

A member revokes first, is given the target's epoch next, and gets partitions as soon as nobody
else has them. It stays in its epoch while it has something to revoke (G18): only an explicit list
of what it owns, without those partitions, ends that; a heartbeat without a list does not (G17).
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from suwi.env.slices import Pace, Slices
from suwi.group.consumer_group import (
    NOTHING_OWNED,
    ConsumerGroupMember,
    CurrentAssignment,
    MemberState,
    Owned,
    OwnedPartitions,
    Target,
)
from suwi.model.ids import TopicId

_T = TypeVar("_T")


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
) -> Slices[CurrentAssignment]:
    """Returns the same object if nothing changes. A topic that the member is no longer subscribed
    to is revoked, whatever the target is."""
    current, pace = member.current, Pace()
    match current.state:
        case MemberState.STABLE if current.epoch == target_epoch:
            if not subscription_changed:
                return current
            return (yield from _unsubscribe(current, subscribed, reported, pace))
        case MemberState.UNREVOKED_PARTITIONS if (
            yield from _reports(reported, current.pending_revocation, pace)
        ):
            if not subscription_changed:
                return current
            return (yield from _unsubscribe(current, subscribed, reported, pace))
        case MemberState.UNKNOWN if reported is None or any(reported.values()):
            raise UnknownMemberState(member.member_id)
    wanted = yield from _only(target, subscribed, pace)
    return (yield from _next(member, target_epoch, wanted, reported, owner, pace))


def _only(
    of_topics: Mapping[TopicId, _T], subscribed: Collection[TopicId], pace: Pace
) -> Slices[dict[TopicId, _T]]:
    found = {}
    for topic_id, partitions in of_topics.items():
        if topic_id in subscribed:
            found[topic_id] = partitions
        if pace.is_over(1):
            yield
    return found


def _reports(reported: OwnedPartitions | None, pending: Owned, pace: Pace) -> Slices[bool]:
    """Whether the member may still use one of the pending partitions."""
    if reported is None:
        return True
    for topic_id, partitions in reported.items():
        owned = pending.get(topic_id)
        if owned is not None and any(partition in owned for partition in partitions):
            return True
        if pace.is_over(1 + len(partitions) // 16):
            yield
    return False


def _changed(
    current: CurrentAssignment, after: CurrentAssignment, pace: Pace
) -> Slices[CurrentAssignment]:
    if (after.epoch, after.state) != (current.epoch, current.state):
        return after
    for was, owned in (
        (current.assigned, after.assigned),
        (current.pending_revocation, after.pending_revocation),
    ):
        if len(was) != len(owned):
            return after
        for topic_id, epochs in owned.items():
            if was.get(topic_id) != epochs:
                return after
            if pace.is_over(1 + len(epochs) // 16):
                yield
    return current


def _unsubscribe(
    current: CurrentAssignment,
    subscribed: Collection[TopicId],
    reported: OwnedPartitions | None,
    pace: Pace,
) -> Slices[CurrentAssignment]:
    """The member gives up topics that it is no longer subscribed to, without waiting for a new
    target."""
    kept = yield from _only(current.assigned, subscribed, pace)
    if len(kept) == len(current.assigned):
        return current
    pending: dict[TopicId, dict[int, int]] = {}
    for owned in (current.pending_revocation, current.assigned):
        for topic_id, epochs in owned.items():
            if owned is current.pending_revocation or topic_id not in subscribed:
                pending.setdefault(topic_id, {}).update(epochs)
            if pace.is_over(1 + len(epochs) // 8):
                yield
    if not (yield from _reports(reported, pending, pace)):
        pending = {}
    state = MemberState.UNREVOKED_PARTITIONS if pending else current.state
    return CurrentAssignment(current.epoch, current.epoch, state, kept, pending)


def _next(
    member: ConsumerGroupMember,
    target_epoch: int,
    wanted: Target,
    reported: OwnedPartitions | None,
    owner: Callable[[TopicId, int], str | None],
    pace: Pace,
) -> Slices[CurrentAssignment]:
    current = member.current
    assigned: dict[TopicId, dict[int, int]] = {}
    revoking: dict[TopicId, dict[int, int]] = {}
    for topic_id, epochs in current.assigned.items():
        wants = frozenset(wanted.get(topic_id, ()))
        for partition, epoch in epochs.items():
            where = assigned if partition in wants else revoking
            where.setdefault(topic_id, {})[partition] = epoch
        if pace.is_over(2 * len(epochs) + 1):
            yield
    if revoking and (yield from _reports(reported, revoking, pace)):
        unrevoked = MemberState.UNREVOKED_PARTITIONS
        epoch = current.epoch
        after = CurrentAssignment(epoch, epoch, unrevoked, assigned, revoking)
        return (yield from _changed(current, after, pace))
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
        if pace.is_over(3 * len(partitions) + 1):
            yield
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    after = CurrentAssignment(target_epoch, current.epoch, state, assigned, NOTHING_OWNED)
    return (yield from _changed(current, after, pace))
