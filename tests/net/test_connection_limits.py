"""What a peer that reads slowly, sends slowly or falls silent may cost."""

import asyncio

from suwi.net.answers import Answer, Reply
from suwi.net.limits import Limits
from tests.net.support import Waits, answering, connect, echo, replies, request, run, settle


def test_a_slow_reader_stops_being_read_when_its_replies_reach_the_limit() -> None:
    async def scenario() -> None:
        limits = Limits(in_flight_bytes_max=100_000)
        served = []

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            served.append(correlation_id)
            return Reply([bytes([correlation_id % 256]) * 10_000])

        connection, wire = connect(answering(answer), limits, room_bytes=0)
        for i in range(1000):
            wire.deliver(request(i))
        assert len(served) <= 12
        assert not wire.reading
        assert connection._output.queued_bytes + wire.buffered_bytes_max <= 120_000
        while len(wire.sent) < 1000 * 10_008:
            wire.take(33_333)
            await settle()
            assert connection._output.queued_bytes <= 110_000
        assert [c for c, _ in replies(wire.sent)] == list(range(1000))
        assert wire.reading

    run(scenario)


def test_requests_in_flight_are_capped() -> None:
    async def scenario() -> None:
        waits = Waits()
        _, wire = connect(answering(waits), Limits(in_flight_requests_max=5))
        wire.deliver(b"".join(request(i) for i in range(12)))
        assert list(waits.futures) == list(range(5))
        assert not wire.reading
        waits.end(1)
        await settle()
        assert len(waits.futures) == 5, "1 cannot leave before 0"
        waits.end(0)
        await settle()
        assert len(waits.futures) == 7
        for i in range(2, 12):
            waits.end(i)
            await settle()
        assert [c for c, _ in replies(wire.sent)] == list(range(12))
        assert wire.reading

    run(scenario)


def test_bytes_of_waiting_requests_are_capped() -> None:
    async def scenario() -> None:
        waits = Waits()
        _, wire = connect(answering(waits), Limits(in_flight_bytes_max=100_000))
        for i in range(10):
            wire.deliver(request(i, bytes(40_000)))
        assert len(waits.futures) == 3

    run(scenario)


def test_one_burst_of_tiny_requests_with_large_replies_stays_within_the_limit() -> None:
    async def scenario() -> None:
        body = bytes(100_000)
        connection, wire = connect(
            answering(lambda c, p: Reply([body])), Limits(in_flight_bytes_max=1_000_000)
        )
        wire._room_bytes = 300_000
        wire.deliver(b"".join(request(i) for i in range(5000)))
        assert connection._output.replies <= 11
        assert connection._output.queued_bytes <= 1_100_000

    run(scenario)


def test_stopping_lets_waiting_replies_leave_and_starts_nothing_new() -> None:
    async def scenario() -> None:
        waits = Waits()
        connection, wire = connect(answering(waits))
        wire.deliver(request(0) + request(1)[:6])
        connection.stop()
        wire.deliver(request(1)[6:])
        await settle()
        assert not wire.lost
        waits.end(0)
        await settle()
        assert wire.lost
        assert replies(wire.sent) == [(0, b"done")]
        assert list(waits.futures) == [0]

    run(scenario)


def test_a_slow_frame_is_cut_off_and_a_steady_one_is_not() -> None:
    async def scenario() -> None:
        limits = Limits(frame_ms_max=10_000, frame_bytes_per_s_min=100)
        now = asyncio.get_running_loop().time()
        frame = request(1, bytes(10_000))
        slow, slow_wire = connect(answering(echo), limits)
        steady, steady_wire = connect(answering(echo), limits)
        slow_wire.deliver(frame[:10])
        steady_wire.deliver(frame[:10])
        slow_wire.deliver(frame[10:500])
        steady_wire.deliver(frame[10:5000])
        for connection in (slow, steady):
            connection.check_time(now + 9)
        await settle()
        assert not slow_wire.lost
        for connection in (slow, steady):
            connection.check_time(now + 12)
        await settle()
        assert (slow_wire.lost, steady_wire.lost) == (True, False)
        steady.check_time(now + 24)
        await settle()
        assert steady_wire.lost, "what came early does not count for ever"

    run(scenario)


def test_only_a_connection_that_waits_for_nothing_is_idle() -> None:
    async def scenario() -> None:
        limits = Limits(idle_ms_max=10_000)
        now = asyncio.get_running_loop().time()
        waits = Waits()
        idle, idle_wire = connect(answering(echo), limits)
        polling, polling_wire = connect(answering(waits), limits)
        stuck, stuck_wire = connect(answering(echo), limits, room_bytes=0)
        idle_wire.deliver(request(1))
        polling_wire.deliver(request(1))
        stuck_wire.deliver(request(1))
        for connection in (idle, polling, stuck):
            connection.check_time(now + 11)
        await settle()
        assert (idle_wire.lost, polling_wire.lost, stuck_wire.lost) == (True, False, True)

    run(scenario)
