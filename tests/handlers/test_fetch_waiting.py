"""A waiting fetch responds exactly once, whatever happens at the same time."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from suwi.handlers import fetch_job
from suwi.handlers.fetch_job import DelayedFetch
from suwi.net.answers import Answer, Exclusive, Reply
from tests.net.support import answering, connect, replies, request, run, settle


class Watched:
    """The part of `Partition` that a waiting fetch uses."""

    def __init__(self) -> None:
        self.watchers: list[Callable[[], None]] = []

    def watch(self, watcher: Callable[[], None], *, also_uncommitted: bool) -> None:
        self.watchers.append(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        self.watchers.remove(watcher)

    def notify(self) -> None:
        for watcher in list(self.watchers):
            watcher()


class Read(int):
    """The number of a read, in the place of a `ReadPass`."""

    has_news = False


class ReadWithNews(Read):
    has_news = True


class Job:
    """The part of `fetch_job.Job` that it uses."""

    class asked:  # noqa: N801
        replica_id = -1

    def __init__(self, enough: int = 1) -> None:
        self.partition = Watched()
        self.enough = enough
        self.looks = 0

    def watched(self) -> list[Watched]:
        return [self.partition]

    def read(self) -> Read:
        self.looks += 1
        return Read(self.looks)

    def is_enough(self, read: int) -> bool:
        return read >= self.enough

    def reply(self, read: int) -> Reply:
        return Reply([b"after %d" % read])


class BrokenJob(Job):
    def read(self) -> int:
        raise ZeroDivisionError


def waiting(job: Any, max_wait_s: float) -> Callable[[int, memoryview], Answer]:
    return lambda correlation_id, payload: Exclusive(DelayedFetch(job, max_wait_s).promise)


def test_many_appends_in_one_iteration_cause_one_read() -> None:
    async def scenario() -> None:
        job = Job(enough=2)
        _, wire = connect(answering(waiting(job, 60)))
        wire.deliver(request(1))
        for _ in range(3):
            job.partition.notify()
        await settle()
        assert (job.looks, bytes(wire.sent)) == (1, b"")
        job.partition.notify()
        await settle()
        assert replies(wire.sent) == [(1, b"after 2")]
        assert job.partition.watchers == []

    run(scenario)


def test_records_that_arrive_at_the_timeout_cause_one_response() -> None:
    async def scenario() -> None:
        job = Job(enough=2)
        _, wire = connect(answering(waiting(job, 0)))
        # Due at the same time as the timeout but scheduled before it; the read that it schedules
        # comes after the timeout.
        asyncio.get_running_loop().call_later(0, job.partition.notify)
        wire.deliver(request(1))
        for _ in range(10_000):
            await asyncio.sleep(0.001)
            if wire.sent:
                break
        await settle()
        assert (len(replies(wire.sent)), job.looks) == (1, 1)
        assert job.partition.watchers == []

    run(scenario)


class FollowersJob(Job):
    def read(self) -> Read:
        self.looks += 1
        return ReadWithNews(self.looks)


def test_a_high_watermark_for_a_follower_waits_for_records_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_job, "NEWS_DELAY_S", 30)  # However slow the machine is.

    async def scenario() -> None:
        job = FollowersJob(enough=2)
        _, wire = connect(answering(waiting(job, 60)))
        wire.deliver(request(1))
        job.partition.notify()
        await settle()
        assert (job.looks, bytes(wire.sent)) == (1, b"")
        job.partition.notify()
        await settle()
        assert replies(wire.sent) == [(1, b"after 2")]

    run(scenario)


@pytest.mark.parametrize("is_known_at_first", [False, True])
def test_a_high_watermark_for_a_follower_is_sent_although_no_records_come(
    is_known_at_first: bool,
) -> None:
    async def scenario() -> None:
        job = FollowersJob(enough=1_000)
        _, wire = connect(
            answering(
                lambda *_: Exclusive(DelayedFetch(job, 60, has_news=is_known_at_first).promise)
            )
        )
        wire.deliver(request(1))
        if not is_known_at_first:
            job.partition.notify()
        async with asyncio.timeout(30):
            while not wire.sent:  # noqa: ASYNC110 - what is sent is a buffer
                await asyncio.sleep(0.001)
        assert len(replies(wire.sent)) == 1
        assert job.partition.watchers == []

    run(scenario)


def test_a_disconnected_client_leaves_no_watcher() -> None:
    async def scenario() -> None:
        job = Job()
        _, wire = connect(answering(waiting(job, 60)))
        wire.deliver(request(1))
        wire.abort()
        job.partition.notify()
        await settle()
        assert job.looks == 0
        assert job.partition.watchers == []

    run(scenario)


@pytest.mark.parametrize("max_wait_s", [0, 60])
def test_a_read_that_fails_closes_the_connection(max_wait_s: float) -> None:
    async def scenario() -> None:
        job = BrokenJob()
        _, wire = connect(answering(waiting(job, max_wait_s)))
        wire.deliver(request(1))
        if max_wait_s:
            job.partition.notify()
        for _ in range(10_000):
            await asyncio.sleep(0.001)
            if wire.lost:
                break
        assert wire.lost
        assert job.partition.watchers == []

    run(scenario)


def test_a_completed_delayed_fetch_leaves_no_reference_cycles() -> None:
    async def scenario() -> None:
        jobs: list[Job] = []

        def answer(correlation_id: int, payload: memoryview) -> Answer:
            jobs.append(Job())
            return waiting(jobs[-1], 60)(correlation_id, payload)

        _, wire = connect(answering(answer))
        gc.collect()
        gc.disable()
        try:
            for number in range(50):
                wire.deliver(request(number))
                jobs.pop().partition.notify()
                await settle()
            assert len(replies(wire.sent)) == 50
            assert gc.collect() < 50
        finally:
            gc.enable()

    run(scenario)
