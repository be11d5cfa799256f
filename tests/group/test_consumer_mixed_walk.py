"""Members of both protocols in one group under random events: one owner, live state = replay."""

from random import Random

import pytest
from kio.schema.errors import ErrorCode

from suwi.group.consumer_group import GroupState
from tests.group.consumer_world import GROUP, Client, Image
from tests.group.mixed_world import Consumer, Mixed

TOPICS = ("a", "b")


class MixedWalk:
    """Downgrades are off: the group stays a consumer group, whoever is left."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = Mixed(downgrades=False)
        self.world.image = Image().with_topic("a", 5).with_topic("b", 4)
        self.members: list[Client | Consumer] = []
        self._next_id = 0
        self.join()

    def step(self) -> None:
        actions = (
            (self.turn, 60),
            (self.join, 8),
            (self.resubscribe, 4),
            (self.leave, 4),
            (self.crash, 2),
            (self.go_on, 10),
            (self.fail_over, 2),
            (self.grow, 2),
        )
        self.random.choices([a for a, _ in actions], [w for _, w in actions])[0]()

    def subscription(self) -> tuple[str, ...]:
        return tuple(name for name in TOPICS if self.random.random() < 0.7) or ("a",)

    def turn(self) -> None:
        if self.members:
            self.take_turn(self.random.choice(self.members))

    def take_turn(self, member: Client | Consumer) -> None:
        if isinstance(member, Client):
            member.beat(is_lost=self.random.random() < 0.1)
            return
        group = self.world.groups.get(GROUP)
        if group is None or group.is_empty:
            return
        error = member.beat() if member.generation >= 0 else ErrorCode.rebalance_in_progress
        if error in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            member.owned = {}
        has_joined = error is not ErrorCode.none and member.join().error is ErrorCode.none
        if has_joined and self.random.random() < 0.9:
            member.sync()

    def join(self) -> None:
        if len(self.members) >= 6:
            return
        self._next_id += 1
        group = self.world.groups.get(GROUP)
        if group is None or group.is_empty or self.random.random() < 0.5:
            client = Client(self.world, f"m{self._next_id}", self.subscription())
            client.beat()
            self.members.append(client)
            return
        consumer = Consumer(self.world)
        consumer.topics = self.subscription()
        consumer.is_eager = self.random.random() < 0.5
        consumer.join()
        self.members.append(consumer)

    def resubscribe(self) -> None:
        if not self.members:
            return
        member = self.random.choice(self.members)
        if isinstance(member, Client):
            member.names, member.must_send_all = self.subscription(), True
        elif self.world.groups.get(GROUP) is not None and not self.world.group.is_empty:
            member.topics = self.subscription()
            if member.is_eager:
                member.owned = {}
            member.join()

    def leave(self) -> None:
        if len(self.members) > 1:
            member = self.members.pop(self.random.randrange(len(self.members)))
            member.leave()

    def crash(self) -> None:
        if len(self.members) > 1:
            self.members.pop(self.random.randrange(len(self.members)))

    def go_on(self) -> None:
        self.world.advance(self.random.choice((1, 100, 1_000, 11_000)))

    def fail_over(self) -> None:
        """A classic consumer whose SyncGroup fails joins again."""
        self.world.fail_over()
        for member in self.members:
            if isinstance(member, Consumer) and not member.has_synced:
                member.generation = -1

    def grow(self) -> None:
        name = self.random.choice(TOPICS)
        topic = self.world.image.by_name(name)
        assert topic is not None
        self.world.change_topics(self.world.image.with_topic(name, topic.partitions + 1))

    def converge(self) -> None:
        if not any(isinstance(member, Client) for member in self.members):
            self._next_id += 1
            self.members.append(Client(self.world, f"m{self._next_id}", ("a",)))
        self.members.sort(key=lambda member: isinstance(member, Consumer))
        for _ in range(70):
            self.world.advance(1_000)
            for member in self.members:
                if isinstance(member, Client):
                    member.beat()
                else:
                    error = member.beat()
                    if error is not ErrorCode.none:
                        if error is not ErrorCode.rebalance_in_progress:
                            member.owned = {}
                        if member.join().error is ErrorCode.none:
                            member.sync()
            self.world.check_one_owner()
        assert self.world.group.state is GroupState.STABLE
        assert len(self.world.group.members) == len(self.members)
        owned = [
            (name, partition)
            for member in self.members
            for name, partitions in self.names_of(member).items()
            for partition in partitions
        ]
        assert len(owned) == len(set(owned))
        subscribed = {
            name
            for member in self.members
            for name in (member.names or () if isinstance(member, Client) else member.topics)
        }
        wanted = {
            (name, partition)
            for name in subscribed
            if (topic := self.world.image.by_name(name)) is not None
            for partition in range(topic.partitions)
        }
        assert set(owned) == wanted

    def names_of(self, member: Client | Consumer) -> dict[str, tuple[int, ...]]:
        if isinstance(member, Consumer):
            return {name: tuple(partitions) for name, partitions in member.owned.items()}
        found = {}
        for topic_id, partitions in member.owned.items():
            topic = self.world.image.by_id(topic_id)
            assert topic is not None
            found[topic.name] = partitions
        return found


@pytest.mark.parametrize("seed", range(40))
def test_members_of_both_protocols_share_a_group_and_converge(seed: int) -> None:
    walk = MixedWalk(seed)
    for number in range(150):
        walk.step()
        walk.world.check_one_owner()
        if number % 25 == 0:
            walk.world.check_replay(walk.random)
    walk.converge()
    walk.world.check_replay(walk.random)
