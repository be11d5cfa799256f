"""The input: numbered records into a topic, each acknowledged, while the broker is killed.

`Writer` sends in a thread until it is stopped; `read_topic` returns what is there at the end.
"""

import asyncio
import threading
from collections.abc import Sequence

from chaos.checker import Place
from suwi.client.addresses import parse_addresses
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.client.fetching import ReadSettings
from suwi.client.offsets import LATEST, list_offsets
from suwi.client.producer import Producer
from suwi.client.reader import Reader
from suwi.env import local_env
from suwi.model.ids import Offset, PartitionIndex, TopicPartition

_ROUND = 100
_PAUSE_S = 0.25


def make_topic(servers: str, topic: str, partitions: int) -> None:
    async def work() -> None:
        async with _cluster(servers) as cluster:
            await Admin(cluster).create_topic(topic, partitions=partitions)

    asyncio.run(work())


def _cluster(servers: str) -> Cluster:
    return Cluster(parse_addresses(servers), random=local_env().random)


class Writer:
    """Sends `count` records, or until it is stopped."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self.acknowledged: list[int] = []
        self.error: BaseException | None = None
        self._servers = servers
        self._topic = topic
        self._partitions = partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> "Writer":
        self._thread.start()
        return self

    def stop(self) -> Sequence[int]:
        """Everything that was acknowledged. Raises the error that prevented a record's storage."""
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
        return self.acknowledged

    def _run(self) -> None:
        try:
            asyncio.run(self._send())
        except BaseException as error:
            self.error = error

    async def _send(self) -> None:
        number = 0
        async with (
            _cluster(self._servers) as cluster,
            Producer(cluster, local_env().clock) as producer,
        ):
            while not self._stop.is_set():
                deliveries = []
                for _ in range(_ROUND):
                    value = str(number).encode()
                    partition = number % self._partitions
                    deliveries.append(await producer.send(self._topic, value, partition=partition))
                    number += 1
                for delivery in deliveries:
                    await delivery
                self.acknowledged = list(range(number))
                await asyncio.sleep(_PAUSE_S)


def read_topic(servers: str, topic: str, partitions: int) -> dict[Place, int]:
    """The number at each partition and offset."""
    return {place: int(value) for place, value in read_values(servers, topic, partitions).items()}


def read_values(
    servers: str, topic: str, partitions: int, *, committed_only: bool = False
) -> dict[Place, bytes]:
    async def work() -> dict[Place, bytes]:
        places = [TopicPartition(topic, PartitionIndex(index)) for index in range(partitions)]
        found: dict[Place, bytes] = {}
        settings = ReadSettings(committed_only=committed_only)
        async with _cluster(servers) as cluster:
            latest = dict.fromkeys(places, LATEST)
            ends = await list_offsets(cluster, latest, committed_only=committed_only)
            start = dict.fromkeys(places, Offset(0))
            async with Reader(cluster, start, settings) as reader:
                while any(reader.positions[place] < ends[place].offset for place in places):
                    for fetched in await reader.read():
                        for record in fetched.records:
                            assert record.value is not None
                            place = int(fetched.partition.partition), int(record.offset)
                            found[place] = record.value
        return found

    return asyncio.run(work())
