"""Large requests are decoded in slices: others are served meanwhile, and nothing else changes."""

import asyncio
import logging
from typing import Any

import pytest

from suwi.handlers.slices import reply_in_slices
from suwi.net.answers import NO_REPLY, Answer, Exclusive, Later, NoReply, Reply
from suwi.net.buffer_pool import BufferPool, KeptBytes
from suwi.net.dispatch import Dispatcher, Request
from suwi.net.large_requests import HELD_S_MAX, LargeRequests, items_of
from suwi.sim.simulation import Simulation
from suwi.wire.codec import LARGE_BYTES, encode_request, read_response
from suwi.wire.fetch_request import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    decode_fetch_request,
    encode_fetch_request,
)
from suwi.wire.offset_commit import decode_offset_commit_request
from suwi.wire.primitives import SLICE_ITEMS
from suwi.wire.versions import APIS, REQUEST_ITEMS_MAX, ApiKey
from tests.net.support import connect, loaded, replies, run, settle, timeless_budget
from tests.net.test_dispatch import frame

SLICES = 20


def groups(count: int) -> bytes:
    return encode_request(ApiKey.DELETE_GROUPS, 0, {"groups_names": ["group"] * count})


LARGE = frame(ApiKey.DELETE_GROUPS, 0, groups(SLICES * SLICE_ITEMS), correlation_id=1)


class Handlers:
    """Remembers in which order requests were handled, and answers as it is told."""

    def __init__(self, answer: Any = None) -> None:
        self.handled: list[int] = []
        self.groups: list[int] = []
        self.answer = answer or (lambda request: Reply([b"large"]))

    def delete_groups(self, request: Request) -> Answer:
        self.handled.append(request.correlation_id)
        self.groups.append(len(request.message.groups_names))
        answer: Answer = self.answer(request)
        return answer

    def heartbeat(self, request: Request) -> Answer:
        self.handled.append(request.correlation_id)
        return Reply([b"small"])

    async def dispatcher(self) -> Dispatcher:
        return await loaded(
            {ApiKey.DELETE_GROUPS: self.delete_groups, ApiKey.HEARTBEAT: self.heartbeat}
        )


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def small(correlation_id: int = 2) -> bytes:
    fields = {"group_id": "g", "generation_id": 3, "member_id": "m"}
    body = encode_request(ApiKey.HEARTBEAT, 0, fields)
    return frame(ApiKey.HEARTBEAT, 0, body, correlation_id=correlation_id)


def test_others_are_served_while_a_large_request_is_decoded() -> None:
    async def scenario() -> None:
        handlers = Handlers()
        dispatcher = await handlers.dispatcher()
        _, wire = connect(dispatcher)
        _, other = connect(dispatcher)
        wire.deliver(LARGE)
        asked = 0
        while not handlers.groups:
            other.deliver(small())
            asked += 1
            await turns(1)
        await settle()
        assert handlers.groups == [SLICES * SLICE_ITEMS]
        assert asked >= SLICES  # another request was handled beside each slice
        assert handlers.handled == [2] * asked + [1]
        assert replies(bytes(wire.sent)) == [(1, b"large")]

    run(scenario)


def test_the_next_request_of_the_connection_waits_until_the_large_one_is_handled() -> None:
    async def scenario() -> None:
        handlers = Handlers()
        _, wire = connect(await handlers.dispatcher())
        wire.deliver(LARGE + small())
        await turns(1)
        assert handlers.handled == []
        await turns(SLICES * 3)
        assert handlers.handled == [1, 2]
        assert replies(bytes(wire.sent)) == [(1, b"large"), (2, b"small")]

    run(scenario)


def test_a_request_that_one_slice_completes_is_handled_at_once() -> None:
    async def scenario() -> None:
        handlers = Handlers()
        _, wire = connect(await handlers.dispatcher())
        body = encode_request(ApiKey.DELETE_GROUPS, 0, {"groups_names": ["g" * 1_000] * 20})
        assert len(body) > LARGE_BYTES
        wire.deliver(frame(ApiKey.DELETE_GROUPS, 0, body))
        assert handlers.groups == [20]

    run(scenario)


