"""Promises of replies: kept, broken, cancelled."""

import asyncio
import logging

import pytest

from suwi.net.answers import CloseConnection, NoReply, Promise, Reply, as_promise
from tests.net.support import run, settle


def test_a_promise_can_be_awaited_before_and_after_it_is_kept() -> None:
    async def scenario() -> None:
        dropped: list[int] = []
        reply = Reply([b"r"])

        async def wait(promise: Promise) -> Reply | NoReply:
            return await promise

        kept = Promise(lambda: None)
        kept.keep(reply)
        assert await wait(kept) is reply
        broken = Promise(lambda: None)
        waiting = asyncio.create_task(wait(broken))
        await settle()
        broken.keep(ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            await waiting
        given_up = asyncio.create_task(wait(Promise(lambda: dropped.append(1))))
        await settle()
        given_up.cancel()
        await settle()
        assert given_up.cancelled()
        assert dropped == [1]
        too_late = Promise(lambda: None)
        given_up = asyncio.create_task(wait(too_late))
        await settle()
        given_up.cancel()
        too_late.keep(reply)
        await settle()
        assert given_up.cancelled()

    run(scenario)


@pytest.mark.parametrize("is_kept_first", [False, True])
def test_a_reply_is_released_if_its_reader_is_cancelled_at_the_same_time(
    is_kept_first: bool,
) -> None:
    async def scenario() -> None:
        released: list[int] = []
        promise = Promise(lambda: None)

        async def wait() -> Reply | NoReply:
            return await promise

        waiting = asyncio.create_task(wait())
        await settle()
        steps = [
            lambda: promise.keep(Reply([b"r"], lambda: released.append(1))),
            lambda: waiting.cancel(),
        ]
        for step in steps if is_kept_first else steps[::-1]:
            step()
        await settle()
        assert waiting.cancelled()
        assert released == [1]

    run(scenario)


@pytest.mark.parametrize(
    ("error", "is_told"), [(CloseConnection("malformed"), False), (KeyError(), True)]
)
def test_after_a_disconnect_only_errors_of_the_broker_are_told(
    error: Exception, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async def fail_when_cancelled() -> Reply | NoReply:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                raise error from None
            return Reply([b"late"])

        promise = as_promise(asyncio.get_running_loop(), fail_when_cancelled())
        await settle()
        promise.cancel()
        await settle()

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert ("after the client had disconnected" in caplog.text) is is_told
