"""One connection's pipelined requests: they are served in turns with everybody else's."""

import asyncio
from collections.abc import Generator

import pytest

from suwi.net.answers import Answer, Reply
from suwi.net.fair_turns import (
    _LARGE_REPLIES_MAX,
    _SMALL_REPLY_SLICES,
    SliceTurns,
    Turns,
)
from suwi.net.limits import Limits
from suwi.net.listener import Budget
from suwi.net.output import WRITE_BYTES
from tests.net.support import (
    Served,
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


def test_connections_that_are_read_in_one_iteration_of_the_loop_share_the_time_of_one_turn() -> (
    None
):
    async def scenario() -> None:
        turns = Turns(requests_max=128, ms_max=2.0)
        assert turns.limits(10.0) == (128, 10.002)
        assert turns.limits(10.001) == (128, 10.002)
        await asyncio.sleep(0)
        assert turns.limits(11.0) == (128, 11.002)

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


def test_a_bounded_number_of_large_replies_is_built_at_once_and_small_ones_pass_them() -> None:
    async def scenario() -> None:
        slices, begun, most = SliceTurns(), set[int](), 0

        def work(number: int, items: int) -> Generator[None, None, int]:
            nonlocal most
            try:
                for item in range(items):
                    if item == _SMALL_REPLY_SLICES:
                        begun.add(number)
                        most = max(most, len(begun))
                    yield
                return number
            finally:
                begun.discard(number)

        large = [asyncio.create_task(slices.build(work(n, 100))) for n in range(50)]
        while len(begun) < _LARGE_REPLIES_MAX:  # noqa: ASYNC110 (nothing tells us)
            await asyncio.sleep(0)
        large[0].cancel()
        large[49].cancel()
        assert await slices.build(work(50, 3)) == 50
        assert not any(task.done() and not task.cancelled() for task in large)
        done = await asyncio.gather(*large, return_exceptions=True)
        assert [each for each in done if isinstance(each, int)] == list(range(1, 49))
        assert most == _LARGE_REPLIES_MAX

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
