"""A consumer group as it will be when a decision is replayed: one member added, changed, replaced.

The group itself changes only when the records are replayed. Until then this tells what follows from
the change: the group's topics, its assignor, who owns what.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from suwi.env.slices import Pace, Slices
from suwi.group.consumer_group import NO_ASSIGNMENT, ConsumerGroup, ConsumerGroupMember, Target
from suwi.group.consumer_group_records import ConsumerGroupRegularExpressionValue
from suwi.model.ids import TopicId


def subscribed_topics(
    group: ConsumerGroup,
    leaving: Iterable[ConsumerGroupMember],
    coming: ConsumerGroupMember | None = None,
    regexes: Mapping[str, ConsumerGroupRegularExpressionValue] | None = None,
) -> Slices[set[str]]:
    """The names of all topics after some members have left and one has joined."""
    pace, gone, patterns = Pace(), Counter[str](), group.regex_subscribers.copy()
    for member in leaving:
        gone.update(member.topic_names)
        patterns.subtract([member.topic_regex] if member.topic_regex else [])
        if pace.is_over(1 + len(member.topic_names) // 8):
            yield
    found: set[str] = set()
    for name, count in group.subscribers.items():
        if count > gone[name]:
            found.add(name)
        if pace.is_over(1):
            yield
    if coming is not None:
        found.update(coming.topic_names)
        patterns.update([coming.topic_regex] if coming.topic_regex else [])
    for regex, resolved in (group.regexes if regexes is None else regexes).items():
        if patterns[regex] > 0:
            found.update(resolved.topics)
    return found


def keeps_topics(
    group: ConsumerGroup, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None
) -> bool:
    """Whether the group's topics stay the same for certain if one member replaces another. In a
    group with thousands of topics this decides most joins without a look at all topics."""
    names_before = before.topic_names if before is not None else ()
    names_after = after.topic_names if after is not None else ()
    if any(name not in group.subscribers for name in names_after):
        return False
    stay = frozenset(names_after)
    if any(group.subscribers[name] == 1 for name in names_before if name not in stay):
        return False
    regex_before = before.topic_regex if before is not None else None
    regex_after = after.topic_regex if after is not None else None
    if regex_before == regex_after:
        return True
    is_lost = regex_before is not None and group.regex_subscribers[regex_before] == 1
    is_new = regex_after is not None and not (
        regex_after in group.regexes and regex_after in group.regex_subscribers
    )
    return not is_lost and not is_new


def unused_regexes(group: ConsumerGroup, leaving: Iterable[ConsumerGroupMember]) -> list[str]:
    """The expressions without a subscriber after some members have left."""
    patterns = Counter(group.regex_subscribers)
    patterns.subtract(member.topic_regex for member in leaving if member.topic_regex)
    return [regex for regex in group.regexes if patterns[regex] <= 0]


@dataclass(slots=True)
class Draft:
    group: ConsumerGroup
    before: ConsumerGroupMember | None
    """As the group has it; under another id if a static member is replaced."""
    member: ConsumerGroupMember
    epoch: int
    assignment_epoch: int
    target: Target
    regexes: Mapping[str, ConsumerGroupRegularExpressionValue]

    @staticmethod
    def of(
        group: ConsumerGroup, before: ConsumerGroupMember | None, member: ConsumerGroupMember
    ) -> "Draft":
        target_of = before.member_id if before is not None else member.member_id
        return Draft(
            group,
            before,
            member,
            group.epoch,
            group.assignment_epoch,
            group.targets.get(target_of, NO_ASSIGNMENT),
            group.regexes,
        )

    @property
    def replaced_id(self) -> str | None:
        """Whose place the member takes."""
        if self.before is None or self.before.member_id == self.member.member_id:
            return None
        return self.before.member_id

    @property
    def leaving(self) -> tuple[ConsumerGroupMember, ...]:
        return () if self.before is None else (self.before,)

    def members(self) -> dict[str, ConsumerGroupMember]:
        members = dict(self.group.members)
        if self.replaced_id is not None:
            del members[self.replaced_id]
        members[self.member.member_id] = self.member
        return members

    def targets(self) -> dict[str, Target]:
        targets = dict(self.group.targets)
        if self.replaced_id is not None:
            targets.pop(self.replaced_id, None)
            targets[self.member.member_id] = self.target
        return targets

    def subscribed_topics(self) -> Slices[set[str]]:
        return subscribed_topics(self.group, self.leaving, self.member, self.regexes)

    def topics_of_member(self) -> tuple[str, ...]:
        resolved = self.regexes.get(self.member.topic_regex or "")
        return (*self.member.topic_names, *(resolved.topics if resolved is not None else ()))

    def assignors(self) -> Counter[str]:
        counts = self.group.assignors.copy()
        for member, by in ((self.before, -1), (self.member, 1)):
            if member is not None and member.subscription is not None:
                name = member.subscription.server_assignor
                if name is not None:
                    counts[name] += by
        return counts

    def owner(self, topic_id: TopicId, partition: int) -> str | None:
        found = self.group.owner(topic_id, partition)
        return self.member.member_id if found == self.replaced_id else found
