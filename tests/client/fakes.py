"""A fake cluster: several brokers in a simulation that share logs in memory.

A test moves the leadership and injects errors into responses (`Obstacle`). The logs themselves
check sequences as Kafka does.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.client.addresses import Address
from suwi.client.cluster import Cluster
from suwi.client.settings import ClientSettings
from suwi.env.slices import run_to_end
from suwi.records.batch import BatchHeader, place, read_header
from suwi.records.record import Record, iter_records
from suwi.sim import Simulation
from suwi.wire.codec import encode_response, read_request
from suwi.wire.fetch_request import decode_fetch_request
from suwi.wire.fetch_response import FetchedPartition, FetchedTopic, encode_fetch_response
from suwi.wire.headers import RequestHeader, read_request_header, response_header
from suwi.wire.produce import (
    PartitionProduced,
    TopicProduced,
    decoding_produce_request,
    encode_produce_response,
)
from suwi.wire.versions import ApiKey, advertised

PORT = 9092
TOPIC = "orders"
TOPIC_ID = UUID(int=7)
_SERVED = (
    ApiKey.API_VERSIONS,
    ApiKey.METADATA,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
)

UNKNOWN_TO_KAFKA = (
    ApiKey.DESCRIBE_EVENTS,
    ApiKey.DESCRIBE_PARTITION_HISTORY,
    ApiKey.DESCRIBE_TOPIC_STATS,
    ApiKey.WATCH_PARTITION,
    ApiKey.DESCRIBE_QUOTA_USAGE,
    ApiKey.DESCRIBE_AUDIT_LOG,
)
"""As Apache Kafka does, the connection is closed."""

Obstacle = Callable[[bytes], int | None]
"""Gets the batch of a Produce request; returns an error code to respond with, or None to go on."""


class FakeLog:
    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self._last: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in iter_records(batch, header(batch))]

    def append(self, batch: bytearray) -> tuple[int, int]:
        """Returns the error code and the base offset, with Kafka's checks of sequences."""
        head = read_header(batch)
        if head.producer_id >= 0:
            known = self._last.setdefault((head.producer_id, head.producer_epoch), [])
            for first, last, offset in known:
                if (first, last) == (head.base_sequence, head.last_sequence):
                    return 0, offset
            if head.base_sequence != (known[-1][1] + 1 if known else 0):
                return ErrorCode.out_of_order_sequence_number, -1
            known.append((head.base_sequence, head.last_sequence, self.end))
            del known[:-5]
        offset = self.end
        place(batch, offset, 0)
        self.batches.append(bytes(batch))
        self.end += head.record_count
        return 0, offset

    def forget_producers(self) -> None:
        self._last.clear()

    def from_offset(self, offset: int) -> bytes:
        return b"".join(batch for batch in self.batches if header(batch).last_offset >= offset)


