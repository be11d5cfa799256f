"""A running test cluster for tests that are coroutines: the methods of `Cluster` as coroutines.

The brokers still run on their own event loop: a test that blocks its loop, with a client that does
not use asyncio, does not block them.
"""

from collections.abc import Collection, Coroutine, Iterable, Mapping
from pathlib import Path  # noqa: TID251 - given to tests, which look at files with it
from typing import Any, TypeVar

from suwi.controller.events import Event
from suwi.replica.description import ReplicaState
from suwi.testing.brokers import Brokers
from suwi.testing.loop_thread import LoopThread, on_loop

T = TypeVar("T")

TIMEOUT_S = 30.0
"""The default timeout of calls that wait."""


def texts(settings: Mapping[str, object] | None) -> dict[str, str]:
    """Settings as texts, in Kafka's notation."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in (settings or {}).items()
    }


class AsyncCluster:
    """The result of `async with Cluster()`. `Cluster` documents the methods."""

    def __init__(self, thread: LoopThread, brokers: Brokers) -> None:
        self._thread = thread
        self._brokers = brokers

    async def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return await on_loop(self._thread, work)

    # -- state ---------------------------------------------------------------------------------

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

    async def controller(self) -> int | None:
        return await self._do(self._brokers.controller())

    async def replicas(self, topic: str, partition: int = 0) -> dict[int, ReplicaState]:
        return await self._do(self._brokers.replicas(topic, partition))

    async def events(self) -> list[Event]:
        return await self._do(self._brokers.events())

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> str:
        return await self._do(
            self._brokers.create_topic(
                name, partitions, replication_factor, texts(configs), timeout_s
            )
        )

    async def delete_topic(self, name: str, timeout_s: float = TIMEOUT_S) -> None:
        await self._do(self._brokers.delete_topic(name, timeout_s))

    async def topics(self) -> list[str]:
        return await self._do(self._brokers.topics())

    # -- faults --------------------------------------------------------------------------------

    async def kill(self, broker: int) -> None:
        await self._do(self._brokers.kill(broker))

    async def stop_broker(self, broker: int) -> None:
        await self._do(self._brokers.stop_broker(broker))

    async def restart(self, broker: int) -> None:
        await self._do(self._brokers.restart(broker))

    async def power_loss(self, broker: int) -> None:
        await self._do(self._brokers.power_loss(broker))

    async def pause(self, broker: int) -> None:
        await self._do(self._brokers.pause(broker))

    async def resume(self, broker: int) -> None:
        await self._do(self._brokers.resume(broker))

    async def partition(self, *sides: Iterable[int]) -> None:
        await self._do(self._brokers.partition(sides))

    async def slow(self, broker: int, ms: float) -> None:
        await self._do(self._brokers.slow(broker, ms))

    async def heal(self) -> None:
        await self._do(self._brokers.heal())

    async def fill_disk(self, broker: int) -> None:
        await self._do(self._brokers.fill_disk(broker))

    async def free_disk(self, broker: int) -> None:
        await self._do(self._brokers.free_disk(broker))

    async def expire_session(self, broker: int) -> None:
        await self._do(self._brokers.expire_session(broker))

    # -- waiting -------------------------------------------------------------------------------

    async def wait_leader(
        self,
        topic: str,
        partition: int = 0,
        broker: int | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> int:
        return await self._do(self._brokers.wait_leader(topic, partition, broker, timeout_s))

    async def wait_isr(
        self,
        topic: str,
        partition: int,
        brokers: Collection[int],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        await self._do(self._brokers.wait_isr(topic, partition, brokers, timeout_s))

    async def wait_event(self, kind: str, *, timeout_s: float = TIMEOUT_S) -> Event:
        return await self._do(self._brokers.wait_event(kind, timeout_s))

    async def wait_until_healthy(self, *, timeout_s: float = TIMEOUT_S) -> None:
        await self._do(self._brokers.wait_until_healthy(timeout_s))
