"""A group in a simulated cluster: members come and go in every way there is.

Each member has a machine of its own and lives several lives: it leaves, is killed, loses power,
sleeps longer than its session, is cut off, subscribes to other topics. A static one comes back
under its instance id, sometimes while its former life still sleeps. `settle` ends that and waits
until the group is well; `finish` closes it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from simulation.consumer_member import ConsumerMember
from simulation.group_history import GroupHistory
from simulation.noting_coordinator import NotingCoordinator
from simulation.workload import NotHealed, Workload
from simulation.workload_context import TOPIC, StopSignal
from suwi.client.addresses import Address
from suwi.client.cluster import Cluster
from suwi.client.fetching import ReadSettings
from suwi.client.group_consumer import GroupConsumer, GroupSettings
from suwi.client.group_offsets import Membership, fetch_once
from suwi.client.settings import ClientSettings
from suwi.model.errors import BrokerError
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.sim.cluster import SimCluster
from suwi.sim.incarnation import Incarnation
from suwi.sim.machine import Machine
from suwi.sim.random import SimRandom

GROUP = "billing"
SECOND_TOPIC = "refunds"
SECOND_PARTITIONS = 2
SETTINGS = {
    "group.initial.rebalance.delay.ms": "300",
    "group.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.session.timeout.ms": "2000",
    "group.consumer.heartbeat.interval.ms": "400",
    "group.consumer.min.heartbeat.interval.ms": "400",
    "group.consumer.assignment.interval.ms": "100",
    "group.consumer.min.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.segment.bytes": "4096",
    "offsets.commit.timeout.ms": "3000",
}
SETTLED_WITHIN_S = 60.0
SESSION_S = 2.0
_REBALANCE_S = 4.0
_CLIENT = ClientSettings(connect_timeout_s=2, request_timeout_s=4, retry_timeout_s=4)
_SUBSCRIPTIONS = ((TOPIC,), (TOPIC,), (TOPIC, SECOND_TOPIC), (SECOND_TOPIC,))


@dataclass(slots=True, eq=False)
class _Life:
    """One life of a member."""

    machine: Machine
    incarnation: Incarnation
    instance_id: str | None
    is_consumer: bool
    topics: tuple[str, ...]
    consumer: GroupConsumer | ConsumerMember | None = None
    task: "asyncio.Task[None] | None" = None
    is_fenced: bool = False
    error: Exception | None = None
    """Why its last attempt failed."""
    committed_in: int | None = None
    """In which generation it has committed since it last looked."""

    @property
    def is_over(self) -> bool:
        return self.incarnation.revoked or self.is_fenced


@dataclass(slots=True, eq=False)
class _Member:
    """One after the other lives on one machine, or on the next where the old one still sleeps."""

    name: str
    random: SimRandom
    instance_id: str | None
    is_consumer: bool
    """It uses the consumer protocol."""
    life: _Life | None = None
    asleep: list[Machine] = field(default_factory=list)


class GroupWorkload:
    def __init__(self, cluster: SimCluster, workload: Workload, history: GroupHistory) -> None:
        self.history = history
        self._cluster = cluster
        self._workload = workload
        self._random = cluster.simulation.workload.stream("group")
        shape = workload.shape
        self._is_mixed = shape.mixed
        self._is_consumer = shape.consumer
        self._is_static = shape.static
        self._assignors = ("cooperative-sticky",) if shape.cooperative else ("range",)
        self._observer = cluster.simulation.machine("watcher")
        self._members = [self._member(number) for number in range(1, shape.members + 1)]
        self._lives: list[_Life] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = StopSignal()
        self._epoch = -1
        """The newest leader epoch in which a broker has served the group."""

    def _member(self, number: int) -> _Member:
        random = self._random.stream(f"member {number}")
        self._cluster.simulation.machine(f"m{number}")
        is_static = random.chance(0.4) or self._is_static
        is_consumer = number % 2 == 1 if self._is_mixed else self._is_consumer
        return _Member(f"m{number}", random, f"i{number}" if is_static else None, is_consumer)

    @property
    def _partitions(self) -> dict[str, int]:
        """How many each topic has now."""
        return {TOPIC: len(self._workload.partitions), SECOND_TOPIC: SECOND_PARTITIONS}

    async def begin(self) -> None:
        self._observer.start()
        await self._observer.spawn(self._workload.create(SECOND_TOPIC, SECOND_PARTITIONS))
        self._tasks = [asyncio.create_task(self._live(member)) for member in self._members]
        self._tasks.append(self._observer.spawn(self._observe()))

    # -- lives -----------------------------------------------------------------------------------

    async def _live(self, member: _Member) -> None:
        """Until all is to be healed; then it is alive, or was dead for good."""
        random = member.random
        while not await self._stopped.is_set_within(random.uniform(0, 2)):
            self._begin_life(member)
            while not await self._stopped.is_set_within(random.uniform(0.3, 4)):
                life = member.life
                assert life is not None
                if life.is_over or await random.choice(_EVENTS)(self, member, life):
                    break
        for life in self._lives:
            if life.machine in member.asleep:
                self._wake(life)
                if life.is_consumer and life.machine.is_running:
                    life.machine.kill()  # G22: of two with one instance id the older one stays.
        is_needed = member is self._members[0] or random.chance(0.7)
        if is_needed and (member.life is None or member.life.is_over):
            self._begin_life(member)

    def _begin_life(self, member: _Member) -> None:
        machine = self._machine(member)
        if machine.is_running:
            machine.kill()  # Fenced, and still there.
        machine.start()
        topics = member.random.choice(_SUBSCRIPTIONS)
        member.life = life = _Life(
            machine, machine.incarnation, member.instance_id, member.is_consumer, topics
        )
        self._lives.append(life)
        self._say(life, f"joins {GROUP} for {topics}")
        life.task = machine.spawn(self._consume(life, member.random.stream(life.incarnation.name)))

    def _machine(self, member: _Member) -> Machine:
        machines = self._cluster.simulation.machines
        name = f"{member.name}{'x' * len(member.asleep)}"
        return machines.get(name) or self._cluster.simulation.machine(name)

    async def _consume(self, life: _Life, random: SimRandom) -> None:
        client = self._cluster.client(life.incarnation.name, _CLIENT)
        life.consumer = consumer = self._consumer(life, client, random)
        while True:
            try:
                life.error = None
                await consumer.poll(random.uniform(0, 0.5))
                if random.chance(0.5):
                    generation = consumer.membership.generation
                    await consumer.commit()
                    life.committed_in = generation
            except BrokerError as error:
                life.error = error
                if error.code is ErrorCode.fenced_instance_id:
                    life.is_fenced = True
                    await consumer.close()
                    return
            except OSError as error:
                life.error = error
            await asyncio.sleep(random.uniform(0, 0.2))

    def _consumer(
        self, life: _Life, client: Cluster, random: SimRandom
    ) -> GroupConsumer | ConsumerMember:
        coordinator = NotingCoordinator(
            client,
            GROUP,
            self.history,
            random,
            TopicPartition(TOPIC, PartitionIndex(0)),
            is_consumer=life.is_consumer,
            is_deposed=self._is_deposed,
        )
        if life.is_consumer:
            who = Membership(life.incarnation.name, instance_id=life.instance_id)
            topics = life.topics, self._partitions
            return ConsumerMember(client, coordinator, *topics, who, _REBALANCE_S, random)
        settings = GroupSettings(
            assignors=self._assignors,
            instance_id=life.instance_id,
            session_timeout_s=SESSION_S,
            rebalance_timeout_s=_REBALANCE_S,
            heartbeat_s=0.4,
            offset_reset="earliest",
            topic_check_s=3,
            read=ReadSettings(max_wait_ms=300),
        )
        return GroupConsumer(client, GROUP, life.topics, settings, coordinator=coordinator)

    # -- what happens to them: whether the life is over -------------------------------------------

    async def _nothing(self, member: _Member, life: _Life) -> bool:
        return False

    async def _leave(self, member: _Member, life: _Life) -> bool:
        self._say(life, "leaves")
        await self._close(life)
        return True

    async def _kill(self, member: _Member, life: _Life) -> bool:
        self._say(life, "is killed")
        life.machine.kill()
        return True

    async def _lose_power(self, member: _Member, life: _Life) -> bool:
        self._say(life, "loses power")
        life.machine.power_off()
        return True

    async def _sleep(self, member: _Member, life: _Life) -> bool:
        """Perhaps longer than its session; a static one may be replaced meanwhile."""
        self._say(life, "sleeps")
        life.machine.freeze()
        if life.instance_id is not None and not member.asleep and member.random.chance(0.5):
            member.asleep.append(life.machine)
            asyncio.get_running_loop().call_later(
                member.random.uniform(0, 2 * SESSION_S), self._wake, life
            )
            return True
        await self._stopped.is_set_within(member.random.uniform(0, 2.5 * SESSION_S))
        self._wake(life)
        return False

    def _wake(self, life: _Life) -> None:
        if not life.incarnation.revoked and life.incarnation.frozen:
            self._say(life, "wakes up")
            life.machine.thaw()

    async def _cut_off(self, member: _Member, life: _Life) -> bool:
        self._say(life, "is cut off")
        network, name = self._cluster.simulation.network, life.machine.name
        brokers = [node.name for node in self._cluster.nodes.values()]
        network.partition([name], brokers)
        await self._stopped.is_set_within(member.random.uniform(0, 2 * SESSION_S))
        for broker in brokers:
            network.heal(name, broker)
        return False

    async def _subscribe(self, member: _Member, life: _Life) -> bool:
        life.topics = member.random.choice(_SUBSCRIPTIONS)
        self._say(life, f"wants {life.topics}")
        if life.consumer is not None:
            life.consumer.subscribe(life.topics)
        return False

    def _say(self, life: _Life, what: str) -> None:
        self._cluster.say(f"{life.incarnation.name} {what}")

    async def _close(self, life: _Life) -> None:
        if life.consumer is not None and life.task is not None and life.machine.is_running:
            life.task.cancel()
            await asyncio.wait([life.task])
            if life.machine.is_running:
                await asyncio.wait([life.machine.spawn(life.consumer.close())])
        if life.machine.is_running:
            life.machine.kill()

    async def _observe(self) -> None:
        """What is committed, again and again."""
        random = self._random.stream("observer")
        client = self._cluster.client("observer", _CLIENT)
        coordinator = NotingCoordinator(
            client, GROUP, self.history, random, is_deposed=self._is_deposed
        )
        while not await self._stopped.is_set_within(random.uniform(0.2, 1.5)):
            try:
                await fetch_once(coordinator, self._all())
            except (BrokerError, OSError):
                pass
        await coordinator.close()
        await client.close()

    def _is_deposed(self, address: Address) -> bool:
        """Whether another broker has begun to serve the group, though this one may not know.

        What such a one says is not taken for the newest: it may answer from memory until no member
        of the ISR has fetched from it for `isr_silence_s_max` (docs/groups.md). A fetch counts when
        it is read, which may be long after it was sent, if a broker is slow or was paused. So this
        has no bound in time from here; that it does not answer later is checked in
        tests/coordinator/test_shard.py.
        """
        epochs = {
            node.name: shard.epoch
            for node in self._cluster.nodes.values()
            if node.is_running and node.broker is not None
            for shard in node.broker.groups.runtime.active()
            if shard.partition.partition == node.broker.groups.runtime.partition_of(GROUP)
        }
        self._epoch = max([self._epoch, *epochs.values()])
        return epochs.get(address.host) != self._epoch

    # -- in the end ------------------------------------------------------------------------------

    async def settle(self) -> None:
        """All is healed: the group becomes stable with all members that live, and they commit."""
        self._stopped.set()
        await asyncio.gather(*self._tasks)
        for life in self._living():
            life.committed_in = None
        missing: str | None = None
        for _ in range(int(SETTLED_WITHIN_S / 0.1)):
            missing = self._not_settled()
            if missing is None:
                return
            await asyncio.sleep(0.1)
        raise NotHealed(f"{GROUP} {SETTLED_WITHIN_S:g} s after everything was mended: {missing}")

    async def finish(self) -> None:
        """Everybody leaves; what is committed is read once more."""
        for life in self._living():
            await self._close(life)
        await self._observer.spawn(self._read_finally())

    async def _read_finally(self) -> None:
        client = self._cluster.client("final offsets", _CLIENT)
        random = self._random.stream("final")
        coordinator = NotingCoordinator(client, GROUP, self.history, random)
        await coordinator.ask(lambda: fetch_once(coordinator, self._all()))
        await coordinator.close()
        await client.close()

    def _living(self) -> list[_Life]:
        return [life for life in self._lives if not life.is_over]

    def _all(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, PartitionIndex(index))
            for topic, number in self._partitions.items()
            for index in range(number)
        ]

    def _not_settled(self) -> str | None:
        living = self._living()
        owned: list[TopicPartition] = []
        generations = set()
        for life in living:
            name, consumer = life.machine.name, life.consumer
            if consumer is None or not consumer.is_stable:
                return f"{name} is not stable: {life.error!r}"
            generation = consumer.membership.generation
            if life.committed_in != generation:
                return f"{name} has not committed in generation {generation}: {life.error!r}"
            generations.add(generation)
            owned += consumer.assignment
        wanted = {topic for life in living for topic in life.topics}
        expected = [each for each in self._all() if each.topic in wanted]
        if sorted(owned) != sorted(expected):
            return f"{sorted(map(str, owned))} are owned, not {sorted(map(str, expected))}"
        if len(generations) > 1:
            return f"members are in generations {sorted(generations)}"
        return None


_Event = Callable[[GroupWorkload, _Member, _Life], Awaitable[bool]]
_EVENTS: tuple[_Event, ...] = (
    GroupWorkload._nothing,
    GroupWorkload._leave,
    GroupWorkload._kill,
    GroupWorkload._lose_power,
    GroupWorkload._sleep,
    GroupWorkload._cut_off,
    GroupWorkload._subscribe,
)
