"""kill -9 under load, and full disks: acknowledged records are stored once and in order."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.wire.versions import ApiKey
from tests.broker_process import BrokerProcess
from tests.clients.drivers import PATIENCE_S
from tests.raw_client import RawClient, new_topic

TOPIC = "load"
PARTITIONS = 3
KILLS = 4
_WAL_HEADER_BYTES = 32
_WAL_FRAME_BYTES = 4_096 + 24


class Load:
    """Producers that run until they are stopped, and the acknowledgements of their records."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.sent = 0
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._guard, args=(produce, f"producer-{n}"))
            # Without kafka-python: it leaks the sockets it cannot connect while the broker is down.
            for n, produce in enumerate([self._confluent, self._aiokafka] * 2)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Stop sending and wait until every record is acknowledged."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def wait_for(self, acknowledged: int) -> None:
        """Return when this many more records are acknowledged."""
        with self._changed:
            goal = len(self.acknowledged) + acknowledged
            done = self._changed.wait_for(
                lambda: len(self.acknowledged) >= goal or bool(self._failures), PATIENCE_S
            )
        assert done, "the producers make no progress"

    def _guard(self, produce: Callable[[str], None], name: str) -> None:
        try:
            produce(name)
        except BaseException as failure:
            with self._changed:
                self._failures.append(failure)
                self._changed.notify_all()

    def _values(self, name: str) -> Iterator[tuple[int, bytes]]:
        """The next record's partition and value, until the load is stopped."""
        number = 0
        while not self._stop.is_set():
            with self._changed:
                self.sent += 1
            yield number % PARTITIONS, f"{name} {number:06d} ".encode() + b"." * 200
            number += 1

    def _acknowledge(self, partition: int, offset: int, value: bytes) -> None:
        with self._changed:
            assert (partition, offset) not in self.acknowledged, "two records at one offset"
            self.acknowledged[partition, offset] = value
            self._changed.notify_all()

    # -- the clients -----------------------------------------------------------------------------

    def _confluent(self, name: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.num.messages": 50,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
            }
        )

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            self._acknowledge(message.partition(), message.offset(), message.value())

        for partition, value in self._values(name):
            producer.produce(TOPIC, value, partition=partition, on_delivery=delivered)
            while len(producer) > 500:
                producer.poll(1)
        assert producer.flush(PATIENCE_S) == 0

    def _aiokafka(self, name: str) -> None:
        async def run() -> None:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.address,
                enable_idempotence=True,
                linger_ms=5,
                retry_backoff_ms=20,
                # It drops batches that are older, and with them the sequence of all later ones.
                request_timeout_ms=PATIENCE_S * 1000,
            )
            await producer.start()
            try:
                waiting = []
                for partition, value in self._values(name):
                    waiting.append((value, await producer.send(TOPIC, value, partition=partition)))
                    if len(waiting) >= 200:
                        await self._acknowledge_all(waiting)
                await self._acknowledge_all(waiting)
            finally:
                await producer.stop()

        asyncio.run(run())

    async def _acknowledge_all(self, waiting: list[tuple[bytes, Any]]) -> None:
        for value, future in waiting:
            metadata = await asyncio.wait_for(future, PATIENCE_S)
            self._acknowledge(metadata.partition, metadata.offset, value)
        waiting.clear()


def check_acknowledged_records_are_stored_once_and_in_order(
    broker: BrokerProcess, load: Load
) -> None:
    with RawClient(broker.address) as client:
        ends = [client.fetch(TOPIC, 0, partition=p).high_watermark for p in range(PARTITIONS)]
    seen: dict[bytes, int] = defaultdict(int)
    for partition in range(PARTITIONS):
        records = broker.stored_records(TOPIC, partition)
        assert [record.offset for record in records] == list(range(ends[partition]))
        last_of: dict[bytes, bytes] = {}
        for record in records:
            assert record.value is not None
            seen[record.value] += 1
            producer, _, number = record.value.partition(b" ")
            assert number > last_of.get(producer, b""), f"{record.value!r} is out of order"
            last_of[producer] = number
            acknowledged = load.acknowledged.get((partition, record.offset), record.value)
            assert acknowledged == record.value, "a different record than was acknowledged"
    assert set(seen.values()) == {1}, "a record is stored twice"
    assert set(load.acknowledged.values()) <= set(seen), "an acknowledged record is lost"
    # The producers waited for every record, so every stored record must be acknowledged.
    assert len(seen) == len(load.acknowledged) == load.sent


