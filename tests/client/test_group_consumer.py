"""Members of a group on simulated clusters of production brokers: who owns what, and from where."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.errors import is_transient
from suwi.client.fetching import ReadSettings
from suwi.client.group_consumer import GroupConsumer, GroupSettings
from suwi.client.group_offsets import commit_offsets, fetch_offsets
from suwi.client.producer import Producer
from suwi.client.settings import ClientSettings
from suwi.model.errors import BrokerError, OffsetOutOfRange
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.sim import Machine, Simulation
from suwi.sim.cluster import SimCluster

TOPIC, OTHER, GROUP = "orders", "refunds", "billing"
PARTITIONS = 4
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "2",
    "replica.lag.time.max.ms": "2000",
}
QUICK = GroupSettings(
    session_timeout_s=3,
    rebalance_timeout_s=6,
    heartbeat_s=0.3,
    offset_reset="earliest",
    topic_check_s=1,
)
COOPERATIVE = ("cooperative-sticky",)


def tp(index: int, topic: str = TOPIC) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


ALL = [tp(index) for index in range(PARTITIONS)]


class Member:
    """A member that polls for ever and counts what it sees; it commits what it has seen."""

    def __init__(
        self,
        stage: "Stage",
        name: str,
        topics: Sequence[str] = (TOPIC,),
        settings: GroupSettings = QUICK,
        *,
        assignors: Sequence[str] = ("range",),
        instance_id: str | None = None,
        poll_s: float = 0.2,
        work_s: float = 0,
    ) -> None:
        """`work_s`: how long it deals with what it has read."""
        self.machine: Machine = stage.simulation.machines.get(name) or stage.simulation.machine(
            name
        )
        self.seen: dict[TopicPartition, list[int]] = {}
        self.revoked: list[list[TopicPartition]] = []
        self.error: Exception | None = None
        self._poll_s, self._work_s = poll_s, work_s
        self.machine.start()
        self.consumer: GroupConsumer = self.machine.call(
            lambda: GroupConsumer(
                stage.client(name),
                GROUP,
                topics,
                replace(settings, assignors=tuple(assignors), instance_id=instance_id),
                on_revoked=self._on_revoked,
            )
        )
        self.task = self.machine.spawn(self._run())

    @property
    def assignment(self) -> list[TopicPartition]:
        return self.consumer.assignment

    async def _run(self) -> None:
        while True:
            try:
                fetched = await self.consumer.poll(self._poll_s)
                for each in fetched:
                    seen = self.seen.setdefault(each.partition, [])
                    seen += [record.offset for record in each.records]
                await asyncio.sleep(self._work_s)
                await self.consumer.commit()
            except (BrokerError, OSError) as error:
                fenced = isinstance(error, BrokerError) and error.code in (
                    ErrorCode.fenced_instance_id,
                    ErrorCode.offset_out_of_range,
                )
                if fenced:
                    self.error = error
                    if not self.consumer.positions:
                        return

    async def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.revoked.append(list(partitions))

    async def close(self) -> None:
        self.task.cancel()
        await self.machine.spawn(self.consumer.close())


class Stage:
    def __init__(self, simulation: Simulation, brokers: int = 3) -> None:
        self.simulation = simulation
        self.cluster = SimCluster(
            simulation, brokers=brokers, session_timeout_s=2, settings=SETTINGS
        )
        self.outside = simulation.machine("outside")

    def client(self, name: str) -> Cluster:
        patient = ClientSettings(connect_timeout_s=2, request_timeout_s=5, retry_timeout_s=20)
        return self.cluster.client(name, patient)

    async def start(self, *topics: str) -> None:
        await self.cluster.start()
        self.outside.start()
        await self.outside.spawn(self._create(topics or (TOPIC,)))

    async def _create(self, topics: Sequence[str]) -> None:
        async with self.client("admin") as client:
            for topic in topics:
                await Admin(client).create_topic(
                    topic, partitions=PARTITIONS, replication_factor=len(self.cluster.nodes)
                )

    async def produce(self, records: int, topic: str = TOPIC) -> None:
        async def send() -> None:
            async with (
                self.client("producer") as client,
                Producer(client, self.outside.clock) as producer,
            ):
                for number in range(records):
                    await producer.send(topic, b"x", partition=number % PARTITIONS)

        await self.outside.spawn(send())

    def coordinator(self) -> int:
        """The broker that serves the group."""
        for number, node in enumerate(self.cluster.nodes.values(), 1):
            assert node.broker is not None
            for shard in node.broker.groups.runtime.active():
                if node.is_running and shard.machine.group(GROUP) is not None:
                    return number
        raise AssertionError("the group has no coordinator")


async def until(what: Callable[[], bool], within_s: float = 30) -> None:
    for _ in range(int(within_s / 0.05)):
        if what():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not happen")


def share(*members: Member) -> bool:
    """Whether they own everything, each about as much as the others, and are at rest."""
    owned = [partition for member in members for partition in member.assignment]
    loads = [len(member.assignment) for member in members]
    return (
        sorted(owned) == ALL
        and max(loads) - min(loads) <= 1
        and all(member.consumer.is_stable for member in members)
    )


def play(scenario: Callable[[Stage], Awaitable[None]], *, seed: int = 1, brokers: int = 3) -> None:
    simulation = Simulation(seed)

    async def run() -> None:
        await scenario(Stage(simulation, brokers))

    simulation.run(run())


@pytest.mark.parametrize("assignors", [("range",), COOPERATIVE, ("range", *COOPERATIVE)])
def test_members_share_the_partitions_and_every_record_is_seen(assignors: Sequence[str]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        one = Member(stage, "m1", assignors=assignors)
        await until(lambda: share(one))
        await stage.produce(40)
        two = Member(stage, "m2", assignors=assignors)
        await until(lambda: share(one, two))
        three = Member(stage, "m3", assignors=assignors)
        await until(lambda: share(one, two, three))
        await stage.produce(40)
        seen = lambda: {  # noqa: E731
            (partition, offset)
            for member in (one, two, three)
            for partition, offsets in member.seen.items()
            for offset in offsets
        }
        await until(lambda: len(seen()) == 80)
        await two.close()
        await until(lambda: share(one, three))
        for member in (one, three):
            await member.close()

    play(scenario)


def test_a_cooperative_member_gives_up_only_what_another_gets_and_goes_on_with_the_rest() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        one = Member(stage, "m1", assignors=COOPERATIVE)
        await until(lambda: share(one))
        two = Member(stage, "m2", assignors=COOPERATIVE)
        await until(lambda: share(one, two))
        assert one.revoked == [two.assignment]
        assert two.revoked == []
        for member in (one, two):
            await member.close()

    play(scenario)


def test_a_member_that_gave_up_everything_joins_again_before_its_poll_ends() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        # The first rebalance ends while it works, and not while it reads.
        often = replace(QUICK, read=ReadSettings(max_wait_ms=50))
        one = Member(stage, "m1", settings=often, assignors=COOPERATIVE, poll_s=20, work_s=1)
        two = Member(stage, "m2", assignors=COOPERATIVE)
        await until(lambda: share(one, two))
        one.consumer.subscribe(["no-such-topic"])
        await until(lambda: two.assignment == ALL, within_s=5)
        assert one.assignment == []
        for member in (one, two):
            await member.close()

    play(scenario)


def test_a_member_that_dies_without_a_word_is_missed_after_its_session() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        one, two = Member(stage, "m1"), Member(stage, "m2")
        await until(lambda: share(one, two))
        two.machine.power_off()
        await until(lambda: share(one))
        await one.close()

    play(scenario)


def test_who_sleeps_longer_than_its_session_finds_everything_lost_and_joins_again() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        one, two = Member(stage, "m1"), Member(stage, "m2")
        await until(lambda: share(one, two))
        two.machine.freeze()
        await until(lambda: share(one))
        two.machine.thaw()
        await until(lambda: share(one, two))
        for member in (one, two):
            await member.close()

    play(scenario)


def test_a_static_member_that_comes_back_gets_what_it_had_without_a_rebalance() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        one = Member(stage, "m1", instance_id="a")
        two = Member(stage, "m2", instance_id="b")
        await until(lambda: share(one, two))
        had, generation = two.assignment, two.consumer.membership.generation
        two.machine.kill()
        back = Member(stage, "m2", instance_id="b")
        await until(lambda: back.assignment == had and share(one, back))
        assert back.consumer.membership.generation == generation
        for member in (one, back):
            await member.close()

    play(scenario)


def test_of_two_with_the_same_instance_id_the_older_is_fenced_for_good() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        old = Member(stage, "m1", instance_id="a")
        await until(lambda: share(old))
        new = Member(stage, "m2", instance_id="a")
        await until(lambda: old.error is not None)
        assert isinstance(old.error, BrokerError)
        assert old.error.code is ErrorCode.fenced_instance_id
        await until(lambda: old.assignment == [])
        await until(lambda: share(new))
        await new.close()

    play(scenario)


def test_a_subscription_that_changes_takes_effect_for_all() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start(TOPIC, OTHER)
        one = Member(stage, "m1", assignors=COOPERATIVE)
        two = Member(stage, "m2", assignors=COOPERATIVE)
        await until(lambda: share(one, two))
        one.consumer.subscribe([OTHER])
        await until(lambda: two.assignment == ALL)
        await until(lambda: one.assignment == [tp(index, OTHER) for index in range(PARTITIONS)])
        for member in (one, two):
            await member.close()

    play(scenario)


class Refusing:
    """What a member's cluster tells of topics, the first `left` times an error."""

    def __init__(self, member: Member, error: ErrorCode, left: int) -> None:
        self.left = left
        self._error = error
        cluster = member.consumer._cluster
        self._refresh = cluster.refresh
        cluster.refresh = self.refresh  # type: ignore[method-assign]

    async def refresh(self, names: Sequence[str] | None) -> dict[str, ErrorCode]:
        if names and self.left:
            self.left -= 1
            return dict.fromkeys(names, self._error)
        return await self._refresh(names)


