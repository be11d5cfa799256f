"""The handling of background work that fails unexpectedly."""

import asyncio

import pytest

from suwi.env.tasks import RESTART, STOP_BROKER, TaskFailure, Tasks, cancel_and_wait
from suwi.sim.simulation import Simulation

FAILURES = 1200
"""More than Python's limit of recursion."""


class Bug(Exception):
    pass


async def _fails() -> None:
    raise Bug


def test_broker_wide_work_that_fails_is_reported_as_fatal_with_its_name() -> None:
    fatal: list[TaskFailure] = []

    async def main() -> None:
        tasks = Tasks(fatal.append)
        await tasks.start(_fails, name="metadata follower", on_failure=STOP_BROKER)
        assert tasks.failures == {"metadata follower": 1}

    asyncio.run(main())
    assert [(failure.task, type(failure.error)) for failure in fatal] == [
        ("metadata follower", Bug)
    ]


def test_restarted_work_continues_after_more_failures_than_a_stack_has_frames() -> None:
    attempts = 0

    async def main() -> None:
        def fatal(failure: TaskFailure) -> None:
            raise AssertionError(failure)

        async def work() -> None:
            nonlocal attempts
            attempts += 1
            if attempts <= FAILURES:
                raise Bug

        tasks = Tasks(fatal)
        await tasks.start(work, name="retention", on_failure=RESTART)
        assert tasks.failures["retention"] == FAILURES

    Simulation(seed=1).run(main())
    assert attempts == FAILURES + 1


def test_a_failure_with_a_handler_only_calls_the_handler() -> None:
    handled: list[Exception] = []

    async def main() -> None:
        tasks = Tasks(lambda failure: pytest.fail(str(failure)))
        await tasks.start(_fails, name="sync", on_failure=handled.append)

    asyncio.run(main())
    assert [type(error) for error in handled] == [Bug]


@pytest.mark.parametrize("on_failure", [STOP_BROKER, RESTART])
def test_cancelling_is_no_failure(on_failure: object) -> None:
    async def main() -> None:
        tasks = Tasks(lambda failure: pytest.fail(str(failure)))
        task = tasks.start(
            asyncio.Event().wait,  # type: ignore[arg-type]
            name="waits",
            on_failure=on_failure,  # type: ignore[arg-type]
        )
        await asyncio.sleep(0)
        await cancel_and_wait(task, None)
        assert task.cancelled()
        assert not tasks.failures

    asyncio.run(main())


def test_waiting_for_no_task_needs_no_event_loop() -> None:
    """An abandoned coroutine may run this in its `finally`, when its loop is closed."""
    waiting = cancel_and_wait(None)
    with pytest.raises(StopIteration):
        waiting.send(None)