@pytest.mark.parametrize("kind", [Later, Exclusive])
def test_the_kind_of_the_answer_decides_when_the_next_request_starts(kind: Any) -> None:
    async def scenario() -> None:
        reply: asyncio.Future[Reply | NoReply] = asyncio.get_running_loop().create_future()
        handlers = Handlers(lambda request: kind(reply))
        _, wire = connect(await handlers.dispatcher())
        wire.deliver(LARGE + small())
        await turns(SLICES * 3)
        assert handlers.handled == ([1, 2] if kind is Later else [1])
        assert not wire.sent
        reply.set_result(Reply([b"large"]))
        await settle()
        assert handlers.handled == [1, 2]
        assert replies(bytes(wire.sent)) == [(1, b"large"), (2, b"small")]

    run(scenario)


def test_an_answer_that_is_exclusive_until_its_effects_lets_the_next_request_start_then() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Reply | NoReply] = loop.create_future()
        until: asyncio.Future[None] = loop.create_future()
        handlers = Handlers(lambda request: Exclusive(reply, until))
        _, wire = connect(await handlers.dispatcher())
        wire.deliver(LARGE + small())
        await turns(SLICES * 3)
        assert handlers.handled == [1]
        until.set_result(None)
        await settle()
        assert handlers.handled == [1, 2]
        reply.set_result(NO_REPLY)
        await settle()
        assert replies(bytes(wire.sent)) == [(2, b"small")]

    run(scenario)


def test_a_large_request_that_is_malformed_closes_the_connection_before_the_next_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        handlers = Handlers()
        _, wire = connect(await handlers.dispatcher())
        broken = bytearray(groups(SLICES * SLICE_ITEMS))
        broken[-5:-3] = b"\xff\xff"
        wire.deliver(frame(ApiKey.DELETE_GROUPS, 0, bytes(broken)) + small())
        await turns(SLICES * 3)
        assert (handlers.handled, wire.lost) == ([], True)

    with caplog.at_level(logging.INFO):
        run(scenario)
    # Consoles of other tests may run in this process, and log.
    own = [record for record in caplog.records if record.name.startswith("suwi.net")]
    assert [record.levelname for record in own] == ["INFO"]


def test_too_many_items_are_refused_with_an_error_where_the_response_has_one() -> None:
    async def scenario() -> None:
        handled: list[int] = []

        def handle(request: Request) -> Answer:
            handled.append(request.correlation_id)
            return Reply([b"small"])

        _, wire = connect(await loaded({ApiKey.LIST_GROUPS: handle, ApiKey.HEARTBEAT: handle}))
        fields = {"states_filter": ["s"] * (REQUEST_ITEMS_MAX + 1)}
        body = encode_request(ApiKey.LIST_GROUPS, 4, fields)
        wire.deliver(frame(ApiKey.LIST_GROUPS, 4, body, correlation_id=1) + small())
        await turns(50)
        assert not wire.lost
        assert handled == [2]
        (_, refused), second = replies(bytes(wire.sent))
        assert second == (2, b"small")
        assert read_response(ApiKey.LIST_GROUPS, 4, refused, 1).error_code == 42

    run(scenario)


def test_a_client_that_disconnects_ends_the_decoding_and_frees_its_memory() -> None:
    async def scenario() -> None:
        handlers = Handlers()
        budget = timeless_budget()
        pool = budget.buffer_pool
        for slices in (0, 3):  # before the first turn, and between two
            _, wire = connect(await handlers.dispatcher(), budget=budget)
            wire.deliver(LARGE)
            await turns(slices)
            assert pool.allocated_bytes >= len(LARGE) - 100
            wire.close()
            await turns(SLICES * 3)
            assert pool.allocated_bytes == 0
        assert handlers.handled == []

    run(scenario)


