"""The rebalances of consumer groups: begun with a new epoch, ended when all members follow it."""

from suwi.coordinator.event import Event
from suwi.group.consumer_group import ConsumerGroup, ConsumerGroupMember
from suwi.group.history import Cause, Rebalance, Trigger


class Rebalances:
    def __init__(self) -> None:
        self._of_group: dict[str, Rebalance] = {}

    def begin(self, group: ConsumerGroup, cause: Cause, now_ms: int) -> None:
        """The first of several causes is the one that counts."""
        rebalance = Rebalance(group.group_id, cause, now_ms, group.epoch)
        self._of_group.setdefault(group.group_id, rebalance)

    def end(self, group_id: str, epoch: int, members: int, event: Event) -> None:
        rebalance = self._of_group.pop(group_id, None)
        if rebalance is not None:
            rebalance.to_generation = epoch
            rebalance.ended_ms = event.now_ms
            rebalance.members = members
            event.notices.append(rebalance)

    def forget(self, group_id: str) -> None:
        self._of_group.pop(group_id, None)


def cause_of(trigger: Trigger, member: ConsumerGroupMember, reason: str = "") -> Cause:
    value = member.subscription
    if value is None:
        return Cause(trigger, member.member_id, reason=reason)
    return Cause(trigger, member.member_id, value.client_id, value.client_host, reason)
