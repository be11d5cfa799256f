"""A fetch that waits for more: it answers once, whatever happens at the same time."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from suwi.handlers.delayed_fetch import DelayedFetch
from suwi.net import Answer, Exclusive, Reply
from tests.net.support import answering, connect, replies, request, run, settle


class Watched:
    """What a waiting fetch needs of a partition."""

    def __init__(self) -> None:
        self.watchers: list[Callable[[], None]] = []

    def watch(self, watcher: Callable[[], None], *, also_uncommitted: bool) -> None:
        self.watchers.append(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        self.watchers.remove(watcher)

    def ring(self) -> None:
        for watcher in list(self.watchers):
            watcher()


class Job:
    """And of its job."""

    class asked:  # noqa: N801
        replica_id = -1

    def __init__(self, enough: int = 1) -> None:
        self.partition = Watched()
        self.enough = enough
        self.looks = 0

    def watched(self) -> list[Watched]:
        return [self.partition]

    def look(self) -> int:
        self.looks += 1
        return self.looks

    def is_enough(self, look: int) -> bool:
        return look >= self.enough

    def reply(self, look: int) -> Reply:
        return Reply([b"after %d" % look])


class BrokenJob(Job):
    def look(self) -> int:
        raise ZeroDivisionError


def waiting(job: Any, patience_s: float) -> Callable[[int, memoryview], Answer]:
    return lambda correlation_id, payload: Exclusive(DelayedFetch(job, patience_s).promise)


def test_many_appends_in_one_turn_are_one_look() -> None:
    async def scenario() -> None:
        job = Job(enough=2)
        _, wire = connect(answering(waiting(job, 60)))
        wire.deliver(request(1))
        for _ in range(3):
            job.partition.ring()
        await settle()
        assert (job.looks, bytes(wire.sent)) == (1, b"")
        job.partition.ring()
        await settle()
        assert replies(wire.sent) == [(1, b"after 2")]
        assert job.partition.watchers == []

    run(scenario)


def test_more_that_comes_when_time_is_up_is_answered_once() -> None:
    async def scenario() -> None:
        job = Job(enough=2)
        _, wire = connect(answering(waiting(job, 0)))
        # Due at the same time as the end of its patience, and before that: the look that it plans
        # comes after.
        asyncio.get_running_loop().call_later(0, job.partition.ring)
        wire.deliver(request(1))
        for _ in range(100):
            await asyncio.sleep(0.001)
            if wire.sent:
                break
        await settle()
        assert (len(replies(wire.sent)), job.looks) == (1, 1)
        assert job.partition.watchers == []

    run(scenario)


def test_a_client_that_goes_away_leaves_no_watcher() -> None:
    async def scenario() -> None:
        job = Job()
        _, wire = connect(answering(waiting(job, 60)))
        wire.deliver(request(1))
        wire.abort()
        job.partition.ring()
        await settle()
        assert job.looks == 0
        assert job.partition.watchers == []

    run(scenario)


@pytest.mark.parametrize("patience_s", [0, 60])
def test_a_look_that_fails_closes_the_connection(patience_s: float) -> None:
    async def scenario() -> None:
        job = BrokenJob()
        _, wire = connect(answering(waiting(job, patience_s)))
        wire.deliver(request(1))
        if patience_s:
            job.partition.ring()
        for _ in range(100):
            await asyncio.sleep(0.001)
            if wire.lost:
                break
        assert wire.lost
        assert job.partition.watchers == []

    run(scenario)


def test_a_fetch_that_waited_leaves_no_work_for_the_garbage_collector() -> None:
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
                jobs.pop().partition.ring()
                await settle()
            assert len(replies(wire.sent)) == 50
            assert gc.collect() < 50
        finally:
            gc.enable()

    run(scenario)