@pytest.mark.parametrize("segment_bytes", [1 << 30, 50_000], ids=["one segment", "many segments"])
def test_kill_9_under_load_does_not_lose_duplicate_or_reorder_records(
    tmp_path: Path, segment_bytes: int
) -> None:
    random = Random(segment_bytes)
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC, PARTITIONS, segment_bytes=str(segment_bytes))
        with Load(broker.address) as load:
            for _ in range(KILLS):
                load.wait_for(random.randrange(100, 1500))
                broker.kill()
                broker.start()
            load.wait_for(500)
            load.finish()
        check_acknowledged_records_are_stored_once_and_in_order(broker, load)
        broker.stop()
        broker.start()
        check_acknowledged_records_are_stored_once_and_in_order(broker, load)
        assert "Traceback" not in broker.log


# -- full disks ------------------------------------------------------------------------------------


class SmallDisk(ABC):
    """A data directory on a disk that can become full and get space again."""

    path: Path
    """The data directory itself; the broker's log output is outside."""

    @abstractmethod
    def limit(self, broker: BrokerProcess) -> None:
        """From now on only a few megabytes are left."""

    @abstractmethod
    def make_room(self, broker: BrokerProcess) -> None: ...


class SmallFileSystem(SmallDisk):
    """A file system of a few megabytes, mostly filled by another file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir()
        options = ("-t", "tmpfs", "-o", "size=17m", "suwi-test")
        mounted = subprocess.run(["mount", *options, path], capture_output=True, check=False)
        if mounted.returncode:
            pytest.skip(f"no small file system can be mounted here: {mounted.stderr.decode()}")
        self._ballast = path / "ballast"
        self._ballast.touch()

    def limit(self, broker: BrokerProcess) -> None:
        self._ballast.write_bytes(bytes(8 << 20))

    def fill(self) -> None:
        """Use all space, so that not even a small file fits."""
        with self._ballast.open("ab", buffering=0) as ballast, suppress(OSError):
            while ballast.write(bytes(4096)):
                pass

    def fill_reserve(self) -> None:
        """As `fill`, and without the space that is reserved for metadata: as if it had been used,
        or as if the disk had been full before it could be reserved."""
        wal = self.path / "suwi-metadata.sqlite-wal"
        used_bytes = len(wal.read_bytes().rstrip(b"\0"))
        frames = -(-(used_bytes - _WAL_HEADER_BYTES) // _WAL_FRAME_BYTES) if used_bytes else 0
        os.truncate(wal, _WAL_HEADER_BYTES + frames * _WAL_FRAME_BYTES if frames else 0)
        self.fill()

    def make_room(self, broker: BrokerProcess) -> None:
        self._ballast.unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self.path], check=True)


class SmallFiles(SmallDisk):
    """The kernel limits the size of each file, until the limit is raised."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir()

    def limit(self, broker: BrokerProcess) -> None:
        self._set(broker, 4 << 20)

    def make_room(self, broker: BrokerProcess) -> None:
        self._set(broker, resource.RLIM_INFINITY)

    def _set(self, broker: BrokerProcess, bytes_max: int) -> None:
        limits = (bytes_max, resource.RLIM_INFINITY)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[SmallFileSystem]:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a small file system")
    disk = SmallFileSystem(tmp_path / "small")
    yield disk
    disk.unmount()


@pytest.fixture
def small_files(tmp_path: Path) -> SmallFiles:
    if sys.platform != "linux":
        pytest.skip("only Linux can raise another process's limit on the size of files")
    return SmallFiles(tmp_path / "small")


@pytest.fixture(params=["small_file_system", "small_files"])
def small_disk(request: pytest.FixtureRequest) -> SmallDisk:
    return request.getfixturevalue(request.param)


def large_batch(n: int) -> bytes:
    return bytes(build_batch([Record(value=b"%06d" % n + bytes(100_000))]))


def values(records: list[Record]) -> list[bytes]:
    return [(record.value or b"")[:6] for record in records]


