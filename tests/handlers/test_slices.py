"""Requests with thousands of partitions are handled in slices, one per event loop iteration."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from suwi.group.classic_group import ClassicGroup
from suwi.handlers.describe_producers import describe_producers as handle_describe_producers
from suwi.handlers.list_groups import list_groups
from suwi.handlers.list_offsets import ListOffsets
from suwi.handlers.list_transactions import list_transactions
from suwi.handlers.offset_for_leader_epoch import (
    offset_for_leader_epoch as handle_offset_for_leader_epoch,
)
from suwi.handlers.slices import SLICE_PARTITIONS
from suwi.metadata.image import PartitionState
from suwi.model.ids import LeaderEpoch, ProducerEpoch, ProducerId
from suwi.net.answers import Exclusive, Reply
from suwi.net.dispatch import Request
from suwi.net.fair_turns import SliceTurns
from suwi.records.batch import read_header
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.sim.clock import ManualClock
from suwi.transaction.transaction_records import TransactionLogValue
from suwi.wire.versions import ApiKey
from tests.handlers import world as worlds
from tests.handlers.requests import ManyReplicas, request, response_to
from tests.replica.alone import ONE, make_partition

TOPICS = [("a", 1000), ("b", 0), ("c", 1), ("d", 130), *((f"t{n}", 1) for n in range(300))]


def list_offsets(topics: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "timeout": 1000,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
                    for index in range(count)
                ],
            }
            for name, count in topics
        ],
    }


def offset_for_leader_epoch(topics: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "topics": [
            {
                "topic": name,
                "partitions": [
                    {"partition": index, "current_leader_epoch": -1, "leader_epoch": 0}
                    for index in range(count)
                ],
            }
            for name, count in topics
        ],
    }


def describe_producers(topics: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {
        "topics": [
            {"name": name, "partition_indexes": list(range(count))} for name, count in topics
        ]
    }


def handle_list_offsets(replicas: Any, asked: Request) -> Any:
    return ListOffsets(replicas)(asked)


HANDLERS = pytest.mark.parametrize(
    ("handler", "api_key", "fields"),
    [
        (handle_list_offsets, ApiKey.LIST_OFFSETS, list_offsets),
        (handle_offset_for_leader_epoch, ApiKey.OFFSET_FOR_LEADER_EPOCH, offset_for_leader_epoch),
        (handle_describe_producers, ApiKey.DESCRIBE_PRODUCERS, describe_producers),
    ],
)
VERSIONS = {
    ApiKey.LIST_OFFSETS: (1, 5, 11),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.DESCRIBE_PRODUCERS: (0,),
}


def led() -> ManyReplicas:
    partition = make_partition()
    partition.make_leader(PartitionState(ONE, LeaderEpoch(0), 0, (ONE,), (ONE,)), 1)
    return ManyReplicas(partition)


@HANDLERS
def test_many_partitions_are_handled_in_slices(handler: Any, api_key: ApiKey, fields: Any) -> None:
    async def scenario() -> None:
        for version in VERSIONS[api_key]:
            replicas = led()
            asked = request(api_key, version, fields(TOPICS))
            answer = await response_to(asked, handler(replicas, asked))
            replicas.stop()
            assert sum(replicas.by_turn.values()) == sum(count for _, count in TOPICS)
            assert max(replicas.by_turn.values()) <= SLICE_PARTITIONS
            found = [
                (
                    getattr(topic, "name", None) or topic.topic,
                    [
                        getattr(p, "partition_index", None) or getattr(p, "partition", 0)
                        for p in topic.partitions
                    ],
                )
                for topic in answer.topics
            ]
            assert found == [(name, list(range(count))) for name, count in TOPICS]
            assert {p.error_code for topic in answer.topics for p in topic.partitions} == {0}

    asyncio.run(scenario())


@HANDLERS
def test_of_several_large_requests_one_slice_is_handled_per_iteration(
    handler: Any, api_key: ApiKey, fields: Any
) -> None:
    async def scenario() -> None:
        replicas = led()
        asked = [request(api_key, VERSIONS[api_key][-1], fields(TOPICS)) for _ in range(4)]
        connection: Any = SimpleNamespace(slices=SliceTurns())
        for each in asked:
            each.connection = connection
        answers = await asyncio.gather(
            *(response_to(each, handler(replicas, each)) for each in asked)
        )
        replicas.stop()
        by_turn = sorted(replicas.by_turn.values())
        assert sum(by_turn) == 4 * sum(count for _, count in TOPICS)
        # The first slices are handled when the requests arrive.
        assert by_turn[-1] <= 4 * SLICE_PARTITIONS
        assert by_turn[-2] <= SLICE_PARTITIONS
        assert all(answer == answers[0] for answer in answers)

    asyncio.run(scenario())


@pytest.mark.parametrize("handler", [handle_offset_for_leader_epoch, handle_describe_producers])
def test_few_partitions_are_answered_immediately(handler: Any) -> None:
    async def scenario() -> None:
        api_key, fields = {
            handle_offset_for_leader_epoch: (
                ApiKey.OFFSET_FOR_LEADER_EPOCH,
                offset_for_leader_epoch,
            ),
            handle_describe_producers: (ApiKey.DESCRIBE_PRODUCERS, describe_producers),
        }[handler]
        replicas = led()
        asked = request(api_key, VERSIONS[api_key][-1], fields([("a", 3), ("b", 2)]))
        assert isinstance(handler(replicas, asked), Reply)
        replicas.stop()

    asyncio.run(scenario())


class ManyGroups:
    """A coordinator with one shard of many groups; counts the look-ups until the loop runs."""

    is_loading = False

    def __init__(self, count: int) -> None:
        self.machine = self.groups = self
        self.by_id = {f"g{n}": ClassicGroup(f"g{n}") for n in range(count)}
        self.looked_up = 0

    def active(self) -> list[Any]:
        return [self]

    def ids(self) -> list[str]:
        return list(self.by_id)

    def group(self, group_id: str) -> ClassicGroup | None:
        self.looked_up += 1
        return self.by_id.get(group_id)


def test_many_groups_are_listed_in_slices_while_some_are_deleted() -> None:
    async def scenario() -> None:
        groups = ManyGroups(1000)
        asked = request(ApiKey.LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})
        answer = list_groups(groups, asked)  # type: ignore[arg-type]
        assert isinstance(answer, Exclusive)
        assert groups.looked_up == SLICE_PARTITIONS
        del groups.by_id["g0"]  # listed already
        del groups.by_id["g999"]
        groups.by_id["new"] = ClassicGroup("new")
        found = await response_to(asked, answer)
        assert [group.group_id for group in found.groups] == [f"g{n}" for n in range(999)]

    asyncio.run(scenario())


def test_few_groups_are_listed_immediately() -> None:
    asked = request(ApiKey.LIST_GROUPS, 5, {"states_filter": ["Stable"], "types_filter": []})
    assert isinstance(list_groups(ManyGroups(3), asked), Reply)  # type: ignore[arg-type]


def test_many_transactions_are_listed_in_slices() -> None:
    async def scenario() -> None:
        value = TransactionLogValue(
            producer_id=ProducerId(7),
            producer_epoch=ProducerEpoch(0),
            timeout_ms=1,
            last_update_ms=0,
        )
        transactions = {f"t{n}": value for n in range(300)}
        machine = SimpleNamespace(transactions=transactions)
        runtime: Any = SimpleNamespace(
            is_loading=False, active=lambda: [SimpleNamespace(machine=machine)]
        )
        fields = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        asked = request(ApiKey.LIST_TRANSACTIONS, 1, fields)
        answer = list_transactions(runtime, ManualClock(), asked)
        assert isinstance(answer, Exclusive)
        del transactions["t299"]
        found = await response_to(asked, answer)
        ids = [listed.transactional_id for listed in found.transaction_states]
        assert ids == [f"t{n}" for n in range(299)]

    asyncio.run(scenario())


def test_the_many_producers_of_one_partition_are_described_in_slices() -> None:
    """The request has a few bytes."""

    class Turns(SliceTurns):
        count = 0

        def next(self) -> "asyncio.Future[None]":
            self.count += 1
            return super().next()

    async def run() -> None:
        world = worlds.World()
        world.add("t", [worlds.led(), worlds.led()])
        partition = world.replicas.leader_of("t", 0)
        producers = 10 * SLICE_PARTITIONS
        for number in range(producers):
            batch = memoryview(
                build_batch(
                    [Record(value=b"x")], producer_id=number, producer_epoch=0, base_sequence=0
                )
            )
            partition.append(batch, read_header(batch), 0)
        asked = request(ApiKey.DESCRIBE_PRODUCERS, 0, describe_producers([("t", 2)]))
        turns = Turns()
        asked.connection = SimpleNamespace(slices=turns)  # type: ignore[assignment]
        answer = await response_to(asked, handle_describe_producers(world.replicas, asked))
        first, second = answer.topics[0].partitions
        described = [each.producer_id for each in first.active_producers]
        assert (described, second.active_producers) == (list(range(producers)), ())
        assert turns.count >= 9

    asyncio.run(run())
