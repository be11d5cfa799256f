"""A coordinator on another broker is asked with one request at a time, for all that wait (T23)."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import chain
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.client.connection import ConnectionLost
from suwi.coordinator.event import Call
from suwi.metadata.image import PartitionState
from suwi.model.ids import LeaderEpoch, NodeId, PartitionIndex, TopicPartition
from suwi.sim import Simulation
from suwi.transaction.transaction_metadata import AddPartitionsRequest
from suwi.transaction.transaction_verifier import TransactionVerifier
from tests.supervision import tasks_that_must_not_fail

HERE, OTHER, NOBODY = NodeId(1), NodeId(2), NodeId(-1)
P0, P1 = (TopicPartition("orders", PartitionIndex(index)) for index in (0, 1))
STATE = TopicPartition("__transaction_state", PartitionIndex(0))


class FakeConnection:
    """Answers when the test says so."""

    is_open = True

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.answers: list[asyncio.Future[Any]] = []

    async def call(self, _api_key: int, _version: int, fields: Any) -> Any:
        self.requests.append(fields["transactions"])
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return await answer

    def answer(self, number: int, error: ErrorCode = ErrorCode.none) -> None:
        results = [
            SimpleNamespace(
                transactional_id=each["transactional_id"],
                topic_results=[
                    SimpleNamespace(
                        name=topic["name"],
                        results_by_partition=[
                            SimpleNamespace(partition_index=index, partition_error_code=error)
                            for index in topic["partitions"]
                        ],
                    )
                    for topic in each["topics"]
                ],
            )
            for each in self.requests[number]
        ]
        self.answers[number].set_result(SimpleNamespace(results_by_transaction=results))

    def ids(self) -> list[list[str]]:
        return [[each["transactional_id"] for each in request] for request in self.requests]

    def abort(self) -> None:
        self.is_open = False


class World:
    def __init__(self, leader: NodeId) -> None:
        self.connection = FakeConnection()
        self.is_reachable = True
        self.asked_here: list[tuple[Any, ...]] = []
        state = PartitionState(leader, LeaderEpoch(0), 0, (HERE, OTHER), (HERE, OTHER))
        image: Any = SimpleNamespace(partition=lambda _tp: state)
        local: Any = SimpleNamespace(partition_of=lambda _key: STATE, submit=self._submit)
        peers: Any = SimpleNamespace(connect=self._connect)
        self.verifier = TransactionVerifier(
            HERE, lambda: image, local, peers, lambda: True, tasks_that_must_not_fail()
        )

    async def _connect(self, node: NodeId) -> FakeConnection:
        assert node == OTHER
        if not self.is_reachable:
            raise ConnectionLost("as the test wants it")
        return self.connection

    def _submit(self, call: Call[Any]) -> None:
        asked: AddPartitionsRequest = call.asked
        self.asked_here.append(
            (call.key, *asked.producer, asked.verify_only, asked.transaction_version)
        )
        call.resolve(dict.fromkeys(asked.partitions, ErrorCode.none))

    def ask(self, name: str, *, adds: bool = False) -> "asyncio.Task[Any]":
        return asyncio.ensure_future(self.verifier.verify(name, 7, 0, [P0, P1], adds=adds))


def in_world(scenario: Callable[[World], Awaitable[None]], leader: NodeId = OTHER) -> None:
    async def run() -> None:
        world = World(leader)
        await scenario(world)
        await world.verifier.stop()

    Simulation(0).run(run())


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_t23_what_is_asked_while_a_request_is_in_flight_shares_the_next_one() -> None:
    async def scenario(world: World) -> None:
        first = world.ask("a")
        await turns()
        others = [world.ask("b"), world.ask("c", adds=True)]
        await turns()
        assert world.connection.ids() == [["a"]]
        world.connection.answer(0)
        assert await first == {P0: ErrorCode.none, P1: ErrorCode.none}
        await turns()
        assert sorted(world.connection.ids()[1]) == ["b", "c"]
        shared = world.connection.requests[1]
        flags = {each["transactional_id"]: each["verify_only"] for each in shared}
        assert flags == {"b": True, "c": False}
        world.connection.answer(1, ErrorCode.transaction_abortable)
        for other in others:
            assert await other == dict.fromkeys((P0, P1), ErrorCode.transaction_abortable)

    in_world(scenario)


def test_a_request_names_a_transaction_once() -> None:
    async def scenario(world: World) -> None:
        asked = [world.ask("a"), world.ask("a"), world.ask("b")]
        await turns()
        assert [sorted(ids) for ids in world.connection.ids()] in ([["a", "b"]], [["a"]], [["b"]])
        while not all(each.done() for each in asked):
            world.connection.answer(len(world.connection.requests) - 1)
            await turns()
        assert sorted(chain(*world.connection.ids())) == ["a", "a", "b"]
        assert all(len(set(ids)) == len(ids) for ids in world.connection.ids())

    in_world(scenario)


def test_a_coordinator_that_cannot_be_reached_is_a_network_exception_for_all_that_ask() -> None:
    async def scenario(world: World) -> None:
        world.is_reachable = False
        for errors in await asyncio.gather(world.ask("a"), world.ask("b")):
            assert errors == dict.fromkeys((P0, P1), ErrorCode.network_exception)
        world.is_reachable = True
        again = world.ask("a")
        await turns()
        world.connection.answer(0)
        assert (await again)[P0] is ErrorCode.none

    in_world(scenario)


def test_a_coordinator_that_does_not_answer_is_given_up() -> None:
    async def scenario(world: World) -> None:
        errors = await world.ask("a")
        assert errors[P0] is ErrorCode.network_exception
        assert not world.connection.is_open

    in_world(scenario)


def test_who_waits_when_the_broker_stops_is_answered() -> None:
    async def scenario(world: World) -> None:
        asked = [world.ask("a"), world.ask("b")]
        await turns()
        await world.verifier.stop()
        for each in asked:
            assert (await each)[P1] is ErrorCode.network_exception

    in_world(scenario)


def test_the_coordinator_of_this_broker_is_asked_without_a_connection() -> None:
    async def scenario(world: World) -> None:
        assert (await world.ask("a"))[P0] is ErrorCode.none
        assert (await world.ask("a", adds=True))[P0] is ErrorCode.none
        assert world.asked_here == [("a", 7, 0, True, 1), ("a", 7, 0, False, 2)]

    in_world(scenario, leader=HERE)


def test_without_a_coordinator_the_client_has_to_try_again() -> None:
    async def scenario(world: World) -> None:
        assert (await world.ask("a"))[P0] is ErrorCode.coordinator_not_available

    in_world(scenario, leader=NOBODY)
