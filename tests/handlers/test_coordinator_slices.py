"""Requests to coordinators with thousands of keys or replies are handled in slices."""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from bench.largest import largest_fields
from suwi.coordinator.record import RecordFacts
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.coordinator.topics import Topic
from suwi.group.classic_group import ClassicGroup, ClassicMember
from suwi.group.consumer_group import NEW_ASSIGNMENT, ConsumerGroup, ConsumerGroupMember
from suwi.group.offset_manager import OffsetManager
from suwi.group.offset_records import OffsetCommitKey, OffsetCommitValue
from suwi.handlers.add_partitions_to_txn import AddPartitionsToTxn
from suwi.handlers.consumer_group_describe import consumer_group_describe
from suwi.handlers.delete_groups import delete_groups
from suwi.handlers.describe_groups import describe_groups
from suwi.handlers.describe_transactions import describe_transactions
from suwi.handlers.find_coordinator import FindCoordinator
from suwi.handlers.list_groups import list_groups
from suwi.handlers.list_transactions import list_transactions
from suwi.handlers.offset_commit import OffsetCommit
from suwi.handlers.offset_fetch import OffsetFetch
from suwi.handlers.slices import SLICE_PARTITIONS
from suwi.handlers.txn_offset_commit import TxnOffsetCommit
from suwi.model.errors import CoordinatorNotAvailable, NotCoordinator
from suwi.model.ids import PartitionIndex, ProducerEpoch, ProducerId, TopicId, TopicPartition
from suwi.net.answers import Exclusive
from suwi.net.dispatch import Request
from suwi.net.fair_turns import SliceTurns
from suwi.replica.partition_transactions import TxnMarker
from suwi.transaction.marker_appender import TxnMarkers
from suwi.transaction.transaction_records import TransactionLogValue
from suwi.wire.codec import encode_request
from suwi.wire.versions import APIS, ApiKey
from tests.handlers.requests import request, request_of, response_to

KEYS = [f"k{number}" for number in range(1_000)]
IMAGE = SimpleNamespace(topics={}, topics_by_id={}, partition=lambda _: object())
REPLICAS: Any = SimpleNamespace(image=IMAGE)


class CountingRuntime:
    """Finds no coordinator; counts the look-ups of each iteration of the event loop."""

    def __init__(self) -> None:
        self.by_turn: Counter[int] = Counter()
        self._turn = 0
        self._tick()

    def shard_of(self, key: str) -> NoReturn:
        self.by_turn[self._turn] += 1
        raise CoordinatorNotAvailable(key)

    shard_to_read = partition_of = shard_of
    submit = CoordinatorRuntime.submit

    def stop(self) -> None:
        self._ticking.cancel()

    def _tick(self) -> None:
        self._turn += 1
        self._ticking = asyncio.get_running_loop().call_soon(self._tick)


def find_coordinator(runtime: Any, asked: Request) -> Any:
    topic: Any = SimpleNamespace(exists=True, runtime=runtime)
    return FindCoordinator({0: topic}, REPLICAS)(asked)


def add_partitions(runtime: Any, asked: Request) -> Any:
    return AddPartitionsToTxn(runtime, REPLICAS)(asked)


def a_transaction(transactional_id: str) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "producer_id": 1,
        "producer_epoch": 0,
        "verify_only": False,
        "topics": [{"name": "t", "partitions": [0]}],
    }


CASES = [
    (find_coordinator, ApiKey.FIND_COORDINATOR, 4, "coordinators", "key", "coordinator_keys"),
    (describe_groups, ApiKey.DESCRIBE_GROUPS, 5, "groups", "group_id", "groups"),
    (
        lambda runtime, asked: consumer_group_describe(runtime, dict, asked),  # type: ignore[arg-type]
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        0,
        "groups",
        "group_id",
        "group_ids",
    ),
    (
        describe_transactions,
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        "transaction_states",
        "transactional_id",
        "transactional_ids",
    ),
    (delete_groups, ApiKey.DELETE_GROUPS, 2, "results", "group_id", "groups_names"),
    (
        lambda runtime, asked: OffsetFetch(runtime, REPLICAS)(asked),
        ApiKey.OFFSET_FETCH,
        8,
        "groups",
        "group_id",
        "groups",
    ),
    (
        add_partitions,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        4,
        "results_by_transaction",
        "transactional_id",
        "transactions",
    ),
]


