"""`suwi perf`: how fast records are written and read, and how long one takes to arrive.

Invariant: what is measured is a producer or reader of `suwi.client` and the brokers together. It is
Python, so a fast broker waits for it; Apache Kafka's own tools generate more load.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from suwi.admin.text import count_text, size_text
from suwi.admin.topic_descriptions import existing_topic
from suwi.cli.output import complain, document, ignore, say, say_at_once
from suwi.cli.produce import Acks, Codec
from suwi.cli.session import Json, Topic, on_cluster
from suwi.client.cluster import Cluster
from suwi.client.delivery import Delivery
from suwi.client.errors import reason
from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.client.partition_sender import ProducerSettings
from suwi.client.producer import Producer
from suwi.client.reader import Reader
from suwi.env import Random, SystemClock, local_env
from suwi.model.errors import BrokerError
from suwi.model.ids import TopicPartition
from suwi.records.compression import Compression

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

_PROGRESS_S = 5.0
_VALUES = 256
_PERCENTILES = (50, 95, 99, 99.9)
_LETTERS = bytes(ord("A") + number % 26 for number in range(256))

Size = Annotated[
    int, typer.Option("--size", "-s", metavar="BYTES", min=1, help="The size of a record's value.")
]
CompressionOption = Annotated[
    Codec, typer.Option("--compression", "-z", help="Compression of the batches.")
]
AcksOption = Annotated[
    Acks, typer.Option(help="Required acknowledgements: all in-sync replicas, the leader, none.")
]


@app.command()
@on_cluster
async def produce(
    cluster: Cluster,
    topic: Topic,
    records: Annotated[
        int, typer.Option("--records", "-n", metavar="N", min=1, help="How many to write.")
    ] = 100_000,
    size: Size = 100,
    rate: Annotated[
        float | None,
        typer.Option(metavar="N", min=0.001, help="Records per second; default: without a limit."),
    ] = None,
    acks: AcksOption = Acks.ALL,
    compression: CompressionOption = Codec.NONE,
    linger: Annotated[
        float, typer.Option(metavar="MS", min=0, help="How long a batch waits for more records.")
    ] = 5,
    json: Json = False,
) -> int:
    """Write records of random letters, and measure rate and latency.

    \b
    suwi perf produce fruit --records 500000 --size 100 --rate 10000

    The latency of a record is the time from its send until it is acknowledged. Without --rate it
    is mostly the time that records wait for each other.
    """
    await existing_topic(cluster, topic)
    settings = ProducerSettings(
        acks=-1 if acks is Acks.ALL else int(acks),
        codec=Compression[compression.upper()],
        linger_s=linger / 1000,
    )
    values = _values(local_env().random, size)
    progress = _Progress("wrote", size_bytes=size, is_quiet=json)
    async with (
        Producer(cluster, SystemClock(), settings) as producer,
        asyncio.TaskGroup() as tasks,
    ):
        latencies = _Latencies(progress, tasks)
        for number in range(records):
            if rate is not None:
                await progress.wait_until(number / rate)
            latencies.add_delivery(await producer.send(topic, next(values)))
        await producer.flush()
    facts = progress.facts() | {"failed": latencies.failed, "latency_ms": latencies.facts()}
    if json:
        document({"topic": topic, **facts})
    elif progress.records:
        say(progress.text())
        say(f"latency {latencies.text()}")
    if latencies.problem is not None:
        failed = count_text(latencies.failed, "record")
        complain(f"not delivered: {failed}, the first of them: {latencies.problem}")
    return int(latencies.failed > 0)


@app.command()
@on_cluster
async def consume(
    cluster: Cluster,
    topic: Topic,
    records: Annotated[
        int | None,
        typer.Option("--records", "-n", metavar="N", min=1, help="Stop after N; default: all."),
    ] = None,
    json: Json = False,
) -> None:
    """Read the records that a topic has, the oldest first, and measure the rate.

    \b
    suwi perf consume fruit
    """
    info = await existing_topic(cluster, topic)
    partitions = [TopicPartition(topic, partition.index) for partition in info.partitions]
    firsts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    starts = {tp: at.offset for tp, at in firsts.items() if at.offset < ends[tp].offset}
    progress = _Progress("read", is_quiet=json)
    async with Reader(cluster, starts) as reader:
        while reader.positions and (records is None or progress.records < records):
            for fetched in await reader.read():
                end = ends[fetched.partition].offset
                for record in fetched.records:
                    if record.offset < end and progress.records != records:
                        progress.add(1, len(record.key or b"") + len(record.value or b""))
                if fetched.next_offset >= end:
                    del reader.positions[fetched.partition]
    if json:
        document({"topic": topic, **progress.facts()})
    else:
        say(progress.text())


@app.command()
@on_cluster
async def latency(
    cluster: Cluster,
    topic: Topic,
    records: Annotated[
        int, typer.Option("--records", "-n", metavar="N", min=1, help="How many, one by one.")
    ] = 1000,
    size: Size = 100,
    acks: AcksOption = Acks.ALL,
    json: Json = False,
) -> None:
    """Write one record after the other, and measure how long each takes to be read.

    \b
    suwi perf latency fruit

    The records go to the first partition of the topic, whose reader is already waiting for each.
    """
    info = await existing_topic(cluster, topic)
    partition = TopicPartition(topic, info.partitions[0].index)
    end = (await list_offsets(cluster, {partition: LATEST}))[partition].offset
    values = _values(local_env().random, size)
    times = _Times()
    settings = ProducerSettings(acks=-1 if acks is Acks.ALL else int(acks))
    async with (
        Producer(cluster, SystemClock(), settings) as producer,
        cluster.twin() as read_from,
        Reader(read_from, {partition: end}) as reader,
    ):
        for _ in range(records):
            times.add(await _round_trip(producer, reader, partition, next(values)))
    if json:
        document({"topic": topic, "records": records, "latency_ms": times.facts()})
    else:
        say(f"{count_text(records, 'record')}, one by one, from its send until it is read:")
        say(f"latency {times.text()}")


async def _round_trip(
    producer: Producer, reader: Reader, partition: TopicPartition, value: bytes
) -> float:
    """The milliseconds from the send of a record until it is read."""
    waiting = asyncio.ensure_future(_read(reader, value))  # owner: awaited below
    await asyncio.sleep(0)  # its fetch leaves first
    began_s = asyncio.get_running_loop().time()
    try:
        await (await producer.send(partition.topic, value, partition=partition.partition))
        ended_s = await waiting
    finally:
        waiting.cancel()
    return 1000 * (ended_s - began_s)


async def _read(reader: Reader, value: bytes) -> float:
    """The loop's time when a record with this value is read."""
    while True:
        for fetched in await reader.read():
            if any(record.value == value for record in fetched.records):
                return asyncio.get_running_loop().time()


