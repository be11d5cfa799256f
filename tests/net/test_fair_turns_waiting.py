"""While pipelined requests wait for their turn, everything else goes on."""

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from suwi.net.answers import NO_REPLY, Answer, Exclusive, Later, NoReply, Reply
from suwi.net.connection import Connection, Dispatch
from suwi.net.listener import Budget
from tests.net.support import (
    Served,
    Waits,
    Wire,
    all_turns,
    answering,
    burst,
    connect,
    echo,
    limits,
    replies,
    request,
    run,
    settle,
)


def test_in_flight_limits_hold_over_turns() -> None:
    async def scenario() -> None:
        waits = Waits()
        budget = Budget(limits(2, in_flight_requests_max=5), poison=True)
        _, wire = connect(answering(waits), budget=budget)
        wire.deliver(burst(12))
        assert list(waits.futures) == [0, 1]
        await all_turns(budget)
        assert list(waits.futures) == list(range(5))
        assert not wire.reading
        for i in range(12):
            waits.end(i)
            await settle()
        assert [c for c, _ in replies(wire.sent)] == list(range(12))
        assert wire.reading

    run(scenario)


def test_a_reply_that_arrives_while_requests_wait_does_not_jump_the_queue() -> None:
    async def scenario() -> None:
        waits = Waits()
        served = Served(lambda c, p: waits(c, p) if c == 0 else echo(c, p))
        budget = Budget(limits(3), poison=True)
        _, first = connect(served.by("first"), budget=budget)
        _, second = connect(served.by("second"), budget=budget)
        first.deliver(burst(9))
        second.deliver(burst(4)[len(request(0)) :])
        waits.end(0)
        await all_turns(budget)
        assert served.runs() == [
            ("first", 3),
            ("second", 1),
            ("first", 3),
            ("second", 2),
            ("first", 3),
        ]
        assert [c for c, _ in replies(first.sent)] == list(range(9))

    run(scenario)


def test_an_exclusive_request_holds_the_rest_of_its_burst_and_nobody_else() -> None:
    async def scenario() -> None:
        waits = Waits(Exclusive)
        served = Served(lambda c, p: waits(c, p) if c == 3 else echo(c, p))
        budget = Budget(limits(2), poison=True)
        _, wire = connect(served.by("waiting"), budget=budget)
        _, other = connect(served.by("other"), budget=budget)
        wire.deliver(burst(8))
        await all_turns(budget)
        assert served.order == [("waiting", i) for i in range(4)]
        other.deliver(burst(3))
        await all_turns(budget)
        assert len(replies(other.sent)) == 3
        waits.end(3)
        await all_turns(budget)
        assert [c for c, _ in replies(wire.sent)] == list(range(8))
        assert wire.reading

    run(scenario)


def test_stopping_starts_none_of_the_requests_that_wait() -> None:
    async def scenario() -> None:
        served = Served()
        budget = Budget(limits(2), poison=True)
        connection, wire = connect(served.by("stopped"), budget=budget)
        wire.deliver(burst(8))
        connection.stop()
        await all_turns(budget)
        assert len(served.order) == 2
        assert [c for c, _ in replies(wire.sent)] == [0, 1]
        assert wire.lost
        assert budget.buffer_pool.allocated_bytes == 0

    run(scenario)


def test_a_lost_connection_has_no_turn_any_more() -> None:
    async def scenario() -> None:
        served = Served()
        budget = Budget(limits(2), poison=True)
        _, lost = connect(served.by("lost"), budget=budget)
        aborted, aborted_wire = connect(served.by("aborted"), budget=budget)
        _, other = connect(served.by("other"), budget=budget)
        for wire in (lost, aborted_wire, other):
            wire.deliver(burst(8))
        lost._lose()
        aborted.abort()
        await all_turns(budget)
        assert served.runs() == [("lost", 2), ("aborted", 1), ("other", 8)]
        assert budget.buffer_pool.allocated_bytes == 0

    run(scenario)