def fields_of(api_key: ApiKey, asked_in: str, keys: list[str]) -> dict[str, Any]:
    asked: list[Any] = list(keys)
    if api_key is ApiKey.OFFSET_FETCH:
        asked = [{"group_id": key, "topics": None} for key in keys]
    elif api_key is ApiKey.ADD_PARTITIONS_TO_TXN:
        asked = [a_transaction(key) for key in keys]
    return {asked_in: asked, **OTHER_FIELDS.get(api_key, {})}


OTHER_FIELDS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.FIND_COORDINATOR: {"key_type": 0},
    ApiKey.DESCRIBE_GROUPS: {"include_authorized_operations": False},
    ApiKey.CONSUMER_GROUP_DESCRIBE: {"include_authorized_operations": False},
    ApiKey.OFFSET_FETCH: {"require_stable": False},
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[1].name)
@pytest.mark.parametrize("characters", [0, 10_000])
def test_many_keys_are_handled_in_slices(case: Any, characters: int) -> None:
    handler, api_key, version, listed_in, name, asked_in = case
    keys = [key + "x" * characters for key in KEYS[: 50 if characters else None]]

    async def scenario() -> None:
        runtime = CountingRuntime()
        asked = request(api_key, version, fields_of(api_key, asked_in, keys))
        answer = await response_to(asked, handler(runtime, asked))
        runtime.stop()
        listed = getattr(answer, listed_in)
        assert [getattr(each, name) for each in listed] == keys
        assert sum(runtime.by_turn.values()) == len(keys)
        # A long key takes as long to hash as many short ones.
        assert max(runtime.by_turn.values()) <= (2 if characters else SLICE_PARTITIONS)

    asyncio.run(scenario())


# -- one key with a long answer ------------------------------------------------------------------


