"""Order, waiting and limits of one connection, on a transport without a socket."""

import asyncio
import errno
import gc
import logging
import weakref
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.net.answers import (
    NO_REPLY,
    Answer,
    CloseConnection,
    Exclusive,
    Later,
    NoReply,
    Promise,
    Reply,
)
from suwi.net.buffer_pool import SHARED_BYTES
from suwi.net.limits import Limits
from suwi.net.stats import Measured, NetStats
from tests.net.support import Waits, answering, connect, echo, pieces, replies, request, run, settle


def test_replies_of_one_readable_event_leave_in_one_write() -> None:
    async def scenario() -> None:
        _, wire = connect(answering(echo))
        wire.deliver(b"".join(request(i, b"p%d" % i) for i in range(50)))
        assert replies(wire.sent) == [(i, b"p%d" % i) for i in range(50)]
        assert wire.writes == 1

    run(scenario)


def test_later_replies_leave_in_request_order_whatever_ends_first() -> None:
    async def scenario() -> None:
        waits = Waits()
        _, wire = connect(answering(waits))
        wire.deliver(b"".join(request(i) for i in range(4)))
        assert list(waits.futures) == [0, 1, 2, 3], "a later reply holds nobody up"
        waits.end(3)
        waits.end(1)
        await settle()
        assert wire.sent == b""
        waits.end(0)
        await settle()
        assert [c for c, _ in replies(wire.sent)] == [0, 1]
        waits.end(2)
        await settle()
        assert [c for c, _ in replies(wire.sent)] == [0, 1, 2, 3]

    run(scenario)


def test_later_replies_that_end_together_share_a_write() -> None:
    async def scenario() -> None:
        waits = Waits()
        _, wire = connect(answering(waits))
        wire.deliver(b"".join(request(i) for i in range(30)))
        for i in range(30):
            waits.end(i)
        await settle()
        assert len(replies(wire.sent)) == 30
        assert wire.writes == 1

    run(scenario)


def test_a_ready_reply_waits_behind_a_later_one() -> None:
    async def scenario() -> None:
        waits = Waits()
        _, wire = connect(answering(lambda c, p: waits(c, p) if c == 0 else echo(c, p)))
        wire.deliver(request(0) + request(1, b"ready"))
        assert wire.sent == b""
        waits.end(0)
        await settle()
        assert replies(wire.sent) == [(0, b"done"), (1, b"ready")]

    run(scenario)


def test_no_request_starts_while_an_exclusive_one_runs() -> None:
    async def scenario() -> None:
        waits = Waits(Exclusive)
        _, wire = connect(answering(waits))
        wire.deliver(request(0))
        assert wire.reading, "so that a disconnect is seen"
        wire.deliver(request(1) + request(2) + request(3)[:5])
        wire.deliver(request(3)[5:])
        assert list(waits.futures) == [0]
        assert not wire.reading
        for i in range(4):
            waits.end(i)
            await settle()
            assert [c for c, _ in replies(wire.sent)] == list(range(i + 1))
        assert wire.reading

    run(scenario)


def test_the_next_request_starts_when_the_exclusive_part_of_one_ends() -> None:
    async def scenario() -> None:
        waits = Waits()
        untils: dict[int, asyncio.Future[None]] = {}

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            untils[correlation_id] = until = asyncio.get_running_loop().create_future()
            later = waits(correlation_id, payload)
            assert isinstance(later, Later)
            return Exclusive(later.reply, until)

        _, wire = connect(Measured(answering(answer), NetStats()))
        wire.deliver(request(0) + request(1) + request(2))
        assert list(untils) == [0]
        untils[0].set_result(None)
        await settle()
        assert list(untils) == [0, 1]
        waits.end(0)
        await settle()
        assert replies(wire.sent) == [(0, b"done")]
        assert list(untils) == [0, 1], "a reply does not end the exclusive part of another request"
        untils[1].set_result(None)
        await settle()
        assert list(untils) == [0, 1, 2]
        untils[2].set_result(None)
        waits.end(2)
        waits.end(1)
        await settle()
        assert [c for c, _ in replies(wire.sent)] == [0, 1, 2]

    run(scenario)


def test_a_coroutine_may_answer() -> None:
    async def scenario() -> None:
        async def slowly(payload: bytes) -> Reply:
            await asyncio.sleep(0)
            return Reply([payload])

        _, wire = connect(answering(lambda c, p: Exclusive(slowly(bytes(p)))))
        wire.deliver(request(1, b"one") + request(2, b"two"))
        await settle()
        assert replies(wire.sent) == [(1, b"one"), (2, b"two")]

    run(scenario)


