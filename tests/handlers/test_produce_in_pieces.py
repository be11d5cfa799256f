"""A produce request of many partitions, or of many bytes, is appended in pieces: others run between
them, and the outcome is that of one piece."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.handlers import produce
from suwi.handlers.produce import Produce, pieces_of
from suwi.model.ids import LeaderEpoch, Offset
from suwi.net.answers import Exclusive, Later, Reply
from suwi.net.dispatch import Dispatcher
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.sim.simulation import Simulation
from suwi.wire.produce import (
    SLICE_ITEMS,
    PartitionProduced,
    decode_produce_response,
    encode_produce_request,
)
from suwi.wire.versions import ApiKey
from tests.handlers.requests import request_of
from tests.handlers.world import EPOCHS, OTHER, World, followed, led, sent, turns
from tests.net.support import connect, replies, run, timeless_budget
from tests.net.test_dispatch import frame

VERSION = 12
PARTITIONS = 5 * SLICE_ITEMS


def batch(value: bytes = b"v", **facts: Any) -> bytes:
    return bytes(build_batch([Record(value=value, timestamp=1)], **facts))


def body_of(
    batches: list[tuple[int, bytes | None]], acks: int = -1, timeout_ms: int = 30_000
) -> bytearray:
    asked = encode_produce_request(VERSION, None, acks, timeout_ms, [("t", None, batches)])
    return bytearray().join(asked)


def to_all(acks: int = -1, timeout_ms: int = 30_000) -> bytearray:
    return body_of([(index, batch()) for index in range(PARTITIONS)], acks, timeout_ms)


def answers_of(reply: Any) -> list[PartitionProduced]:
    assert isinstance(reply, Reply)
    (topic,) = decode_produce_response(VERSION, memoryview(sent(reply))).topics
    assert topic.name == "t"
    return list(topic.partitions)


def ends(world: World) -> list[int]:
    return [world.replicas.leader_of("t", index).log.end_offset for index in range(PARTITIONS)]


class Broker:
    def __init__(self, *followers: Any) -> None:
        self.world = World()
        self.world.add("t", [led(*followers)] * PARTITIONS)
        self.handler = Produce(self.world.replicas, self.world.clock)
        self.appends: Counter[int] = Counter()
        """By iteration of the event loop."""
        self._turn = 0
        self._append = self.handler._append_one
        self.handler._append_one = self._append_counted  # type: ignore[method-assign]

    def _append_counted(self, *given: Any) -> Any:
        self.appends[self._turn] += 1
        return self._append(*given)

    def handle(self, body: bytearray) -> Any:
        return self.handler(request_of(ApiKey.PRODUCE, VERSION, body))

    async def until(self, appends: int) -> None:
        """Wait until so many batches were appended."""
        while sum(self.appends.values()) < appends:
            await self.next_turn()

    async def next_turn(self) -> None:
        self._turn += 1
        await asyncio.sleep(0)

    def catch_up(self, *indexes: int) -> None:
        for index in indexes:
            partition = self.world.replicas.leader_of("t", index)
            assert partition.leader_replica is not None
            end = partition.log.end_offset
            partition.leader_replica.record_progress(OTHER, end, Offset(0), EPOCHS[OTHER])


def test_others_run_between_the_pieces_of_a_request_with_many_partitions() -> None:
    async def scenario() -> None:
        broker = Broker()
        answer = broker.handle(to_all(acks=1))
        assert isinstance(answer, Exclusive)
        reply = asyncio.ensure_future(answer.reply)
        await broker.until(PARTITIONS)
        assert max(broker.appends.values()) <= SLICE_ITEMS
        answers = answers_of(await reply)
        assert [each.partition for each in answers] == list(range(PARTITIONS))
        assert {(each.error_code, each.base_offset) for each in answers} == {(0, 0)}
        assert ends(broker.world) == [1] * PARTITIONS

    run(scenario)


def test_others_run_between_the_pieces_of_a_request_with_many_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(produce, "PIECE_BYTES", 1_000)
        broker = Broker()
        answer = broker.handle(body_of([(index, batch(b"v" * 400)) for index in range(20)], 1))
        reply = asyncio.ensure_future(answer.reply)
        await broker.until(20)
        assert max(broker.appends.values()) == 2
        assert {each.error_code for each in answers_of(await reply)} == {0}

    run(scenario)


def test_the_reply_is_the_same_as_in_one_piece() -> None:
    """With topics of all sizes, refused and appended partitions, and hints where the leader is."""

    async def scenario() -> None:
        found = []
        for in_pieces in (True, False):
            world = World()
            sizes = [3, 0, 2 * SLICE_ITEMS, 1, SLICE_ITEMS, 0]
            for number, size in enumerate(sizes):
                states = [led() if index % 3 else followed() for index in range(size)]
                world.add(f"t{number}", states)
            topics: list[Any] = [
                (f"t{number}", None, [(i, batch() if i % 5 else None) for i in range(size)])
                for number, size in enumerate(sizes)
            ]
            encoded = encode_produce_request(VERSION, None, 1, 1_000, topics)
            handler = Produce(world.replicas, world.clock)
            request = request_of(ApiKey.PRODUCE, VERSION, bytearray().join(encoded))
            with pytest.MonkeyPatch.context() as patched:
                if not in_pieces:
                    patched.setattr("suwi.wire.produce.SLICE_ITEMS", 10_000)
                answer = handler(request)
            assert isinstance(answer, Exclusive if in_pieces else Reply)
            found.append(sent(await answer.reply if isinstance(answer, Exclusive) else answer))  # type: ignore[arg-type]
        assert found[0] == found[1]

    run(scenario)


def test_a_request_is_cut_between_its_partitions_and_nothing_is_lost() -> None:
    for sizes in ([1], [], [0, 0], [SLICE_ITEMS], [SLICE_ITEMS + 1, 0, 1], [1] * 300, [300, 300]):
        topics: list[Any] = [
            (f"t{n}", None, [(i, None) for i in range(s)]) for n, s in enumerate(sizes)
        ]
        pieces = list(pieces_of(topics))
        joined: dict[str | None, list[Any]] = {}
        for piece in pieces:
            items = sum(1 + len(partitions) for _, _, partitions in piece)
            assert items <= 2 * SLICE_ITEMS
            for name, _, partitions in piece:
                joined.setdefault(name, []).extend(partitions)
        assert joined == {name: partitions for name, _, partitions in topics}


def test_the_next_request_of_the_connection_waits_for_all_pieces() -> None:
    async def scenario() -> None:
        broker = Broker()
        _, wire = connect(Dispatcher({ApiKey.PRODUCE: broker.handler}))
        last = body_of([(PARTITIONS - 1, batch(b"second"))], 1)
        large = frame(ApiKey.PRODUCE, VERSION, bytes(to_all(acks=1)), correlation_id=1)
        wire.deliver(large + frame(ApiKey.PRODUCE, VERSION, bytes(last), correlation_id=2))
        await broker.until(PARTITIONS + 1)
        await turns(50)
        (first, _), (second, small) = replies(bytes(wire.sent))
        assert (first, second) == (1, 2)
        (topic,) = decode_produce_response(VERSION, small, 1).topics
        assert topic.partitions[0].base_offset == 1

    run(scenario)


@pytest.mark.parametrize("acks", [0, 1])
def test_all_pieces_are_appended_if_the_client_disconnects_between_two(acks: int) -> None:
    async def scenario() -> None:
        broker = Broker()
        budget = timeless_budget()
        _, wire = connect(Dispatcher({ApiKey.PRODUCE: broker.handler}), budget=budget)
        wire.deliver(frame(ApiKey.PRODUCE, VERSION, bytes(to_all(acks))))
        await broker.until(1)
        assert 0 in ends(broker.world)
        wire.close()
        await turns(100)
        assert ends(broker.world) == [1] * PARTITIONS
        assert budget.buffer_pool.allocated_bytes == 0

    run(scenario)


def test_with_acks_0_a_refused_piece_closes_the_connection_after_the_others_are_appended() -> None:
    async def scenario() -> None:
        broker = Broker()
        _, wire = connect(Dispatcher({ApiKey.PRODUCE: broker.handler}))
        batches = [(index, batch() if index else None) for index in range(PARTITIONS)]
        wire.deliver(frame(ApiKey.PRODUCE, VERSION, bytes(body_of(batches, acks=0))))
        await turns(100)
        assert wire.lost
        assert ends(broker.world) == [0] + [1] * (PARTITIONS - 1)

    run(scenario)


def test_a_large_request_that_is_malformed_at_its_end_appends_nothing() -> None:
    async def scenario() -> None:
        broker = Broker()
        _, wire = connect(Dispatcher({ApiKey.PRODUCE: broker.handler}))
        wire.deliver(frame(ApiKey.PRODUCE, VERSION, bytes(to_all(acks=1)[:-50])))
        await turns(100)
        assert wire.lost
        assert ends(broker.world) == [0] * PARTITIONS

    run(scenario)


def test_a_leader_that_is_deposed_between_two_pieces_refuses_the_partitions_of_both() -> None:
    async def scenario() -> None:
        broker = Broker(OTHER)
        reply = asyncio.ensure_future(broker.handle(to_all()).reply)
        await broker.until(1)
        last = PARTITIONS - 1
        for index in (0, last):
            broker.world.elect("t", index, followed(epoch=1))
        # The leader of the first comes back before the request ends; its batch is not committed.
        broker.world.elect("t", 0, led(OTHER, epoch=2)._replace(leader_epoch=LeaderEpoch(2)))
        await broker.until(PARTITIONS - 1)
        await turns(20)
        broker.catch_up(*range(PARTITIONS - 1))
        answers = answers_of(await reply)
        refused = {each.partition: each.error_code for each in answers if each.error_code}
        assert refused == dict.fromkeys((0, last), ErrorCode.not_leader_or_follower)

    run(scenario)


def test_batches_that_are_not_committed_in_time_are_answered_together() -> None:
    async def scenario() -> None:
        broker = Broker(OTHER)
        answer = broker.handle(to_all(timeout_ms=5_000))
        reply = asyncio.ensure_future(answer.reply)
        await broker.until(PARTITIONS)
        await turns(10)
        assert answer.until.done(), "only the answer waits"
        assert not reply.done()
        broker.catch_up(*range(0, PARTITIONS, 2))
        answers = answers_of(await reply)
        late = [each.partition for each in answers if each.error_code]
        assert late == list(range(1, PARTITIONS, 2))
        assert {each.error_code for each in answers} == {0, ErrorCode.request_timed_out}

    Simulation(0).run(scenario())


def test_a_client_that_disconnects_while_its_pieces_wait_leaves_nothing_to_answer() -> None:
    async def scenario() -> None:
        broker = Broker(OTHER)
        reply = asyncio.ensure_future(broker.handle(to_all()).reply)
        await broker.until(PARTITIONS)
        await turns(10)
        reply.cancel()
        await turns(10)
        broker.catch_up(*range(PARTITIONS))
        assert reply.cancelled()

    run(scenario)


def test_a_small_request_is_appended_at_once() -> None:
    async def scenario() -> None:
        broker = Broker(OTHER)
        answer = broker.handle(body_of([(index, batch()) for index in range(20)], acks=1))
        assert isinstance(answer, Reply)
        assert isinstance(broker.handle(body_of([(0, batch()), (1, batch())])), Later)

    run(scenario)


def test_a_retry_on_another_connection_that_meets_the_pieces_is_stored_once() -> None:
    async def scenario() -> None:
        broker = Broker()
        facts = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        body = body_of([(index, batch(**facts)) for index in range(PARTITIONS)], 1)
        dispatcher = Dispatcher({ApiKey.PRODUCE: broker.handler})
        _, wire = connect(dispatcher)
        wire.deliver(frame(ApiKey.PRODUCE, VERSION, bytes(body)))
        await broker.until(1)
        wire.close()
        _, wire = connect(dispatcher)
        wire.deliver(frame(ApiKey.PRODUCE, VERSION, bytes(body)))
        await broker.until(2 * PARTITIONS)
        await turns(50)
        assert ends(broker.world) == [1] * PARTITIONS
        ((_, answer),) = replies(bytes(wire.sent))
        (topic,) = decode_produce_response(VERSION, answer, 1).topics
        assert {(each.error_code, each.base_offset) for each in topic.partitions} == {(0, 0)}

    run(scenario)


def test_only_a_request_of_many_partitions_waits_for_large_requests_of_others() -> None:
    async def scenario() -> None:
        broker = Broker()
        dispatcher, budget = Dispatcher({ApiKey.PRODUCE: broker.handler}), timeless_budget()
        large = budget.turns.slices.large_requests
        held = await large.acquire(10**6)
        for body in (to_all(acks=1), body_of([(0, batch(b"v" * produce.PIECE_BYTES))], acks=0)):
            _, wire = connect(dispatcher, budget=budget)
            wire.deliver(frame(ApiKey.PRODUCE, VERSION, bytes(body)))
        await turns(50)
        assert sum(broker.appends.values()) == 1
        held.release()
        await broker.until(1 + PARTITIONS)
        await turns(20)
        assert (large._used, budget.buffer_pool.allocated_bytes) == (0, 0)

    run(scenario)
