"""`with Cluster(brokers=3) as cluster:` real brokers in this process, and trouble at will.

The brokers run on one event loop in a thread of its own, so a test may block as it likes. Every
method here returns when what it does is done. `async with` gives an `AsyncCluster` instead.
"""

import asyncio
import tempfile  # noqa: TID251 - the test's own directory, not a broker's doing
from collections.abc import Collection, Coroutine, Iterable, Mapping
from pathlib import Path  # noqa: TID251 - given to tests, which look at files with it
from typing import Any, Self, TypeVar

from suwi.controller.events import Event
from suwi.replica.description import ReplicaState
from suwi.testing.async_cluster import PATIENCE_S, AsyncCluster, texts
from suwi.testing.brokers import Brokers
from suwi.testing.loop_thread import LoopThread, on_loop

T = TypeVar("T")


class Cluster:
    """Brokers 1 to `brokers`, on ports that the system chooses.

    `settings`: any of Kafka's broker keys. `session_timeout_s`: after how long a broker that is
    paused, or whose machine lost power, is taken for dead; a killed one is missed at once.
    `directory`: keep the data there; otherwise it is removed at the end.
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
        self._keep = directory
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._thread: LoopThread | None = None
        self._started: Brokers | None = None

    # -- beginning and end ---------------------------------------------------------------------

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
            await on_loop(self._thread, self._end(self._brokers))
            await asyncio.to_thread(self._clean_up)

    def start(self) -> None:
        """Where there is no `with`: start the brokers; all are in service afterwards."""
        thread, brokers = self._prepare()
        self._started = brokers
        try:
            thread.call(brokers.start())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the brokers and remove their data."""
        if self._thread is not None:
            self._thread.call(self._end(self._brokers))
            self._clean_up()

    def _prepare(self) -> tuple[LoopThread, Brokers]:
        assert self._thread is None, "the cluster is running already"
        if self._keep is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="suwi-")
            directory = self._temporary.name
        else:
            directory = self._keep
            Path(directory).mkdir(parents=True, exist_ok=True)
        self._thread = thread = LoopThread()
        return thread, Brokers(
            thread.loop, directory, self._count, self._settings, self._session_timeout_s
        )

    async def _end(self, brokers: Brokers) -> None:
        await brokers.stop(cleanly=self._keep is not None)

    def _clean_up(self) -> None:
        if self._thread is not None:
            self._thread.stop()
        if self._temporary is not None:
            self._temporary.cleanup()
        self._thread = self._temporary = self._started = None

    # -- what there is -------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """All brokers, as clients want to be told: `host:port,host:port,…`."""
        return self._brokers.bootstrap_servers

    @property
    def brokers(self) -> tuple[int, ...]:
        """The ids of all brokers, dead or alive."""
        return tuple(range(1, self._count + 1))

    def address(self, broker: int) -> str:
        """One broker's `host:port`."""
        return self._brokers.address(broker)

    def files(self, broker: int) -> Path:
        """The directory of one broker: `files(1) / "topic-0"` holds what it stores of topic-0."""
        return Path(self._brokers.node(broker).path)

    def controller(self) -> int | None:
        """The broker that decides on leaders; None while there is none."""
        return self._do(self._brokers.controller())

    def replicas(self, topic: str, partition: int = 0) -> dict[int, ReplicaState]:
        """The state of each replica, by broker; those that are dead or paused are left out."""
        return self._do(self._brokers.replicas(topic, partition))

    def events(self) -> list[Event]:
        """What the cluster remembers: elections that have cost records, and which ones."""
        return self._do(self._brokers.events())

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> str:
        """Create a topic and wait until it can be used; its name."""
        return self._do(
            self._brokers.create_topic(
                name, partitions, replication_factor, texts(configs), timeout_s
            )
        )

    def delete_topic(self, name: str, timeout_s: float = PATIENCE_S) -> None:
        self._do(self._brokers.delete_topic(name, timeout_s))

    def topics(self) -> list[str]:
        return self._do(self._brokers.topics())

    # -- faults --------------------------------------------------------------------------------

    def kill(self, broker: int) -> None:
        """As `kill -9`: connections are reset, written bytes stay, nothing is tidied up."""
        self._do(self._brokers.kill(broker))

    def stop_broker(self, broker: int) -> None:
        """As SIGTERM: leaders are handed over, everything is brought to disk."""
        self._do(self._brokers.stop_broker(broker))

    def restart(self, broker: int) -> None:
        """Start a broker that is not running, on its old port; one that is, is stopped first."""
        self._do(self._brokers.restart(broker))

    def power_loss(self, broker: int) -> None:
        """The machine goes dark: bytes that were not synced are lost, and peers hear nothing."""
        self._do(self._brokers.power_loss(broker))

    def pause(self, broker: int) -> None:
        """As SIGSTOP: nothing goes in or out. After the session time-out it is taken for dead."""
        self._do(self._brokers.pause(broker))

    def resume(self, broker: int) -> None:
        """As SIGCONT."""
        self._do(self._brokers.resume(broker))

    def partition(self, *sides: Iterable[int]) -> None:
        """Brokers of different sides cannot reach each other; clients still reach all."""
        self._do(self._brokers.partition(sides))

    def slow(self, broker: int, ms: float) -> None:
        """Whatever goes to or from this broker, from other brokers, takes `ms` longer each way."""
        self._do(self._brokers.slow(broker, ms))

    def heal(self) -> None:
        """Ends `partition` and `slow`."""
        self._do(self._brokers.heal())

    def fill_disk(self, broker: int) -> None:
        """No file of this broker can grow any more."""
        self._do(self._brokers.fill_disk(broker))

    def free_disk(self, broker: int) -> None:
        self._do(self._brokers.free_disk(broker))

    def expire_session(self, broker: int) -> None:
        """The metadata store ends this broker's session, as after a long silence."""
        self._do(self._brokers.expire_session(broker))

    # -- waiting -------------------------------------------------------------------------------

    def wait_leader(
        self,
        topic: str,
        partition: int = 0,
        broker: int | None = None,
        *,
        timeout_s: float = PATIENCE_S,
    ) -> int:
        """Wait until the partition is led, by this broker if one is named; who leads it."""
        return self._do(self._brokers.wait_leader(topic, partition, broker, timeout_s))

    def wait_isr(
        self,
        topic: str,
        partition: int,
        brokers: Collection[int],
        *,
        timeout_s: float = PATIENCE_S,
    ) -> None:
        """Wait until exactly these replicas are in sync."""
        self._do(self._brokers.wait_isr(topic, partition, brokers, timeout_s))

    def wait_event(self, kind: str, *, timeout_s: float = PATIENCE_S) -> Event:
        """Wait for an event of this kind; the first there is."""
        return self._do(self._brokers.wait_event(kind, timeout_s))

    def wait_until_healthy(self, *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all brokers run, every partition is led and all its replicas are in sync."""
        self._do(self._brokers.wait_until_healthy(timeout_s))

    # -- within --------------------------------------------------------------------------------

    @property
    def _brokers(self) -> Brokers:
        assert self._started is not None, "the cluster is not running: use it in a `with`"
        return self._started

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._thread is not None
        return self._thread.call(work)
