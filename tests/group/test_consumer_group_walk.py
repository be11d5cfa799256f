"""A consumer group under random events: one owner per partition, live state = replay, convergence.

Members subscribe, leave, fall silent, lose replies, return statically; topics change; brokers fail.
"""

import re
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Event
from suwi.group.consumer_group import GroupState
from tests.group.consumer_world import Client, Image, World, settle

TOPICS = ("a", "b", "c")
REGEXES = (None, None, "", "a|b", "[bc]", ".*")


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        interval_ms = self.random.choice((0, 0, 500, 2_000))
        image = Image().with_topic("a", 5).with_topic("b", 3)
        self.world = World(image, assignment_interval_ms=interval_ms)
        self.clients: list[Client] = []
        self.released: list[str] = []
        self._next_id = 0
        self._next_topic = 1_000

    def step(self) -> None:
        actions = (
            (self.beat, 60),
            (self.join, 6),
            (self.resubscribe, 6),
            (self.leave, 3),
            (self.crash, 2),
            (self.go_on, 12),
            (self.change_topics, 3),
            (self.fail_over, 2),
            (self.old_request, 4),
            (self.stop_all, 1),
        )
        action = self.random.choices([a for a, _ in actions], [w for _, w in actions])[0]
        action()

    def subscription(self) -> tuple[str, ...]:
        names = [name for name in TOPICS if self.random.random() < 0.6]
        return tuple(names)

    def pick(self) -> Client | None:
        return self.random.choice(self.clients) if self.clients else None

    def beat(self) -> None:
        client = self.pick()
        if client is None:
            return
        client.must_send_all |= self.random.random() < 0.1
        response = client.beat(is_lost=self.random.random() < 0.15)
        if response.error is ErrorCode.fenced_instance_id:
            self.clients.remove(client)

    def join(self) -> None:
        if len(self.clients) >= 6:
            return
        self._next_id += 1
        instance_id = None
        if self.released and self.random.random() < 0.7:
            instance_id = self.released.pop()
        elif self.random.random() < 0.3:
            instance_id = f"i{self._next_id}"
        assignor = self.random.choice((None, None, "uniform", "range"))
        regex = self.random.choice(REGEXES)
        client = Client(
            self.world, f"m{self._next_id}", self.subscription(), instance_id, regex, assignor
        )
        self.clients.append(client)
        client.beat(is_lost=self.random.random() < 0.2)

    def resubscribe(self) -> None:
        client = self.pick()
        if client is not None:
            client.names, client.must_send_all = self.subscription(), True
            if self.random.random() < 0.4:
                # A regular expression is taken back with an empty one.
                client.regex = self.random.choice(REGEXES) or ""

    def leave(self) -> None:
        client = self.pick()
        if client is None:
            return
        self.clients.remove(client)
        if client.instance_id is not None and self.random.random() < 0.7:
            if client.leave(-2).error is ErrorCode.none:
                self.released.append(client.instance_id)
        else:
            client.leave()

    def stop_all(self) -> None:
        """All leave; sometimes the group is deleted then."""
        for client in self.clients:
            client.leave()
        self.clients.clear()
        self.world.advance(60_000)
        group = self.world.groups.get("g")
        if group is not None and self.random.random() < 0.5:
            event = Event(self.world.now_ms)
            assert self.world.coordinator.delete(group, event) is ErrorCode.none
            self.world.carry_out(event)
            assert len(self.world.groups) == 0
            assert not self.world.timers

    def crash(self) -> None:
        client = self.pick()
        if client is not None:
            self.clients.remove(client)

    def go_on(self) -> None:
        self.world.advance(self.random.choice((1, 100, 1_000, 10_000, 31_000)))

    def change_topics(self) -> None:
        name, image = self.random.choice(TOPICS), self.world.image
        known = image.by_name(name)
        if known is None:
            self._next_topic += 1
            image = image.with_topic(name, self.random.randint(1, 6), self._next_topic)
        elif self.random.random() < 0.5:
            image = image.with_topic(name, known.partitions + 1)
        else:
            image = image.without(name)
        self.world.change_topics(image, tell=self.random.random() < 0.5)

    def fail_over(self) -> None:
        self.world.fail_over()

    def old_request(self) -> None:
        """Of a member or of somebody else, with whatever epoch."""
        client = self.pick()
        if client is not None:
            group = self.world.groups.get("g")
            epoch = self.random.randint(1, group.epoch + 2 if group is not None else 2)
            if epoch != client.epoch:
                self.world.send(client.request(member_epoch=epoch, owned=None))

    def check(self) -> None:
        self.world.check_one_owner()
        owners: dict[object, str] = {}
        for client in self.clients:
            known = self.world.groups.get("g")
            member = known.members.get(client.member_id) if known is not None else None
            if member is None:
                continue
            # What a live member believes to own is locked for it.
            for topic, partitions in client.owned.items():
                for partition in partitions:
                    if client.last.error is ErrorCode.none:
                        assert owners.setdefault((topic, partition), client.member_id) == (
                            client.member_id
                        )

    def converge(self) -> None:
        world = self.world
        world.advance(60_000)
        self.beat_for_a_while()
        self.check_settled()
        # Now that nothing else would raise the epoch, nobody is told of a change of topics.
        for name in TOPICS:
            topic = world.image.by_name(name)
            image = world.image.with_topic(name, topic.partitions + 2 if topic is not None else 2)
            world.change_topics(image, tell=False)
            self.beat_for_a_while()
            self.check_settled()

    def topics_of(self, client: Client) -> set[str]:
        matched = {name for name in TOPICS if client.regex and re.fullmatch(client.regex, name)}
        return matched | set(client.names or ())

    def beat_for_a_while(self) -> None:
        """Long enough for regular expressions to be resolved again."""
        for _ in range(8):
            for client in self.clients:
                client.beat()
            self.world.advance(2_000)
        settle(self.world, self.clients, rounds=40)

    def check_settled(self) -> None:
        world = self.world
        if not self.clients:
            return
        world.check_hashes()
        assert world.group.state is GroupState.STABLE
        assert set(world.group.members) == {client.member_id for client in self.clients}
        wanted = {
            (topic.topic_id, partition)
            for client in self.clients
            for name in self.topics_of(client)
            if (topic := world.image.by_name(name)) is not None
            for partition in range(topic.partitions)
        }
        owned = [
            (topic, partition)
            for client in self.clients
            for topic, partitions in client.owned.items()
            for partition in partitions
        ]
        assert len(owned) == len(set(owned))
        assert set(owned) == wanted
        for client in self.clients:
            ids = {world.image.by_name(name) for name in self.topics_of(client)}
            assert set(client.owned) <= {topic.topic_id for topic in ids if topic is not None}


@pytest.mark.parametrize("seed", range(60))
def test_a_random_walk_never_has_two_owners_and_converges(seed: int) -> None:
    walk = Walk(seed)
    for number in range(250):
        walk.step()
        walk.check()
        if number % 25 == 0:
            walk.world.check_replay(walk.random)
    walk.world.check_replay(walk.random)
    walk.converge()
    walk.world.check_replay(walk.random)
