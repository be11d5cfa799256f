import asyncio
import json
from typing import Any

from suwi.controller.failure_detector import _PeerMonitor
from suwi.env.tasks import cancel_and_wait
from suwi.metadata.image import BrokerInfo
from suwi.model.ids import NodeId


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
        waiting = asyncio.create_task(monitor._wait_for_change(QuietConnection(), None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await cancel_and_wait(waiting)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


class RegisteringConnection(QuietConnection):
    """To a broker whose registration is in the image before its first answer arrives."""

    def __init__(self) -> None:
        self.monitor: Any = None
        self.epochs = [-1, 7]

    async def send(self, *_: Any) -> bytes:
        self.monitor.observe(BrokerInfo(NodeId(2), (), epoch=7), again=False)
        epoch = self.epochs.pop(0)
        return json.dumps({"node": 2, "stopping": False, "epoch": epoch}).encode()

    def abort(self) -> None: ...


class AnsweredOwner(Owner):
    def __init__(self, connection: RegisteringConnection) -> None:
        self.connection = connection
        self.answers: asyncio.Queue[int] = asyncio.Queue()

    async def controller_epoch(self, _: int) -> None:
        return None

    async def connect(self, _: int) -> RegisteringConnection:
        return self.connection

    async def answered(self, incarnation: Any) -> float:
        self.answers.put_nowait(incarnation.epoch)
        return 0


def test_a_broker_that_registers_while_it_is_asked_is_asked_again() -> None:
    """Otherwise its epoch is not known, and its failure is noticed only when its session ends."""

    async def scenario() -> None:
        connection = RegisteringConnection()
        owner = AnsweredOwner(connection)
        connection.monitor = monitor = _PeerMonitor(2, owner)  # type: ignore[arg-type]
        monitoring = asyncio.create_task(monitor._monitor())
        async with asyncio.timeout(10):
            assert [await owner.answers.get() for _ in range(2)] == [-1, 7]
        await cancel_and_wait(monitoring)

    asyncio.run(scenario())