class OneShard:
    """Serves until it is told not to."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.serves = True

    def shard_to_read(self, _key: str) -> Generator[None, None, "OneShard"]:
        yield from self.until_readable()
        return self

    def until_readable(self) -> Generator[None, None, None]:
        yield from ()
        if not self.serves:
            raise NotCoordinator("led by another broker")


def a_group_with_offsets(count: int) -> OneShard:
    offsets = OffsetManager()
    for index in range(count):
        key = OffsetCommitKey("g", f"t{index % 3}", index)
        offsets.replay(key, OffsetCommitValue(index, 0, "", 0), RecordFacts(index))
    return OneShard(SimpleNamespace(offsets=offsets, group=lambda _: None))


def offset_fetch(version: int) -> Any:
    fields = {"group_id": "g", "topics": None, "groups": [{"group_id": "g", "topics": None}]}
    return request(ApiKey.OFFSET_FETCH, version, {**fields, "require_stable": False})


@pytest.mark.parametrize("version", [7, 8])
def test_all_offsets_of_a_group_are_fetched_in_slices(version: int) -> None:
    async def scenario() -> None:
        shard: Any = a_group_with_offsets(1_000)
        asked = offset_fetch(version)
        answer = OffsetFetch(shard, REPLICAS)(asked)
        assert isinstance(answer, Exclusive)
        # Deleted after the first slice.
        shard.machine.offsets.replay(OffsetCommitKey("g", "t0", 999), None, RecordFacts(1_000))
        response = await response_to(asked, answer)
        topics = response.topics if version < 8 else response.groups[0].topics
        found = {
            (t.name, p.partition_index): p.committed_offset for t in topics for p in t.partitions
        }
        assert found == {(f"t{n % 3}", n): n for n in range(999)}
        assert [topic.name for topic in topics] == ["t0", "t1", "t2"]

    asyncio.run(scenario())


@pytest.mark.parametrize("version", [7, 8])
def test_a_fetch_of_offsets_whose_coordinator_moves_meanwhile_says_so(version: int) -> None:
    async def scenario() -> None:
        shard: Any = a_group_with_offsets(1_000)
        asked = offset_fetch(version)
        answer = OffsetFetch(shard, REPLICAS)(asked)
        shard.serves = False
        response = await response_to(asked, answer)
        found = response if version < 8 else response.groups[0]
        assert (found.error_code, found.topics) == (ErrorCode.not_coordinator, ())

    asyncio.run(scenario())


def test_few_offsets_are_fetched_at_once() -> None:
    async def scenario() -> None:
        shard: Any = a_group_with_offsets(100)
        assert not isinstance(OffsetFetch(shard, REPLICAS)(offset_fetch(8)), Exclusive)

    asyncio.run(scenario())


def test_a_group_with_many_members_is_described_in_slices() -> None:
    async def scenario() -> None:
        group = ClassicGroup("g")
        for number in range(1_000):
            member_id = f"m{number}"
            group.members[member_id] = ClassicMember(
                member_id, None, "c", "h", 1, 1, "consumer", ()
            )
        shard: Any = OneShard(SimpleNamespace(group=lambda _: group))
        asked = request(
            ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g"], "include_authorized_operations": False}
        )
        answer = describe_groups(shard, asked)
        assert isinstance(answer, Exclusive)
        group.members.clear()
        response = await response_to(asked, answer)
        assert len(response.groups[0].members) == 1_000

    asyncio.run(scenario())


def test_a_member_with_many_topics_is_described_in_slices() -> None:
    async def scenario() -> None:
        ids = [TopicId(UUID(int=n + 1)) for n in range(20_000)]
        group, target = ConsumerGroup("g"), dict.fromkeys(ids, (0, 1))
        owned = {topic_id: {0: 1} for topic_id in ids}
        current = replace(NEW_ASSIGNMENT, assigned=owned)
        group.members["m"] = ConsumerGroupMember("m", current=current)
        group.targets["m"] = target
        machine = SimpleNamespace(
            group=lambda _: group,
            config=SimpleNamespace(consumer_of=lambda _: SimpleNamespace(assignors=("uniform",))),
        )
        topics = SimpleNamespace(by_id=lambda topic_id: Topic(topic_id, f"t{topic_id.int}", 2))
        asked = request(
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            0,
            {"group_ids": ["g"], "include_authorized_operations": False},
        )
        turns = CountingTurns()
        asked.connection = SimpleNamespace(slices=turns)  # type: ignore[assignment]
        shard: Any = OneShard(machine)
        answer = consumer_group_describe(shard, lambda: topics, asked)  # type: ignore[arg-type, return-value]
        assert isinstance(answer, Exclusive)
        (described,) = (await response_to(asked, answer)).groups
        assert turns.count >= 2 * 20_000 // 500
        (member,) = described.members
        now, later = member.assignment.topic_partitions, member.target_assignment.topic_partitions
        assert [(each.topic_name, each.partitions) for each in now] == [
            (f"t{topic_id.int}", (0,)) for topic_id in ids
        ]
        assert [(each.topic_id, each.partitions) for each in later] == [(n, (0, 1)) for n in ids]

    asyncio.run(scenario())


@pytest.mark.parametrize("topics", [2, 20_000])
def test_a_transaction_with_many_partitions_is_described_in_slices(topics: int) -> None:
    async def scenario() -> None:
        value = TransactionLogValue(
            producer_id=ProducerId(7),
            producer_epoch=ProducerEpoch(0),
            timeout_ms=1,
            last_update_ms=0,
            partitions=frozenset(
                TopicPartition(f"t{n % topics:05}", PartitionIndex(n)) for n in range(20_000)
            ),
        )
        shard: Any = OneShard(SimpleNamespace(transactions={"x": value}))
        asked = request(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["x"]})
        turns = CountingTurns()
        asked.connection = SimpleNamespace(slices=turns)  # type: ignore[assignment]
        answer = describe_transactions(shard, asked)
        assert isinstance(answer, Exclusive)
        (described,) = (await response_to(asked, answer)).transaction_states
        assert turns.count >= 20_000 // 500
        assert [(t.topic, t.partitions) for t in described.topics] == [
            (f"t{n:05}", tuple(range(n, 20_000, topics))) for n in range(topics)
        ]

    asyncio.run(scenario())


class CountingTurns(SliceTurns):
    __slots__ = ("count",)

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def next(self) -> "asyncio.Future[None]":
        self.count += 1
        return super().next()


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if "DESCRIBE" in case[1].name or case[1] is ApiKey.OFFSET_FETCH],
    ids=lambda case: case[1].name,
)
def test_what_is_named_again_and_again_is_answered_once(case: Any) -> None:
    """A name is a few bytes of a request, and its group or transaction kilobytes of the reply."""
    handler, api_key, version, listed_in, name, asked_in = case

    async def scenario() -> None:
        runtime = CountingRuntime()
        asked = request(api_key, version, fields_of(api_key, asked_in, ["a", "b"] * 1_000))
        answer = await response_to(asked, handler(runtime, asked))
        runtime.stop()
        assert [getattr(each, name) for each in getattr(answer, listed_in)] == ["a", "b"]

    asyncio.run(scenario())


class OpenPartitions:
    """Leads every partition; counts the markers of each iteration of the event loop."""

    def __init__(self) -> None:
        self.by_turn: Counter[int] = Counter()
        self.replica_log = SimpleNamespace(prepare=lambda: True)
        self.transactions = self
        self._turn = 0
        self._tick()

    def leader_of(self, _topic: str, _index: int) -> "OpenPartitions":
        return self

    def append_marker(self, _marker: TxnMarker, _now_ms: int) -> int:
        self.by_turn[self._turn] += 1
        return 1

    def when_committed(self, _end: int, tell: Callable[[None], None]) -> None:
        tell(None)

    def stop(self) -> None:
        self._ticking.cancel()

    def _tick(self) -> None:
        self._turn += 1
        self._ticking = asyncio.get_running_loop().call_soon(self._tick)


def test_few_markers_are_appended_in_each_turn() -> None:
    """An append takes ten times as long as an item of a reply."""

    async def scenario() -> None:
        replicas: Any = OpenPartitions()
        groups: Any = SimpleNamespace(topic="__consumer_offsets")
        clock: Any = SimpleNamespace(now_ms=lambda: 0)
        markers = TxnMarkers(replicas, groups, clock, lambda: groups)
        partitions = [TopicPartition("t", PartitionIndex(n)) for n in range(1_000)]
        (errors,) = await markers.append_all([(TxnMarker(7, 0, 0, True, 0), partitions)])
        replicas.stop()
        assert errors == dict.fromkeys(partitions, ErrorCode.none)
        assert sum(replicas.by_turn.values()) == 1_000
        assert max(replicas.by_turn.values()) <= 16

    asyncio.run(scenario())


class Watched(tuple[Any, ...]):
    """The items of a request; counts how many are looked at in each iteration of the loop."""

    def watch(self) -> None:
        self.by_turn: Counter[int] = Counter()
        self._turn = 0
        self._tick()

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.by_turn[self._turn] += 1
            yield item

    def _tick(self) -> None:
        self._turn += 1
        self.ticking = asyncio.get_running_loop().call_soon(self._tick)


WATCHED = [
    (list_transactions, ApiKey.LIST_TRANSACTIONS, "state_filters", [f"s{n}" for n in range(5_000)]),
    (list_transactions, ApiKey.LIST_TRANSACTIONS, "producer_id_filters", list(range(5_000))),
    (describe_transactions, ApiKey.DESCRIBE_TRANSACTIONS, "transactional_ids", ["x"] * 5_000),
    (describe_groups, ApiKey.DESCRIBE_GROUPS, "groups", ["x"] * 5_000),
]


@pytest.mark.parametrize("case", WATCHED, ids=lambda case: case[2])
def test_the_items_of_a_request_are_looked_at_in_slices(case: Any) -> None:
    """What is named again, or only compared, costs time, too."""
    handler, api_key, name, items = case

    async def scenario() -> None:
        shard: Any = OneShard(SimpleNamespace(transactions={}, group=lambda _: None))
        shard.is_loading, shard.active = False, list
        watched = Watched(items)
        watched.watch()
        message = SimpleNamespace(
            state_filters=(),
            producer_id_filters=(),
            duration_filter=-1,
            transactional_id_pattern=None,
            include_authorized_operations=False,
        )
        setattr(message, name, watched)
        asked = request_of(api_key, APIS[api_key].max_version, b"", message)
        clock: Any = SimpleNamespace(now_ms=lambda: 0)
        needed = (shard, clock) if handler is list_transactions else (shard,)
        await response_to(asked, handler(*needed, asked))
        watched.ticking.cancel()
        assert sum(watched.by_turn.values()) == len(items), "each once"
        assert max(watched.by_turn.values()) <= 500


def test_many_filters_of_groups_are_read_in_slices() -> None:
    async def scenario() -> None:
        runtime: Any = SimpleNamespace(is_loading=False, active=list)
        many = [f"state-{number}" for number in range(2_000)]
        for states, types in ((many, []), ([], many)):
            fields = {"states_filter": states, "types_filter": types}
            asked = request(ApiKey.LIST_GROUPS, 5, fields)
            answer = list_groups(runtime, asked)
            assert isinstance(answer, Exclusive)
            assert (await response_to(asked, answer)).groups == ()

    asyncio.run(scenario())


class CountingTopics(dict[str, Any]):
    """Counts the look-ups of each iteration of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.by_turn: Counter[int] = Counter()
        self.turn = 0

    def get(self, name: str, default: Any = None) -> Any:
        self.by_turn[self.turn] += 1
        return super().get(name, default)

    def count_turns(self) -> None:
        self.turn += 1
        asyncio.get_running_loop().call_soon(self.count_turns)