def test_a_topic_that_cannot_be_described_at_the_moment_is_not_left_out() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        member = Member(stage, "c1")
        refusing = Refusing(member, ErrorCode.leader_not_available, 2)
        await until(lambda: member.consumer.is_stable)
        assert member.assignment == ALL
        assert refusing.left == 0

    play(scenario)


def test_a_topic_that_a_broker_has_not_heard_of_yet_is_assigned_soon() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        member = Member(stage, "c1", settings=replace(QUICK, topic_check_s=300))
        refusing = Refusing(member, ErrorCode.unknown_topic_or_partition, 1)
        await until(lambda: member.assignment == ALL)
        assert refusing.left == 0

    play(scenario)


@pytest.mark.parametrize("is_back", [False, True])
def test_the_leader_of_a_group_notices_new_partitions(is_back: bool) -> None:
    """KIP-814: also a static one that came back, and was not asked to assign."""

    async def scenario(stage: Stage) -> None:
        await stage.start()
        one = Member(stage, "m1", instance_id="a" if is_back else None)
        await until(lambda: share(one))
        if is_back:
            generation = one.consumer.membership.generation
            one.machine.kill()
            one = Member(stage, "m1", instance_id="a")
            await until(lambda: share(one))
            assert one.consumer.membership.generation == generation

        async def grow() -> None:
            async with stage.client("admin") as client:
                await Admin(client).add_partitions(TOPIC, PARTITIONS + 1)

        await stage.outside.spawn(grow())
        await until(lambda: one.assignment == [*ALL, tp(PARTITIONS)])
        await one.close()

    play(scenario)


