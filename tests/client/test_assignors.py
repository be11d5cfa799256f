"""What assignors promise, whatever the group is like."""

import random

import pytest

from suwi.client.assignors import ASSIGNORS, Assignments, assign_cooperative_sticky, generation_of
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.wire.consumer_protocol import Subscription


def tp(topic: str, index: int) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


def wants(*topics: str, owned: list[TopicPartition] | None = None, of: int = 1) -> Subscription:
    return Subscription(topics, tuple(owned or ()), of)


def loads(assigned: Assignments) -> list[int]:
    return sorted(map(len, assigned.values()))


@pytest.mark.parametrize("name", ASSIGNORS)
def test_everything_is_given_to_exactly_one_subscriber(name: str) -> None:
    chance = random.Random(7)
    for _ in range(300):
        topics = {topic: chance.randrange(8) for topic in "abc"}
        members = {
            f"m{i}": Subscription(tuple(chance.sample("abc", chance.randint(1, 3))))
            for i in range(chance.randint(1, 6))
        }
        assigned = ASSIGNORS[name].assign(members, topics)
        given = [partition for each in assigned.values() for partition in each]
        subscribed = {topic for each in members.values() for topic in each.topics}
        assert sorted(given) == sorted(
            tp(topic, index) for topic in subscribed for index in range(topics[topic])
        )
        for member, partitions in assigned.items():
            assert {each.topic for each in partitions} <= set(members[member].topics)


def test_range_gives_the_first_members_one_more_of_each_topic() -> None:
    members = {"a": wants("t", "u"), "b": wants("t", "u")}
    assigned = ASSIGNORS["range"].assign(members, {"t": 3, "u": 3})
    assert assigned == {
        "a": [tp("t", 0), tp("t", 1), tp("u", 0), tp("u", 1)],
        "b": [tp("t", 2), tp("u", 2)],
    }


def test_round_robin_deals_out_the_partitions_of_all_topics_in_turn() -> None:
    members = {"a": wants("t", "u"), "b": wants("u"), "c": wants("t", "u")}
    assigned = ASSIGNORS["roundrobin"].assign(members, {"u": 2, "t": 2})
    assert assigned == {"a": [tp("t", 0), tp("u", 0)], "b": [tp("u", 1)], "c": [tp("t", 1)]}


def test_sticky_takes_nothing_from_a_balanced_group() -> None:
    owned = {"a": [tp("t", 3), tp("t", 0)], "b": [tp("t", 1), tp("t", 2)]}
    members = {member: wants("t", owned=each) for member, each in owned.items()}
    assigned = assign_cooperative_sticky(members, {"t": 4})
    assert assigned == {member: sorted(each) for member, each in owned.items()}


def test_what_changes_hands_belongs_to_nobody_for_one_generation() -> None:
    members = {"a": wants("t", owned=[tp("t", index) for index in range(4)]), "b": wants("t")}
    first = assign_cooperative_sticky(members, {"t": 4})
    assert loads(first) == [0, 2]
    members = {member: wants("t", owned=each, of=2) for member, each in first.items()}
    second = assign_cooperative_sticky(members, {"t": 4})
    assert loads(second) == [2, 2]
    assert second["a"] == first["a"]


def test_of_two_claims_the_newer_generation_counts_and_the_older_has_to_give_up_first() -> None:
    members = {
        "a": wants("t", owned=[tp("t", 0)], of=4),
        "b": wants("t", owned=[tp("t", 0), tp("t", 1)], of=5),
    }
    assigned = assign_cooperative_sticky(members, {"t": 2})
    assert tp("t", 0) not in assigned["a"] + assigned["b"]


def test_rounds_of_cooperative_rebalances_end_balanced_and_never_share_a_partition() -> None:
    chance = random.Random(3)
    owned: dict[str, list[TopicPartition]] = {}
    for generation in range(1, 300):
        if generation % 5 == 0:
            for _ in range(2):
                owned.setdefault(f"m{chance.randrange(6)}", [])
                if len(owned) > 1 and chance.random() < 0.5:
                    del owned[chance.choice(sorted(owned))]
        elif not owned:
            continue
        members = {member: wants("t", owned=each, of=generation) for member, each in owned.items()}
        assigned = assign_cooperative_sticky(members, {"t": 7})
        for member, each in assigned.items():
            for partition in each:
                others = [other for other in owned if other != member]
                assert not any(partition in owned[other] for other in others)
        owned = assigned
        if generation % 5 == 3 and owned:
            assert sum(loads(owned)) == 7
            assert loads(owned)[-1] - loads(owned)[0] <= 1


def test_javas_generation_before_version_2_lies_in_the_user_data() -> None:
    assert generation_of(Subscription(("t",), user_data=b"\0\0\0\x09")) == 9
    assert generation_of(Subscription(("t",), generation=4, user_data=b"\0\0\0\x09")) == 4
    assert generation_of(Subscription(("t",), user_data=b"longer than that")) == -1