def _values(random: Random, size_bytes: int) -> Iterator[bytes]:
    """Values of random letters, some hundred in turn, so that neighbours differ."""
    values = [random.token(size_bytes).translate(_LETTERS) for _ in range(_VALUES)]
    while True:
        yield from values


# -- what is measured ------------------------------------------------------------------------------


class _Progress:
    """Records and bytes since the beginning, told every five seconds."""

    def __init__(self, verb: str, *, size_bytes: int = 0, is_quiet: bool) -> None:
        self.records = 0
        self._verb = verb
        self._size_bytes = size_bytes
        """Of each record, where all have one size."""
        self._bytes = 0
        self._loop = asyncio.get_running_loop()
        self._began_s = self._ended_s = self._told_s = self._loop.time()
        self._told_records = 0
        self._say = ignore if is_quiet else say_at_once

    def add(self, records: int, size_bytes: int = 0) -> None:
        self.records += records
        self._bytes += size_bytes + records * self._size_bytes
        self._ended_s = now_s = self._loop.time()
        passed_s = now_s - self._told_s
        if passed_s >= _PROGRESS_S:
            per_s = (self.records - self._told_records) / passed_s
            self._say(
                f"{now_s - self._began_s:.0f} s: {self._verb} {self.records:,} records, "
                f"{per_s:,.0f} records/s"
            )
            self._told_s, self._told_records = now_s, self.records

    async def wait_until(self, after_s: float) -> None:
        """Wait until so long after the beginning."""
        pause_s = self._began_s + after_s - self._loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)

    def facts(self) -> dict[str, Any]:
        took_s = max(self._ended_s - self._began_s, 1e-6)
        return {
            "records": self.records,
            "bytes": self._bytes,
            "seconds": took_s,
            "records_per_s": self.records / took_s,
            "bytes_per_s": self._bytes / took_s,
        }

    def text(self) -> str:
        facts = self.facts()
        return (
            f"{self._verb} {self.records:,} records in {facts['seconds']:.2f} s: "
            f"{facts['records_per_s']:,.0f} records/s, {size_text(round(facts['bytes_per_s']))}/s"
        )


class _Times:
    """Durations in milliseconds: their average, percentiles and maximum."""

    def __init__(self) -> None:
        self._ms = array("d")

    def add(self, ms: float) -> None:
        self._ms.append(ms)

    def facts(self) -> dict[str, float]:
        found = sorted(self._ms)
        if not found:
            return {}
        last = len(found) - 1
        percentiles = {f"p{p:g}": found[round(last * p / 100)] for p in _PERCENTILES}
        return {"average": sum(found) / len(found), **percentiles, "maximum": found[-1]}

    def text(self) -> str:
        return ", ".join(f"{name} {ms:.1f} ms" for name, ms in self.facts().items())


class _Latencies(_Times):
    """How long each record waited for its acknowledgement. Batches of one partition are
    acknowledged in order, so one task for each partition sees all of them end."""

    def __init__(self, progress: _Progress, tasks: asyncio.TaskGroup) -> None:
        super().__init__()
        self.failed = 0
        self.problem: str | None = None
        self._progress = progress
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[TopicPartition, deque[tuple[float, Delivery]]] = {}

    def add_delivery(self, delivery: Delivery) -> None:
        waiting = self._waiting.setdefault(delivery.partition, deque())
        waiting.append((self._loop.time(), delivery))
        if len(waiting) == 1:
            self._tasks.create_task(self._collect(waiting))  # owner: the task group

    async def _collect(self, waiting: deque[tuple[float, Delivery]]) -> None:
        while waiting:
            await waiting[0][1].wait()
            now_s = self._loop.time()
            while waiting and waiting[0][1].is_done:
                sent_s, delivery = waiting.popleft()
                self._take(delivery, 1000 * (now_s - sent_s))

    def _take(self, delivery: Delivery, ms: float) -> None:
        try:
            delivery.result()
        except (BrokerError, OSError) as error:
            self.failed += 1
            self.problem = self.problem or reason(error)
            return
        self._progress.add(1)
        self.add(ms)
