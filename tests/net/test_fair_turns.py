"""One connection's pipelined requests: they are served in turns with everybody else's."""

import asyncio
import socket
import struct
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.net import (
    NO_REPLY,
    Answer,
    Budget,
    Connection,
    Dispatch,
    Exclusive,
    Later,
    Limits,
    Listener,
    NoReply,
    Reply,
)
from suwi.net.fair_turns import SliceTurns, Turns
from suwi.net.output import WRITE_BYTES
from tests.net.support import (
    Waits,
    Wire,
    answering,
    connect,
    echo,
    replies,
    request,
    run,
    serving,
    settle,
    until,
)

PRODUCE, DESCRIBE_CONFIGS = 0, 32


def burst(count: int, payload: bytes = b"", api_key: int = PRODUCE) -> bytes:
    return b"".join(request(i, payload, api_key) for i in range(count))


def limits(requests: int, **others: int) -> Limits:
    return Limits(turn_requests_max=requests, turn_ms_max=1e9, **others)


class Served:
    """Echoes, and remembers which connection's requests were served in which order."""

    def __init__(self, answer: Callable[[int, memoryview], Answer] = echo) -> None:
        self.order: list[tuple[str, int]] = []
        self._answer = answer

    def by(self, name: str) -> Dispatch:
        def answer(correlation_id: int, payload: memoryview) -> Answer:
            self.order.append((name, correlation_id))
            return self._answer(correlation_id, payload)

        return answering(answer)

    def runs(self) -> list[tuple[str, int]]:
        """Who was served, and how many requests in a row."""
        found: list[tuple[str, int]] = []
        for name, _ in self.order:
            in_a_row = found.pop()[1] if found and found[-1][0] == name else 0
            found.append((name, in_a_row + 1))
        return found


async def all_turns(budget: Budget) -> None:
    while budget.turns.waiting or budget.turns.senders.waiting:  # noqa: ASYNC110 (nothing tells us)
        await asyncio.sleep(0)
    await settle()


# -- turns ---------------------------------------------------------------------------------------


def test_thousands_of_pipelined_requests_let_another_connection_be_served_in_between() -> None:
    async def scenario() -> None:
        budget, served = Budget(Limits(), poison=True), Served()
        _, greedy = connect(served.by("greedy"), budget=budget)
        _, other = connect(served.by("other"), budget=budget)
        greedy.deliver(burst(5_000, bytes(15)))
        other.deliver(request(0, b"ping"))
        assert served.order.index(("other", 0)) <= Limits().turn_requests_max
        assert replies(other.sent) == [(0, b"ping")]
        await all_turns(budget)
        assert [c for c, _ in replies(greedy.sent)] == list(range(5_000))

    run(scenario)


def test_the_rest_of_a_burst_waits_while_every_other_callback_of_the_loop_gets_its_turn() -> None:
    async def scenario() -> None:
        budget, served = Budget(limits(10), poison=True), Served()
        _, wire = connect(served.by("greedy"), budget=budget)
        wire.deliver(burst(100))
        seen = [len(served.order)]
        while seen[-1] < 100:
            await asyncio.sleep(0)
            seen.append(len(served.order))
        assert seen == list(range(10, 101, 10)), "one turn each time that the loop goes round"

    run(scenario)


def test_connections_with_requests_at_hand_are_served_round_robin() -> None:
    async def scenario() -> None:
        budget, served = Budget(limits(10), poison=True), Served()
        wires = [connect(served.by(name), budget=budget)[1] for name in "abc"]
        for wire in wires:
            wire.deliver(burst(25))
        await all_turns(budget)
        # While one waits for a turn, who comes new gets no full one before it.
        assert served.runs() == [
            ("a", 10), ("b", 1), ("c", 1),
            ("a", 10), ("b", 10), ("c", 10),
            ("a", 5), ("b", 10), ("c", 10), ("b", 4), ("c", 4),
        ]  # fmt: skip
        for wire in wires:
            assert [c for c, _ in replies(wire.sent)] == list(range(25))

    run(scenario)


