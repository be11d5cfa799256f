"""One broker of a test cluster, across all its processes.

`start` starts a process; `stop`, `kill` and `power_off` end it in different ways; `freeze` and
`thaw` suspend and resume it. The data, the port and the drive persist.
"""

import socket
import sys
import weakref
from collections.abc import Callable, Collection, Mapping

from suwi.env import SystemClock, SystemRandom
from suwi.metadata.embedded import EmbeddedStore, EmbeddedView
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.ids import NodeId
from suwi.sim.machine import Machine
from suwi.sim.node import Node
from suwi.testing.disk import Drive, DriveDisk
from suwi.testing.loop import ClusterLoop

_HOST = "127.0.0.1"


class Reservation:
    """Keeps the port of a broker reserved, also while its process is not running.

    While a broker is down its port must refuse connections, and no other process may get it, since
    clients would connect to the wrong server. A socket that is bound but does not listen does both.
    It must be bound first: Linux lets a second socket with SO_REUSEADDR bind and listen beside it,
    but lets none bind beside one that listens.

    `port` is 0, which is any free port, on systems that do not let two sockets share one.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self._close: Callable[[], object] = lambda: None
        if sys.platform == "linux":
            bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._close = weakref.finalize(self, bound.close)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((_HOST, port))
            self.port = bound.getsockname()[1]

    def release(self) -> None:
        self._close()


class BrokerNode(Node[EmbeddedView, DriveDisk]):
    def __init__(
        self,
        number: int,
        loop: ClusterLoop,
        store: EmbeddedStore,
        path: str,
        settings: Mapping[str, str],
        brokers: int,
        boot_id: str = "",
        port: int = 0,
    ) -> None:
        """`boot_id`: see `Drive`."""
        self.path = path
        self.drive = Drive(path, boot_id)
        self._reservation = Reservation(port)
        self.port = self._reservation.port
        self._settings = settings
        machine = Machine(
            loop, f"broker-{number}", self.drive, SystemClock(), lambda _: SystemRandom()
        )
        super().__init__(NodeId(number), machine, store.view, self._parse_config, brokers)

    def _parse_config(self) -> BrokerConfig:
        properties = {
            "log.scrubber.io.max.bytes.per.second": "0",
            **self._settings,
            "node.id": str(self.id),
            "listeners": f"PLAINTEXT://{_HOST}:{self.port}",
            "log.dirs": self.path,
        }
        return parse_broker_config(properties).config

    def _has_new_process(self) -> None:
        assert self.view is not None
        # First, because what `finally` blocks still write must not reach the store.
        self.machine.incarnation.on_revoke(self.view.kill, first=True)

    async def start(self) -> None:
        if self.is_running:
            raise RuntimeError(f"broker {self.id} is already running")
        await super().start()
        if not self.in_service.is_set():
            raise RuntimeError(f"broker {self.id} was killed while it was starting")
        assert self.broker is not None
        self.port = self.broker.listeners[0].port

    async def stop(self, together_with: Collection[NodeId] = ()) -> bool:
        self._check_running()
        if self.is_frozen:
            raise RuntimeError(f"broker {self.id} is paused: resume it first")
        return await super().stop(together_with)

    def kill(self) -> None:
        if self.is_running:
            super().kill()

    def freeze(self) -> None:
        self._check_running()
        super().freeze()

    def thaw(self) -> None:
        self._check_running()
        super().thaw()

    async def expire_session(self) -> None:
        """The metadata store expires the session, and the broker is notified."""
        self._check_running()
        assert self.view is not None
        await self.view.expire()

    def _check_running(self) -> None:
        if not self.is_running:
            raise RuntimeError(f"broker {self.id} is not running")

    def end(self) -> None:
        """End the node for good."""
        self.kill()
        self._reservation.release()
