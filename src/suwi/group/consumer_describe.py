"""A consumer group as ConsumerGroupDescribe shows it."""

from collections.abc import Iterator, Mapping, Sequence

from suwi.coordinator.topics import Topic, Topics
from suwi.env.slices import run_to_end
from suwi.group.consumer_config import ConsumerGroupConfig
from suwi.group.consumer_group import (
    NO_ASSIGNMENT,
    ConsumerGroup,
    ConsumerGroupMember,
    Target,
    partitions_of,
)
from suwi.group.consumer_messages import DescribedGroup, DescribedMember
from suwi.group.consumer_targets import preferred_assignor


def describe(group: ConsumerGroup, config: ConsumerGroupConfig, topics: Topics) -> DescribedGroup:
    return DescribedGroup(
        group.group_id,
        group.state.value,
        group.epoch,
        group.assignment_epoch,
        preferred_assignor(group.assignors, config),
        _describe_members(list(group.members.values()), dict(group.targets), topics),
    )


def _describe_members(
    members: Sequence[ConsumerGroupMember], targets: Mapping[str, Target], topics: Topics
) -> Iterator[DescribedMember]:
    """One by one: the group may change in between, this description does not."""
    for member in members:
        yield _describe(member, targets.get(member.member_id, NO_ASSIGNMENT), topics)


def _describe(member: ConsumerGroupMember, target: Target, topics: Topics) -> DescribedMember:
    value = member.subscription
    return DescribedMember(
        member.member_id,
        member.instance_id,
        value.rack_id if value is not None else None,
        member.epoch,
        value.client_id if value is not None else "",
        value.client_host if value is not None else "",
        member.topic_names,
        member.topic_regex,
        _named(run_to_end(partitions_of(member.current.assigned)), topics),
        _named(target, topics),
        member.uses_classic_protocol,
    )


def _named(partitions: Target, topics: Topics) -> Sequence[tuple[Topic, Sequence[int]]]:
    """Without topics that are gone: they have no names."""
    found = ((topics.by_id(topic_id), parts) for topic_id, parts in partitions.items())
    return [(topic, parts) for topic, parts in found if topic is not None]
