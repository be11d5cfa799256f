"""`with Cluster(brokers=3) as cluster:` real brokers in this process, with fault injection.

The brokers run on one event loop in its own thread, so a test may block. Every method returns when
its effect is complete. `async with` gives an `AsyncCluster` instead.
"""

import asyncio
import tempfile  # noqa: TID251 - the test's own directory, not a broker's doing
from collections.abc import Collection, Coroutine, Iterable, Mapping
from pathlib import Path  # noqa: TID251 - given to tests, which look at files with it
from typing import Any, Self, TypeVar

from suwi.controller.events import Event
from suwi.replica.description import ReplicaState
from suwi.testing.async_cluster import TIMEOUT_S, AsyncCluster, texts
from suwi.testing.brokers import Brokers
from suwi.testing.loop_thread import LoopThread, on_loop

T = TypeVar("T")


class Cluster:
    """Brokers 1 to `brokers`, on free ports.

    `settings`: any of Kafka's broker keys. `session_timeout_s`: the time after which a broker that
    is paused, or lost power, is considered failed; a killed one is detected at once. `directory`:
    where the data is kept; without it the data is temporary.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        settings: Mapping[str, object] | None = None,
        session_timeout_s: float = 1.0,
        directory: str | None = None,
    ) -> None:
        if brokers < 1:
            raise ValueError("a cluster has at least one broker")
        self._count = brokers
        self._settings = texts(settings)
        self._session_timeout_s = session_timeout_s
        self._directory = directory
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._thread: LoopThread | None = None
        self._started: Brokers | None = None

    # -- start and stop ------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> AsyncCluster:
        thread, brokers = self._prepare()
        self._started = brokers
        try:
            await on_loop(thread, brokers.start())
        except BaseException:
            await self.__aexit__()
            raise
        return AsyncCluster(thread, brokers)

    async def __aexit__(self, *_: object) -> None:
        if self._thread is not None:
            await on_loop(self._thread, self._stop_brokers(self._brokers))
            await asyncio.to_thread(self._clean_up)

    def start(self) -> None:
        """Start the brokers, without `with`. Returns when all are in service."""
        thread, brokers = self._prepare()
        self._started = brokers
        try:
            thread.call(brokers.start())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the brokers and remove temporary data."""
        if self._thread is not None:
            self._thread.call(self._stop_brokers(self._brokers))
            self._clean_up()

    def _prepare(self) -> tuple[LoopThread, Brokers]:
        assert self._thread is None, "the cluster is running already"
        if self._directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="suwi-")
            directory = self._temporary.name
        else:
            directory = self._directory
            Path(directory).mkdir(parents=True, exist_ok=True)
        self._thread = thread = LoopThread()
        return thread, Brokers(
            thread.loop, directory, self._count, self._settings, self._session_timeout_s
        )

    async def _stop_brokers(self, brokers: Brokers) -> None:
        await brokers.stop(cleanly=self._directory is not None)

    def _clean_up(self) -> None:
        if self._thread is not None:
            self._thread.stop()
        if self._temporary is not None:
            self._temporary.cleanup()
        self._thread = self._temporary = self._started = None

    # -- state ---------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """All brokers, in the format of clients: `host:port,host:port,…`."""
        return self._brokers.bootstrap_servers

    @property
    def brokers(self) -> tuple[int, ...]:
        """The ids of all brokers, running or not."""
        return tuple(range(1, self._count + 1))

    def address(self, broker: int) -> str:
        """One broker's `host:port`."""
        return self._brokers.address(broker)

    def files(self, broker: int) -> Path:
        """The data directory of a broker: `files(1) / "topic-0"` is its replica of topic-0."""
        return Path(self._brokers.node(broker).path)

    def controller(self) -> int | None:
        """The active controller; None while there is none."""
        return self._do(self._brokers.controller())

    def replicas(self, topic: str, partition: int = 0) -> dict[int, ReplicaState]:
        """The state of each replica, by broker, without brokers that are paused or not running."""
        return self._do(self._brokers.replicas(topic, partition))

    def events(self) -> list[Event]:
        """The recorded events: elections that lost records, and which ones."""
        return self._do(self._brokers.events())

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> str:
        """Create a topic and wait until it can be used. Returns its name."""
        return self._do(
            self._brokers.create_topic(
                name, partitions, replication_factor, texts(configs), timeout_s
            )
        )

    def delete_topic(self, name: str, timeout_s: float = TIMEOUT_S) -> None:
        self._do(self._brokers.delete_topic(name, timeout_s))

    def topics(self) -> list[str]:
        return self._do(self._brokers.topics())

    # -- faults --------------------------------------------------------------------------------

    def kill(self, broker: int) -> None:
        """As `kill -9`: connections are reset, written bytes stay, there is no clean shutdown."""
        self._do(self._brokers.kill(broker))

    def stop_broker(self, broker: int) -> None:
        """As SIGTERM: a controlled shutdown; leadership moves, everything is flushed to disk."""
        self._do(self._brokers.stop_broker(broker))

    def restart(self, broker: int) -> None:
        """Start a broker on its old port; if it is running, it is stopped first."""
        self._do(self._brokers.restart(broker))

    def power_loss(self, broker: int) -> None:
        """The machine loses power: unsynced bytes are lost, and peers get no disconnect."""
        self._do(self._brokers.power_loss(broker))

    def pause(self, broker: int) -> None:
        """As SIGSTOP: nothing is received or sent. It is failed after the session timeout."""
        self._do(self._brokers.pause(broker))

    def resume(self, broker: int) -> None:
        """As SIGCONT."""
        self._do(self._brokers.resume(broker))

    def partition(self, *sides: Iterable[int]) -> None:
        """Brokers on different sides cannot reach each other; clients still reach all brokers."""
        self._do(self._brokers.partition(sides))

    def slow(self, broker: int, ms: float) -> None:
        """Delay all traffic between this broker and other brokers by `ms` in each direction."""
        self._do(self._brokers.slow(broker, ms))

    def heal(self) -> None:
        """End all `partition` and `slow` faults."""
        self._do(self._brokers.heal())

    def fill_disk(self, broker: int) -> None:
        """The disk of this broker is full: no file can grow."""
        self._do(self._brokers.fill_disk(broker))

    def free_disk(self, broker: int) -> None:
        self._do(self._brokers.free_disk(broker))

    def expire_session(self, broker: int) -> None:
        """The metadata store expires this broker's session."""
        self._do(self._brokers.expire_session(broker))

    # -- waiting -------------------------------------------------------------------------------

    def wait_leader(
        self,
        topic: str,
        partition: int = 0,
        broker: int | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> int:
        """Wait until the partition has a leader, `broker` if given. Returns the leader."""
        return self._do(self._brokers.wait_leader(topic, partition, broker, timeout_s))

    def wait_isr(
        self,
        topic: str,
        partition: int,
        brokers: Collection[int],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Wait until exactly these replicas are in sync."""
        self._do(self._brokers.wait_isr(topic, partition, brokers, timeout_s))

    def wait_event(self, kind: str, *, timeout_s: float = TIMEOUT_S) -> Event:
        """Wait for an event of this kind. Returns the first one."""
        return self._do(self._brokers.wait_event(kind, timeout_s))

    def wait_until_healthy(self, *, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until all brokers run, and all partitions have a leader and all replicas in sync."""
        self._do(self._brokers.wait_until_healthy(timeout_s))

    # -- private -------------------------------------------------------------------------------

    @property
    def _brokers(self) -> Brokers:
        assert self._started is not None, "the cluster is not running: use it in a `with`"
        return self._started

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._thread is not None
        return self._thread.call(work)
