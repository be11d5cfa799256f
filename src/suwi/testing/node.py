"""One broker of a test cluster, across all its processes.

`start` starts a process; `stop`, `kill` and `lose_power` end it in different ways; `freeze` and
`thaw` suspend and resume it. The data, the port and the drive persist.
"""

import asyncio
from collections.abc import Collection, Mapping

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
        self._reservation = Reservation()
        self.port = self._reservation.port
        self.broker: Broker | None = None
        """The broker of the current or last process."""
        self._loop = loop
        self._store = store
        self._settings = settings
        self._brokers = brokers
        self._process: Process | None = None
        self._view: EmbeddedView | None = None
        self._process_count = 0
        self._watch: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and not self._process.revoked

    @property
    def is_frozen(self) -> bool:
        return self._process is not None and self._process.frozen and self.is_running

    # -- process -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start a process. Returns when the broker is in service; raises the error if it fails."""
        if self.is_running:
            raise RuntimeError(f"broker {self.id} is already running")
        if self._process is not None:
            await self._loop.release_sockets(self._process)
        self._process_count += 1
        self._process = process = Process(self.id, self._process_count)
        disk = self.drive.disk(process)
        env = Env(SystemClock(), disk, SystemRandom())
        self._view = view = process.call(self._store.view)
        process.on_revoke(view.kill)
        process.on_revoke(disk.revoke)
        self.broker = broker = process.call(self._make_broker, env, view)
        starting = self._loop.create_task(broker.start(), context=process.context)
        await asyncio.wait([starting])
        if starting.cancelled():
            raise RuntimeError(f"broker {self.id} was killed while it was starting")
        error = starting.exception()
        if error is not None:
            await self.kill()
            raise error
        self.port = broker.listeners[0].port
        self._watch = self._loop.create_task(self._end_after_failure(broker, process))

    async def _end_after_failure(self, broker: Broker, process: Process) -> None:
        """End the process of a broker that has stopped by itself."""
        await broker.wait_failed()
        await self._loop.kill(process)

    def _make_broker(self, env: Env, view: EmbeddedView) -> Broker:
        properties = {
            "log.scrubber.io.max.bytes.per.second": "0",
            **self._settings,
            "node.id": str(self.id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": self.path,
        }
        return Broker(
            env, parse_broker_config(properties).config, view, brokers_in_process=self._brokers
        )

    async def stop(self, together_with: Collection[NodeId] = ()) -> bool:
        """As SIGTERM: a controlled shutdown. Returns whether it was clean."""
        process, broker = self._running_process(), self.broker
        if process.frozen:
            raise RuntimeError(f"broker {self.id} is paused: resume it first")
        assert broker is not None
        stopping = self._loop.create_task(broker.stop(together_with), context=process.context)
        await asyncio.wait([stopping])
        await self.kill()
        return not stopping.cancelled() and stopping.result()

    async def kill(self) -> None:
        """As SIGKILL: written data stays; the session times out."""
        self._stop_watching()
        if self._process is not None:
            await self._loop.kill(self._process)

    async def lose_power(self) -> None:
        """Unsynced data is lost. Peers notice nothing; the session times out."""
        self._stop_watching()
        if self._process is not None:
            await self._loop.cut_off(self._process)
        self.drive.lose_power()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def freeze(self) -> None:
        """As SIGSTOP: nothing is received or sent, and the session times out."""
        assert self._view is not None
        await self._loop.freeze(self._running_process())
        self._view.suspend()

    async def thaw(self) -> None:
        """As SIGCONT."""
        assert self._view is not None
        process = self._running_process()
        self._view.reconnect()
        await self._loop.thaw(process)

    async def expire_session(self) -> None:
        """The metadata store expires the session, and the broker is notified."""
        self._running_process()
        assert self._view is not None
        await self._view.expire()

    def _running_process(self) -> Process:
        if self._process is None or self._process.revoked:
            raise RuntimeError(f"broker {self.id} is not running")
        return self._process

    async def end(self) -> None:
        """End the node for good."""
        await self.kill()
        self._reservation.release()
