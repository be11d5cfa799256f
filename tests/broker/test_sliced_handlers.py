"""No handler works on all items of a large request, or of a large reply, in one go.

The handlers of a real broker are called with decoded requests of thousands of items, made from the
schemas: for each array of an API one request in which that array is long.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from bench.largest import arrays_of, largest_fields
from suwi.env.slices import run_to_end
from suwi.net.answers import Exclusive, Later, NoReply, Reply
from suwi.net.fair_turns import SliceTurns
from suwi.sim import Simulation
from suwi.wire.codec import encode_request, reading_request
from suwi.wire.versions import APIS, ApiKey
from tests.broker.simulated import SimBroker, create_topic
from tests.handlers.requests import request, request_of, response_to

ITEMS = 2_000
TOPICS = 3
PARTITIONS = 2_000
AT_ONCE = 500
"""No more items of a reply are made in one iteration of the event loop."""

LOOKED_UP_AT_ONCE = 2_500


class Slices(SliceTurns):
    """Counts the slices of a request: how often others could run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.count = 0
        self._sleep = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", self._sleep_counted)

    def next(self) -> "asyncio.Future[None]":
        self.count += 1
        return super().next()

    async def _sleep_counted(self, delay_s: float, *given: Any) -> Any:
        self.count += delay_s == 0
        return await self._sleep(delay_s, *given)

    async def of(self, handler: Any, api_key: int, body: bytes) -> tuple[int, int]:
        """The slices of a request, and the size of its reply."""
        version = APIS[api_key].max_version
        message = run_to_end(reading_request(api_key, version, body))
        asked = request_of(api_key, version, bytearray(body), message)
        asked.connection = SimpleNamespace(slices=self, keep=asked.connection.keep)  # type: ignore[assignment]
        before = self.count
        answer = handler(asked)
        if isinstance(answer, Later | Exclusive):
            answer = await answer.reply
        elif asyncio.iscoroutine(answer):
            answer = await answer
        assert isinstance(answer, Reply | NoReply)
        size = answer.memory_bytes() if isinstance(answer, Reply) else 0
        return self.count - before, size


def run_with_broker(scenario: Any) -> None:
    simulation = Simulation(1)

    async def run() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        for number in range(TOPICS):
            await create_topic(client, f"t{number}", partitions=PARTITIONS)
        assert broker.broker is not None
        handlers = broker.broker._apis().handlers()
        await broker.machine.spawn(scenario(handlers))
        client.abort()
        await broker.stop()

    simulation.run(run())


def test_others_run_while_a_large_request_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = Slices(monkeypatch)
    names = [f"t{number}" for number in range(TOPICS)]
    held, answered = [], 0

    async def scenario(handlers: dict[int, Any]) -> None:
        nonlocal answered
        for key in sorted(handlers):
            if key >= ApiKey.DESCRIBE_REPLICAS:
                continue
            for path in arrays_of(key):
                fields, items = largest_fields(ApiKey(key), path, names, ITEMS)
                body = encode_request(key, APIS[key].max_version, fields)
                turns, size = await slices.of(handlers[key], key, body)
                if size >= items:  # an answer for each item
                    answered += 1
                    if turns < items // AT_ONCE:
                        held.append((APIS[key].name, ".".join(path), items, turns))

    run_with_broker(scenario)
    assert held == [], "\n".join(map(str, held))
    assert answered >= 15


SMALL: dict[ApiKey, dict[str, Any]] = {
    ApiKey.METADATA: {"topics": None, "include_topic_authorized_operations": False},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {
        "topics": [], "response_partition_limit": 2_000, "cursor": None,
    },
    ApiKey.DESCRIBE_LOG_DIRS: {"topics": None},
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {"topics": None, "timeout": 1_000},
    ApiKey.ELECT_LEADERS: {"election_type": 0, "topic_partitions": None, "timeout": 1_000},
}  # fmt: skip


def test_others_run_while_a_small_request_about_everything_is_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slices, held = Slices(monkeypatch), []

    async def scenario(handlers: dict[int, Any]) -> None:
        for api_key, fields in SMALL.items():
            body = encode_request(api_key, APIS[api_key].max_version, fields)
            turns, _ = await slices.of(handlers[api_key], api_key, body)
            if turns < 2_000 // AT_ONCE:
                held.append((APIS[api_key].name, turns))

    run_with_broker(scenario)
    assert held == [], "\n".join(map(str, held))


def test_others_run_while_a_member_gets_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = Slices(monkeypatch)
    names = [f"t{number}" for number in range(TOPICS)]
    unknown = [f"unknown-{number}" for number in range(ITEMS)]
    fields: dict[str, Any] = {
        "group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 30_000, "subscribed_topic_names": names + unknown,
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    key = ApiKey.CONSUMER_GROUP_HEARTBEAT
    version = APIS[key].max_version

    async def scenario(handlers: dict[int, Any]) -> None:
        response: Any = None
        while response is None or response.error_code == ErrorCode.coordinator_load_in_progress:
            find = {"key_type": 0, "coordinator_keys": ["g"]}
            of_group = request(ApiKey.FIND_COORDINATOR, 6, find)
            await response_to(of_group, handlers[ApiKey.FIND_COORDINATOR](of_group))
            asked = request(key, version, fields)
            asked.connection = SimpleNamespace(slices=slices)  # type: ignore[assignment]
            before = slices.count
            response = await response_to(asked, handlers[key](asked))
            await asyncio.sleep(0.1)
        assert response.error_code == ErrorCode.none
        assigned = response.assignment.topic_partitions
        assert sum(len(topic.partitions) for topic in assigned) == TOPICS * PARTITIONS
        assert slices.count - before >= (ITEMS + TOPICS * PARTITIONS) // LOOKED_UP_AT_ONCE

    run_with_broker(scenario)