def test_one_large_request_is_decoded_at_a_time_in_the_order_of_arrival() -> None:
    async def scenario() -> None:
        handlers = Handlers()
        dispatcher = await handlers.dispatcher()
        budget = timeless_budget()
        wires = [connect(dispatcher, budget=budget)[1] for _ in range(3)]
        for number, wire in enumerate(wires):
            body = groups(SLICES * SLICE_ITEMS)
            wire.deliver(frame(ApiKey.DELETE_GROUPS, 0, body, correlation_id=number))
        while not handlers.handled:
            await turns(1)
        await turns(SLICES // 2)
        assert handlers.handled == [0]
        await turns(SLICES * 6)
        assert handlers.handled == [0, 1, 2]

    run(scenario)


def test_large_requests_that_are_handled_in_slices_are_complete_before_the_next_is_decoded() -> (
    None
):
    async def scenario() -> None:
        done: list[int] = []

        def answer(request: Request) -> Answer:
            def work() -> Any:
                for _ in range(5):
                    yield
                done.append(len(handlers.handled))
                return Reply([b"large"])

            return reply_in_slices(request, work())

        handlers = Handlers(answer)
        dispatcher = await handlers.dispatcher()
        budget = timeless_budget()
        for _ in range(3):
            connect(dispatcher, budget=budget)[1].deliver(LARGE)
        await turns(SLICES * 10)
        assert done == [1, 2, 3]

    run(scenario)


def test_a_handler_that_waits_for_another_request_does_not_keep_it_from_being_decoded() -> None:
    async def scenario() -> None:
        all_here: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def join(request: Request) -> Reply:
            if len(handlers.handled) == 2:
                all_here.set_result(None)
            await all_here
            return Reply([b"joined"])

        handlers = Handlers(join)
        dispatcher = await handlers.dispatcher()
        budget = timeless_budget()
        wires = [connect(dispatcher, budget=budget)[1] for _ in range(2)]
        for wire in wires:
            wire.deliver(LARGE)
        await turns(SLICES * 6)
        assert [replies(bytes(wire.sent)) for wire in wires] == [[(1, b"joined")]] * 2

    run(scenario)


MANY = frame(
    ApiKey.DELETE_GROUPS,
    0,
    encode_request(ApiKey.DELETE_GROUPS, 0, {"groups_names": ["g"] * 99_000}),
)


def test_requests_that_are_decoded_and_not_answered_yet_are_bounded() -> None:
    async def scenario() -> None:
        answers: list[asyncio.Future[Reply | NoReply]] = []

        async def answer_when_told(request: Request) -> Reply | NoReply:
            answers.append(asyncio.get_running_loop().create_future())
            return await answers[-1]

        handlers = Handlers(answer_when_told)
        dispatcher, budget = await handlers.dispatcher(), timeless_budget()
        wires = [connect(dispatcher, budget=budget)[1] for _ in range(10)]
        for wire in wires:
            wire.deliver(MANY)
        await turns(3_000)
        held = 4 * REQUEST_ITEMS_MAX // items_of(len(MANY))
        assert len(handlers.handled) == held == 5
        _, other = connect(dispatcher, budget=budget)
        other.deliver(small())
        assert replies(bytes(other.sent)) == [(2, b"small")], "only large requests wait"
        wires[7].close()
        for number in range(9):
            while len(answers) <= number:
                await turns(1)
            answers[number].set_result(Reply([b"large"]))
        await turns(100)
        answered = [bool(wire.sent) for wire in wires]
        assert answered == [True] * 7 + [False] + [True] * 2
        assert budget.turns.slices.large_requests._used == 0
        assert budget.buffer_pool.allocated_bytes == 0

    run(scenario)


@pytest.mark.parametrize("give_way", [False, True])
def test_requests_that_wait_for_other_clients_do_not_keep_these_from_being_decoded(
    give_way: bool,
) -> None:
    async def scenario() -> None:
        waiting: list[asyncio.Future[Reply | NoReply]] = []

        def answer(request: Request) -> Answer:
            future: asyncio.Future[Reply | NoReply] = asyncio.get_running_loop().create_future()
            waiting.append(future)
            if not give_way:
                return Later(future)
            return Exclusive(future, give_way=lambda: future.set_result(Reply([b"nothing yet"])))

        handlers = Handlers(answer)
        dispatcher, budget = await handlers.dispatcher(), timeless_budget()
        wires = [connect(dispatcher, budget=budget)[1] for _ in range(8)]
        for wire in wires:
            wire.deliver(MANY)
        while len(handlers.handled) < 8:
            await turns(1)
        await turns(10)
        if give_way:  # the first ones, in order, and no more than needed
            assert [future.done() for future in waiting] == [True] * 3 + [False] * 5
        else:
            assert not any(future.done() for future in waiting)
            assert budget.turns.slices.large_requests._used == 0

    run(scenario)


def test_a_share_is_returned_after_a_while_whatever_its_request_waits_for() -> None:
    async def scenario() -> None:
        large = LargeRequests(10)
        first = await large.acquire(10)
        began_s = asyncio.get_running_loop().time()
        second = await large.acquire(10)
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(HELD_S_MAX)
        first.release()
        second.release()
        assert large._used == 0

    Simulation(0).run(scenario())


def test_a_share_is_larger_than_all_only_if_it_is_the_only_one() -> None:
    async def scenario() -> None:
        large = LargeRequests(10)
        first = await large.acquire(50)
        second = asyncio.ensure_future(large.acquire(1))
        cancelled = asyncio.ensure_future(large.acquire(1))
        await turns(3)
        assert not second.done()
        cancelled.cancel()
        await turns(3)
        first.reduce(9)
        assert large._used == 10
        (await second).release()
        nothing = await large.acquire(0)
        first.release()
        nothing.release()
        assert (large._used, len(large._waiting)) == (0, 0)

    run(scenario)


def test_fetch_and_offset_commit_are_decoded_in_slices_with_their_own_decoders() -> None:
    asked = [FetchPartition(number, 1, 2, 3, 4, 5) for number in range(SLICES * SLICE_ITEMS)]
    fetch = FetchRequest(0, 0, 0, [FetchTopic("t", None, asked)])
    offsets = [
        {"partition_index": number, "committed_offset": 1, "committed_metadata": "m"}
        for number in range(SLICES * SLICE_ITEMS)
    ]
    commit = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "t", "partitions": offsets}],
    }
    bodies = {
        ApiKey.FETCH: (encode_fetch_request(12, fetch), 12, decode_fetch_request),
        ApiKey.OFFSET_COMMIT: (
            encode_request(ApiKey.OFFSET_COMMIT, 8, commit),
            8,
            decode_offset_commit_request,
        ),
    }
    for api_key, (body, version, decode) in bodies.items():

        async def scenario(
            api_key: int = api_key, body: bytes = body, version: int = version, decode: Any = decode
        ) -> None:
            messages: list[Any] = []

            def handle(request: Request) -> Answer:
                messages.append(request.message)
                return Reply([b"ok"])

            _, wire = connect(await loaded({api_key: handle}))
            wire.deliver(frame(api_key, version, body))
            await turns(SLICES - 2)
            assert not messages
            await turns(SLICES * 2)
            assert messages == [decode(version, memoryview(body))]

        run(scenario)