@pytest.mark.parametrize("api_key", [ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT])
def test_topics_without_partitions_are_looked_up_in_slices(api_key: ApiKey) -> None:
    fields, items = largest_fields(api_key, ("topics",), [], 2_000)

    async def scenario() -> None:
        topics = CountingTopics()
        replicas: Any = SimpleNamespace(image=SimpleNamespace(topics=topics))
        runtime: Any = CountingRuntime()
        handler: Any = OffsetCommit(runtime, replicas, 4_096)
        if api_key is ApiKey.TXN_OFFSET_COMMIT:
            handler = TxnOffsetCommit(runtime, replicas, SimpleNamespace(), 4_096)  # type: ignore[arg-type]
        version = 9 if api_key is ApiKey.OFFSET_COMMIT else 5
        if api_key is ApiKey.OFFSET_COMMIT:
            fields["topics"] = [{"name": f"t{n}", "partitions": []} for n in range(items)]
            asked = request_of(api_key, version, encode_request(api_key, version, fields))
        else:
            asked = request(api_key, version, fields)
        topics.count_turns()
        answer = await response_to(asked, handler(asked))
        runtime.stop()
        assert len(answer.topics) >= items // 2
        assert max(topics.by_turn.values()) <= SLICE_PARTITIONS

    asyncio.run(scenario())
