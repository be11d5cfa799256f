"""The production broker on a simulated machine, and client functions for it."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from suwi.broker.broker import Broker
from suwi.client.connection import PeerConnection
from suwi.lab.requests import fetch_once as fetch_once
from suwi.lab.requests import produce_records as produce_records
from suwi.metadata.memory import MemoryStore, MemoryView
from suwi.model.broker_config import parse_broker_config
from suwi.records.batch import batches
from suwi.records.record import Record, iter_records
from suwi.sim import Machine, Simulation
from suwi.wire.produce import PartitionProduced
from suwi.wire.versions import ApiKey

PORT = 9092
DATA = "/data"


async def produce(
    client: PeerConnection,
    topic: str,
    values: Sequence[bytes],
    *,
    acks: int = -1,
    producer: tuple[int, int, int] | None = None,
) -> PartitionProduced:
    """Send one batch; `producer` is (producer id, epoch, base sequence)."""
    records = [Record(value=value, timestamp=1_000) for value in values]
    return await produce_records(client, topic, records, acks=acks, producer=producer)


class SimBroker:
    """One broker on one machine, which may crash and restart."""

    def __init__(self, simulation: Simulation, name: str = "b1", **settings: str) -> None:
        self.machine: Machine = simulation.machine(name)
        self._store = MemoryStore(simulation.random.stream("store"))
        self._view: MemoryView | None = None
        self._settings = settings
        self.broker: Broker | None = None

    async def start(self) -> None:
        env = self.machine.start()
        properties = {
            "listeners": f"PLAINTEXT://{self.machine.name}:{PORT}",
            "log.dirs": DATA,
            "log.scrubber.io.max.bytes.per.second": "0",
            **{key.replace("_", "."): value for key, value in self._settings.items()},
        }
        self._view = self._store.view()
        config = parse_broker_config(properties).config
        self.broker = Broker(env, config, self._view)
        await self.machine.spawn(self.broker.start())

    async def stop(self) -> None:
        assert self.broker is not None
        await self.machine.spawn(self.broker.stop())
        self.machine.kill()

    def kill(self) -> None:
        self.machine.kill()
        assert self._view is not None
        self._view.kill()

    def power_off(self) -> None:
        self.machine.power_off()
        assert self._view is not None
        self._view.kill()

    async def connect(self) -> PeerConnection:
        return await PeerConnection.open(self.machine.name, PORT)


async def create_topic(
    client: PeerConnection, name: str, *, partitions: int = 1, replicas: int = 1, **configs: str
) -> UUID:
    answer = await client.call(
        ApiKey.CREATE_TOPICS,
        7,
        {
            "topics": [
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": replicas,
                    "assignments": [],
                    "configs": [
                        {"name": key.replace("_", "."), "value": value}
                        for key, value in configs.items()
                    ],
                }
            ]
        },
    )
    assert answer.topics[0].error_code == 0, answer
    topic_id: UUID = answer.topics[0].topic_id
    return topic_id


async def delete_topic(client: PeerConnection, name: str) -> None:
    fields = {"topics": [{"name": name, "topic_id": UUID(int=0)}], "timeout": 30_000}
    answer = await client.call(ApiKey.DELETE_TOPICS, 6, fields)
    assert answer.responses[0].error_code == 0, answer


async def fetch(client: PeerConnection, topic: str, offset: int, wait_ms: int = 0) -> list[Record]:
    """The records from `offset` on that one request returns."""
    return (await fetch_on(client, topic, offset, wait_ms))[0]


async def fetch_on(
    client: PeerConnection, topic: str, offset: int, wait_ms: int = 0
) -> tuple[list[Record], int]:
    """The records and the next offset: a compacted log has batches without records."""
    fetched = await fetch_once(client, topic, offset, wait_ms)
    assert fetched.error_code == 0, fetched
    data = memoryview(fetched.records or b"")
    records: list[Record] = []
    following = offset
    for position, header in batches(data):
        batch = data[position : position + header.size_bytes]
        records += [record for record in iter_records(batch, header) if record.offset >= offset]
        following = header.next_offset
    return records, following


async def read_all(client: PeerConnection, topic: str) -> list[Record]:
    records: list[Record] = []
    offset, following = -1, 0
    while following > offset:
        offset = following
        more, following = await fetch_on(client, topic, offset)
        records += more
    return records


async def wait_until_up(broker: SimBroker) -> PeerConnection:
    while True:
        try:
            return await broker.connect()
        except OSError:
            await asyncio.sleep(0.1)