def test_bytes_that_are_kept_are_counted_until_they_are_released() -> None:
    pool = BufferPool(1 << 20)
    kept = KeptBytes(pool, memoryview(b"abc" * 10_000))
    assert bytes(kept.view) == b"abc" * 10_000
    assert pool.allocated_bytes >= 30_000
    kept.release()
    kept.release()
    assert pool.allocated_bytes == 0


def test_every_api_but_produce_and_our_own_is_decoded_in_slices() -> None:
    """The handler of Produce decodes large requests in slices itself."""
    dispatcher = Dispatcher({key: lambda request: NO_REPLY for key in APIS})
    routes = {**dispatcher._routes, **dispatcher._unloaded}
    whole = {key for (key, _), route in routes.items() if not route[2]}
    assert whole == {ApiKey.PRODUCE, *(key for key in APIS if key >= ApiKey.DESCRIBE_REPLICAS)}


def test_a_broker_does_not_wait_for_the_large_requests_of_clients() -> None:
    """Its fetches would stand still, and with them replication and the coordinators."""

    async def scenario() -> None:
        handlers = Handlers()
        budget = timeless_budget()
        connection, wire = connect(await handlers.dispatcher(), budget=budget)
        connection.client = connection.client._replace(is_peer=True)
        async with connection.slices.large_request:
            wire.deliver(LARGE)
            await turns(SLICES * 3)
            assert handlers.handled == [1]

    run(scenario)