def test_of_several_connections_that_can_send_one_sends_in_each_iteration_of_the_loop() -> None:
    async def scenario() -> None:
        budget = Budget(Limits(), poison=True)
        body = bytes(5 << 20)
        dispatch = answering(lambda c, p: Reply([body]))
        wires = [connect(dispatch, budget=budget)[1] for _ in range(3)]
        for wire in wires:
            wire.deliver(request(0))
        before = [len(wire.sent) for wire in wires]
        turn_bytes_max = (1 << 20) + WRITE_BYTES
        assert max(before) <= turn_bytes_max
        senders = []
        while sum(before) < 3 * len(body):
            await asyncio.sleep(0)
            now = [len(wire.sent) for wire in wires]
            sent = [(n, now[n] - before[n]) for n in range(3) if now[n] > before[n]]
            assert len(sent) == 1
            assert sent[0][1] <= turn_bytes_max
            senders.append(sent[0][0])
            before = now
        assert senders[:12] == [0, 1, 2] * 4
        await settle()
        assert all(replies(wire.sent) == [(0, body)] for wire in wires)

    run(scenario)


def test_a_connection_that_closes_while_it_waits_to_send_gives_its_turn_to_the_next() -> None:
    async def scenario() -> None:
        budget = Budget(Limits(), poison=True)
        body = bytes(3 << 20)
        dispatch = answering(lambda c, p: Reply([body]))
        _, gone = connect(dispatch, budget=budget)
        _, other = connect(dispatch, budget=budget)
        gone.deliver(request(0))
        other.deliver(request(0))
        gone.abort()
        sent_bytes = len(gone.sent)
        await all_turns(budget)
        assert len(gone.sent) == sent_bytes
        assert replies(other.sent) == [(0, body)]

    run(scenario)


def test_slices_of_several_requests_take_turns_and_cancelled_ones_are_skipped() -> None:
    async def scenario() -> None:
        slices, done = SliceTurns(), []

        async def work(name: str) -> None:
            for _ in range(3):
                await slices.next()
                done.append(name)

        tasks = [asyncio.create_task(work(name)) for name in "abc"]
        while len(done) < 3:  # noqa: ASYNC110 (nothing tells us)
            await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert "".join(done) == "abcacac"
        await slices.next()  # and it goes on after that

    run(scenario)


class SlowLoop(asyncio.SelectorEventLoop):
    """Whose clock the test turns."""

    slept_s = 0.0

    def time(self) -> float:
        return super().time() + self.slept_s


def test_a_turn_ends_when_its_time_is_over() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SlowLoop)

        def take_long(correlation_id: int, payload: memoryview) -> Answer:
            loop.slept_s += 1000
            return echo(correlation_id, payload)

        budget = Budget(Limits(turn_ms_max=2_500_000), poison=True)
        served = Served(take_long)
        _, wire = connect(served.by("slow"), budget=budget)
        wire.deliver(burst(10))
        seen = [len(served.order)]
        while seen[-1] < 10:
            await asyncio.sleep(0)
            seen.append(len(served.order))
        assert seen == [3, 6, 9, 10]

    with asyncio.Runner(loop_factory=SlowLoop) as runner:
        runner.run(scenario())


def test_a_turn_of_one_request_does_not_ask_how_long_it_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        asked: list[float] = []

        def limits(_: Turns, began_s: float) -> tuple[int, float]:
            asked.append(began_s)
            return 10, began_s + 100

        monkeypatch.setattr(Turns, "limits", limits)
        _, wire = connect(answering(echo))
        for i in range(10):
            wire.deliver(request(i))
        assert asked == []
        wire.deliver(burst(4))
        assert len(asked) == 1

    run(scenario)


def test_a_connection_whose_requests_wait_for_a_turn_is_not_read() -> None:
    async def scenario() -> None:
        budget = Budget(limits(10), poison=True)
        _, wire = connect(answering(echo), budget=budget)
        wire.deliver(burst(11))
        assert not wire.reading
        wire.deliver(request(11))
        assert wire.unread_bytes == len(request(11))
        await settle()
        assert wire.reading
        assert [c for c, _ in replies(wire.sent)] == list(range(12))

    run(scenario)


def test_the_beginning_of_a_frame_after_a_full_turn_waits_for_bytes_and_not_for_a_turn() -> None:
    async def scenario() -> None:
        budget = Budget(limits(10), poison=True)
        _, wire = connect(answering(echo), budget=budget)
        wire.deliver(burst(11)[:-3])
        assert wire.reading
        assert not budget.turns.waiting
        wire.deliver(burst(11)[-3:])
        assert len(replies(wire.sent)) == 11

    run(scenario)