class FakeCluster:
    def __init__(self, simulation: Simulation, brokers: int = 2, partitions: int = 1) -> None:
        self.simulation = simulation
        self.machines = [simulation.machine(f"b{node}") for node in range(brokers)]
        self.logs = [FakeLog() for _ in range(partitions)]
        self.leaders = [0] * partitions
        self.nearest: int | None = None
        """The preferred read replica for clients with a rack; it has the leader's records."""
        self.fetched_at: list[int] = []
        """The broker of each response with records."""
        self.epoch = 0
        self.topic_id: UUID | None = TOPIC_ID
        self.obstacles: deque[Obstacle] = deque()
        self.after_append: deque[Obstacle] = deque()
        self.produced_at: list[int] = []
        """The broker that received each Produce request."""
        self.asked: list[ApiKey] = []
        self._next_producer_id = 100

    async def start(self) -> None:
        for node in range(len(self.machines)):
            await self.start_broker(node)

    async def start_broker(self, node: int) -> None:
        machine = self.machines[node]
        machine.start()

        async def serve() -> None:
            await asyncio.start_server(
                lambda reader, writer: self._serve(node, reader, writer), machine.name, PORT
            )

        await machine.spawn(serve())

    def client(self, **settings: Any) -> Cluster:
        return Cluster(
            [Address(machine.name, PORT) for machine in self.machines],
            random=self.simulation.random.stream("client"),
            settings=ClientSettings(**settings),
        )

    def move_leader(self, node: int, partition: int = 0) -> None:
        self.leaders[partition] = node
        self.epoch += 1

    async def _serve(
        self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                asked = read_request_header(memoryview(frame))
                body = self._answer(node, asked, frame)
                if body is None:
                    writer.transport.abort()
                    return
                if not body:
                    continue
                head = response_header(*asked[:3])
                writer.write(struct.pack(">i", len(head) + len(body)) + head + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, node: int, asked: RequestHeader, frame: bytes) -> bytes | None:
        """The body of the response. Empty: there is none. None: the connection is closed."""
        api_key, version, _, _, at = asked
        api = ApiKey(api_key)
        self.asked.append(api)
        if api in UNKNOWN_TO_KAFKA:
            return None
        if api is ApiKey.PRODUCE:
            return self._produce(node, version, memoryview(bytearray(frame)), at)
        if api is ApiKey.FETCH:
            return self._fetch(node, version, memoryview(frame), at)
        message = read_request(api, version, frame, at)
        return encode_response(api, version, self._fields(api, message))

    def _fields(self, api: ApiKey, message: Any) -> dict[str, Any]:
        if api is ApiKey.API_VERSIONS:
            keys = [
                {"api_key": a.key, "min_version": a.min_version, "max_version": a.max_version}
                for a in advertised(_SERVED)
            ]
            return {"error_code": 0, "api_keys": keys, "throttle_time": 0}
        if api is ApiKey.INIT_PRODUCER_ID:
            self._next_producer_id += 1
            return {
                "throttle_time": 0,
                "error_code": 0,
                "producer_id": self._next_producer_id,
                "producer_epoch": 0,
            }
        if api is ApiKey.LIST_OFFSETS:
            return self._offsets(message)
        return {
            "throttle_time": 0,
            "brokers": [
                {"node_id": i, "host": machine.name, "port": PORT, "rack": None}
                for i, machine in enumerate(self.machines)
            ],
            "cluster_id": "fake",
            "controller_id": 0,
            "topics": [self._topic(name) for name in _names(message.topics)],
            "error_code": 0,
        }

    def _topic(self, name: str) -> dict[str, Any]:
        if name != TOPIC or self.topic_id is None:
            return {
                "error_code": ErrorCode.unknown_topic_or_partition,
                "name": name,
                "topic_id": None,
                "partitions": (),
            }
        return {
            "error_code": 0,
            "name": name,
            "topic_id": self.topic_id,
            "partitions": [
                {
                    "error_code": 0,
                    "partition_index": index,
                    "leader_id": leader,
                    "leader_epoch": self.epoch,
                    "replica_nodes": (leader,),
                    "isr_nodes": (leader,),
                    "offline_replicas": (),
                }
                for index, leader in enumerate(self.leaders)
            ],
        }

    def _offsets(self, message: Any) -> dict[str, Any]:
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": asked.partition_index,
                        "error_code": 0,
                        "timestamp": -1,
                        "offset": self.logs[asked.partition_index].end
                        if asked.timestamp == -1
                        else 0,
                        "leader_epoch": self.epoch,
                    }
                    for asked in topic.partitions
                ],
            }
            for topic in message.topics
        ]
        return {"throttle_time": 0, "topics": topics}

    def _produce(self, node: int, version: int, frame: memoryview, at: int) -> bytes | None:
        request = run_to_end(decoding_produce_request(version, frame, at))
        self.produced_at.append(node)
        topics = []
        for name, topic_id, partitions in request.topics:
            answers = []
            for index, records in partitions:
                assert records is not None
                batch = bytearray(records)
                error = self._apply(self.obstacles, batch)
                offset = -1
                if error is None and self.leaders[index] != node:
                    error = ErrorCode.not_leader_or_follower
                if error is None:
                    error, offset = self.logs[index].append(batch)
                    met = self._apply(self.after_append, batch)
                    error = error if met is None else met
                if error == CLOSE:
                    return None
                answers.append(PartitionProduced(index, error, offset))
            topics.append(TopicProduced(name, topic_id, answers))
        if request.acks == 0:
            has_error = any(answer.error_code for topic in topics for answer in topic.partitions)
            return None if has_error else b""
        return encode_produce_response(version, topics)

    @staticmethod
    def _apply(obstacles: deque[Obstacle], batch: bytearray) -> int | None:
        return obstacles.popleft()(bytes(batch)) if obstacles else None

    def _fetch(self, node: int, version: int, frame: memoryview, at: int) -> bytes:
        request = decode_fetch_request(version, frame, at)
        topics = []
        for topic in request.topics:
            answers = []
            for asked in topic.partitions:
                log = self.logs[asked.partition]
                error = 0
                if topic.topic_id is not None and topic.topic_id != self.topic_id:
                    error = ErrorCode.unknown_topic_id
                elif node not in (self.leaders[asked.partition], self.nearest):
                    error = ErrorCode.not_leader_or_follower
                elif not 0 <= asked.fetch_offset <= log.end:
                    error = ErrorCode.offset_out_of_range
                near = -1
                if request.rack_id and self.nearest not in (None, node):
                    near = self.nearest or 0
                records = b"" if error or near >= 0 else log.from_offset(asked.fetch_offset)
                if records:
                    self.fetched_at.append(node)
                answers.append(
                    FetchedPartition(
                        asked.partition,
                        error,
                        log.end,
                        log.end,
                        0,
                        preferred_read_replica=near,
                        records=records,
                    )
                )
            topics.append(FetchedTopic(topic.name, topic.topic_id, answers))
        return b"".join(bytes(chunk) for chunk in encode_fetch_response(version, topics))  # type: ignore[arg-type]


def _names(topics: Any) -> list[str]:
    """The topics of a Metadata request; None is all."""
    return [TOPIC] if topics is None else [topic.name for topic in topics]


CLOSE = -1000
"""An obstacle: the connection is closed instead of a response."""


def header(batch: bytes) -> BatchHeader:
    return read_header(batch)


def always(error: int | None) -> Obstacle:
    return lambda _: error


def on_fake_cluster(
    scenario: Callable[[FakeCluster], Coroutine[Any, Any, None]],
    *,
    seed: int = 1,
    brokers: int = 2,
    partitions: int = 1,
) -> None:
    """Run that against a cluster that has been started."""
    simulation = Simulation(seed)
    fake = FakeCluster(simulation, brokers, partitions)

    async def run() -> None:
        await fake.start()
        await scenario(fake)

    simulation.run(run())