def test_a_static_leader_that_comes_back_finds_partitions_added_while_it_was_away() -> None:
    """KIP-814: it is not asked to assign, so it must ask what is assigned."""

    async def scenario(stage: Stage) -> None:
        await stage.start()
        one = Member(stage, "m1", instance_id="a")
        two = Member(stage, "m2", instance_id="b")
        await until(lambda: share(one, two))
        one.machine.kill()

        async def grow() -> None:
            async with stage.client("admin") as client:
                await Admin(client).add_partitions(TOPIC, PARTITIONS + 1)

        await stage.outside.spawn(grow())
        back = Member(stage, "m1", instance_id="a")
        wanted = [*ALL, tp(PARTITIONS)]
        await until(lambda: sorted([*back.assignment, *two.assignment]) == wanted)
        for member in (two, back):
            await member.close()

    play(scenario)


@pytest.mark.parametrize("assignors", [("range",), COOPERATIVE])
def test_a_group_goes_on_when_its_coordinator_dies(assignors: Sequence[str]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        one = Member(stage, "m1", assignors=assignors)
        two = Member(stage, "m2", assignors=assignors)
        await until(lambda: share(one, two))
        generation = one.consumer.membership.generation
        dead = stage.cluster[stage.coordinator()]
        dead.kill()
        await stage.produce(20)
        await until(lambda: sum(len(seen) for m in (one, two) for seen in m.seen.values()) >= 20)
        await until(lambda: share(one, two))
        await asyncio.sleep(QUICK.session_timeout_s)
        assert share(one, two)
        assert one.consumer.membership.generation == generation
        for member in (one, two):
            await member.close()

    play(scenario)


def test_reading_goes_on_from_what_was_committed() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        await stage.produce(40)
        one = Member(stage, "m1")
        await until(lambda: sum(map(len, one.seen.values())) == 40)
        await until(lambda: share(one))
        await asyncio.sleep(1)
        await one.close()
        await stage.produce(8)
        two = Member(stage, "m2")
        await until(lambda: sum(map(len, two.seen.values())) == 8)
        await two.close()

    play(scenario)


@pytest.mark.parametrize(("reset", "seen"), [("earliest", 8), ("latest", 4)])
def test_without_a_committed_offset_the_setting_says_where_to_begin(reset: str, seen: int) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        await stage.produce(4)
        settings = GroupSettings(
            session_timeout_s=3,
            heartbeat_s=0.3,
            offset_reset=reset,  # type: ignore[arg-type]
        )
        one = Member(stage, "m1", settings=settings)
        await until(lambda: share(one) and len(one.consumer.positions) == PARTITIONS)
        await stage.produce(4)
        await until(lambda: sum(map(len, one.seen.values())) == seen)
        await one.close()

    play(scenario)


def test_without_a_committed_offset_and_without_a_rule_it_is_an_error() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        settings = GroupSettings(session_timeout_s=3, heartbeat_s=0.3, offset_reset="none")
        one = Member(stage, "m1", settings=settings)
        await until(lambda: one.error is not None)
        assert isinstance(one.error, OffsetOutOfRange)
        await one.close()

    play(scenario)


def test_a_position_that_was_deleted_is_reset() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        await stage.produce(40)

        async def delete() -> None:
            async with stage.client("admin") as client:
                await commit_offsets(client, GROUP, {tp(0): Offset(2), tp(1): Offset(9)})
                await Admin(client).delete_records({tp(0): Offset(5)})

        await stage.outside.spawn(delete())
        one = Member(stage, "m1")
        await until(lambda: sum(map(len, one.seen.values())) == 5 + 1 + 10 + 10)
        assert one.seen[tp(0)] == [5, 6, 7, 8, 9]
        assert one.seen[tp(1)] == [9]
        await one.close()

    play(scenario)


def test_who_is_no_member_cannot_commit_while_there_are_members_and_can_read_offsets() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.start()
        await stage.produce(8)
        one = Member(stage, "m1")
        await until(lambda: sum(map(len, one.seen.values())) == 8)
        await asyncio.sleep(1)

        async def meddle() -> None:
            async with stage.client("admin") as client:
                with pytest.raises(BrokerError) as refused:
                    await commit_offsets(client, GROUP, {tp(0): Offset(0)})
                assert refused.value.code is ErrorCode.unknown_member_id
                assert not is_transient(refused.value)
                found = await fetch_offsets(client, GROUP, [*ALL, tp(9)])
                assert found == dict.fromkeys(ALL, 2)

        await stage.outside.spawn(meddle())
        await one.close()

    play(scenario)
