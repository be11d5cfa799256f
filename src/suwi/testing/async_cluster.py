"""A running test cluster for tests that are coroutines: the methods of `Cluster` as coroutines.

The brokers still run on their own event loop: a test that blocks its loop, with a client that does
not use asyncio, does not block them.
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path  # noqa: TID251 - given to tests, which look at files with it
from typing import Any, Concatenate, ParamSpec, TypeVar

from suwi.testing.brokers import Brokers
from suwi.testing.loop_thread import LoopThread, on_loop

T = TypeVar("T")
P = ParamSpec("P")


def _awaited(
    method: Callable[Concatenate[Brokers, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["AsyncCluster", P], Coroutine[Any, Any, T]]:
    """The same method for callers on another loop than that of the brokers."""

    @wraps(method)
    async def call(self: "AsyncCluster", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await on_loop(self._thread, method(self._brokers, *args, **kwargs))

    return call


class AsyncCluster:
    """The result of `async with Cluster()`."""

    def __init__(self, thread: LoopThread, brokers: Brokers) -> None:
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
