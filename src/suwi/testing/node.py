"""One broker of a test cluster, through all lives of its process.

`start` begins a life; `stop`, `kill` and `lose_power` end it, each in its way; `freeze` and `thaw`
interrupt it. Its data, its port and its drive stay.
"""

import asyncio
from collections.abc import Mapping

from suwi.broker.broker import Broker
from suwi.env import Env, SystemClock, SystemRandom
from suwi.metadata.embedded import EmbeddedStore, EmbeddedView
from suwi.model.broker_config import parse_broker_config
from suwi.model.ids import NodeId
from suwi.testing.disk import Drive
from suwi.testing.loop import ClusterLoop
from suwi.testing.ports import Reservation
from suwi.testing.process import Process


class Node:
    def __init__(
        self,
        node_id: int,
        loop: ClusterLoop,
        store: EmbeddedStore,
        path: str,
        settings: Mapping[str, str],
        brokers: int,
    ) -> None:
        self.id = NodeId(node_id)
        self.path = path
        self.drive = Drive(path)
        self.port = 0
        self.broker: Broker | None = None
        """Of the life that runs, or ran last."""
        self._loop = loop
        self._store = store
        self._settings = settings
        self._brokers = brokers
        self._process: Process | None = None
        self._view: EmbeddedView | None = None
        self._lives = 0
        self._watch: asyncio.Task[None] | None = None
        self._reservation: Reservation | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and not self._process.revoked

    @property
    def is_frozen(self) -> bool:
        return self._process is not None and self._process.frozen and self.is_running

    # -- a life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin a life; returns when the broker is in service. Raises what kept it from that."""
        if self.is_running:
            raise RuntimeError(f"broker {self.id} is running already")
        if self._process is not None:
            await self._loop.bury(self._process)
        self._lives += 1
        self._process = process = Process(self.id, self._lives)
        disk = self.drive.disk(process)
        env = Env(SystemClock(), disk, SystemRandom())
        self._view = view = process.call(self._store.view)
        process.on_revoke(view.kill)
        process.on_revoke(disk.revoke)
        self.broker = broker = process.call(self._make_broker, env, view)
        starting = self._loop.create_task(broker.start(), context=process.context)
        await asyncio.wait([starting])
        if starting.cancelled():
            raise RuntimeError(f"broker {self.id} died while it was starting")
        error = starting.exception()
        if error is not None:
            await self.kill()
            raise error
        self.port = broker.listeners[0].port
        self._watch = self._loop.create_task(self._end_with(broker, process))
        if self._reservation is None:
            self._reservation = Reservation(self.port)

    async def _end_with(self, broker: Broker, process: Process) -> None:
        """A broker that has stopped by itself ends its process."""
        await broker.wait_failed()
        await self._loop.kill(process)

    def _make_broker(self, env: Env, view: EmbeddedView) -> Broker:
        properties = {
            **self._settings,
            "node.id": str(self.id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": self.path,
        }
        return Broker(
            env, parse_broker_config(properties).config, view, brokers_in_process=self._brokers
        )

    async def stop(self) -> bool:
        """As SIGTERM: it hands over, brings everything to disk and ends; whether that worked."""
        process, broker = self._life(), self.broker
        assert broker is not None
        stopping = self._loop.create_task(broker.stop(), context=process.context)
        await asyncio.wait([stopping])
        await self.kill()
        return not stopping.cancelled() and stopping.result()

    async def kill(self) -> None:
        """As SIGKILL: what was written stays; its session times out."""
        self._watch_no_more()
        if self._process is not None:
            await self._loop.kill(self._process)

    async def lose_power(self) -> None:
        """What was not synced is gone. Peers hear nothing; its session times out."""
        self._watch_no_more()
        if self._process is not None:
            await self._loop.cut_off(self._process)
        self.drive.lose_power()

    def _watch_no_more(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def freeze(self) -> None:
        """As SIGSTOP: nothing goes in or out, and its session runs out."""
        assert self._view is not None
        await self._loop.freeze(self._life())
        self._view.suspend()

    async def thaw(self) -> None:
        """As SIGCONT."""
        assert self._view is not None
        process = self._life()
        self._view.reconnect()
        await self._loop.thaw(process)

    async def expire_session(self) -> None:
        """The store has not heard from it for too long, and it learns that."""
        self._life()
        assert self._view is not None
        await self._view.expire()

    def _life(self) -> Process:
        if self._process is None or self._process.revoked:
            raise RuntimeError(f"broker {self.id} is not running")
        return self._process

    async def end(self) -> None:
        """The end of all its lives."""
        await self.kill()
        if self._reservation is not None:
            self._reservation.release()
