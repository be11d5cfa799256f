"""The assignors: complete, balanced, sticky, the same each time, and fast enough."""

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.env.slices import run_to_end as run
from suwi.group.assignors import (
    ASSIGNORS,
    Assignment,
    GroupSpec,
    MemberSpec,
    assign_range,
    assign_uniform,
)
from suwi.model.ids import TopicId

A, B, C = (TopicId(UUID(int=number)) for number in (1, 2, 3))
NAMES = sorted(ASSIGNORS)


def spec_of(
    subscriptions: Mapping[str, frozenset[TopicId]],
    partitions: Mapping[TopicId, int],
    before: Assignment | None = None,
) -> GroupSpec:
    before = before or {}
    return GroupSpec(
        {
            member_id: MemberSpec(None, topics, before.get(member_id, {}))
            for member_id, topics in subscriptions.items()
        },
        partitions,
    )


def sizes(assignment: Assignment) -> dict[str, int]:
    return {member: sum(map(len, target.values())) for member, target in assignment.items()}


def owners(assignment: Assignment) -> dict[tuple[TopicId, int], str]:
    found: dict[tuple[TopicId, int], str] = {}
    for member_id, target in assignment.items():
        for topic_id, partitions in target.items():
            for partition in partitions:
                assert (topic_id, partition) not in found
                found[topic_id, partition] = member_id
    return found


SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.frozensets(st.sampled_from((A, B, C))),
    min_size=1,
)
PARTITIONS = st.fixed_dictionaries({topic: st.integers(0, 12) for topic in (A, B, C)})


def check_complete(spec: GroupSpec, assignment: Assignment) -> None:
    found = owners(assignment)
    wanted = {
        (topic, partition)
        for topic, count in spec.partitions.items()
        if any(topic in member.topics for member in spec.members.values())
        for partition in range(count)
    }
    assert set(found) == wanted
    assert all(topic in spec.members[owner].topics for (topic, _), owner in found.items())
    assert list(assignment) == list(spec.members)


@pytest.mark.parametrize("name", NAMES)
@given(SUBSCRIPTIONS, PARTITIONS, SUBSCRIPTIONS, PARTITIONS)
def test_every_partition_has_exactly_one_subscriber_before_and_after_a_change(
    name: str,
    before: dict[str, frozenset[TopicId]],
    partitions: dict[TopicId, int],
    after: dict[str, frozenset[TopicId]],
    later: dict[TopicId, int],
) -> None:
    first = run(ASSIGNORS[name](spec_of(before, partitions)))
    check_complete(spec_of(before, partitions), first)
    second_spec = spec_of(after, later, first)
    check_complete(second_spec, run(ASSIGNORS[name](second_spec)))


@given(SUBSCRIPTIONS, PARTITIONS, SUBSCRIPTIONS)
def test_uniform_members_with_equal_subscriptions_differ_by_one_at_most(
    before: dict[str, frozenset[TopicId]],
    partitions: dict[TopicId, int],
    after: dict[str, frozenset[TopicId]],
) -> None:
    first = run(assign_uniform(spec_of(before, partitions)))
    second = run(assign_uniform(spec_of(after, partitions, first)))
    for subscriptions, assignment in ((before, first), (after, second)):
        by_subscription: dict[frozenset[TopicId], list[int]] = {}
        for member_id, size in sizes(assignment).items():
            by_subscription.setdefault(subscriptions[member_id], []).append(size)
        for numbers in by_subscription.values():
            assert max(numbers) - min(numbers) <= 1


@pytest.mark.parametrize("name", NAMES)
@given(SUBSCRIPTIONS, PARTITIONS)
def test_nothing_moves_when_nothing_has_changed(
    name: str, subscriptions: dict[str, frozenset[TopicId]], partitions: dict[TopicId, int]
) -> None:
    first = run(ASSIGNORS[name](spec_of(subscriptions, partitions)))
    again = run(ASSIGNORS[name](spec_of(subscriptions, partitions, first)))
    assert owners(again) == owners(first)


@given(
    st.sets(st.sampled_from("abcdefgh"), min_size=1),
    st.sets(st.sampled_from("abcdefgh"), min_size=1),
    PARTITIONS,
    PARTITIONS,
)
def test_uniform_moves_no_more_than_balance_needs(
    before: set[str],
    after: set[str],
    partitions: dict[TopicId, int],
    later: dict[TopicId, int],
) -> None:
    everything = frozenset((A, B, C))
    first = run(
        assign_uniform(spec_of(dict.fromkeys(sorted(before, reverse=True), everything), partitions))
    )
    second = run(assign_uniform(spec_of(dict.fromkeys(sorted(after), everything), later, first)))
    was, now = owners(first), owners(second)
    kept = sum(was.get(partition) == owner for partition, owner in now.items())
    has = sorted(
        (sum(was.get(p) == m for p in now) for m in sorted(after)),
        reverse=True,
    )
    minimum, extras = divmod(len(now), len(after))
    could = sum(min(n, minimum + (at < extras)) for at, n in enumerate(has))
    assert kept == could


def test_uniform_takes_nothing_from_a_member_that_may_have_one_more() -> None:
    subscriptions = dict.fromkeys("ab", frozenset((A,)))
    before: Assignment = {"a": {A: (0,)}, "b": {A: (1, 2)}}
    assert run(assign_uniform(spec_of(subscriptions, {A: 3}, before))) == before


def test_range_gives_the_same_partitions_of_topics_with_equal_counts() -> None:
    subscriptions = dict.fromkeys("ab", frozenset((A, B)))
    assert run(assign_range(spec_of(subscriptions, {A: 3, B: 3}))) == {
        "a": {A: (0, 1), B: (0, 1)},
        "b": {A: (2,), B: (2,)},
    }


def test_range_orders_static_members_first_by_their_instance_id() -> None:
    topics = frozenset((A,))
    members = {
        "m1": MemberSpec(None, topics, {}),
        "m2": MemberSpec("y", topics, {}),
        "m3": MemberSpec("x", topics, {}),
    }
    found = run(assign_range(GroupSpec(members, {A: 3})))
    assert found == {"m1": {A: (2,)}, "m2": {A: (1,)}, "m3": {A: (0,)}}


@pytest.mark.parametrize("is_alike", [True, False])
def test_a_large_group_is_assigned_in_slices(is_alike: bool) -> None:
    topics = [TopicId(UUID(int=number)) for number in range(20)]
    members = {
        f"m{at:04}": frozenset(topics if is_alike or at % 2 else topics[:10]) for at in range(3_000)
    }
    steps = assign_uniform(spec_of(members, dict.fromkeys(topics, 100)))
    slices = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            check_complete(spec_of(members, dict.fromkeys(topics, 100)), end.value)
            break
        slices += 1
    assert slices >= 5
