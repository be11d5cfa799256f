"""A slow disk does not delay requests that do not need it."""

import asyncio
import threading
from collections import Counter
from pathlib import Path

from suwi.broker.broker import Broker
from suwi.client.connection import PeerConnection
from suwi.env import Env, LocalDisk, SystemClock, SystemRandom
from suwi.metadata.memory import MemoryStore
from suwi.model.broker_config import parse_broker_config
from suwi.sim import SimRandom
from suwi.wire.versions import ApiKey
from tests.broker.simulated import create_topic, produce

_LIMIT_S = 120


class GatedDisk(LocalDisk):
    """Lists no directory while its gate is closed."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def list_dir(self, path: str) -> list[str]:
        self._pass_gate()
        return super().list_dir(path)

    def total_bytes(self, path: str) -> int:
        self._pass_gate()
        return super().total_bytes(path)

    def _pass_gate(self) -> None:
        if not self.gate.is_set():
            self.waiting.set()
            assert self.gate.wait(_LIMIT_S), "the event loop was blocked by the disk"


def test_other_requests_are_served_while_log_dirs_are_described(tmp_path: Path) -> None:
    disk = GatedDisk()
    store = MemoryStore(SimRandom(0).stream("store"))
    config = parse_broker_config(
        {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    ).config

    def broker() -> Broker:
        return Broker(Env(SystemClock(), disk, SystemRandom()), config, store.view())

    async def scenario() -> None:
        first = broker()
        await first.start()
        client = await PeerConnection.open("127.0.0.1", first.listeners[0].port)
        await create_topic(client, "orders")
        assert (await produce(client, "orders", [b"x"])).error_code == 0
        await client.close()
        await first.stop()

        second = broker()  # The log is not open yet: the size of its files must be read.
        await second.start()
        port = second.listeners[0].port
        slow, quick = [await PeerConnection.open("127.0.0.1", port) for _ in range(2)]
        disk.gate.clear()
        asked = asyncio.create_task(slow.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}))
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, disk.waiting.wait, _LIMIT_S)
        await asyncio.wait_for(
            quick.call(ApiKey.LIST_OFFSETS, 1, {"replica_id": -1, "topics": []}), _LIMIT_S
        )
        assert not asked.done()
        disk.gate.set()
        answer = await asyncio.wait_for(asked, _LIMIT_S)
        (directory,) = answer.results
        (topic,) = directory.topics
        assert topic.partitions[0].partition_size > 60
        assert directory.total_bytes > 0
        for connection in (slow, quick):
            await connection.close()
        await second.stop()

    asyncio.run(scenario())


class ListedDisk(LocalDisk):
    """Notes where each directory is listed."""

    def __init__(self) -> None:
        self.on_the_loop: list[str] = []
        self.in_threads: list[str] = []

    def list_dir(self, path: str) -> list[str]:
        self._note(path)
        return super().list_dir(path)

    def list_dirs(self, path: str) -> list[str]:
        self._note(path)
        return super().list_dirs(path)

    def _note(self, path: str) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        (self.on_the_loop if is_main else self.in_threads).append(path)


def test_a_data_directory_which_may_have_many_partitions_is_listed_in_threads(
    tmp_path: Path,
) -> None:
    disk = ListedDisk()
    store = MemoryStore(SimRandom(0).stream("store"))
    config = parse_broker_config(
        {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    ).config

    async def scenario() -> None:
        for _ in range(2):
            disk.on_the_loop.clear()  # A new directory is empty.
            broker = Broker(Env(SystemClock(), disk, SystemRandom()), config, store.view())
            await broker.start()
            await broker.stop()

    asyncio.run(scenario())
    assert str(tmp_path) in disk.in_threads
    assert str(tmp_path) not in disk.on_the_loop


def test_others_run_while_a_broker_with_many_partitions_stops(tmp_path: Path) -> None:
    store = MemoryStore(SimRandom(0).stream("store"))
    config = parse_broker_config(
        {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
    ).config

    async def scenario() -> None:
        broker = Broker(Env(SystemClock(), LocalDisk(), SystemRandom()), config, store.view())
        await broker.start()
        client = await PeerConnection.open("127.0.0.1", broker.listeners[0].port)
        await create_topic(client, "orders", partitions=2_000)
        await client.close()
        turns, partitions = 0, list(broker.replicas)
        closed_in = Counter[int]()
        known = 0

        async def watch() -> None:
            nonlocal turns, known
            while True:
                turns += 1
                closed = sum(partition.is_closed for partition in partitions)
                closed_in[turns], known = closed - known, closed
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        await broker.stop()
        watching.cancel()
        assert len(partitions) == known == 2_000
        assert max(closed_in.values()) <= 500

    asyncio.run(scenario())
