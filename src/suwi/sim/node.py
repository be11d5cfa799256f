"""One broker of a cluster, through all incarnations of its process.

It can be started, stopped, killed, powered off and frozen: in a simulation, and in the test kit on
a real event loop.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Generic

from typing_extensions import TypeVar

from suwi.broker.broker import Broker
from suwi.env import Disk, Env
from suwi.env.tasks import TaskFailure
from suwi.metadata.embedded import EmbeddedView
from suwi.metadata.memory import MemoryView
from suwi.model.broker_config import BrokerConfig
from suwi.model.ids import NodeId
from suwi.sim.incarnation import Incarnation
from suwi.sim.machine import Machine

_V = TypeVar("_V", MemoryView, EmbeddedView)
_D = TypeVar("_D", bound=Disk)


class Node(Generic[_V, _D]):
    def __init__(
        self,
        node_id: NodeId,
        machine: Machine[_D],
        open_view: Callable[[], _V],
        config: Callable[[], BrokerConfig],
        brokers: int,
    ) -> None:
        """`open_view` connects to the store; `brokers` is how many the cluster has."""
        self.id = node_id
        self.name = machine.name
        self.machine = machine
        self.view: _V | None = None
        self.broker: Broker | None = None
        """Of the incarnation that runs, or ran last."""
        self.in_service = asyncio.Event()
        """Set while its process runs and is in service."""
        self.start_failure: Exception | None = None
        self.failures: list[TaskFailure] = []
        """Why its processes stopped themselves, if any did."""
        self._open_view: Callable[[], _V] = open_view
        self._config = config
        self._brokers = brokers

    @property
    def is_running(self) -> bool:
        return self.machine.is_running

    @property
    def is_frozen(self) -> bool:
        return self.is_running and self.machine.incarnation.frozen

    def begin(self) -> "asyncio.Task[None]":
        """Start a process; the task ends when it is in service, has failed or was killed."""
        env = self.machine.start()
        incarnation = self.machine.incarnation
        self.view = view = self.machine.call(self._open_view)
        incarnation.on_revoke(lambda: self._ended(view))
        self.broker = broker = self.machine.call(self._new_broker, env, view)
        self._has_new_process()
        starting = self.machine.spawn(broker.start(), name=f"start {incarnation.name}")
        return asyncio.create_task(self._wait_for(starting, incarnation))

    async def start(self) -> None:
        """Start a process and return when it is in service. Raises the error that prevented it."""
        await self.begin()
        if self.start_failure is not None:
            raise self.start_failure

    def _new_broker(self, env: Env, view: _V) -> Broker:
        return Broker(env, self._config(), view, brokers_in_process=self._brokers)

    def _has_new_process(self) -> None:
        """Called before the broker starts."""

    async def _wait_for(self, starting: "asyncio.Task[None]", incarnation: Incarnation) -> None:
        self.start_failure = None
        await asyncio.wait([starting])
        if incarnation.revoked or starting.cancelled():
            return
        error = starting.exception()
        if error is None:
            assert self.broker is not None
            self.say(f"{incarnation.name} is in service")
            self.in_service.set()
            self.machine.spawn(
                self._end_with(self.broker, incarnation), name=f"failure of {incarnation.name}"
            )
        else:
            assert isinstance(error, Exception), error
            self.say(f"{incarnation.name} cannot start: {error!r}")
            self.start_failure = error
            self.machine.kill()

    async def _end_with(self, broker: Broker, incarnation: Incarnation) -> None:
        """End the process of a broker that has stopped itself."""
        failure = await broker.wait_failed()
        self.say(f"{incarnation.name} stopped itself: {failure}")
        self.failures.append(failure)
        self.machine.kill()

    def _ended(self, view: _V) -> None:
        self.in_service.clear()
        view.kill()

    def say(self, what: str) -> None:
        """For error reports."""

    async def stop(self, together_with: Collection[NodeId] = ()) -> bool:
        """A clean stop, as on SIGTERM; returns whether it was clean."""
        assert self.broker is not None
        incarnation = self.machine.incarnation
        stopping = self.machine.spawn(
            self.broker.stop(together_with), name=f"stop {incarnation.name}"
        )
        await asyncio.wait([stopping])
        if incarnation.revoked or stopping.cancelled():
            return False
        self.kill()
        return stopping.result()

    def kill(self) -> None:
        """SIGKILL: written bytes stay."""
        self.machine.kill()

    def power_off(self, *, tear: bool = True) -> None:
        """Bytes that were not synced are lost, all or some of them; peers are not notified."""
        self.machine.power_off(tear=tear)

    def freeze(self) -> None:
        """SIGSTOP: the process does nothing and notices nothing; its session expires."""
        assert self.view is not None
        self.machine.freeze()
        self.view.suspend()

    def thaw(self) -> None:
        """SIGCONT."""
        assert self.view is not None
        self.view.reconnect()
        self.machine.thaw()