def test_no_reply_leaves_no_gap() -> None:
    async def scenario() -> None:
        waits = Waits()

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            if correlation_id == 1:
                return waits(correlation_id, payload)
            return echo(correlation_id, payload) if correlation_id % 2 else NO_REPLY

        _, wire = connect(answering(answer))
        wire.deliver(b"".join(request(i) for i in range(6)))
        waits.futures[1].set_result(NO_REPLY)
        await settle()
        assert [c for c, _ in replies(wire.sent)] == [3, 5]

    run(scenario)


def test_a_frame_may_be_split_at_every_byte() -> None:
    async def scenario() -> None:
        stream = request(1, b"first") + request(2, b"") + request(3, b"third" * 10)
        expected = [(1, b"first"), (2, b""), (3, b"third" * 10)]
        for cut in range(1, len(stream)):
            _, wire = connect(answering(echo))
            wire.deliver(stream[:cut])
            wire.deliver(stream[cut:])
            assert replies(wire.sent) == expected
        _, wire = connect(answering(echo))
        for byte in pieces(stream, 1):
            wire.deliver(byte)
        assert replies(wire.sent) == expected

    run(scenario)


@pytest.mark.parametrize("piece_bytes", [1000, 100_000, 300_000, 5_000_000])
def test_large_frames_arrive_whole_and_writable(piece_bytes: int) -> None:
    async def scenario() -> None:
        payloads = [bytes([i]) * size for i, size in enumerate((1_000_000, 7, 262_136, 262_137))]

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            copy = bytes(payload)
            payload[: len(b"patched")] = b"patched"
            return Reply([copy])

        connection, wire = connect(answering(answer))
        stream = b"".join(request(i, payload) for i, payload in enumerate(payloads))
        for piece in pieces(stream * 3, piece_bytes):
            wire.deliver(piece)
        assert replies(wire.sent) == list(enumerate(payloads)) * 3
        assert connection.buffer_pool.allocated_bytes == 0

    run(scenario)


def test_a_large_frame_after_another_is_read_whole_where_it_is_served() -> None:
    async def scenario() -> None:
        connection, wire = connect(answering(lambda c, p: Reply([b""])))
        large, small = request(1, bytes(1_000_000)), request(2)
        assert len(connection.get_buffer(-1)) == SHARED_BYTES
        wire.deliver(large)
        for frame in (large, large):
            assert len(connection.get_buffer(-1)) == len(frame)
            wire.deliver(frame)
        assert connection._reader.held is None
        wire.deliver(small)
        assert len(connection.get_buffer(-1)) == SHARED_BYTES
        assert len(replies(wire.sent)) == 4

    run(scenario)


def test_a_connection_that_may_not_go_on_holds_no_more_than_others() -> None:
    async def scenario() -> None:
        connection, wire = connect(answering(Waits(Exclusive)))
        wire.deliver(request(1, bytes(1_000_000)))
        wire.deliver(request(2, bytes(1_000_000)))
        assert connection.buffer_pool.allocated_bytes <= SHARED_BYTES

    run(scenario)


def test_memory_grows_with_bytes_received_not_with_bytes_announced() -> None:
    async def scenario() -> None:
        connection, wire = connect(answering(echo))
        frame = request(1, bytes(100_000_000))
        wire.deliver(frame[:10])
        assert connection.buffer_pool.allocated_bytes <= 8 * 1024
        wire.deliver(frame[10:100_000])
        assert connection.buffer_pool.allocated_bytes <= 2 * 8 * 100_000
        wire.abort()
        await settle()
        assert connection.buffer_pool.allocated_bytes == 0

    run(scenario)


@pytest.mark.parametrize("size", [-1, -(2**31), 1_000_001, 2**31 - 1])
def test_an_impossible_frame_size_closes_the_connection(size: int) -> None:
    async def scenario() -> None:
        limits = Limits(request_bytes_max=1_000_000)
        _, wire = connect(answering(echo), limits)
        wire.deliver(request(1, b"fine") + size.to_bytes(4, "big", signed=True))
        await settle()
        assert wire.lost
        assert replies(wire.sent) == [(1, b"fine")], "what was ready has left"

    run(scenario)


def test_the_largest_allowed_frame_is_served() -> None:
    async def scenario() -> None:
        limits = Limits(request_bytes_max=1_000_000)
        _, wire = connect(answering(echo), limits)
        wire.deliver(request(1, bytes(1_000_000 - 8)))
        assert replies(wire.sent) == [(1, bytes(1_000_000 - 8))]

    run(scenario)