def test_an_error_in_one_turn_costs_nobody_else_theirs() -> None:
    async def scenario() -> None:
        def answer(correlation_id: int, payload: memoryview) -> Answer:
            if correlation_id == 5:
                raise ZeroDivisionError
            return echo(correlation_id, payload)

        budget = Budget(limits(2), poison=True)
        _, broken = connect(answering(answer), budget=budget)
        _, other = connect(answering(echo), budget=budget)
        broken.deliver(burst(8))
        other.deliver(burst(8))
        await all_turns(budget)
        assert broken.lost
        assert len(replies(other.sent)) == 8

    run(scenario)


def test_who_waits_for_a_turn_is_neither_idle_nor_a_slow_sender() -> None:
    async def scenario() -> None:
        now = asyncio.get_running_loop().time()
        budget = Budget(limits(2, idle_ms_max=10_000, frame_ms_max=10_000), poison=True)
        connection, wire = connect(answering(echo), budget=budget)
        wire.deliver(burst(6)[:-3])
        assert not wire.reading
        connection.check_time(now + 100_000)
        await all_turns(budget)
        assert not wire.lost
        assert len(replies(wire.sent)) == 5
        now = asyncio.get_running_loop().time()
        connection.check_time(now + 9)
        await settle()
        assert not wire.lost, "the time of its last frame starts with the end of our pause"
        connection.check_time(now + 11)
        await settle()
        assert wire.lost

    run(scenario)


Kind = str
frames = st.lists(
    st.tuples(
        st.sampled_from(["reply", "reply", "reply", "later", "exclusive", "none"]),
        st.sampled_from([0, 1, 30, 1_000, 70_000, 300_000]),
    ),
    max_size=40,
)


@given(
    st.lists(frames, min_size=1, max_size=3),
    st.integers(1, 7),
    st.sampled_from([1, 3, 1_000]),
    st.sampled_from([1, 10_000, 1 << 40]),
    st.randoms(use_true_random=False),
)
def test_whatever_the_sizes_and_budgets_all_is_served_completely_and_in_order(
    scripts: list[list[tuple[Kind, int]]],
    turn_requests: int,
    in_flight_requests: int,
    piece_bytes: int,
    random: Random,
) -> None:
    waits: list[Callable[[], None]] = []

    def answer_of(script: list[tuple[Kind, int]], seen: list[int]) -> Dispatch:
        def answer(correlation_id: int, payload: memoryview) -> Answer:
            kind, size = script[correlation_id]
            assert bytes(payload) == bytes([correlation_id]) * size
            seen.append(correlation_id)
            reply = Reply([b"%d" % correlation_id])
            if kind == "none":
                return NO_REPLY
            if kind == "reply":
                return reply
            future: asyncio.Future[Reply | NoReply] = asyncio.get_running_loop().create_future()
            waits.append(partial(future.set_result, reply))
            return Later(future) if kind == "later" else Exclusive(future)

        return answering(answer)

    async def scenario() -> None:
        budget = Budget(
            limits(turn_requests, in_flight_requests_max=in_flight_requests), poison=True
        )
        peers: list[tuple[Connection, Wire, list[int], bytearray]] = []
        for script in scripts:
            seen: list[int] = []
            stream = b"".join(request(i, bytes([i]) * n) for i, (_, n) in enumerate(script))
            peers.append(
                (*connect(answer_of(script, seen), budget=budget), seen, bytearray(stream))
            )
        piece = max(piece_bytes, max(len(peer[3]) for peer in peers) // 50)
        while waits or budget.turns.waiting or any(p[3] or p[1].unread_bytes for p in peers):
            _, wire, _, stream = random.choice(peers)
            wire.deliver(bytes(stream[:piece]))
            del stream[:piece]
            if waits and random.random() < 0.5:
                waits.pop(random.randrange(len(waits)))()
            for _ in range(random.randrange(3)):
                await asyncio.sleep(0)
        await settle()
        while waits:
            waits.pop(0)()
            await all_turns(budget)
        for script, (_, wire, seen, _) in zip(scripts, peers, strict=True):
            assert seen == list(range(len(script)))
            expected = [(i, b"%d" % i) for i, (kind, _) in enumerate(script) if kind != "none"]
            assert replies(wire.sent) == expected
            assert wire.reading
        assert budget.buffer_pool.allocated_bytes == 0

    run(scenario)
