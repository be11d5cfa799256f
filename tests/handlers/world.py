"""Replicas of one broker on a simulated disk, for tests that call handlers directly."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any
from uuid import UUID

from suwi.env import Env
from suwi.log.file_cache import FileCache
from suwi.log.log_directories import LogDirectories
from suwi.metadata.dynamic_broker_config import DynamicBrokerConfig
from suwi.metadata.image import (
    CLUSTER,
    LIVE,
    TOPICS,
    BrokerInfo,
    Endpoint,
    ImageBuilder,
    PartitionState,
    Topic,
    encode_broker,
    encode_shards,
    encode_topic,
)
from suwi.model.broker_config import parse_broker_config
from suwi.model.ids import LeaderEpoch, NodeId, TopicId
from suwi.net.answers import Chunk, Reply
from suwi.records.batch import read_header
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica.log_preparation import Turns
from suwi.replica.replica_manager import ReplicaManager
from suwi.sim import ManualClock, SimDisk
from suwi.sim.random import SimRandom
from tests.supervision import tasks_that_must_not_fail

HERE, OTHER = NodeId(1), NodeId(2)
EPOCHS = {HERE: 11, OTHER: 12}


class _EndlessTurns(Turns):
    """All logs are opened at once, however many there are."""

    def take(self) -> bool:
        return True


class World:
    """Deterministic: two worlds with the same calls have the same state."""

    def __init__(self, **settings: str) -> None:
        self.clock = ManualClock()
        self.disk = disk = SimDisk()
        env = Env(clock=self.clock, disk=disk, random=SimRandom(0))
        self.files = FileCache(disk, 100)
        directories = LogDirectories(env, ["/data"], self.files)
        directories.open()
        for directory in directories:
            directory.begin()
        config = parse_broker_config(
            {key.replace("_", "."): value for key, value in settings.items()}
        ).config
        self.replicas = ReplicaManager(
            HERE,
            directories,
            self.clock,
            DynamicBrokerConfig(config),
            tasks_that_must_not_fail(),
            lambda path: None,
        )
        context = self.replicas._context
        self.replicas._context = context._replace(turns=_EndlessTurns())
        self._topics: dict[str, Topic] = {}
        self.live_as()

    def live_as(self) -> None:
        self._follow()
        self.set_broker_epoch(EPOCHS[HERE])

    def set_broker_epoch(self, epoch: int) -> None:
        _all_slices_at_once(self.replicas.set_broker_epoch(epoch))

    def add(self, name: str, states: list[PartitionState], **configs: str) -> None:
        made = {key.replace("_", "."): value for key, value in configs.items()}
        topic_id = TopicId(UUID(int=len(self._topics) + 1))
        self._topics[name] = Topic(name, topic_id, made, tuple(states))
        self._follow()

    def elect(self, name: str, index: int, state: PartitionState) -> None:
        topic = self._topics[name]
        states = list(topic.partitions)
        states[index] = state
        self._topics[name] = topic._replace(partitions=tuple(states))
        self._follow()

    def delete(self, name: str) -> None:
        del self._topics[name]
        self._follow()

    def id_of(self, name: str) -> UUID:
        topic = self._topics.get(name)
        return topic.id if topic is not None else UUID(int=99)

    def append(self, name: str, index: int, *values: bytes, timestamp: int = 0) -> None:
        partition = self.replicas.leader_of(name, index)
        records = [Record(value=value, timestamp=timestamp) for value in values]
        batch = memoryview(build_batch(records))
        partition.append(batch, read_header(batch), self.clock.now_ms())

    def _follow(self) -> None:
        entries = {CLUSTER: b"test"}
        for node, epoch in EPOCHS.items():
            endpoints = (Endpoint("PLAINTEXT", f"b{node}", 9092),)
            entries[f"{LIVE}{node}"] = encode_broker(BrokerInfo(node, endpoints, None, epoch))
        for name, topic in self._topics.items():
            entries |= encode_shards(topic)
            entries[TOPICS + name] = encode_topic(topic)
        old = self.replicas.image
        new = ImageBuilder().apply(old.sequence + 1, entries)
        _all_slices_at_once(self.replicas.apply_image(old, new))


def _all_slices_at_once(work: Coroutine[Any, Any, None]) -> None:
    with suppress(StopIteration):
        while True:
            work.send(None)


def led(*followers: NodeId, epoch: int = 0) -> PartitionState:
    """A partition that this broker leads, with all replicas in sync."""
    replicas = (HERE, *followers)
    return PartitionState(HERE, LeaderEpoch(epoch), epoch, replicas, replicas)


def followed(epoch: int = 0) -> PartitionState:
    """A partition that the other broker leads."""
    replicas = (OTHER, HERE)
    return PartitionState(OTHER, LeaderEpoch(epoch), epoch, replicas, replicas)


def sent(reply: Reply) -> bytes:
    """The bytes of a reply; releases its pins."""
    body = b"".join(map(_bytes_of, reply.chunks))
    if reply.release is not None:
        reply.release()
    return body


def _bytes_of(chunk: Chunk) -> bytes:
    if isinstance(chunk, bytes | bytearray | memoryview):
        return bytes(chunk)
    assert chunk.is_current()
    return bytes(chunk.file.pread(chunk.size_bytes, chunk.position))


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