def test_a_peers_fault_closes_its_connection_and_is_logged_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        def refuse(correlation_id: int, payload: memoryview) -> Answer:
            raise CloseConnection("bad bytes")

        _, wire = connect(answering(refuse))
        wire.deliver(request(1) + request(2))
        await settle()
        assert wire.lost

    with caplog.at_level(logging.INFO):
        run(scenario)
    [record] = caplog.records
    assert (record.levelname, record.exc_info) == ("INFO", None)
    assert record.__dict__["reason"] == "bad bytes"


@pytest.mark.parametrize("when", ["at once", "later"])
def test_an_unexpected_error_closes_the_connection_and_is_logged_with_its_traceback(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async def fail() -> Reply:
            raise ZeroDivisionError

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            if when == "later":
                return Later(fail())
            raise ZeroDivisionError

        _, wire = connect(answering(answer))
        wire.deliver(request(1) + request(2))
        await settle()
        assert wire.lost

    run(scenario)
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize("kind", [Later, Exclusive])
def test_a_disconnect_cancels_waits(kind: type[Later] | type[Exclusive]) -> None:
    async def scenario() -> None:
        cancelled = []

        async def wait(correlation_id: int) -> Reply:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(correlation_id)
                raise
            raise AssertionError

        _, wire = connect(answering(lambda c, p: kind(wait(c))))
        wire.deliver(request(1) + request(2))
        await settle()
        wire.abort()
        await settle()
        assert cancelled == ([1, 2] if kind is Later else [1])

    run(scenario)


def test_every_reply_is_released_once_when_sent_or_when_the_connection_is_lost() -> None:
    async def scenario() -> None:
        released: list[str] = []
        waits = Waits()

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            if correlation_id == 3:
                return waits(correlation_id, payload)
            name = str(correlation_id)
            return Reply([b"x" * 100], lambda: released.append(name))

        _, wire = connect(answering(answer), room_bytes=150)
        wire.deliver(request(0))
        assert released == ["0"]
        wire.deliver(request(1) + request(2) + request(3) + request(4))
        assert released == ["0"], "the kernel has not taken all of 1"
        wire.take(80)
        assert released == ["0", "1"]
        waits.futures[3].set_result(Reply([b"y"], lambda: released.append("3")))
        wire.abort()
        await settle()
        assert sorted(released) == ["0", "1", "2", "3", "4"]

    run(scenario)


class Promises:
    """Answers that the test keeps one by one."""

    def __init__(self, kind: type[Later] | type[Exclusive] = Later) -> None:
        self.kind = kind
        self.made: dict[int, Promise] = {}
        self.dropped: list[int] = []

    def __call__(self, correlation_id: int, payload: memoryview) -> Answer:
        promise = Promise(lambda: self.dropped.append(correlation_id))
        self.made[correlation_id] = promise
        return self.kind(promise)


def test_promised_replies_leave_together_and_in_request_order() -> None:
    async def scenario() -> None:
        promises = Promises()
        _, wire = connect(answering(promises))
        wire.deliver(b"".join(request(i) for i in range(4)))
        for number in (2, 0, 1):
            promises.made[number].keep(Reply([b"%d" % number]))
        await settle()
        assert replies(wire.sent) == [(0, b"0"), (1, b"1"), (2, b"2")]
        assert wire.writes == 1
        promises.made[3].keep(NO_REPLY)
        wire.deliver(request(4))
        promises.made[4].keep(Reply([b"4"]))
        await settle()
        assert replies(wire.sent)[3:] == [(4, b"4")]
        wire.abort()
        await settle()
        assert promises.dropped == []

    run(scenario)


def test_an_exclusive_promise_holds_the_next_request_until_it_is_kept() -> None:
    async def scenario() -> None:
        promises = Promises(Exclusive)
        _, wire = connect(answering(promises))
        wire.deliver(request(0) + request(1))
        assert list(promises.made) == [0]
        promises.made[0].keep(Reply([b"0"]))
        assert list(promises.made) == [0, 1], "at once"
        assert replies(wire.sent) == [(0, b"0")]

    run(scenario)


def test_a_promise_is_dropped_when_the_connection_is_lost_and_may_be_kept_all_the_same() -> None:
    async def scenario() -> None:
        promises = Promises()
        _, wire = connect(answering(promises))
        wire.deliver(request(0) + request(1))
        wire.abort()
        await settle()
        assert promises.dropped == [0, 1]
        promises.made[0].keep(Reply([b"late"]))
        await settle()

    run(scenario)


def test_a_promise_that_is_over_keeps_nobody_alive() -> None:
    """It may itself be kept by something that goes on: a commit that never came."""

    async def scenario() -> None:
        for how_it_ends in ("kept", "lost"):
            promises = Promises()
            connection, wire = connect(answering(promises))
            wire.deliver(request(0))
            promise = promises.made[0]
            gone = [weakref.ref(promises), weakref.ref(wire)]
            if how_it_ends == "kept":
                promise.keep(Reply([b"r"]))
            wire.abort()
            await settle()
            del connection, wire, promises
            gc.collect()
            assert [each() for each in gone] == [None, None]

    run(scenario)


def test_a_promise_that_is_broken_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        promises = Promises()
        _, wire = connect(answering(promises))
        wire.deliver(request(0))
        promises.made[0].keep(ZeroDivisionError())
        await settle()
        assert wire.lost

    run(scenario)
    assert [record.message for record in caplog.records] == ["request failed"]


def test_a_request_without_descriptors_is_told_as_that_and_not_as_a_bug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def load_a_module(_correlation_id: int, _payload: bytes) -> Answer:
        raise OSError(errno.EMFILE, "Too many open files", "schema.py")

    async def scenario() -> None:
        _, wire = connect(answering(load_a_module))
        wire.deliver(request(0))
        await settle()
        assert wire.lost

    run(scenario)
    (line,) = caplog.records
    assert (line.message, line.__dict__["reason"]) == ("request failed", "Too many open files")
    assert line.exc_info is None


def test_a_reply_that_arrives_after_the_disconnect_is_released() -> None:
    async def scenario() -> None:
        released: list[int] = []

        async def stubborn() -> Reply:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            return Reply([b""], lambda: released.append(1))

        _, wire = connect(answering(lambda c, p: Later(stubborn())))
        wire.deliver(request(1))
        await settle()
        wire.abort()
        await settle()
        assert released == [1]

    run(scenario)


Step = tuple[str, int, int]  # kind of answer, request payload, reply size

steps = st.lists(
    st.tuples(
        st.sampled_from(["reply", "reply", "later", "exclusive", "none", "coroutine"]),
        st.sampled_from([0, 1, 100, 5_000, 60_000, 300_000]),
        st.sampled_from([0, 10, 3_000, 400_000]),
    ),
    max_size=12,
)


def cut_up(stream: bytes, cuts: list[float]) -> list[bytes]:
    places = [0, *sorted(int(cut * len(stream)) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(places)]


@given(
    steps,
    st.lists(st.floats(0, 1), max_size=20),
    st.lists(st.sampled_from([1, 7, 1_000, 50_000, 300_000]), min_size=1, max_size=10),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_any_mixture_of_answers_pieces_and_paces_gives_all_replies_in_order(
    script: list[Step], cuts: list[float], takes: list[int], random: Random, is_tight: bool
) -> None:
    waits: list[tuple[asyncio.Future[Reply | NoReply], Reply]] = []
    seen: list[int] = []

    async def slowly(reply: Reply) -> Reply:
        await asyncio.sleep(0)
        return reply

    def answer(correlation_id: int, payload: memoryview) -> Answer:
        kind, payload_bytes, reply_bytes = script[correlation_id]
        assert bytes(payload) == bytes([correlation_id]) * payload_bytes
        seen.append(correlation_id)
        reply = Reply([bytes([correlation_id]) * reply_bytes])
        if kind == "none":
            return NO_REPLY
        if kind == "reply":
            return reply
        if kind == "coroutine":
            return Exclusive(slowly(reply))
        future: asyncio.Future[Reply | NoReply] = asyncio.get_running_loop().create_future()
        waits.append((future, reply))
        return Later(future) if kind == "later" else Exclusive(future)

    async def scenario() -> None:
        tight = Limits(in_flight_requests_max=2, in_flight_bytes_max=50_000)
        connection, wire = connect(answering(answer), tight if is_tight else None, room_bytes=0)
        incoming = cut_up(
            b"".join(request(i, bytes([i]) * size) for i, (_, size, _) in enumerate(script)), cuts
        )
        expected = [
            (i, bytes([i]) * size) for i, (kind, _, size) in enumerate(script) if kind != "none"
        ]
        total = sum(8 + len(body) for _, body in expected)
        turn = 0
        while incoming or len(wire.sent) < total or len(seen) < len(script):
            if incoming:
                wire.deliver(incoming.pop(0))
            if waits and turn % 2:
                future, reply = waits.pop(random.randrange(len(waits)))
                future.set_result(reply)
            await asyncio.sleep(0)
            wire.take(takes[turn % len(takes)] if turn % 3 else 300_000)
            await asyncio.sleep(0)
            turn += 1
            assert turn < 1_000, "stuck"
        await settle()
        assert replies(wire.sent) == expected
        assert seen == list(range(len(script)))
        assert wire.reading
        assert connection.buffer_pool.allocated_bytes == 0
        assert (connection._output.queued_bytes, connection._output.replies) == (0, 0)
        assert connection._order.bytes_in_flight == 0

    run(scenario)
