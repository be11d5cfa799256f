"""`with Cluster(brokers=3) as cluster:` real brokers in this process, with fault injection.

The brokers run on one event loop in its own thread, so a test may block. Every method returns when
its effect is complete. `async with` gives an `AsyncCluster` instead.
"""

import asyncio
import shutil  # noqa: TID251 - the test's own directory, not a broker's doing
import tempfile  # noqa: TID251 - the test's own directory, not a broker's doing
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from pathlib import Path  # noqa: TID251 - given to tests, which look at files with it
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

from suwi.testing.brokers import Brokers, texts
from suwi.testing.loop import ClusterLoop
from suwi.testing.snapshot import STORE, Point, copy_files

T = TypeVar("T")
P = ParamSpec("P")


class _LoopThread:
    """The thread that runs the event loop of a test cluster."""

    def __init__(self) -> None:
        self.loop = ClusterLoop()
        # The test may block its own thread, or run another event loop in it.
        self._thread = threading.Thread(  # noqa: TID251
            target=self._run, name="suwi-cluster", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and await it on the caller's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and block until it is done."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


def _awaited(
    method: Callable[Concatenate[Brokers, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["AsyncCluster", P], Coroutine[Any, Any, T]]:
    """The same method for callers on another loop than that of the brokers."""

    @wraps(method)
    async def call(self: "AsyncCluster", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._thread.run(method(self._brokers, *args, **kwargs))

    return call


class AsyncCluster:
    """The result of `async with Cluster()`: the methods of `Cluster` as coroutines.

    The brokers still run on their own event loop: a test that blocks its loop, with a client that
    does not use asyncio, does not block them.
    """

    def __init__(self, thread: _LoopThread, brokers: Brokers) -> None:
        self._thread = thread
        self._brokers = brokers

    @property
    def bootstrap_servers(self) -> str:
        return self._brokers.bootstrap_servers

    @property
    def brokers(self) -> tuple[int, ...]:
        return self._brokers.all

    def address(self, broker: int) -> str:
        return self._brokers.address(broker)

    def files(self, broker: int) -> Path:
        return Path(self._brokers.node(broker).path)

    controller = _awaited(Brokers.controller)
    replicas = _awaited(Brokers.replicas)
    events = _awaited(Brokers.events)
    create_topic = _awaited(Brokers.create_topic)
    delete_topic = _awaited(Brokers.delete_topic)
    topics = _awaited(Brokers.topics)

    kill = _awaited(Brokers.kill)
    stop_broker = _awaited(Brokers.stop_broker)
    restart = _awaited(Brokers.restart)
    power_loss = _awaited(Brokers.power_loss)
    pause = _awaited(Brokers.pause)
    resume = _awaited(Brokers.resume)
    partition = _awaited(Brokers.partition)
    slow = _awaited(Brokers.slow)
    heal = _awaited(Brokers.heal)
    fill_disk = _awaited(Brokers.fill_disk)
    free_disk = _awaited(Brokers.free_disk)
    expire_session = _awaited(Brokers.expire_session)

    wait_leader = _awaited(Brokers.wait_leader)
    wait_isr = _awaited(Brokers.wait_isr)
    wait_event = _awaited(Brokers.wait_event)
    wait_until_healthy = _awaited(Brokers.wait_until_healthy)

    async def snapshot(self) -> "ClusterSnapshot":
        return await self._thread.run(ClusterSnapshot()._take(self._brokers))

    async def fork(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        keep_members: bool = False,
        copy: bool = False,
    ) -> "Cluster":
        """Use it with `async with`."""
        snapshot = await self.snapshot()
        return snapshot.fork(settings=settings, keep_members=keep_members, copy=copy)


def _blocking(
    method: Callable[Concatenate[Brokers, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Cluster", P], T]:
    """The same method for callers in another thread than that of the brokers."""

    @wraps(method)
    def call(self: "Cluster", /, *args: P.args, **kwargs: P.kwargs) -> T:
        brokers = self._brokers
        assert self._thread is not None
        return self._thread.call(method(brokers, *args, **kwargs))

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
        self._forked: _Fork | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._thread: _LoopThread | None = None
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
            await thread.run(brokers.start())
        except BaseException:
            await self.__aexit__()
            raise
        return AsyncCluster(thread, brokers)

    async def __aexit__(self, *_: object) -> None:
        if self._thread is not None:
            try:
                await self._thread.run(self._stop_brokers(self._brokers))
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

    def _prepare(self) -> tuple[_LoopThread, Brokers]:
        assert self._thread is None, "the cluster is running already"
        if self._directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="suwi-")
            directory = self._temporary.name
            if self._forked is not None:
                self._forked.copy_to(directory)
        else:
            directory = self._directory
            Path(directory).mkdir(parents=True, exist_ok=True)
        self._thread = thread = _LoopThread()
        fork = self._forked
        return thread, Brokers(
            thread.loop,
            directory,
            self._count,
            self._settings,
            self._session_timeout_s,
            fork.snapshot.point if fork is not None else None,
            keep_members=fork is not None and fork.keep_members,
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

    # -- copies --------------------------------------------------------------------------------

    def snapshot(self) -> "ClusterSnapshot":
        """The state at this moment. Writes and clients go on."""
        brokers = self._brokers
        assert self._thread is not None
        return self._thread.call(ClusterSnapshot()._take(brokers))

    def fork(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        keep_members: bool = False,
        copy: bool = False,
    ) -> "Cluster":
        """A cluster with the state of this moment; see `ClusterSnapshot.fork`."""
        return self.snapshot().fork(settings=settings, keep_members=keep_members, copy=copy)

    # -- private -------------------------------------------------------------------------------

    @property
    def _brokers(self) -> Brokers:
        assert self._started is not None, "the cluster is not running: use it in a `with`"
        return self._started


class ClusterSnapshot:
    """The state of a cluster at one moment. Its files are removed by `remove`, at the end of a
    `with` block, or when nothing refers to it any more."""

    def __init__(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="suwi-snapshot-")
        self.remove = weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)
        self.point: Point

    async def _take(self, brokers: Brokers) -> Self:
        self.point = await brokers.snapshot(self.directory)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def fork(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        keep_members: bool = False,
        copy: bool = False,
    ) -> Cluster:
        """A cluster with this state, to be started with `with` or `start`.

        `settings` are added to those of the original. `keep_members`: the members of groups stay
        until their sessions time out. `copy`: share no file with another cluster, for tests that
        write into files of brokers themselves.
        """
        point = self.point
        forked = Cluster(
            point.brokers,
            settings={**point.settings, **texts(settings)},
            session_timeout_s=point.session_timeout_s,
        )
        forked._forked = _Fork(self, keep_members, copy)
        return forked


class _Fork(NamedTuple):
    """What a fork is made of."""

    snapshot: ClusterSnapshot
    keep_members: bool
    copy: bool

    def copy_to(self, directory: str) -> None:
        source = self.snapshot.directory
        shutil.copy2(f"{source}/{STORE}", f"{directory}/{STORE}")
        for broker in range(1, self.snapshot.point.brokers + 1):
            copy_files(f"{source}/{broker}", f"{directory}/{broker}", links=not self.copy)