def test_a_full_disk_refuses_writes_and_recovers_when_there_is_space(small_disk: SmallDisk) -> None:
    with BrokerProcess(small_disk.path) as broker:
        small_disk.limit(broker)
        with RawClient(broker.address) as client:
            client.create_topic("t")
            stored = 0
            while (answer := client.produce("t", large_batch(stored))).error == ErrorCode.none:
                assert answer.base_offset == stored
                stored += 1
            assert stored > 10

            # Only KAFKA_STORAGE_ERROR, however often it is tried; all accepted records are stored.
            for _ in range(5):
                assert (
                    client.produce("t", large_batch(stored)).error == ErrorCode.kafka_storage_error
                )
            assert client.fetch("t", stored - 1).high_watermark == stored
            assert client.fetch("t", 0).error_code == ErrorCode.none
            expected = [b"%06d" % n for n in range(stored)]
            assert values(broker.stored_records("t")) == expected
            assert client.ask(ApiKey.API_VERSIONS, 0, {}).error_code == ErrorCode.none

            small_disk.make_room(broker)
            for n in range(stored, stored + 20):
                assert client.produce("t", large_batch(n)) == (ErrorCode.none, n)
        broker.kill()
        broker.start()
        assert values(broker.stored_records("t")) == [b"%06d" % n for n in range(stored + 20)]
        with RawClient(broker.address) as client:
            assert client.produce("t", large_batch(stored + 20)) == (ErrorCode.none, stored + 20)
        assert "Traceback" not in broker.log


def test_a_full_disk_refuses_new_topics_and_producers_until_there_is_space(
    small_file_system: SmallFileSystem,
) -> None:
    new_producer = {"transactional_id": None, "transaction_timeout": 60_000}
    topics = {"topics": [new_topic("new")], "timeout": 10_000, "validate_only": False}
    missing = {
        "topics": [{"name": "by-itself", "topic_id": None}],
        "allow_auto_topic_creation": True,
        "include_topic_authorized_operations": False,
    }
    with (
        BrokerProcess(small_file_system.path) as broker,
        RawClient(broker.address) as client,
    ):
        small_file_system.fill_reserve()
        (refused,) = client.ask(ApiKey.CREATE_TOPICS, 7, topics).topics
        assert refused.error_code == ErrorCode.request_timed_out
        assert "disk full" in refused.error_message
        answer = client.ask(ApiKey.INIT_PRODUCER_ID, 2, new_producer)
        assert answer.error_code == ErrorCode.coordinator_load_in_progress
        (asked_for,) = client.ask(ApiKey.METADATA, 12, missing).topics
        assert asked_for.error_code == ErrorCode.leader_not_available

        small_file_system.make_room(broker)
        (created,) = client.ask(ApiKey.CREATE_TOPICS, 7, topics | {"timeout": 60_000}).topics
        assert created.error_code == ErrorCode.none
        answer = client.ask(ApiKey.INIT_PRODUCER_ID, 2, new_producer)
        assert answer.error_code == ErrorCode.none
        assert client.produce("new", large_batch(0)) == (ErrorCode.none, 0)
        assert "Traceback" not in broker.log


def test_a_broker_that_cannot_stop_cleanly_says_so_and_loses_nothing(
    small_file_system: SmallFileSystem,
) -> None:
    with BrokerProcess(small_file_system.path) as broker:
        with RawClient(broker.address) as client:
            client.create_topic("t")
            assert client.produce("t", large_batch(0)) == (ErrorCode.none, 0)
        small_file_system.fill()
        said = broker.stop()
        assert "stopped cleanly" not in said
        assert "the next start checks" in said
        small_file_system.make_room(broker)
        broker.start()
        assert values(broker.stored_records("t")) == [b"000000"]
        assert "Traceback" not in broker.log


def test_a_broker_that_starts_on_a_full_disk_waits_for_space_and_says_so(
    small_file_system: SmallFileSystem,
) -> None:
    with BrokerProcess(small_file_system.path) as broker:
        with RawClient(broker.address) as client:
            client.create_topic("t")
            assert client.produce("t", large_batch(0)) == (ErrorCode.none, 0)
        broker.kill()
        small_file_system.fill_reserve()
        with when_it_waits(broker, lambda: small_file_system.make_room(broker)):
            broker.start()
        with RawClient(broker.address) as client:
            assert client.fetch("t", 0).high_watermark == 1
            assert client.produce("t", large_batch(1)) == (ErrorCode.none, 1)


def test_a_broker_that_waits_for_space_can_be_stopped(small_file_system: SmallFileSystem) -> None:
    with BrokerProcess(small_file_system.path) as broker:
        broker.kill()
        small_file_system.fill_reserve()
        with (
            when_it_waits(broker, lambda: os.kill(broker.pid, signal.SIGTERM)),
            pytest.raises(AssertionError, match="did not start"),
        ):
            broker.start()


@contextmanager
def when_it_waits(broker: BrokerProcess, act: Callable[[], None]) -> Iterator[None]:
    """Act as soon as the broker has logged that it waits for its metadata store."""
    over = threading.Event()

    def watch() -> None:
        while "metadata store unavailable, retrying" not in broker.log and not over.wait(0.01):
            pass
        act()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    assert 'reason="disk full"' in broker.log
