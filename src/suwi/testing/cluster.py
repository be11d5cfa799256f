"""`with Cluster(brokers=3) as cluster:` real brokers in this process, with fault injection.

The brokers run on one event loop in its own thread, so a test may block. Every method returns when
its effect is complete. `async with` gives an `AsyncCluster` instead.
"""

import asyncio
import tempfile  # noqa: TID251 - the test's own directory, not a broker's doing
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from pathlib import Path  # noqa: TID251 - given to tests, which look at files with it
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from suwi.testing.async_cluster import AsyncCluster
from suwi.testing.brokers import Brokers, texts
from suwi.testing.loop_thread import LoopThread, on_loop

T = TypeVar("T")
P = ParamSpec("P")


def _blocking(
    method: Callable[Concatenate[Brokers, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Cluster", P], T]:
    """The same method for callers in another thread than that of the brokers."""

    @wraps(method)
    def call(self: "Cluster", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._do(method(self._brokers, *args, **kwargs))

    return call


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
            try:
                await on_loop(self._thread, self._stop_brokers(self._brokers))
            finally:
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
            try:
                self._thread.call(self._stop_brokers(self._brokers))
            finally:
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

    controller = _blocking(Brokers.controller)
    replicas = _blocking(Brokers.replicas)
    events = _blocking(Brokers.events)
    create_topic = _blocking(Brokers.create_topic)
    delete_topic = _blocking(Brokers.delete_topic)
    topics = _blocking(Brokers.topics)

    kill = _blocking(Brokers.kill)
    stop_broker = _blocking(Brokers.stop_broker)
    restart = _blocking(Brokers.restart)
    power_loss = _blocking(Brokers.power_loss)
    pause = _blocking(Brokers.pause)
    resume = _blocking(Brokers.resume)
    partition = _blocking(Brokers.partition)
    slow = _blocking(Brokers.slow)
    heal = _blocking(Brokers.heal)
    fill_disk = _blocking(Brokers.fill_disk)
    free_disk = _blocking(Brokers.free_disk)
    expire_session = _blocking(Brokers.expire_session)

    wait_leader = _blocking(Brokers.wait_leader)
    wait_isr = _blocking(Brokers.wait_isr)
    wait_event = _blocking(Brokers.wait_event)
    wait_until_healthy = _blocking(Brokers.wait_until_healthy)

    # -- private -------------------------------------------------------------------------------

    @property
    def _brokers(self) -> Brokers:
        assert self._started is not None, "the cluster is not running: use it in a `with`"
        return self._started

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._thread is not None
        return self._thread.call(work)
