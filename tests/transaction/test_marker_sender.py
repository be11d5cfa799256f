"""Markers on their way to partition leaders: batched, retried, dropped, given up (hazard T11)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.client.connection import ConnectionLost
from suwi.metadata.image import BrokerInfo, ClusterImage, PartitionState, Topic
from suwi.metadata.store import Unavailable
from suwi.model.ids import (
    LeaderEpoch,
    NodeId,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
)
from suwi.replica.partition_transactions import TxnMarker
from suwi.sim import Simulation
from suwi.transaction.marker_sender import TransactionMarkers
from suwi.transaction.transaction_metadata import MarkersToSend, Producer
from tests.supervision import tasks_that_must_not_fail

HERE, OTHER, NOBODY = NodeId(1), NodeId(2), NodeId(-1)
COORDINATOR_EPOCH = LeaderEpoch(9)
Errors = dict[TopicPartition, ErrorCode]


def tp(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(partition))


class World:
    """A cluster of two brokers, as the coordinator on broker 1 sees it."""

    def __init__(self) -> None:
        brokers = {node: BrokerInfo(node, (), epoch=1) for node in (HERE, OTHER)}
        self.image = ClusterImage(unfenced_brokers=MappingProxyType(brokers))
        self.newest: ClusterImage | None = None
        """If set, what `synced` brings."""
        self.is_store_available = True
        self.here: list[tuple[int, tuple[TopicPartition, ...]]] = []
        self.requests: list[list[Any]] = []
        """The markers of each request to the other broker."""
        self.errors: dict[TopicPartition, list[ErrorCode]] = {}
        """Of the next attempts; then there is none."""
        self.is_reachable = True
        self.bugs = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.wanted: dict[MarkersToSend, None] = {}
        self.written: list[MarkersToSend] = []
        self.sender = TransactionMarkers(
            HERE,
            self,
            self,  # type: ignore[arg-type]
            self.append_markers,
            tasks_that_must_not_fail(),
            self.wanted.__contains__,
            self.written.append,
        )

    # -- what the sender works with --------------------------------------------------------------

    async def synced(self, within_s: float | None = None) -> None:
        await asyncio.sleep(0.1)
        if not self.is_store_available:
            raise Unavailable("the store is away")
        self.image = self.newest or self.image

    async def connect(self, _node: NodeId) -> Any:
        if not self.is_reachable:
            raise ConnectionLost("refused")
        return SimpleNamespace(call=self.call, is_open=True, abort=lambda: None)

    async def call(self, _key: int, version: int, fields: Mapping[str, Any]) -> Any:
        assert version == 2
        self.requests.append(fields["markers"])
        await self.answers.wait()
        if not self.is_reachable:
            raise ConnectionLost("reset")
        return SimpleNamespace(
            markers=[
                SimpleNamespace(
                    producer_id=marker["producer_id"],
                    topics=[
                        SimpleNamespace(
                            name=topic["name"],
                            partitions=[
                                SimpleNamespace(
                                    partition_index=index,
                                    error_code=self.error(tp(topic["name"], index)),
                                )
                                for index in topic["partition_indexes"]
                            ],
                        )
                        for topic in marker["topics"]
                    ],
                )
                for marker in fields["markers"]
            ]
        )

    async def append_markers(
        self, asked: Iterable[tuple[TxnMarker, Iterable[TopicPartition]]]
    ) -> list[Errors]:
        ((marker, partitions),) = asked
        assert marker.coordinator_epoch == COORDINATOR_EPOCH
        self.here.append((marker.producer_id, tuple(partitions)))
        return [{each: self.error(each) for each in partitions}]

    def error(self, partition: TopicPartition) -> ErrorCode:
        if self.bugs:
            self.bugs -= 1
            raise ZeroDivisionError
        left = self.errors.get(partition)
        return left.pop(0) if left else ErrorCode.none

    # -- the test's side -------------------------------------------------------------------------

    def lead(self, **leaders: NodeId) -> None:
        """By topic of one partition its leader."""
        topics = {
            name: Topic(
                name,
                TopicId(UUID(int=at + 1)),
                {},
                (PartitionState(leader, LeaderEpoch(0), 0, (HERE, OTHER), (HERE, OTHER)),),
            )
            for at, (name, leader) in enumerate(leaders.items())
        }
        self.image = replace(self.image, topics=MappingProxyType(topics))

    def send(self, *topics: str, producer: int = 7, version: int = 2) -> MarkersToSend:
        markers = MarkersToSend(
            f"id-{producer}",
            Producer(ProducerId(producer), ProducerEpoch(3)),
            True,
            frozenset(map(tp, topics)),
            version,
        )
        self.wanted[markers] = None
        self.sender.send(markers, COORDINATOR_EPOCH)
        return markers


def in_world(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        await scenario(world)
        await world.sender.stop()

    Simulation(0).run(run())


def test_markers_go_to_the_leader_of_each_partition() -> None:
    async def scenario(world: World) -> None:
        world.lead(a=HERE, b=OTHER, c=OTHER)
        markers = world.send("a", "b", "c")
        assert not world.here  # The coordinator is in the midst of an event.
        await asyncio.sleep(1)
        assert world.here == [(7, (tp("a"),))]
        assert world.requests == [
            [
                {
                    "producer_id": 7,
                    "producer_epoch": 3,
                    "transaction_result": True,
                    "topics": [
                        {"name": "b", "partition_indexes": [0]},
                        {"name": "c", "partition_indexes": [0]},
                    ],
                    "coordinator_epoch": COORDINATOR_EPOCH,
                    "transaction_version": 2,
                }
            ]
        ]
        assert world.written == [markers]

    in_world(scenario)


def test_the_markers_of_many_partitions_are_sent_in_parts() -> None:
    async def scenario(world: World) -> None:
        names = [f"{node}-{number:04}" for node in (HERE, OTHER) for number in range(5_000)]
        world.lead(**{name: NodeId(int(name[0])) for name in names})
        for name in (names[4_321], names[8_765]):
            world.errors[tp(name)] = [ErrorCode.not_leader_or_follower]
        markers = world.send(*reversed(names))
        await asyncio.sleep(1)
        assert world.written == [markers]
        assert max(len(partitions) for _, partitions in world.here) <= 1_000
        assert (
            max(
                sum(
                    len(topic["partition_indexes"])
                    for marker in request
                    for topic in marker["topics"]
                )
                for request in world.requests
            )
            <= 2_000
        )
        here = [partition.topic for _, partitions in world.here for partition in partitions]
        assert sorted(here) == sorted([*names[:5_000], names[4_321]])
        there = [
            topic["name"]
            for request in world.requests
            for marker in request
            for topic in marker["topics"]
        ]
        assert sorted(there) == sorted([*names[5_000:], names[8_765]])
        await asyncio.sleep(5)
        assert world.written == [markers]

    in_world(scenario)


def test_a_transaction_without_partitions_is_written_at_once() -> None:
    async def scenario(world: World) -> None:
        markers = world.send()
        await asyncio.sleep(0.001)
        assert world.written == [markers]

    in_world(scenario)


def test_what_comes_up_during_a_request_is_in_the_next_one() -> None:
    async def scenario(world: World) -> None:
        world.lead(a=OTHER)
        world.answers.clear()
        first = world.send("a")
        await asyncio.sleep(1)
        more = [world.send("a", producer=each) for each in (8, 9, 10)]
        await asyncio.sleep(1)
        world.answers.set()
        await asyncio.sleep(1)
        assert [[each["producer_id"] for each in request] for request in world.requests] == [
            [7],
            [8, 9, 10],
        ]
        assert world.written == [first, *more]

    in_world(scenario)


def test_very_many_markers_go_in_several_requests() -> None:
    async def scenario(world: World) -> None:
        topics = [f"t{number}" for number in range(300)]
        world.lead(**dict.fromkeys(topics, OTHER))
        world.answers.clear()
        first = world.send("t0")
        await asyncio.sleep(1)
        sent = [world.send(*topics, producer=each) for each in range(10, 20)]
        await asyncio.sleep(1)
        world.answers.set()
        await asyncio.sleep(1)
        assert [len(request) for request in world.requests] == [1, 4, 4, 2]
        assert world.written == [first, *sent]

    in_world(scenario)


def test_t11_what_a_retry_can_mend_is_retried() -> None:
    for error in (
        ErrorCode.kafka_storage_error,
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_server_error,
    ):

        async def scenario(world: World, error: ErrorCode = error) -> None:
            world.lead(a=HERE, b=OTHER)
            world.errors = {tp("a"): [error] * 3, tp("b"): [error] * 3}
            markers = world.send("a", "b")
            await asyncio.sleep(10)
            assert (len(world.here), len(world.requests)) == (4, 4)
            assert world.written == [markers]

        in_world(scenario)


def test_t11_a_retry_goes_to_the_leader_of_then_and_only_for_what_is_missing() -> None:
    async def scenario(world: World) -> None:
        world.lead(a=HERE, b=OTHER)
        world.errors = {tp("b"): [ErrorCode.not_leader_or_follower]}
        markers = world.send("a", "b")
        await asyncio.sleep(0.01)
        world.lead(a=HERE, b=HERE)
        await asyncio.sleep(1)
        assert world.here == [(7, (tp("a"),)), (7, (tp("b"),))]
        assert world.written == [markers]

    in_world(scenario)


def test_t11_a_partition_without_a_leader_is_waited_for() -> None:
    async def scenario(world: World) -> None:
        world.lead(a=NOBODY)
        markers = world.send("a")
        await asyncio.sleep(60)
        assert not world.written
        world.lead(a=OTHER)
        await asyncio.sleep(2)
        assert world.written == [markers]

    in_world(scenario)


def test_t11_a_deleted_topic_needs_no_marker() -> None:
    async def scenario(world: World) -> None:
        world.lead(a=OTHER)
        markers = world.send("a", "deleted")
        await asyncio.sleep(1)
        assert world.written == [markers]

    in_world(scenario)


def test_t11_a_topic_that_this_broker_does_not_know_yet_is_not_a_deleted_one() -> None:
    async def scenario(world: World) -> None:
        world.lead(young=OTHER)
        world.newest, world.image = world.image, ClusterImage()
        world.is_store_available = False
        markers = world.send("young")
        await asyncio.sleep(60)
        assert not world.written
        world.is_store_available = True
        await asyncio.sleep(3)
        assert world.written == [markers]
        assert len(world.requests) == 1

    in_world(scenario)


def test_t11_a_partition_with_a_later_epoch_needs_no_marker() -> None:
    async def scenario(world: World) -> None:
        world.lead(a=OTHER)
        world.errors = {tp("a"): [ErrorCode.invalid_producer_epoch]}
        markers = world.send("a")
        await asyncio.sleep(1)
        assert world.written == [markers]

    in_world(scenario)


def test_t11_a_coordinator_that_was_replaced_gives_up_when_it_knows() -> None:
    async def scenario(world: World) -> None:
        world.lead(a=OTHER)
        world.errors = {tp("a"): [ErrorCode.transaction_coordinator_fenced] * 1000}
        markers = world.send("a")
        await asyncio.sleep(10)
        del world.wanted[markers]
        await asyncio.sleep(2)
        tried = len(world.requests)
        assert tried > 1
        await asyncio.sleep(60)
        assert not world.written
        assert len(world.requests) == tried

    in_world(scenario)


def test_an_unreachable_broker_is_tried_again() -> None:
    async def scenario(world: World) -> None:
        world.lead(a=OTHER)
        world.is_reachable = False
        markers = world.send("a")
        await asyncio.sleep(10)
        assert not world.written
        world.is_reachable = True
        await asyncio.sleep(2)
        assert world.written == [markers]

    in_world(scenario)


def test_markers_in_flight_to_a_broker_that_is_gone_go_to_the_next_leader() -> None:
    async def scenario(world: World) -> None:
        world.lead(a=OTHER)
        world.answers.clear()  # It is frozen, and its connections stay open.
        markers = world.send("a")
        await asyncio.sleep(1)
        there = world.image
        world.lead(a=HERE)
        world.sender.apply_image(there, world.image)
        await asyncio.sleep(1)
        assert not world.written  # It is still registered, and may answer.
        gone = replace(world.image, unfenced_brokers=MappingProxyType({}))
        world.sender.apply_image(world.image, gone)
        await asyncio.sleep(0)
        world.sender.apply_image(world.image, gone)
        await asyncio.sleep(1)
        assert world.written == [markers]
        assert world.here == [(7, (tp("a"),))]

    in_world(scenario)


def test_a_failure_of_our_own_is_retried_too() -> None:
    async def scenario(world: World) -> None:
        world.lead(a=HERE, b=OTHER, c=OTHER)
        world.bugs = 3
        world.send("a", "b", "c")
        world.send("b", producer=8)
        await asyncio.sleep(10)
        assert sorted(each.transactional_id for each in world.written) == ["id-7", "id-8"]
        assert world.bugs == 0

    in_world(scenario)


def test_t10_what_is_no_longer_wanted_is_neither_sent_nor_written() -> None:
    async def scenario(world: World) -> None:
        world.lead(a=OTHER, b=NOBODY)
        world.answers.clear()
        in_flight, waiting = world.send("a"), world.send("b", producer=8)
        await asyncio.sleep(0.01)
        world.wanted.clear()
        again = world.send("a", producer=9)
        world.answers.set()
        world.lead(a=OTHER, b=OTHER)
        await asyncio.sleep(10)
        assert world.written == [again]
        assert in_flight not in world.written
        assert waiting not in world.written
        assert len(world.requests) == 2

    in_world(scenario)
