import asyncio
from typing import Any

from suwi.broker.failure_detector import _PeerMonitor
from suwi.env.tasks import cancel_and_wait


class QuietConnection:
    """Open, and nothing happens on it."""

    is_open = True

    async def lost(self) -> None:
        await asyncio.Event().wait()


class Owner:
    """Starts no tasks: the test calls the monitor itself."""

    class tasks:  # noqa: N801
        @staticmethod
        def start(*_: Any, **__: Any) -> None: ...


def test_a_monitor_that_is_stopped_leaves_no_task_behind() -> None:
    async def scenario() -> None:
        monitor: Any = _PeerMonitor(2, Owner())  # type: ignore[arg-type]
        waiting = asyncio.create_task(monitor._wait_for_change(QuietConnection()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await cancel_and_wait(waiting)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
