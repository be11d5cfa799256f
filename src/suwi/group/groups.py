"""The groups of a shard by their ids, of either protocol, and their offsets.

Invariant: an id belongs to a classic group or to a consumer group, never to both.
"""

from typing import TypeAlias

from suwi.group.classic_group import ClassicGroup
from suwi.group.consumer_group import ConsumerGroup, ConsumerGroups
from suwi.group.offset_manager import OffsetManager

Group: TypeAlias = ClassicGroup | ConsumerGroup


class Groups:
    __slots__ = ("classic", "consumer", "offsets")

    def __init__(self) -> None:
        self.classic: dict[str, ClassicGroup] = {}
        self.consumer = ConsumerGroups()
        self.offsets = OffsetManager()

    def with_members(self, group_id: str) -> Group | None:
        """A group that has or had members."""
        return self.classic.get(group_id) or self.consumer.get(group_id)

    def get(self, group_id: str) -> Group | None:
        """A group that has offsets and nothing else is an empty classic one."""
        group = self.with_members(group_id)
        if group is None and group_id in self.offsets:
            return ClassicGroup(group_id)
        return group

    def ids(self) -> list[str]:
        consumer = (group.group_id for group in self.consumer)
        return list(dict.fromkeys([*self.classic, *consumer, *self.offsets.groups()]))