def test_requests_that_wait_are_copied_once_however_many_turns_they_take() -> None:
    async def scenario() -> None:
        budget = Budget(limits(10), poison=True)
        connection, wire = connect(answering(echo), budget=budget)
        wire.deliver(burst(8_000, bytes(16)))
        held, starts = connection._reader.held, [connection._reader.start]
        assert held is not None
        while connection._reader.held is not None:
            assert connection._reader.held is held
            await asyncio.sleep(0)
            starts.append(connection._reader.start)
        assert starts == sorted(starts)
        assert len(starts) > 700
        assert budget.buffer_pool.allocated_bytes == 0

    run(scenario)


# -- peers that are gone -------------------------------------------------------------------------


def send_and_leave(listener: Listener, data: bytes, *, reset: bool = False) -> None:
    """All of it before the broker has accepted the connection."""
    with socket.create_connection(("127.0.0.1", listener.port)) as peer:
        peer.sendall(data)
        if reset:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("reset", [False, True])
def test_requests_of_a_peer_that_has_closed_are_not_served_in_a_further_turn(reset: bool) -> None:
    async def scenario() -> None:
        served = Served()
        async with serving(served.by("gone"), limits(10)) as listener:
            send_and_leave(listener, burst(1_000, api_key=DESCRIBE_CONFIGS), reset=reset)
            send_and_leave(listener, burst(1_000, api_key=DESCRIBE_CONFIGS), reset=reset)
            while not served.order and not reset:  # noqa: ASYNC110 (nothing tells us)
                await asyncio.sleep(0)
            await until(lambda: not listener.connections)
            assert len(served.order) <= 11

    run(scenario)


def test_pipelined_exclusive_requests_end_with_the_peer() -> None:
    async def scenario() -> None:
        served = Served(lambda c, p: Exclusive(asyncio.sleep(0.001, Reply([b"done"]))))
        async with serving(served.by("gone")) as listener:
            send_and_leave(listener, burst(1_000, api_key=DESCRIBE_CONFIGS))
            await until(lambda: bool(served.order))
            await until(lambda: not listener.connections)
            assert served.order == [("gone", 0)]

    run(scenario)


def test_what_a_producer_sent_without_wanting_acks_is_served_although_it_has_closed() -> None:
    # As Kafka does it: a closed connection goes on until the first request that has a reply.
    async def scenario() -> None:
        served = Served(lambda c, p: NO_REPLY if c < 5_000 else echo(c, p))
        async with serving(served.by("producer"), limits(10)) as listener:
            send_and_leave(listener, burst(5_500, bytes(80)))
            await until(lambda: bool(served.order))
            await until(lambda: not listener.connections)
            assert [c for _, c in served.order] == list(range(5_001))

    run(scenario)


@pytest.mark.parametrize("kind", [Later, Exclusive])
def test_the_wait_for_a_reply_that_nobody_hears_is_ended(
    kind: type[Later] | type[Exclusive],
) -> None:
    async def scenario() -> None:
        waits = Waits(kind)
        served = Served(lambda c, p: waits(c, p) if c == 20 else NO_REPLY)
        async with serving(served.by("producer"), limits(10)) as listener:
            send_and_leave(listener, burst(100))
            await until(lambda: bool(served.order))
            await until(lambda: not listener.connections)
            await settle()
            assert waits.futures[20].cancelled()
            assert len(served.order) == 21

    run(scenario)


def test_a_reply_that_nobody_hears_is_released() -> None:
    async def scenario() -> None:
        released: list[int] = []
        served = Served(
            lambda c, p: Reply([b""], lambda: released.append(c)) if c == 20 else NO_REPLY
        )
        async with serving(served.by("producer"), limits(10)) as listener:
            send_and_leave(listener, burst(100))
            await until(lambda: bool(served.order))
            await until(lambda: not listener.connections)
            assert released == [20]

    run(scenario)


def test_a_peer_that_is_there_gets_all_its_replies_over_many_turns() -> None:
    async def scenario() -> None:
        async with serving(answering(echo), limits(10)) as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(burst(2_000, b"payload"))
            received = await reader.readexactly(2_000 * 15)
            assert replies(received) == [(i, b"payload") for i in range(2_000)]
            writer.close()

    run(scenario)


# -- everything else goes on while requests wait -------------------------------------------------


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
