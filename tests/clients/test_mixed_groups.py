"""Our group consumer and another client's in one group: each is the leader once."""

import asyncio
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from suwi.client.addresses import parse_addresses
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.group_consumer import GroupConsumer, GroupSettings
from suwi.client.producer import Producer
from suwi.env import SystemClock, SystemRandom
from suwi.model.errors import BrokerError
from tests.broker_process import BrokerProcess
from tests.clients.drivers import PATIENCE_S
from tests.testing.clients import subscribe

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    import kafka

PARTITIONS = 6
_SESSION_S = 30


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data: Path = tmp_path_factory.mktemp("groups") / "data"
    settings = ("group.initial.rebalance.delay.ms=100", "offsets.topic.num.partitions=3")
    with BrokerProcess(data, *settings) as process:
        yield process
        assert "Traceback" not in process.log


class Other(ABC):
    """A member of another client; polled in a thread."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()

    @property
    @abstractmethod
    def assignment(self) -> set[int]: ...

    @abstractmethod
    def poll(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Confluent(Other):
    def __init__(self, address: str, topic: str, assignor: str) -> None:
        super().__init__()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": topic,
                "partition.assignment.strategy": assignor,
                "session.timeout.ms": _SESSION_S * 1000,
                "heartbeat.interval.ms": 300,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic])

    @property
    def assignment(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def poll(self) -> None:
        for message in self._consumer.consume(100, 0.2):
            assert message.error() is None
            self.seen.add((message.partition(), message.offset()))

    def close(self) -> None:
        self._consumer.close()


class KafkaPython(Other):
    def __init__(self, address: str, topic: str, assignor: str) -> None:
        super().__init__()
        assert assignor == "range"
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=address,
            group_id=topic,
            session_timeout_ms=_SESSION_S * 1000,
            heartbeat_interval_ms=300,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[
                kafka.coordinator.assignors.range.RangePartitionAssignor
            ],
        )
        subscribe(self._consumer, topic)

    @property
    def assignment(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def poll(self) -> None:
        # Long enough for a whole join: what happens to half of one, `subscribe` says.
        for records in self._consumer.poll(3_000).values():
            self.seen.update((record.partition, record.offset) for record in records)

    def close(self) -> None:
        self._consumer.close()


OTHERS: list[tuple[Callable[[str, str, str], Other], str]] = [
    (Confluent, "range"),
    (Confluent, "cooperative-sticky"),
    (KafkaPython, "range"),
]


class Ours:
    def __init__(self, cluster: Cluster, topic: str, assignor: str) -> None:
        self.seen: set[tuple[int, int]] = set()
        settings = GroupSettings(
            assignors=(assignor,),
            session_timeout_s=_SESSION_S,
            heartbeat_s=0.3,
            offset_reset="earliest",
        )
        self._consumer = GroupConsumer(cluster, topic, [topic], settings)

    @property
    def assignment(self) -> set[int]:
        return {int(each.partition) for each in self._consumer.assignment}

    async def poll(self) -> None:
        for fetched in await self._consumer.poll(0.2):
            partition = int(fetched.partition.partition)
            self.seen |= {(partition, record.offset) for record in fetched.records}
        try:
            await self._consumer.commit()
        except BrokerError:
            pass  # A rebalance.

    async def close(self) -> None:
        await self._consumer.close()


async def poll_until(
    ours: Ours | None, other: Other | None, what: Callable[[], bool], patience_s: float = PATIENCE_S
) -> None:
    end_s = time.monotonic() + patience_s
    while not what():
        assert time.monotonic() < end_s, (ours and ours.assignment, other and other.assignment)
        others = asyncio.create_task(asyncio.to_thread(other.poll)) if other is not None else None
        if ours is not None:
            await ours.poll()
            while others is not None and not others.done():
                await ours.poll()
        if others is not None:
            await others


@pytest.mark.parametrize("ours_leads", [True, False], ids=["ours leads", "the other leads"])
@pytest.mark.parametrize(("other_client", "assignor"), OTHERS)
def test_members_of_two_clients_share_a_group(
    groups: BrokerProcess,
    other_client: Callable[[str, str, str], Other],
    assignor: str,
    ours_leads: bool,
) -> None:
    topic = f"mixed-{other_client.__name__}-{assignor}-{ours_leads}"

    async def scenario() -> None:
        random, clock = SystemRandom(), SystemClock()
        async with Cluster(parse_addresses(groups.address), random=random) as cluster:
            await Admin(cluster).create_topic(topic, partitions=PARTITIONS)
            ours: Ours | None = None
            other: Other | None = None
            if ours_leads:
                ours = Ours(cluster, topic, assignor)
                await poll_until(ours, None, lambda: len(ours.assignment) == PARTITIONS)
                other = other_client(groups.address, topic, assignor)
            else:
                other = other_client(groups.address, topic, assignor)
                await poll_until(None, other, lambda: len(other.assignment) == PARTITIONS)
                ours = Ours(cluster, topic, assignor)
            all_of_it = set(range(PARTITIONS))
            await poll_until(
                ours,
                other,
                lambda: (
                    len(ours.assignment) == len(other.assignment) == PARTITIONS // 2
                    and ours.assignment | other.assignment == all_of_it
                ),
            )
            async with Producer(cluster, clock) as producer:
                for number in range(10 * PARTITIONS):
                    await producer.send(topic, b"x", partition=number % PARTITIONS)
            await poll_until(ours, other, lambda: len(ours.seen | other.seen) == 10 * PARTITIONS)
            await asyncio.to_thread(other.close)
            await poll_until(ours, None, lambda: ours.assignment == all_of_it)
            await ours.close()

    asyncio.run(scenario())
